"""Backtests over HTTP: a recording is stored, run in a process of its own, and its findings are served."""

import gzip
import json
import sys
import threading
import time
import tracemalloc
from datetime import UTC, datetime, timedelta

import pytest
from psycopg_pool import ConnectionPool

from api.app import create_app
from api.routes.backtests import BacktestPage, ShownBacktest
from api.security.auth import SCOPES
from cli.run.backtests import _RENEW_SECONDS, _RENEW_WAIT_SECONDS, LEASE_SECONDS, Runner, result_of
from slowrank.client import ApiError, Client, cluster
from store.findings import backtests

URL = "/api/v1/backtests"
T0 = 1_795_160_000


@pytest.fixture
def client(client, settings, pool, sink):
    """A client of an API beside which a runner is."""
    client._app = create_app(settings, pool, sink=sink, runs_backtests=True)
    return client


def recording(steps=200, ranks=8, slow=5):
    """A job in which a rank takes a third longer from the middle on, as NDJSON."""
    rows = [
        {
            **{"kind": "step", "ts": T0 + 2.0 * step, "cluster": "lab", "job_id": "j", "rank": rank},
            **{"node": f"n{rank // 4}", "gpu_index": rank % 4, "step": step, "wait_seconds": 0.01},
            "step_seconds": 2.0 + (rank == slow and step > steps // 2) * 0.7,
            "compute_seconds": 1.9 + rank / 1000 + (rank == slow and step > steps // 2) * 0.7,
        }
        for step in range(steps)
        for rank in range(ranks)
    ]
    return "\n".join(map(json.dumps, rows)).encode()


ROW = b'{"kind":"step","ts":1795160000.0}'


SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]


def until_leased(pool):
    """Wait until a runner has the recording; return when its lease ends."""
    while True:
        with pool.connection() as conn:
            row = conn.execute("SELECT leased_until FROM backtests WHERE state = 'running'").fetchone()
        if row is not None:
            return row[0]
        time.sleep(0.05)


def posted(client, body=ROW, **headers):
    return client.post(URL, content=body, headers={"content-type": "application/x-ndjson"} | headers)


@pytest.mark.slow
def test_a_recording_is_run_and_its_finding_is_served(client, pool):
    """From the POST over the runner's process to finding.v1, with what it costs to know."""
    rows = recording()
    made = posted(client, gzip.compress(rows), **{"content-encoding": "gzip"})
    assert made.status_code == 202, made.text
    where = made.headers["location"]
    assert client.get(where).json()["state"] == "waiting"
    assert Runner(pool).run_one()
    done = client.get(where).json()
    assert done["state"] == "done", done
    result = done["result"]
    assert (result["rows"], result["by_kind"]) == (1600, {"straggler.fail_slow": 1})
    (finding,) = [one for one in result["items"] if one["status"] != "suspected"]
    assert (finding["subject"]["rank"], finding["schema"]) == (5, "finding.v1")
    assert ShownBacktest.model_validate(done).model_dump(exclude_unset=True) == done
    listed = client.get(URL).json()
    assert BacktestPage.model_validate(listed).model_dump(exclude_unset=True) == listed
    assert [(one["id"], "result" in one) for one in listed["items"]] == [(done["id"], False)]
    assert not Runner(pool).run_one()
    with pool.connection() as conn:
        assert conn.execute("SELECT recording FROM backtests").fetchone() == (None,)


def test_the_python_client_posts_and_reads(live, new_token, pool, monkeypatch):
    """``slowrank.client.cluster``; an API without a runner refuses."""
    with Client(live(), new_token(*SCOPES)) as api:
        with pytest.raises(ApiError) as refused:
            api.send(cluster.run_backtest(ROW))
        assert refused.value.status == 503
        with pool.connection() as conn:
            backtests.add(conn, "bkt_1", by="k", now=datetime.now(UTC), recording=gzip.compress(ROW))
        assert [one["id"] for one in api.each(cluster.backtests())] == ["bkt_1"]
        assert api.send(cluster.backtest("bkt_1"))["state"] == "waiting"


def test_a_recording_without_a_usable_row_fails_with_the_reason(client, pool):
    """The message of the command, without the folder that it ran in; none is a step without a rank."""
    made = posted(client)
    Runner(pool).run_one()
    failed = client.get(made.headers["location"]).json()
    assert failed["state"] == "failed"
    assert failed["error"].startswith("exit status 2: ")
    assert "/tmp" not in failed["error"]


def test_what_cannot_be_taken(client, client_with, settings, pool, monkeypatch):
    """An empty body, more than may wait, and an API without a runner."""
    assert posted(client, b" \n").status_code == 422
    for body in (b"no rows", b"{}", b"[1]", b'{"kind":"fault","ts":1}', b"\xff\n" * 200 + ROW, b"[" * 10**6):
        assert posted(client, body).status_code == 409, body
    refused = posted(client, b"ts;rank;step;step_seconds\n1;2;3;4\n").json()
    assert refused["detail"].startswith("the columns must be separated by commas")
    assert posted(client, b"\n# from the lab\n" + ROW).status_code == 202
    monkeypatch.setattr("store.findings.backtests.MAX_WAITING", 2)
    assert [posted(client).status_code for _ in range(2)] == [202, 429]
    client._app = create_app(settings, pool)
    assert posted(client).status_code == 503


TABLE = b"ts,rank,step,step_seconds\n1795160000.0,0,1,2.0\n1795160002.0,0,2,2.0\n"
ARRAY = (
    b'[\n {"ts":1795160000.0,"rank":0,"step":1,"step_seconds":2.0},\n {"ts":1795160002.0,"rank":0,"step":2,'
)
ARRAY += b'"step_seconds":2.0}\n]'


@pytest.mark.parametrize("body", [TABLE, ARRAY, TABLE.replace(b",", b"\t")], ids=["csv", "array", "tsv"])
def test_a_recording_has_the_formats_of_files(client, pool, body):
    """CSV and a JSON array are run as the command runs them, known by how they begin; gzip is too."""
    media = {"content-type": "application/gzip"}
    made = [posted(client, body), posted(client, gzip.compress(body), **media)]
    assert [one.status_code for one in made] == [202, 202]
    Runner(pool).run_one()
    done = client.get(made[0].headers["location"]).json()
    assert (done["state"], done["result"]["rows"]) == ("done", 2)


def test_bytes_behind_a_gzip_recording_are_refused(client):
    """What was damaged on the way is not run as if it were whole."""
    refused = posted(client, gzip.compress(ROW) + b"garbage", **{"content-type": "application/gzip"})
    assert refused.status_code == 400
    assert "7 bytes follow the end of the gzip body" in refused.json()["detail"]


def test_a_key_of_some_clusters_sees_its_own(client, client_with, pool):
    """A recording may name any cluster."""
    other = client_with("telemetry:write", "findings:read", clusters=("lab",))
    other._app = client._app
    mine, theirs = posted(client).json()["id"], posted(other).json()["id"]
    assert other.get(f"{URL}/{mine}").status_code == 404
    assert [one["id"] for one in other.get(URL).json()["items"]] == [theirs]
    assert {one["id"] for one in client.get(URL).json()["items"]} == {mine, theirs}


def test_the_same_key_posts_a_recording_once(client):
    """Idempotency-Key, as on every POST."""
    ids = {posted(client, **{"idempotency-key": "k1"}).json()["id"] for _ in range(2)}
    assert len(ids) == 1


def test_a_runner_that_was_killed_is_replaced_once(client, pool):
    """Its lease expires; a recording that ends every process fails."""
    id_ = posted(client).json()["id"]
    now = datetime.now(UTC)
    with pool.connection() as conn:
        assert backtests.lease(conn, now, 60) is not None
        assert backtests.lease(conn, now, 60) is None
        assert backtests.lease(conn, now + timedelta(seconds=61), 60) is not None
        assert backtests.lease(conn, now + timedelta(seconds=122), 60) is None
        found = backtests.get(conn, id_)
    assert found is not None
    assert found.state == "failed"
    assert found.error.startswith("interrupted: slowrank was killed or ran out of memory each time")
    assert "post the recording again" in found.error


def test_a_runner_that_goes_on_renews_its_lease(client, pool, monkeypatch):
    """So it keeps the recording for as long as it needs; that of a killed one is free in half a minute."""
    monkeypatch.setattr("cli.run.backtests._RENEW_SECONDS", 0.2)
    posted(client)
    runner = Runner(pool, SLEEPS)
    thread = threading.Thread(target=runner.run_one)
    thread.start()
    first = until_leased(pool)
    while (renewed := until_leased(pool)) == first:
        time.sleep(0.05)
    assert renewed > first
    runner.stop()
    thread.join(20)
    assert LEASE_SECONDS <= 30


def test_a_runner_stops_when_another_has_taken_its_recording(client, pool, monkeypatch):
    """Its process is killed, and the other's run stays as it is."""
    monkeypatch.setattr("cli.run.backtests._RENEW_SECONDS", 0.2)
    posted(client)
    thread = threading.Thread(target=Runner(pool, SLEEPS).run_one)
    thread.start()
    # Longer than any renewal reaches.
    later = until_leased(pool) + timedelta(days=1)
    with pool.connection() as conn:
        assert backtests.lease(conn, later, 60) is not None
    thread.join(20)
    assert not thread.is_alive()
    with pool.connection() as conn:
        row = conn.execute("SELECT state, attempts, leased_until FROM backtests").fetchone()
    assert row == ("running", 2, later + timedelta(seconds=60))


def test_a_lost_lease_changes_nothing(client, pool):
    """A runner that comes back late neither renews, ends nor releases the run of the next one."""
    id_ = posted(client).json()["id"]
    now = datetime.now(UTC)
    with pool.connection() as conn:
        old = backtests.lease(conn, now, 60)
        new = backtests.lease(conn, now + timedelta(seconds=61), 60)
        assert old is not None
        assert new is not None
        before = conn.execute("SELECT * FROM backtests").fetchall()
        assert not backtests.renew(conn, old, now, 600)
        backtests.finish(conn, old, now, result={})
        backtests.release(conn, old)
        assert conn.execute("SELECT * FROM backtests").fetchall() == before
        assert backtests.renew(conn, new, now, 600)
        backtests.finish(conn, new, now, result={})
        found = backtests.get(conn, id_)
    assert found is not None
    assert found.state == "done"


def test_a_renewal_that_finds_no_connection_leaves_time_for_the_next(client, pool, monkeypatch):
    """The lease outlasts one that fails; the pool alone waits for longer than that."""
    monkeypatch.setattr("cli.run.backtests._RENEW_WAIT_SECONDS", 0.01)
    posted(client)
    with ConnectionPool(pool.conninfo, min_size=1, max_size=1) as narrow:
        with narrow.connection() as conn:
            held = backtests.lease(conn, datetime.now(UTC), 60)
            assert held is not None
            conn.commit()
            assert Runner(narrow)._renew(held)
        assert Runner(narrow)._renew(held)
    assert 2 * _RENEW_SECONDS + _RENEW_WAIT_SECONDS < LEASE_SECONDS


def test_a_stopped_runner_gives_the_recording_back(client, pool):
    """Its process is killed, and the next runner has all its attempts."""
    posted(client)
    runner = Runner(pool, SLEEPS)
    thread = threading.Thread(target=runner.run)
    thread.start()
    until_leased(pool)
    runner.stop()
    thread.join(10)
    assert not thread.is_alive()
    with pool.connection() as conn:
        row = conn.execute("SELECT state, attempts FROM backtests").fetchone()
    assert row == ("waiting", 0)


def test_a_runner_survives_what_it_does_not_expect(client, pool, monkeypatch, caplog):
    """A full disk: it logs that and goes on."""
    monkeypatch.setattr("cli.run.backtests.ERROR_SECONDS", 0.01)
    monkeypatch.setattr("cli.run.backtests.LOOK_SECONDS", 0.01)
    runner = Runner(pool)
    tries = []

    def fail():
        tries.append(1)
        if len(tries) == 3:
            runner.stop()
        raise OSError("no space left")

    monkeypatch.setattr(Runner, "run_one", lambda self: fail())
    runner.run()
    assert len(tries) == 3
    assert "backtests do not run" in caplog.text


def test_old_results_are_removed(client, pool):
    """After a week."""
    posted(client)
    with pool.connection() as conn:
        assert backtests.lease(conn, datetime.now(UTC) + timedelta(days=8), 60) is None
        assert backtests.listed(conn, by=None) == []


def test_the_result_counts_what_was_opened():
    """Suspected findings are listed and not counted by kind; the dearest comes first."""
    found = [
        {"kind": "a", "severity": "info", "status": "suspected"},
        {"kind": "a", "severity": "error", "status": "open", "gpu_hours_lost": 1.0},
        {"kind": "b", "severity": "error", "status": "resolved", "gpu_hours_lost": 2.0},
    ]
    result = result_of(
        [json.dumps(one) for one in found], ["3 findings; 70 rows read", "set aside: 2 rows, x"]
    )
    assert (result["rows"], result["findings"]) == (70, 3)
    assert (result["by_kind"], result["by_severity"]) == ({"a": 1, "b": 1}, {"error": 2})
    assert [one["kind"] for one in result["items"]] == ["b", "a", "a"]
    assert result["notes"] == ["set aside: 2 rows, x"]


def test_a_result_keeps_no_more_than_it_has():
    """Of very many findings and notes the first and dearest, whatever the recording made of them."""
    finding = (
        '{"status":"open","kind":"xid.79","severity":"critical","gpu_hours_lost":%d,"title":"' + "x" * 1000
    )

    def found():
        yield from (finding % (number % 1000) + '"}\n' for number in range(20_000))

    said = (f"job {number}: few steps\n" for number in range(20_000))
    tracemalloc.start()
    result = result_of(found(), said)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (result["findings"], result["by_kind"]) == (20_000, {"xid.79": 20_000})
    dearest = [lost for lost in range(999, 974, -1) for _ in range(20)]
    assert [one["gpu_hours_lost"] for one in result["items"]] == dearest
    assert len(result["notes"]) == 50
    assert peak < 5 * 2**20
