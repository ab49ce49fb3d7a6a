"""What a node-day takes in Kafka and the database: by topic, column, form of the records and table.

Nodes of 8 GPUs and 8 NIC ports at one sample a second, with the steps of all ranks of one job. Values have
the resolution of the exporter's sources, and are missing where it does not read them; a batch of the log is
built by the exporter's client. The roll-ups are written as the storing worker writes them, to the database of
``SLOWRANK_TEST_DSN`` or an embedded one. Where that is TimescaleDB's community edition, chunks are compressed
as its policy does.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import psycopg
import zstandard
from kafka.record.default_records import DefaultRecordBatchBuilder
from psycopg import sql

from benchmarks.database import own_database
from benchmarks.scale.as_exported import sent
from exporters.publisher import ZSTD_LEVEL, compress_more
from simulator import Cluster, ClusterSpec
from simulator.cluster.layout import one_job
from slowrank.settings import Settings
from slowrank.telemetry import JobSteps, NodeSample, encode
from slowrank.telemetry.schema import ITEM_SIZE, SAMPLE_SCHEMAS, Owner
from store.telemetry.batches import write_rows
from streams.rollup.rollup import RollUp, Rows
from streams.runtime.kafka.record_producer import key_of, topic_of
from streams.watermark import Watermark

TICKS = (1, 2, 3, 5, 10)
LEVELS = (3, 9, ZSTD_LEVEL, 19)
SHOWN = 16
TABLES = ("samples_10s", "nic_10s", "host_10s", "steps_10s")
DAY = 86_400.0

# Of the log, which does not depend on how long it is; a table's chunk compresses better when it is full.
LOG_SECONDS = 1800

ROWS_AT_ONCE = 2000
GOAL_KAFKA_MB, GOAL_DATABASE_MB = 25.0, 15.0

# Mean age of a row when it is compressed: after 12 hours by the end of its chunk of 6 (migrations/0005).
COMPRESSED_AFTER_HOURS = 12.0 + 6.0 / 2

Telemetry = Sequence[NodeSample | JobSteps]


def main(argv: Sequence[str]) -> int:
    """Print both tables; return 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks storage", description=__doc__)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=6 * 3600, help="a chunk of the tables by default")
    args = parser.parse_args(argv)
    spec = ClusterSpec(nodes=args.nodes, jobs=(one_job(args.nodes, 8),), name="storage")
    made = Cluster(spec, seed=5).run(float(args.seconds))
    telemetry = [sent(record) for record in made if isinstance(record, NodeSample | JobSteps)]
    compress_more()
    logged = min(args.seconds, LOG_SECONDS)
    log = [record for record in telemetry if record.ts < spec.start + logged]
    kafka = _kafka(log, args.nodes * logged / DAY)
    _forms(log, args.nodes * logged / DAY)
    _columns(log)
    database = _database(telemetry, args.nodes * args.seconds / DAY)
    return int(kafka > GOAL_KAFKA_MB or database > GOAL_DATABASE_MB)


def _kafka(telemetry: Telemetry, days: float) -> float:
    """Print the size of the log; return that of a batch for each tick."""
    print("| ticks in a batch | samples, MB a node-day | steps | together |\n|---:|---:|---:|---:|")
    totals = []
    for ticks in TICKS:
        size: dict[str, int] = defaultdict(int)
        for topic, batch in _batches(telemetry, ticks):
            size[topic] += len(_packed(batch))
        samples, steps = (size[topic] / 1e6 / days for topic in ("node-samples", "job-steps"))
        totals.append(samples + steps)
        print(f"| {ticks} | {samples:.1f} | {steps:.1f} | {totals[-1]:.1f} |", flush=True)
    return totals[0]


def _forms(telemetry: Telemetry, days: float) -> None:
    """Print the size of the log's values, a batch for each tick, by form and level of compression."""
    print("\n| values, zstd level | samples and steps, MB a node-day | CPU of a batch, µs |\n|---|---:|---:|")
    batches = [batch for _, batch in _batches(telemetry, 1)]
    first, second = (
        [b"".join(form(record) for record in batch) for batch in batches]
        for form in (msgspec.msgpack.encode, encode)
    )
    for form, values, level in (("version 1", first, 3), *(("version 2", second, level) for level in LEVELS)):
        compressor = zstandard.ZstdCompressor(level=level)
        began = time.process_time()
        size = sum(len(compressor.compress(value)) for value in values)
        taken = 1e6 * (time.process_time() - began) / len(values)
        print(f"| {form}, {level} | {size / 1e6 / days:.1f} | {taken:.0f} |", flush=True)


def _columns(telemetry: Telemetry) -> None:
    """Print what the dearest columns of a sample take: how much smaller it is with zeros in their place."""
    found = [record for record in telemetry if isinstance(record, NodeSample)]
    samples = found[:: max(1, len(found) // 50)]
    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)

    def mean(records: Iterable[NodeSample]) -> float:
        return float(np.mean([len(compressor.compress(encode(record))) for record in records]))

    whole = mean(samples)
    bare = mean(msgspec.structs.replace(s, gpu=b"", nic=b"", host=b"") for s in samples)
    taken: dict[str, float] = {"all but the columns": bare}
    owners: tuple[Owner, ...] = ("gpu", "nic", "host")
    for owner in owners:
        for name in SAMPLE_SCHEMAS[samples[0].schema].block(owner).names:
            taken[f"`{name}`"] = whole - mean(_without(s, owner, name) for s in samples)
    print(f"\n| in a sample of {whole:.0f} bytes, compressed | bytes | MB a node-day |\n|---|---:|---:|")
    for name, size in sorted(taken.items(), key=lambda item: -item[1])[:SHOWN]:
        print(f"| {name} | {size:.1f} | {size * DAY / 1e6:.1f} |")


def _without(sample: NodeSample, owner: Owner, name: str) -> NodeSample:
    block, data = SAMPLE_SCHEMAS[sample.schema].block(owner), bytearray(getattr(sample, owner))
    start, dtype = block.offsets[name]
    count = len(data) // block.row_size
    data[start * count : (start + ITEM_SIZE[dtype]) * count] = bytes(ITEM_SIZE[dtype] * count)
    return msgspec.structs.replace(sample, **{owner: bytes(data)})


def _batches(telemetry: Telemetry, ticks: int) -> Iterator[tuple[str, Telemetry]]:
    """Yield the records that a node sends to a topic in so many seconds."""
    batches: dict[tuple[str, str, int], list[NodeSample | JobSteps]] = defaultdict(list)
    for record in telemetry:
        batches[topic_of(record), record.node, int(record.ts) // ticks].append(record)
    for (topic, _, _), batch in batches.items():
        yield topic, batch


def _packed(records: Telemetry) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=DefaultRecordBatchBuilder.CODEC_ZSTD,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for offset, record in enumerate(records):
        builder.append(offset, int(record.ts * 1000), key_of(record), encode(record), headers=[])
    return bytes(builder.build())


def _database(telemetry: Telemetry, days: float) -> float:
    """Print the size of each table; return that of all in MB a node-day, over the retention by default."""
    with own_database() as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        rows = list(_rolled(telemetry))
        for first in range(0, len(rows), ROWS_AT_ONCE):
            write_rows(conn, rows[first : first + ROWS_AT_ONCE])
        sizes = _sizes(conn)
        packed = {table: _compressed(conn, table) for table in TABLES} if _compresses(conn) else {}
    print("\n| table | rows a node-day | bytes a row, with indexes ", end="")
    print("| MB a node-day | of it indexes | compressed |\n|---|---:|---:|---:|---:|---:|")
    for table, (count, *each) in sizes.items():
        size, indexes = (held / 1e6 / days for held in each)
        small = f"{packed[table] / 1e6 / days:.1f}" if packed else "–"
        print(f"| `{table}` | {count / days:,.0f} | {each[0] / count:.0f} ", end="")
        print(f"| {size:.1f} | {indexes:.1f} | {small} |")
    total, indexes = (sum(held[i] for held in sizes.values()) / 1e6 / days for i in (1, 2))
    if not packed:
        print(f"| together | | | {total:.1f} | {indexes:.1f} | – |")
        return total
    small_total = sum(packed.values()) / 1e6 / days
    kept = Settings().retention_rollup_days
    plain = COMPRESSED_AFTER_HOURS / 24 / kept
    mean = plain * total + (1 - plain) * small_total
    print(f"| together | | | {total:.1f} | {indexes:.1f} | {small_total:.1f} |")
    print(f"\nOver {kept:g} days, of which {plain:.0%} are not compressed yet: {mean:.1f} MB a node-day")
    return mean


def _compresses(conn: psycopg.Connection[tuple[Any, ...]]) -> bool:
    """Return whether the server has the edition of TimescaleDB that compresses."""
    return conn.execute("SELECT current_setting('timescaledb.license', true)").fetchone() == ("timescale",)


def _compressed(conn: psycopg.Connection[tuple[Any, ...]], table: str) -> int:
    """Compress all chunks of a table; return the bytes that they take, with indexes."""
    conn.execute("SELECT compress_chunk(chunk) FROM show_chunks(%s::regclass) AS chunk", (table,))
    row = conn.execute(
        "SELECT sum(after_compression_total_bytes) FROM hypertable_compression_stats(%s::regclass)", (table,)
    ).fetchone()
    assert row is not None
    return int(row[0])


def _rolled(telemetry: Iterable[NodeSample | JobSteps]) -> Rows:
    rollup, watermark, rows = RollUp(), Watermark(), []
    for record in telemetry:
        for second in watermark.advance(record.ts):
            rows += rollup.tick(float(second))
        rows += rollup.add(record)
    return rows + rollup.flush()


def _sizes(conn: psycopg.Connection[tuple[Any, ...]]) -> Mapping[str, tuple[int, int, int]]:
    """Return rows, bytes with indexes, and bytes of indexes of each table, its chunks included."""
    found = {}
    for table in TABLES:
        query = sql.SQL(
            "WITH parts AS (SELECT {name}::regclass AS part UNION ALL "
            "SELECT inhrelid FROM pg_inherits WHERE inhparent = {name}::regclass) "
            "SELECT (SELECT count(*) FROM {table}), sum(pg_total_relation_size(part)), "
            "sum(pg_indexes_size(part)) FROM parts"
        ).format(table=sql.Identifier(table), name=sql.Literal(table))
        row = conn.execute(query).fetchone()
        assert row is not None
        count, size, indexes = map(int, row)
        found[table] = count, size, indexes
    return found
