"""What jobs declare: one row for all of its nodes, and no more than one in ten seconds."""

from datetime import UTC, datetime

from alerts.config import FindingConfig
from store import retention
from store.telemetry.batches import write_rows
from store.telemetry.buckets import JobEvent

T0 = 1_795_160_000.0


def stored(conn):
    rows = conn.execute("SELECT bucket, job_id, code, message FROM job_events ORDER BY bucket, code, job_id")
    return [(bucket.timestamp() - T0, *row) for bucket, *row in rows]


def test_all_nodes_of_a_job_declare_one_event(conn):
    """Of those with one code within ten seconds the first stays, in any order and repeated."""
    events = [JobEvent("c", "j", "job.schedule", T0 + 3 + i / 100, f"node {i}") for i in range(100)]
    other = [
        JobEvent("c", "j", "job.eval", T0 + 4, ""),
        JobEvent("c", "o", "job.eval", T0 + 4, ""),
        JobEvent("c", "j", "job.schedule", T0 + 11, "again"),
    ]
    write_rows(conn, [*reversed(events), *other])
    write_rows(conn, events)
    assert stored(conn) == [
        (0.0, "j", "job.eval", ""),
        (0.0, "o", "job.eval", ""),
        (0.0, "j", "job.schedule", "node 0"),
        (10.0, "j", "job.schedule", "again"),
    ]


def test_hostile_texts_are_data(conn):
    """Cut to a line."""
    write_rows(conn, [JobEvent("c", "j\x00'; --", "job.eval", T0, "\x00" + "m" * 500)])
    assert stored(conn) == [(0.0, "j\ufffd'; --", "job.eval", "\ufffd" + "m" * 199)]


def test_old_events_go(conn):
    """With the roll-ups, as the role that removes them."""
    write_rows(
        conn, [JobEvent("c", "j", "job.eval", T0 - 9 * 86_400, ""), JobEvent("c", "j", "job.eval", T0, "")]
    )
    conn.execute("SET ROLE slowrank_streams")
    removed = retention.prune_telemetry(
        conn, now=datetime.fromtimestamp(T0, UTC), days=7, pace_days=35, config_of=lambda _: FindingConfig()
    )
    conn.execute("RESET ROLE")
    assert removed is not None
    assert removed["job_events"] == 1
    assert stored(conn) == [(0.0, "j", "job.eval", "")]
