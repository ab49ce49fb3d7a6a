"""The in-process sink, over a real database."""

import itertools
import math
import time

import psycopg
import pytest
from msgspec.structs import replace

from cli.embedded.local_sink import ABANDONED_SECONDS, MAX_CLUSTERS, LocalSink
from slowrank.telemetry import NodeEvent
from store.findings import findings
from store.migrate import migrate
from store.pool import open_pool
from streams.config.settings import Layer, Tuning
from streams.runtime.monitoring.snapshot_counts import SnapshotCounts
from streams.runtime.snapshots.snapshot_folder import SnapshotFolder
from tests.streams import traffic

pytestmark = pytest.mark.integration


@pytest.fixture
def sink(database):
    migrate(database)
    with open_pool(database, name="sink") as pool:
        yield LocalSink(pool, now=time.time, tuning=Tuning())


NOW = time.time()


def lost_gpu(node, seq=1):
    subject: dict[str, str | int] = {"gpu_index": 3}
    return NodeEvent(cluster="c", node=node, ts=NOW, source="kmsg", code="xid.79", seq=seq, subject=subject)


def stored_nodes(dsn):
    with psycopg.connect(dsn) as conn:
        rows = conn.execute("SELECT doc->'subject'->>'node' FROM findings ORDER BY 1").fetchall()
    return [node for (node,) in rows]


def failing(monkeypatch, node, error):
    """Let storing the findings of one node fail, once."""
    save, left = findings.save, [error]

    def wrapped(conn, finding, config):
        if finding.subject.node == node and left:
            raise left.pop()
        return save(conn, finding, config)

    monkeypatch.setattr(findings, "save", wrapped)


def test_findings_wait_for_the_database_to_come_back(sink, database, monkeypatch):
    """The database goes away between two findings: neither is lost."""
    failing(monkeypatch, "n2", psycopg.OperationalError("server closed the connection"))
    sink.accept([lost_gpu("n1"), lost_gpu("n2")])
    sink.finish("c")
    assert stored_nodes(database) == ["n1"]
    sink.finish("c")
    assert stored_nodes(database) == ["n1", "n2"]


def test_a_full_disk_shows_in_the_heartbeat(sink, database):
    """The database answers and stores nothing: the process says so, and all is stored when there is space."""
    full = "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS "
    full += "$$BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END$$"
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(full)
        conn.execute("CREATE TRIGGER full_disk BEFORE INSERT ON findings EXECUTE FUNCTION full_disk()")

        def beat():
            [(detail,)] = conn.execute("SELECT detail FROM heartbeats WHERE process = 'streams'")
            return detail.get("waiting_for"), detail.get("error")

        try:
            sink.accept([lost_gpu("n1")])
            sink.finish("c")
            assert beat() == (["database"], "could not extend file")
            assert stored_nodes(database) == []
        finally:
            conn.execute("DROP FUNCTION full_disk CASCADE")
        sink.finish("c")
        assert stored_nodes(database) == ["n1"]
        assert beat() == (None, None)


def test_a_finding_the_database_refuses_holds_up_no_other(sink, database, monkeypatch):
    """It is counted, and those after it are stored in the same breath."""
    failing(monkeypatch, "n1", psycopg.DataError("value out of range"))
    sink.accept([lost_gpu("n1"), lost_gpu("n2")])
    sink.finish("c")
    assert stored_nodes(database) == ["n2"]
    assert sink.refused["store_refused"] == 1


def test_the_store_goes_by_the_settings_of_the_findings_cluster(database, monkeypatch):
    """The `[findings]` settings of a cluster reach the store with each of its findings."""
    patient = {"finding": {"reopen_within_seconds": 7 * 86400.0}}
    tuning = Tuning([Layer(where='clusters."c*"', cluster="c*", knobs=patient)])
    seen: dict[str, float] = {}

    def wrapped(conn, finding, config):
        seen[finding.subject.cluster] = config.reopen_within_seconds

    monkeypatch.setattr(findings, "save", wrapped)
    migrate(database)
    with open_pool(database, name="sink") as pool:
        tuned = LocalSink(pool, now=time.time, tuning=tuning)
        tuned.accept([lost_gpu("n1"), replace(lost_gpu("n1"), cluster="d")])
        for cluster in ("c", "d"):
            tuned.finish(cluster)
    assert seen == {"c": 7 * 86400.0, "d": 86400.0}


def test_a_cluster_too_many_is_refused_by_name(sink):
    """Its records are returned with the reason, those of clusters known are taken."""
    many = [replace(lost_gpu("n"), cluster=f"c{i}") for i in range(MAX_CLUSTERS + 1)]
    refused = sink.accept([*many, many[0]])
    assert list(refused) == [MAX_CLUSTERS]
    assert "64 clusters are open already" in str(refused[MAX_CLUSTERS].detail)
    assert sink.accepted == MAX_CLUSTERS + 1


def test_paces_are_stored_with_the_rows(sink, database):
    """Two hours of a job: each GPU has its hours in the table."""
    sink.accept(list(traffic.job(ranks=8, steps=260, step_seconds=30.0)))
    with psycopg.connect(database) as conn:
        rows = conn.execute("SELECT gpu_index, sum(n) FROM paces GROUP BY 1 ORDER BY 1").fetchall()
    assert [gpu for gpu, _ in rows] == list(range(8))
    assert all(1 <= hours <= 3 for _, hours in rows)


class Clock:
    """Unix seconds that a test moves."""

    def __init__(self):
        self.now = NOW

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def timed(database, clock):
    """A sink on the clock of the test."""
    migrate(database)
    with open_pool(database, name="sink") as pool:
        yield LocalSink(pool, now=clock, tuning=Tuning())


def listen(sink, clock, seconds):
    for _ in range(seconds):
        clock.now += 1.0
        sink.tick()


def stored(dsn):
    """(kind, status) of all findings but what was only suspected."""
    with psycopg.connect(dsn) as conn:
        rows = conn.execute("SELECT doc->>'kind', doc->>'status' FROM findings ORDER BY 1, 2").fetchall()
    return [row for row in rows if row[1] == "open"]


def told(dsn):
    """(event, kind of finding) of every notification."""
    with psycopg.connect(dsn) as conn:
        return conn.execute("SELECT type, body->>'kind' FROM events ORDER BY seq").fetchall()


@pytest.mark.parametrize("now", [1_795_475_000.0, 1_795_475_104.5, 1_795_475_140.0, 1_795_475_209.0])
def test_a_silence_is_reported_once_and_ends_when_the_spools_drain(timed, clock, database, now):
    """Four nodes are cut off for two minutes and then send what they spooled: one finding, now over.

    Each node is announced every five minutes: at some of these times within what it spooled.
    """
    clock.now = now
    records = list(traffic.nodes(count=4, seconds=460, ends=now + 400))
    send(timed, clock, [r for r in records if r.ts <= now])
    listen(timed, clock, 30)
    assert stored(database) == []
    listen(timed, clock, 90)
    assert stored(database) == [("exporter.stale", "open")]
    spooled = [r for r in records if now < r.ts <= clock.now]
    # One spool after the other, as exporters drain.
    timed.accept(sorted(spooled, key=lambda r: (r.node, r.ts)))
    send(timed, clock, [r for r in records if r.ts > clock.now])
    assert stored(database) == []
    assert told(database) == [(f"finding.{what}", "exporter.stale") for what in ("opened", "resolved")]


def send(sink, clock, records):
    """Send each second's records when it is over, as exporters do; the sink ticks in between."""
    for second, batch in itertools.groupby(records, key=lambda r: math.floor(r.ts)):
        clock.now = max(clock.now, second + 1.0)
        sink.tick()
        sink.accept(list(batch))


def test_a_batch_of_several_seconds_is_judged_when_it_comes(timed, clock, database):
    """Records of a batch are not held back for one another: what the batch shows is stored with it."""
    send(timed, clock, list(traffic.nodes(count=4, seconds=60, ends=NOW)))
    clock.now += 2.0
    lost = [replace(lost_gpu("node-0"), ts=NOW + second, seq=1000 + second) for second in (1, 2)]
    beside = [r for r in traffic.nodes(count=4, seconds=70, ends=NOW + 10) if r.ts > NOW]
    clock.now += 10.0
    timed.accept([*lost, *beside])
    assert ("xid.79", "open") in stored(database)


@pytest.mark.parametrize("before", [0, 60], ids=["nothing else", "the end of a minute"])
def test_a_fatal_event_that_comes_last_is_judged(timed, clock, database, before):
    """A machine sends its last XID and then nothing, nor does any other: seconds later it is a finding."""
    send(timed, clock, list(traffic.nodes(count=4, seconds=before, ends=NOW)))
    timed.accept([lost_gpu("node-0")])
    listen(timed, clock, 8)
    assert stored(database) == [("xid.79", "open")]


def test_what_was_accepted_is_judged_before_the_end(timed, database):
    """Whoever ends `up` a moment after an event loses nothing of it."""
    timed.accept([lost_gpu("node-0")])
    timed.close()
    assert stored(database) == [("xid.79", "open")]


def test_what_is_sent_in_bursts_is_not_silent_between_them(timed, clock, database):
    """A minute's samples at once, each minute: the second between two of them is no measure of a silence."""
    records = list(traffic.nodes(count=4, seconds=360, ends=NOW + 360))
    for minute in range(6):
        listen(timed, clock, 60)
        timed.accept([r for r in records if NOW + 60 * minute <= r.ts < NOW + 60 * (minute + 1)])
    assert stored(database) == []


def test_a_process_that_did_not_listen_reports_no_silence(timed, clock, database):
    """A laptop wakes up after an hour: the hour was not spent waiting for records."""
    send(timed, clock, list(traffic.nodes(count=4, seconds=60, ends=NOW)))
    listen(timed, clock, 5)
    clock.now += 3600.0
    listen(timed, clock, 22)
    assert stored(database) == []


def test_a_recording_that_was_sent_does_not_fall_silent(timed, clock, database):
    """Records of an hour ago came from a file: no more are expected."""
    for record in traffic.nodes(count=4, seconds=60, ends=NOW - 3600):
        timed.accept([record])
        listen(timed, clock, 1)
    listen(timed, clock, 120)
    assert stored(database) == []


def test_a_cluster_without_records_for_an_hour_makes_room(timed, clock):
    """Sixty-four invented names do not keep new clusters out for good."""
    timed.accept([replace(lost_gpu("n"), cluster=f"c{i}") for i in range(MAX_CLUSTERS)])
    new = replace(lost_gpu("n", seq=2), cluster="new")
    assert list(timed.accept([new])) == [0]
    clock.now += ABANDONED_SECONDS + 1
    assert not timed.accept([new])


@pytest.mark.parametrize("off", [-3600.0, 3600.0])
@pytest.mark.parametrize("since", [0, 60])
def test_a_clock_an_hour_off_is_a_finding_and_puts_no_row_into_another_hour(
    timed, clock, database, off, since
):
    """From the start or stepping in mid-run, behind or ahead: no telemetry is missed for it."""
    for r in traffic.nodes(count=4, seconds=120, ends=NOW + 120):
        clock.now = max(clock.now, r.ts + 0.2)
        timed.accept([replace(r, ts=r.ts + off) if r.node == "node-1" and r.ts >= NOW + since else r])
        timed.tick()
    timed.finish("c")
    assert stored(database) == [("host.clock_skew", "open")]
    with psycopg.connect(database) as conn:
        (value,) = conn.execute("SELECT doc->'evidence'->0->>'value' FROM findings").fetchone() or ()
        rows = conn.execute(
            "SELECT extract(epoch FROM bucket)::float8, n FROM host_10s WHERE node = 'node-1'"
        ).fetchall()
    assert float(value) == pytest.approx(off, abs=0.5)
    assert all(NOW - 10 <= bucket < NOW + 120 for bucket, _ in rows)
    # What is ahead by more than five minutes is refused while the clock is measured.
    assert sum(n for _, n in rows) == (120 if off < 0 else 112)


def restarted(pool, clock, folder):
    """A sink as a new process makes it, with the snapshots of the last one."""
    folder.mkdir(mode=0o700, exist_ok=True)
    snapshots = SnapshotFolder(folder, identity="i", counts=SnapshotCounts(), now=clock)
    return LocalSink(pool, now=clock, tuning=Tuning(), snapshots=snapshots)


@pytest.mark.parametrize("end", ["stopped", "killed"])
@pytest.mark.parametrize(("away", "missed"), [(5, [("exporter.stale", "node-3")]), (400, [])])
def test_a_restart_goes_on_from_the_last_snapshot(clock, database, tmp_path, monkeypatch, end, away, missed):
    """A node that fell silent meanwhile is missed, and no other; after minutes a process begins anew."""
    # The clock of the test passes faster than the CPU time that snapshots may take.
    monkeypatch.setattr("cli.embedded.local_sink.MOST_CPU", 100.0)
    migrate(database)
    records = list(traffic.nodes(count=4, seconds=250 + away, ends=NOW + 250 + away))
    with open_pool(database, name="sink") as pool:
        first = restarted(pool, clock, tmp_path / "snapshots")
        send(first, clock, [r for r in records if r.ts < NOW + 120])
        if end == "stopped":
            first.close()
        clock.now += away
        second = restarted(pool, clock, tmp_path / "snapshots")
        send(second, clock, [r for r in records if r.ts >= NOW + 120 + away and r.node != "node-3"])
        second.close()
    with psycopg.connect(database) as conn:
        query = "SELECT kind, node FROM findings WHERE status NOT IN ('suspected', 'expired')"
        assert conn.execute(query).fetchall() == missed


@pytest.mark.parametrize("away", [15, 280])
def test_a_restart_takes_nothing_for_missing_that_it_could_not_receive(
    clock, database, tmp_path, monkeypatch, away
):
    """Five nodes and a job send until the process is killed, and after it is back: nothing is reported.

    Seven nodes left before, one after the other, so that the five are not all of the cluster.
    """
    monkeypatch.setattr("cli.embedded.local_sink.MOST_CPU", 100.0)
    migrate(database)
    ends = {f"node-{i}": NOW + (1000 if i < 5 else 12 * (i - 4)) for i in range(12)}
    records = [r for r in traffic.nodes(count=12, seconds=450, ends=NOW + 450) if r.ts < ends[r.node]]
    records += [r for r in traffic.job(ranks=16, steps=390, ends=NOW + 450) if r.ts > NOW]
    records.sort(key=lambda r: r.ts)
    with open_pool(database, name="sink") as pool:
        first = restarted(pool, clock, tmp_path / "snapshots")
        send(first, clock, [r for r in records if r.ts < NOW + 129])
        before = told(database)
        clock.now += away
        second = restarted(pool, clock, tmp_path / "snapshots")
        send(second, clock, [r for r in records if r.ts >= clock.now])
    assert told(database) == before


def test_a_finding_is_resolved_whose_fault_ended_while_no_process_ran(clock, database, tmp_path):
    """A clock is set right in the minute between two processes: five minutes later its finding is over."""
    migrate(database)
    records = list(traffic.nodes(count=3, seconds=480, ends=NOW + 480))
    with open_pool(database, name="sink") as pool:
        first = restarted(pool, clock, tmp_path / "snapshots")
        for r in (r for r in records if r.ts < NOW + 60):
            clock.now = max(clock.now, r.ts + 0.2)
            first.accept([replace(r, ts=r.ts - 3600.0) if r.node == "node-1" else r])
        first.close()
        assert stored(database) == [("host.clock_skew", "open")]
        clock.now += 60.0
        second = restarted(pool, clock, tmp_path / "snapshots")
        send(second, clock, [r for r in records if r.ts >= NOW + 120])
    assert told(database) == [("finding.opened", "host.clock_skew"), ("finding.resolved", "host.clock_skew")]


@pytest.mark.parametrize("job_id", [None, "j"])
@pytest.mark.parametrize(("right", "every"), [(True, 5), (False, 5), (True, 60)])
def test_a_finding_that_no_detector_knows_any_more_is_resolved(
    clock, database, tmp_path, right, every, job_id
):
    """After ten minutes without its fault, where its node reports to this process; no other is touched."""
    migrate(database)
    sent = traffic.nodes(count=3, seconds=780, ends=NOW + 780)
    records = [replace(r, job_id=job_id) for r in sent if r.ts < NOW + 60 or r.seq % every == 0]

    def as_sent(r, *, right=False):
        return r if right or r.node != "node-1" else replace(r, ts=r.ts - 3600.0)

    with open_pool(database, name="sink") as pool:
        first = restarted(pool, clock, tmp_path / "1")
        for r in (r for r in records if r.ts < NOW + 60):
            clock.now = max(clock.now, r.ts + 0.2)
            first.accept([as_sent(r), replace(as_sent(r), cluster="elsewhere"), lost_gpu("node-0")])
        first.close()
        before = told(database)
        assert [kind for _, kind in before].count("host.clock_skew") == 2
        second = restarted(pool, clock, tmp_path / "2")
        for r in (r for r in records if r.ts >= NOW + 120):
            clock.now = max(clock.now, r.ts + 0.2)
            second.accept([as_sent(r, right=right)])
            second.tick()
    assert told(database)[len(before) :] == [("finding.resolved", "host.clock_skew")] * right


def test_no_snapshot_is_taken_before_its_findings_are_stored(clock, database, tmp_path, monkeypatch):
    """A process that goes on from it would not put them out again."""
    migrate(database)
    failing(monkeypatch, "node-0", psycopg.OperationalError("gone"))
    with open_pool(database, name="sink") as pool:
        sink = restarted(pool, clock, tmp_path / "snapshots")
        sink.accept([lost_gpu("node-0")])
        sink.close()
        assert list((tmp_path / "snapshots").iterdir()) == []
        sink.close()
        assert len(list((tmp_path / "snapshots").iterdir())) == 1


def test_a_state_on_which_a_stage_raised_is_not_kept(clock, database, tmp_path, monkeypatch):
    """Neither is the last one before it: it may be the cause."""
    migrate(database)
    with open_pool(database, name="sink") as pool:
        restarted(pool, clock, tmp_path / "snapshots").close()
        sink = restarted(pool, clock, tmp_path / "snapshots")
        monkeypatch.setattr("streams.node.stage.NodeStage.process", lambda *_: 1 // 0)
        sink.accept([lost_gpu("node-0")])
        sink.close()
    assert sink.set_aside
    assert list((tmp_path / "snapshots").iterdir()) == []


def damage(file, clock):
    file.write_bytes(file.read_bytes()[:-1] + b"?")


def set_back(file, clock):
    clock.now -= 3600


@pytest.mark.parametrize(("spoil", "reason"), [(damage, "damaged"), (set_back, "old")])
def test_a_snapshot_that_cannot_be_used_is_set_aside(clock, database, tmp_path, caplog, spoil, reason):
    """It is damaged, or of a clock that was set back since: the process begins anew, as without one."""
    migrate(database)
    with open_pool(database, name="sink") as pool:
        first = restarted(pool, clock, tmp_path / "snapshots")
        send(first, clock, list(traffic.nodes(count=4, seconds=60, ends=NOW + 60)))
        first.close()
        [file] = (tmp_path / "snapshots").iterdir()
        spoil(file, clock)
        sink = restarted(pool, clock, tmp_path / "snapshots")
        assert f"the snapshot is ignored, the state is built without it: {reason}" in caplog.text
        sink.accept([replace(lost_gpu("node-0"), ts=clock.now)])
        sink.close()
    assert stored(database) == [("xid.79", "open")]


def unavailable():
    raise psycopg.OperationalError("gone")


def test_of_rows_that_cannot_be_stored_the_latest_are_kept(clock, database, monkeypatch):
    """As many rows of the tables, however many one roll-up of a node has."""
    monkeypatch.setattr("cli.embedded.local_sink.MAX_UNSAVED", 200)
    migrate(database)
    with open_pool(database, name="sink") as pool:
        sink = LocalSink(pool, now=clock, tuning=Tuning())
        with monkeypatch.context() as gone:
            gone.setattr(pool, "connection", unavailable)
            send(sink, clock, list(traffic.nodes(count=4, seconds=250, ends=NOW + 250)))
        clock.now += 1
        sink.close()
    with psycopg.connect(database) as conn:
        seconds = [ts for (ts,) in conn.execute("SELECT extract(epoch FROM bucket)::float8 FROM samples_10s")]
    # Ten seconds of four nodes are 16 roll-ups and 28 rows.
    assert NOW + 140 < min(seconds) < NOW + 200
