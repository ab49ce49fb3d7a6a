"""Telemetry of 15, 30 or 60 seconds, as other systems have it: what hardware shows is found, and no more."""

from collections import defaultdict

import pytest

from alerts.finding import Finding
from simulator import Cluster, ClusterSpec, Fault, JobSpec
from slowrank.telemetry import NodeSample
from streams.pipeline import local_pipeline

ONSET, SECONDS = 300.0, 1200.0

# The fault of a node, and the kind of finding that it must have.
FAULTS = {
    1: ("ecc_uncorrectable", "ecc.uncorrectable"),
    2: ("thermal_throttle", "throttle.thermal"),
    3: ("gpu_lost", "gpu.missing"),
    4: ("pcie_downgrade", "link.pcie_downgrade"),
    5: ("link_errors", "link.nic_errors"),
    6: ("node_silent", "exporter.stale"),
}


def samples(interval):
    """The samples of eight nodes at one interval, without their events and step rows."""
    faults = [
        Fault(kind=kind, node=node, gpu=None if kind in ("node_silent", "link_errors") else 1, onset=ONSET)
        for node, (kind, _) in FAULTS.items()
    ]
    job = JobSpec(dp=32, job_id="j", step_seconds=2.0)
    spec = ClusterSpec(nodes=8, gpus=4, nics=4, jobs=(job,), send_seconds=interval, nodes_per_switch=8)
    records = Cluster(spec, seed=17, faults=faults).run(SECONDS)
    return sorted((r for r in records if isinstance(r, NodeSample)), key=lambda r: r.ts)


@pytest.mark.parametrize("interval", [15.0, 30.0, 60.0])
def test_faults_are_found_at_coarse_resolution(interval):
    """Each within six intervals (silence: twelve); healthy nodes have no finding, nor has one that starts.

    Heat is suspected so early; that it lasts opens it, after three minutes and two intervals at most.
    """
    pipeline = local_pipeline()
    found: dict[str | None, dict[str, Finding]] = defaultdict(dict)
    suspected: dict[tuple[str | None, str], Finding] = {}
    for sample in samples(interval):
        for finding in pipeline.process(sample):
            found[finding.subject.node][finding.kind] = finding
            suspected.setdefault((finding.subject.node, finding.kind), finding)
    start = ClusterSpec().start

    assert set(found) == {f"sim-{node:04d}" for node in FAULTS}
    assert all(f.onset >= start + ONSET - interval for kinds in found.values() for f in kinds.values())
    for node, (_, kind) in FAULTS.items():
        named = found[f"sim-{node:04d}"][kind]
        if kind == "throttle.thermal":
            assert named.status == "open"
            assert named.detected_at - start - ONSET <= 180 + 2 * interval
            named = suspected[named.subject.node, kind]
        delay = named.detected_at - start - ONSET
        assert delay <= interval * (12 if kind == "exporter.stale" else 6), (node, kind)
