"""Where ranks run and which jobs there are: one row each, the newest place, removed when old."""

from dataclasses import replace
from datetime import UTC, datetime

import psycopg

from store.telemetry.batches import write_rows
from store.telemetry.buckets import RankPlace
from store.telemetry.ranks import forget_ranks, write_jobs, write_ranks
from tests.roll_ups import packed
from tests.store.evidence.telemetry import T0, steps

PLACE = RankPlace(
    cluster="c",
    job_id="j",
    attempt=0,
    rank=3,
    node="n0",
    gpu_index=3,
    coords=(0, 1, 3, None, None),
    world_size=16,
    step=5,
    at=T0 + 10,
)


def test_the_newest_place_counts(conn):
    """Whatever the order; the first time it was seen is kept."""
    moved = replace(PLACE, node="n9", gpu_index=None, at=T0 + 900)
    write_rows(conn, [moved])
    write_rows(conn, [PLACE, PLACE])
    rows = conn.execute("SELECT node, gpu_index, dp, pp, tp, cp, first_seen_at, last_seen_at FROM ranks")
    *place, first, last = rows.fetchone()
    assert place == ["n9", None, 0, 1, 3, None]
    # An older place changes nothing, not even the first time.
    assert (first.timestamp(), last.timestamp()) == (T0 + 900, T0 + 900)


def test_a_job_is_one_row_of_all_its_ranks(conn):
    """Its size, steps and times, however its ranks are spread over batches, and repeated."""
    rows = [*steps(buckets=6), PLACE]
    write_rows(conn, packed(rows[40:]))
    write_rows(conn, packed(rows[:50]))
    found = conn.execute(
        "SELECT job_id, world_size, first_step, last_step, first_seen_at, last_seen_at FROM jobs"
    ).fetchall()
    ((job, size, first, last, since, until),) = found
    assert (job, size, first, last) == ("j", 16, 0, 29)
    assert (since.timestamp(), until.timestamp()) == (T0, T0 + 50)


def test_what_was_not_seen_for_long_goes(conn):
    """As the role that removes it; hostile names are data."""
    write_rows(conn, [PLACE, replace(PLACE, job_id="o\x00'; --", at=T0 + 900)])
    conn.execute("SET ROLE slowrank_streams")
    assert forget_ranks(conn, datetime.fromtimestamp(T0 + 500, UTC)) == {"ranks": 1, "jobs": 1}
    assert conn.execute("SELECT job_id FROM jobs").fetchall() == [("o\ufffd'; --",)]
    conn.execute("RESET ROLE")


def test_a_row_that_is_being_seen_is_neither_removed_nor_waited_for(conn, store_dsn):
    """A writer and the removal that waited for each other's rows would be a deadlock."""
    write_rows(conn, [PLACE, replace(PLACE, job_id="gone")])
    later, old = replace(PLACE, at=T0 + 900), datetime.fromtimestamp(T0 + 500, UTC)
    conn.execute("SET lock_timeout = '2s'")
    with psycopg.connect(store_dsn) as writer, writer.transaction():
        write_ranks(writer, [later])
        write_jobs(writer, [], [later])
        assert forget_ranks(conn, old) == {"ranks": 1, "jobs": 1}
    assert forget_ranks(conn, old) == {"ranks": 0, "jobs": 0}
    assert conn.execute("SELECT job_id FROM jobs").fetchall() == [("j",)]
    conn.execute("RESET lock_timeout")
