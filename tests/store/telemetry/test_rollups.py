"""Roll-ups: written once however often they come, and removed when they are old."""

import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import psycopg
import pytest

from alerts.config import FindingConfig
from detectors.fleet.chronic import Machine, Pace
from store import retention
from store.telemetry import rollups
from store.telemetry.batches import write_rows
from store.telemetry.buckets import ROLLED, TABLE, JobEvent, NodeLatest, SampleRollups, StepRollup
from tests.roll_ups import packed

T0 = 1_795_160_000.0


def sample(block="gpu", *, node="n1", instance="0", bucket=T0, n=10, value=1.5):
    values = np.full((len(ROLLED[block]), 1), value)
    return SampleRollups(block, "c", node, (instance,), bucket, (n,), values)


def step(**changes):
    fields: dict[str, Any] = {
        "cluster": "c",
        "job_id": "j",
        "attempt": 0,
        "rank": 3,
        "node": "n1",
        "bucket": T0,
        "n_steps": 5,
        "step_seconds_sum": 5.5,
        "step_seconds_max": 1.2,
        "compute_seconds_sum": 5.0,
        "compute_seconds_max": 1.1,
        "wait_seconds_sum": math.nan,
        "checkpoint_seconds_sum": 8.5,
        "first_step": 2**40,
        "last_step": 2**40 + 4,
    }
    [packed_row] = packed([StepRollup(**(fields | changes))])
    return packed_row


def test_late_rows_are_written_into_compressed_chunks(conn):
    """After an outage of a day rows repeat compressed ones, of more series than TimescaleDB's limit."""
    if conn.execute("SELECT current_setting('timescaledb.license', true)").fetchone() != ("timescale",):
        pytest.skip("only TimescaleDB's community edition compresses")
    rows = [sample(instance=str(i), bucket=T0 + 10 * b) for i in range(3) for b in range(20)]
    rollups.write_samples(conn, rows[::2])
    conn.execute("SELECT compress_chunk(chunk) FROM show_chunks('samples_10s'::regclass) AS chunk")
    conn.execute("SET timescaledb.max_tuples_decompressed_per_dml_transaction = 5")
    assert rollups.write_samples(conn, rows) == 30
    assert rollups.write_samples(conn, rows) == 0
    assert conn.execute("SELECT count(*) FROM samples_10s").fetchone() == (60,)
    # Of the transaction alone.
    limit = conn.execute("SHOW timescaledb.max_tuples_decompressed_per_dml_transaction").fetchone()
    assert limit == ("5",)
    conn.execute("RESET timescaledb.max_tuples_decompressed_per_dml_transaction")


def test_every_block_lands_in_its_table(conn):
    """One row of each block is stored with all its columns; what was not read is NULL."""
    rows = [sample(block) for block in TABLE]
    odd = sample(instance="1")
    odd.values[0] = math.nan
    assert rollups.write_samples(conn, [*rows, odd]) == 4
    for block, table in TABLE.items():
        columns = ", ".join(r.column for r in ROLLED[block])
        stored = conn.execute(f"SELECT {columns} FROM {table} ORDER BY instance").fetchall()
        assert stored[0] == (1.5,) * len(ROLLED[block])
    assert conn.execute("SELECT utilization_ratio_mean FROM samples_10s WHERE instance = '1'").fetchone() == (
        None,
    )


def test_repeat_changes_nothing_and_fuller_replaces(conn):
    """The same bucket again is ignored, a thinner one too; one that saw more samples replaces it."""
    assert rollups.write_samples(conn, [sample(value=1.0)]) == 1
    assert rollups.write_samples(conn, [sample(value=2.0), sample(n=4, value=3.0)]) == 0
    assert rollups.write_samples(conn, [sample(n=11, value=4.0), sample(n=12, value=5.0)]) == 1
    assert conn.execute("SELECT n, power_watts_mean FROM samples_10s").fetchall() == [(12, 5.0)]


def test_steps_and_their_view(conn):
    """Step roll-ups keep 64-bit steps, and the view shows the job's band."""
    ranks = [step(rank=i, step_seconds_sum=5.0 + i) for i in range(4)]
    assert rollups.write_steps(conn, [*ranks, *ranks]) == 4
    assert rollups.write_steps(conn, ranks) == 0
    row = conn.execute("SELECT ranks, median, last_step FROM v_step_time").fetchone()
    assert (row[0], round(row[1], 6), row[2]) == (4, 1.3, 2**40 + 4)


def test_rows_of_every_kind_land_in_their_tables(conn):
    """Kinds may be mixed in any order, and come again."""
    word = NodeLatest(cluster="c", node="n1", last_seen_at=T0, boot_id="b", seq=1, gpus=8, nics=4)
    pace = Pace(machine=Machine("c", "n1", 0), job="j", rank=3, at=T0, log_ratio=0.01, spread=0.004)
    declared = JobEvent("c", "j", "job.schedule", T0, "longer sequences")
    mixed = [pace, sample("nic"), word, step(), sample(), declared, sample("host")]
    write_rows(conn, mixed)
    write_rows(conn, [*reversed(mixed)])
    for table in (*TABLE.values(), "steps_10s", "nodes", "paces", "job_events"):
        assert conn.execute(f"SELECT count(*) FROM {table}").fetchone() == (1,), table


def test_hostile_names(conn):
    """Node and instance names with NUL, tabs and backslashes are stored as data."""
    rollups.write_samples(conn, [sample("nic", node="n\x00\t\\N'\u202e", instance="mlx5_0/1\n\\.")])
    assert conn.execute("SELECT node, instance FROM nic_10s").fetchall() == [
        ("n\ufffd\t\\N'\u202e", "mlx5_0/1\n\\.")
    ]


def test_killed_while_writing_leaves_no_half_batch(conn, store_dsn):
    """A writer that dies before commit leaves nothing; the same batch again is complete."""
    batch = [sample(instance=str(i)) for i in range(50)]
    victim = psycopg.connect(store_dsn)
    victim.execute("SELECT 1")  # begins the transaction that will not be committed
    rollups.write_samples(victim, batch)
    conn.execute("SELECT pg_terminate_backend(%s)", (victim.info.backend_pid,))
    victim.close()
    assert conn.execute("SELECT count(*) FROM samples_10s").fetchone() == (0,)
    assert rollups.write_samples(conn, batch) == 50


def test_latest_word_of_a_node_wins(conn):
    """The table of nodes keeps the newest word, whatever order they come in."""
    word = NodeLatest(cluster="c", node="n1", last_seen_at=T0, boot_id="b", seq=1, gpus=8, nics=4)
    newer = replace(word, last_seen_at=T0 + 10, seq=2, job_id="j")
    rollups.write_nodes(conn, [newer, word])
    rollups.write_nodes(conn, [word])
    assert conn.execute("SELECT seq, job_id FROM nodes").fetchall() == [(2, "j")]


def test_old_roll_ups_go(conn):
    """Retention removes what is older than asked and keeps the rest, as the role that runs it."""
    day = 86400.0
    rollups.write_samples(conn, [sample(bucket=T0 - 9 * day), sample(bucket=T0 - day)])
    rollups.write_steps(conn, [step(bucket=T0 - 9 * day), step()])
    conn.execute("SET ROLE slowrank_streams")
    removed = retention.prune_telemetry(
        conn, now=datetime.fromtimestamp(T0, UTC), days=7, pace_days=35, config_of=lambda _: FindingConfig()
    )
    assert removed == {
        "samples_10s": 1,
        "nic_10s": 0,
        "host_10s": 0,
        "steps_10s": 1,
        "job_events": 0,
        "paces": 0,
        "ranks": 0,
        "jobs": 0,
        "findings": 0,
    }
    assert conn.execute("SELECT count(*) FROM samples_10s").fetchone() == (1,)
    assert conn.execute("SELECT count(*) FROM steps_10s").fetchone() == (1,)


def test_retention_runs_in_one_place(conn, store_dsn):
    """While one process removes, another leaves it alone."""
    with psycopg.connect(store_dsn, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(%s)", (retention._LOCK,))
        assert (
            retention.prune_telemetry(
                conn,
                now=datetime.fromtimestamp(T0, UTC),
                days=7,
                pace_days=35,
                config_of=lambda _: FindingConfig(),
            )
            is None
        )


def test_compressed_where_the_edition_can(conn):
    """The community edition compresses roll-ups, no other does; late rows and age work alike in all."""
    (edition,) = conn.execute("SELECT current_setting('timescaledb.license', true)").fetchone()
    compressed: list[tuple[str]] = []
    if edition:
        compressed = conn.execute(
            "SELECT hypertable_name FROM timescaledb_information.hypertables WHERE compression_enabled"
        ).fetchall()
    assert {name for (name,) in compressed} == (
        set(TABLE.values()) | {"steps_10s"} if edition == "timescale" else set()
    )
    rollups.write_samples(conn, [sample(value=1.0), sample(bucket=T0 + 10, value=1.0)])
    for (name,) in compressed:
        conn.execute("SELECT compress_chunk(chunk) FROM show_chunks(%s::regclass) AS chunk", (name,))
    assert rollups.write_samples(conn, [sample(n=11, value=4.0), sample(bucket=T0 + 20), sample(n=9)]) == 2
    rows = conn.execute("SELECT n, power_watts_mean FROM samples_10s ORDER BY bucket").fetchall()
    assert rows == [(11, 4.0), (10, 1.0), (10, 1.5)]
    gone = retention.prune_telemetry(
        conn,
        now=datetime.fromtimestamp(T0 + 30 * 86400, UTC),
        days=7,
        pace_days=35,
        config_of=lambda _: FindingConfig(),
    )
    assert gone is not None
    assert gone["samples_10s"] > 0
    assert conn.execute("SELECT count(*) FROM samples_10s").fetchone() == (0,)
