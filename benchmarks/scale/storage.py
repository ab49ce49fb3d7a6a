"""What a node-day takes in Kafka and the database, by table and by the ticks that an exporter sends at once.

Nodes of 8 GPUs and 8 NIC ports at one sample a second, with the steps of all ranks of one job. A batch of the
log is built as a producer builds it, compressed with zstd. The roll-ups are written as the storing worker
writes them, to the database of ``SLOWRANK_TEST_DSN`` or an embedded one; columns are not compressed there.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import cramjam
import psycopg
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from psycopg import sql

from benchmarks.database import own_database
from simulator import Cluster, ClusterSpec
from simulator.cluster.layout import one_job
from slowrank.telemetry import JobSteps, NodeSample, encode
from store.telemetry.batches import write_rows
from streams.rollup.rollup import RollUp, Rows
from streams.runtime.kafka.record_producer import key_of, topic_of
from streams.watermark import Watermark

TICKS = (1, 2, 3, 5, 10)
LEVELS = (1, 3, 9, 19)
TABLES = ("samples_10s", "nic_10s", "host_10s", "steps_10s")
DAY = 86_400.0
ROWS_AT_ONCE = 2000
GOAL_KAFKA_MB, GOAL_DATABASE_MB = 25.0, 15.0

Telemetry = Sequence[NodeSample | JobSteps]


def main(argv: Sequence[str]) -> int:
    """Print both tables; return 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks storage", description=__doc__)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--seconds", type=int, default=1800)
    args = parser.parse_args(argv)
    spec = ClusterSpec(nodes=args.nodes, jobs=(one_job(args.nodes, 8),), name="storage")
    made = Cluster(spec, seed=5).run(float(args.seconds))
    telemetry = [record for record in made if isinstance(record, NodeSample | JobSteps)]
    days = args.nodes * args.seconds / DAY
    kafka = _kafka(telemetry, days)
    _levels(telemetry, days)
    database = _database(telemetry, days)
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


def _levels(telemetry: Telemetry, days: float) -> None:
    """Print the size of the log's values, a batch for each tick, by level of compression."""
    print("\n| zstd level | samples and steps, MB a node-day | CPU of a batch, µs |\n|---:|---:|---:|")
    values = [b"".join(map(encode, batch)) for _, batch in _batches(telemetry, 1)]
    for level in LEVELS:
        began = time.process_time()
        size = sum(len(cramjam.zstd.compress(value, level=level)) for value in values)
        taken = 1e6 * (time.process_time() - began) / len(values)
        print(f"| {level} | {size / 1e6 / days:.1f} | {taken:.0f} |", flush=True)


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
        compression_type=DefaultRecordBatch.CODEC_ZSTD,
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
    """Print the size of each table; return that of all in MB a node-day."""
    with own_database() as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        rows = list(_rolled(telemetry))
        for first in range(0, len(rows), ROWS_AT_ONCE):
            write_rows(conn, rows[first : first + ROWS_AT_ONCE])
        kind = conn.execute("SELECT count(*) FROM pg_extension WHERE extname = 'timescaledb'").fetchone()
        print(f"\n{'TimescaleDB' if kind and kind[0] else 'PostgreSQL'}, not compressed\n")
        print("| table | rows a node-day | bytes a row, with indexes | MB a node-day | of it indexes |")
        print("|---|---:|---:|---:|---:|")
        sizes = _sizes(conn)
    for table, (count, *each) in sizes.items():
        size, indexes = (held / 1e6 / days for held in each)
        print(f"| `{table}` | {count / days:,.0f} | {each[0] / count:.0f} | {size:.1f} | {indexes:.1f} |")
    total, indexes = (sum(held[i] for held in sizes.values()) / 1e6 / days for i in (1, 2))
    print(f"| together | | | {total:.1f} | {indexes:.1f} |")
    return total


def _rolled(telemetry: Iterable[NodeSample | JobSteps]) -> Rows:
    rollup, watermark, rows = RollUp(), Watermark(), []
    for record in telemetry:
        for second in watermark.advance(record.ts):
            rows += rollup.tick(float(second))
        rows += rollup.add(record)
    return rows + rollup.flush()


def _sizes(conn: psycopg.Connection[tuple[int, ...]]) -> Mapping[str, tuple[int, int, int]]:
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
