"""The bus of one process, over a real database."""

import time

import psycopg
import pytest
from msgspec.structs import replace

from slowrank.cli.bus import MAX_CLUSTERS, Bus
from slowrank.telemetry import NodeEvent
from store import findings
from store.migrate import migrate
from store.pool import open_pool
from streams.tuning import Layer, Tuning
from tests.streams import traffic

pytestmark = pytest.mark.integration


@pytest.fixture
def bus(database):
    migrate(database)
    with open_pool(database, name="bus") as pool:
        yield Bus(pool, now=time.time, tuning=Tuning())


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


def test_findings_wait_for_the_database_to_come_back(bus, database, monkeypatch):
    """The database goes away between two findings: neither is lost."""
    failing(monkeypatch, "n2", psycopg.OperationalError("server closed the connection"))
    bus.accept([lost_gpu("n1"), lost_gpu("n2")])
    bus.finish("c")
    assert stored_nodes(database) == ["n1"]
    bus.finish("c")
    assert stored_nodes(database) == ["n1", "n2"]


def test_a_finding_the_database_refuses_holds_up_no_other(bus, database, monkeypatch):
    """It is counted, and those after it are stored in the same breath."""
    failing(monkeypatch, "n1", psycopg.DataError("value out of range"))
    bus.accept([lost_gpu("n1"), lost_gpu("n2")])
    bus.finish("c")
    assert stored_nodes(database) == ["n2"]
    assert bus.refused["store_refused"] == 1


def test_the_store_goes_by_the_settings_of_the_findings_cluster(database, monkeypatch):
    """What `[findings]` says of a cluster reaches the store with each of its findings."""
    patient = {"finding": {"reopen_within_seconds": 7 * 86400.0}}
    tuning = Tuning([Layer(where='clusters."c*"', cluster="c*", knobs=patient)])
    seen: dict[str, float] = {}

    def wrapped(conn, finding, config):
        seen[finding.subject.cluster] = config.reopen_within_seconds

    monkeypatch.setattr(findings, "save", wrapped)
    migrate(database)
    with open_pool(database, name="bus") as pool:
        tuned = Bus(pool, now=time.time, tuning=tuning)
        tuned.accept([lost_gpu("n1"), replace(lost_gpu("n1"), cluster="d")])
        for cluster in ("c", "d"):
            tuned.finish(cluster)
    assert seen == {"c": 7 * 86400.0, "d": 86400.0}


def test_a_cluster_too_many_is_refused_by_name(bus):
    """Its records are returned with the reason, those of clusters known are taken."""
    many = [replace(lost_gpu("n"), cluster=f"c{i}") for i in range(MAX_CLUSTERS + 1)]
    refused = bus.accept([*many, many[0]])
    assert list(refused) == [MAX_CLUSTERS]
    assert "64 clusters are open already" in str(refused[MAX_CLUSTERS].detail)
    assert bus.accepted == MAX_CLUSTERS + 1


def test_paces_are_stored_with_the_rows(bus, database):
    """Two hours of a job: each GPU has its hours in the table."""
    bus.accept(list(traffic.job(ranks=8, steps=260, step_seconds=30.0)))
    with psycopg.connect(database) as conn:
        rows = conn.execute("SELECT gpu_index, sum(n) FROM paces GROUP BY 1 ORDER BY 1").fetchall()
    assert [gpu for gpu, _ in rows] == list(range(8))
    assert all(1 <= hours <= 3 for _, hours in rows)
