"""Nodes whose link is slow for TCP: samples with round trips in, findings out."""

import msgspec
import pytest

from simulator.cluster.cluster import Cluster
from simulator.cluster.layout import ClusterSpec, one_job
from slowrank.telemetry import NodeSample
from slowrank.telemetry.columns import pack, unpack
from slowrank.telemetry.schema import SAMPLE_SCHEMAS
from streams.config.toml_file import tuning_of
from streams.pipeline import local_pipeline

COLUMNS = ("host.tcp.sent_round_trip_seconds", "host.tcp.received_round_trip_seconds")
# Milliseconds of what is sent and of what is received, as measured on the nodes of a ring.
HEALTHY, IDLE = (0.03, 1.4), (None, None)
ONSET, SECONDS, NODE = 60, 150, "sim-0001"
FOUND = {("link.tcp_delay", NODE)}


def findings(trips, *, usual=HEALTHY, until=SECONDS, seconds=SECONDS, job=True, tuning=None, schema=5):
    """Return (status, kind, node) -> seconds since onset when it was first seen.

    One node has the round trips ``trips`` from onset on for ``until`` seconds, or what ``trips`` returns for
    the seconds since; before and after it has the ``usual`` ones, like the others.
    """
    jobs = (one_job(3, 1),) if job else ()
    cluster = Cluster(ClusterSpec(nodes=3, gpus=1, nics=1, jobs=jobs), seed=4)
    pipeline, found = local_pipeline(tuning), dict[tuple[str, str, str | None], float]()
    begun = cluster.spec.start + ONSET
    for record in cluster.run(seconds):
        if isinstance(record, NodeSample):
            since = record.ts - begun
            hit = record.node == NODE and 0.0 < since <= until
            now = (trips(since) if callable(trips) else trips) if hit else usual
            record = with_round_trips(record, now, schema)
        for f in pipeline.process(record):
            if f.kind.startswith("link."):
                found.setdefault((f.status, f.kind, f.subject.node), record.ts - begun)
    return found


def with_round_trips(sample, milliseconds, schema):
    """The sample as an exporter of ``schema`` sends it; None where no connection was busy."""
    was, to = SAMPLE_SCHEMAS[sample.schema], SAMPLE_SCHEMAS[schema]
    trips = {c: None if ms is None else ms / 1e3 for c, ms in zip(COLUMNS, milliseconds, strict=True)}
    (row,) = unpack(was.host, sample.host)
    gpu, nic = list(unpack(was.gpu, sample.gpu)), list(unpack(was.nic, sample.nic))
    return msgspec.structs.replace(
        sample,
        schema=schema,
        gpu=pack(to.gpu, gpu),
        nic=pack(to.nic, nic),
        host=pack(to.host, [row | trips if schema == 5 else row]),
    )


def opened(trips, **how):
    """Return (kind, node) -> seconds since onset."""
    return {
        (kind, node): at for (status, kind, node), at in findings(trips, **how).items() if status == "open"
    }


@pytest.mark.parametrize(
    "trips",
    [
        # 20 ms more each way, and 4 Mbit/s, on the rig.
        (41.5, 43.0),
        (200.0, 150.0),
        # In every fifth sample, as where thousands of connections are read, or a step takes so long.
        lambda since: (41.5, 43.0) if int(since) % 5 == 0 else IDLE,
        # The pause of a checkpoint in between.
        lambda since: IDLE if 20 <= since < 30 else (41.5, 43.0),
        # The receiver's estimate falls to the shortest at once, and takes some time to rise.
        lambda since: (200.0, 5.0 if int(since) % 25 < 2 else 250.0),
    ],
)
def test_a_node_with_long_round_trips_both_ways_is_named(trips):
    """After half a minute, whatever of it is read."""
    found = opened(trips)
    assert found.keys() == FOUND
    assert all(30.0 <= delay <= 45.0 for delay in found.values())


@pytest.mark.parametrize(
    "trips",
    [
        # The two neighbours of a slow node in a ring.
        (41.5, 1.4),
        (0.03, 43.0),
        # The one that sends to it, in a job whose turns take 40 ms: data comes once a turn.
        (305.0, 40.0),
        IDLE,
        (41.5, None),
        (None, 43.0),
        # Below what Pingmesh calls long.
        (4.5, 4.8),
    ],
)
def test_other_nodes_are_not(trips):
    """One direction alone, or none that was busy."""
    assert opened(trips) == {}


@pytest.mark.parametrize("trips", [(20.0, 21.0), (35.0, 36.0)])
def test_long_round_trips_that_are_usual_are_no_finding(trips):
    """Sites that are far apart, and what varies there."""
    assert opened(trips, usual=(20.0, 21.0)) == {}


def test_beside_usually_long_round_trips_longer_ones_are():
    """Twice the usual in both directions."""
    assert opened((45.0, 46.0), usual=(20.0, 21.0)).keys() == FOUND
    assert opened((45.0, 30.0), usual=(20.0, 21.0)) == {}


def test_a_burst_is_no_finding():
    """Round trips that are long for ten seconds, as of an incast, are short again before they count."""
    assert opened((41.5, 43.0), until=10) == {}


@pytest.mark.parametrize("after", [HEALTHY, IDLE])
def test_it_ends_with_the_fault(after):
    """Once round trips are as usual, or nothing is sent any more."""
    soon = tuning_of({"findings": {"resolve_after_seconds": 10.0}}, file="f")
    found = findings(lambda since: (41.5, 43.0) if since < 60 else after, until=400, seconds=220, tuning=soon)
    assert found["open", "link.tcp_delay", NODE] < 60.0
    assert 90.0 <= found["resolved", "link.tcp_delay", NODE] <= 140.0


def test_a_node_without_a_job_is_not_named():
    """Copies and backups of an idle node have slow peers for reasons of their own."""
    assert opened((41.5, 43.0), job=False) == {}


def test_an_exporter_of_before_names_none():
    """It does not read round trips."""
    assert opened((41.5, 43.0), schema=4) == {}


def test_it_can_be_switched_off():
    """By its name in the settings, as any other."""
    off = tuning_of({"detectors": {"tcp_delay": {"mode": "off"}}}, file="f")
    assert opened((41.5, 43.0), tuning=off) == {}
