"""Faults of the telemetry, from simulated records to findings: about the telemetry and no machine."""

import math

import msgspec
import pytest

from simulator.cluster.cluster import Cluster
from simulator.cluster.layout import ClusterSpec, one_job
from simulator.faults.fault import Fault
from slowrank.telemetry import NodeSample
from slowrank.telemetry.columns import pack, unpack
from slowrank.telemetry.schema import HOST_V1, SAMPLE_SCHEMAS
from streams.clock_error import clock_error
from streams.node.detectors.exporter_health import SPOOL_FREE
from streams.pipeline import local_pipeline

NODES = 6


def opened(fault, seconds=200.0):
    """(kind, node, detection delay) of what was found open about a fault on one of six nodes."""
    cluster = Cluster(
        ClusterSpec(nodes=NODES, gpus=2, nics=2, jobs=(one_job(NODES, 2),)), seed=4, faults=[fault]
    )
    pipeline = local_pipeline()
    found = [f for r in cluster.run(seconds) for f in pipeline.process(r)]
    begun = cluster.spec.start + fault.onset
    return {(f.kind, f.subject.node): f.detected_at - begun for f in found if f.status == "open"}


@pytest.mark.parametrize("seconds", [0.6, 30.0])
def test_a_clock_that_is_off_is_told_and_nothing_else(seconds):
    """Half a minute ahead or half a second: within twelve seconds of that clock, and no other finding."""
    found = opened(Fault(kind="clock_skew", node=2, onset=100.0, magnitude=seconds))
    assert found.keys() == {("host.clock_skew", "sim-0002")}
    assert found["host.clock_skew", "sim-0002"] - seconds <= 12.0


def test_an_exporter_that_repeats_itself_is_stale_and_its_gpus_are_well():
    """When host and GPUs stand still together, it is the exporter and not a driver."""
    found = opened(Fault(kind="frozen_exporter", node=2, onset=100.0, duration=60.0))
    assert found.keys() == {("exporter.stale", "sim-0002")}
    assert found["exporter.stale", "sim-0002"] <= 12.0


@pytest.mark.parametrize(("free", "raised"), [(2**20, False), (2**20 - 64, True), (0.0, True), (None, False)])
def test_a_spool_without_room_is_a_finding_about_the_exporter(free, raised):
    """Ten seconds below 1 MiB; an exporter that does not say how much room it has is well."""
    cluster = Cluster(ClusterSpec(nodes=3, gpus=1, nics=1), seed=4)
    begun, pipeline = cluster.spec.start + 20, local_pipeline()
    found = dict[tuple[str, str | None], float]()
    for record in cluster.run(60.0):
        if isinstance(record, NodeSample) and record.node == "sim-0001" and record.ts > begun:
            block = SAMPLE_SCHEMAS[record.schema].host
            (row,) = unpack(block, record.host)
            record = msgspec.structs.replace(record, host=pack(block, [row | {SPOOL_FREE: free}]))
        for f in pipeline.process(record):
            found.setdefault((f.kind, f.subject.node), f.detected_at - begun)
    assert found == ({("exporter.spool", "sim-0001"): pytest.approx(11.0, abs=1.5)} if raised else {})


def test_a_driver_that_does_not_answer_is_no_stale_exporter():
    """When one GPU's values stand still and its reads block while the host goes on, it is the GPU."""
    found = opened(Fault(kind="gsp_hang", node=2, gpu=1, onset=100.0, magnitude=5.0))
    assert ("xid.119", "sim-0002") in found
    assert found["xid.119", "sim-0002"] <= 12.0
    assert ("exporter.stale", "sim-0002") not in found


def test_a_storm_of_corrected_errors_opens_by_itself():
    """It claims no more than what was counted."""
    found = opened(Fault(kind="ecc_storm", node=2, gpu=1, onset=60.0, magnitude=2.0))
    assert found.keys() == {("ecc.correctable_rate", "sim-0002")}


@pytest.mark.parametrize("kind", ["counter_reset", "duplicate_batch"])
def test_resets_and_repeats_are_nothing(kind):
    """Counters that start over and records sent twice give no finding."""
    assert opened(Fault(kind=kind, node=2, onset=100.0, duration=30.0, magnitude=5.0)) == {}


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(None, 0.0), (math.nan, 0.0), (0.4, 0.0), (-2.5, -2.5), (40.0, 40.0), (-1e30, 0.0), (1e6, 0.0)],
)
def test_the_clock_error_of_a_sample_is_what_it_tells(offset, expected):
    """Only an offset that was read, of half a second to a day, counts."""
    sample = NodeSample(
        schema=1, cluster="c", node="n", boot_id="b", seq=1, ts=5.0,
        host=pack(HOST_V1, [{"host.clock_offset_seconds": offset}]),
    )  # fmt: skip
    assert clock_error(sample) == expected
    assert clock_error(NodeSample(schema=1, cluster="c", node="n", boot_id="b", seq=1, ts=5.0)) == 0.0
