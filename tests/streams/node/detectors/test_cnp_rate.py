"""Congestion notifications: they say why a job is slow, and never that a machine is."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cluster.cluster import Cluster
from simulator.cluster.layout import ClusterSpec, one_job
from simulator.faults.fault import Fault
from slowrank.telemetry import NodeSample, Suspicion
from streams.node.stage import NodeStage
from streams.pipeline import local_pipeline
from tests.streams.node.node_samples import node_sample

START, FULL = 1000, 1100
CNP = "nic.port.cnp_handled_total"


def handled(counts):
    """Ports whose notifications stand at ``counts``; NaN is not read."""
    return [{CNP: None if math.isnan(count) else int(count)} for count in counts]


def run(rates, *, ports=4, job=lambda t: "j", gpus=1, schema=2, seconds=300):
    """What is said of a node whose i-th port is sent ``rates(t, i)`` notifications in the second to ``t``."""
    stage, rng = NodeStage(), np.random.default_rng(4)
    found: list[Any] = []
    counts = np.zeros(ports)
    for t in range(START, START + seconds):
        sent = np.array([rates(t, i) for i in range(ports)])
        counts += np.where(np.isnan(sent), 0.0, rng.poisson(np.nan_to_num(sent)))
        shown = np.where(np.isnan(sent), np.nan, counts)
        sample = node_sample(t, ports=handled(shown), job=job(t), gpus=[{}] * gpus, schema=schema)
        found += stage.process(sample)
    return [s for s in found if isinstance(s, Suspicion) and s.kind == "congestion"]


def full(t, i):
    return 4000.0 if FULL <= t < FULL + 100 else 2.0


@pytest.mark.parametrize("ports", [1, 4, 8])
@pytest.mark.parametrize("schema", [1, 2])
def test_a_full_network_is_told_for_information_and_cleared(ports, schema):
    """Within fifteen seconds, dated within five; once a node, however many ports it has."""
    raised, cleared = run(full, ports=ports, schema=schema)
    assert (raised.state, raised.kind, raised.severity) == ("raise", "congestion", "info")
    assert FULL <= raised.onset <= FULL + 5
    assert raised.ts <= FULL + 15
    assert not raised.overwhelming
    assert (raised.subject.type, raised.subject.node, raised.subject.nic) == ("node", "n", None)
    assert (raised.detector, raised.evidence[0].metric) == ("state.congested", "nic.port.cnp_handled_ratio")
    assert raised.evidence[0].value >= 10.0
    assert cleared.state == "clear"
    assert FULL + 100 < cleared.ts <= FULL + 180


def test_ten_times_what_is_usual_counts_and_five_times_does_not():
    """In a network that sends many of them, many are no congestion."""
    assert run(lambda t, i: 5000.0 if t >= FULL else 1000.0) == []
    assert [s.state for s in run(lambda t, i: 15000.0 if t >= FULL else 1000.0)] == ["raise"]


@pytest.mark.parametrize(
    "rates",
    [
        lambda t, i: 0.0,
        lambda t, i: 2.0,
        lambda t, i: 4000.0,
        lambda t, i: 60.0 if t >= FULL else 0.0,
        lambda t, i: 300.0 if t >= FULL and i == 1 else 2.0,
        lambda t, i: 400.0 if t % 60 == 0 else 2.0,
        lambda t, i: 0.0 if FULL <= t < FULL + 60 else 200.0,
        lambda t, i: math.nan,
        lambda t, i: math.nan if t >= FULL else 2.0,
    ],
    ids=["none", "some", "always", "few", "one port", "bursts", "pause", "never read", "not read any more"],
)
def test_what_is_no_full_network_is_silent(rates):
    """What is usual, a few, a burst now and then, a pause, and what is not read say nothing."""
    assert run(rates) == []


def test_without_a_job_nothing_is_said():
    """Between jobs, in the first minute of one, and on an ordinary host."""
    assert run(full, job=lambda t: None) == []
    assert run(full, gpus=0) == []
    assert run(lambda t, i: 4000.0 if t >= FULL else 2.0, job=lambda t: "k" if t >= FULL else "j") == []


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(0, 2**40), st.integers(0, 2**40), st.booleans())
def test_a_counter_that_starts_anew_or_a_gap_is_no_congestion(before, after, silent):
    """Wherever it stood and stands then; what came while the node was silent came at its usual rate."""
    stage, found = NodeStage(), list[Any]()
    for t in range(START, START + 200):
        start = after if t >= FULL and after < before else before
        if not (silent and FULL <= t < FULL + 60):
            ports = handled([start + 2 * (t - START)] * 2)
            found += stage.process(node_sample(t, gpus=[{}], ports=ports, schema=2, job="j"))
    assert [s for s in found if isinstance(s, Suspicion) and s.kind == "congestion"] == []


def simulated(kind, magnitude):
    """The records of a cluster with one fault."""
    spec = ClusterSpec(nodes=4, gpus=4, nics=2, jobs=(one_job(4, 4),))
    fault = Fault(kind=kind, node=2, gpu=1, onset=100.0, magnitude=magnitude)
    return list(Cluster(spec, seed=5, faults=[fault]).run(300.0))


def congested(records):
    """The suspicions of congestion that its nodes raise."""
    stage = NodeStage()
    raised = [s for r in records if isinstance(r, NodeSample) for s in stage.process(r)]
    return [s for s in raised if isinstance(s, Suspicion) and s.kind == "congestion"]


@pytest.mark.slow
def test_it_corroborates_that_the_job_is_slow_for_its_network():
    """The finding about the job shows it and is surer of its cause; it is no finding of its own."""
    records, pipeline = simulated("congestion", 3.0), local_pipeline()
    assert {s.subject.node for s in congested(records)} == {f"sim-000{i}" for i in range(4)}
    found = {f.id: f for r in records for f in pipeline.process(r)}.values()
    (job,) = [f for f in found if f.status == "open"]
    assert (job.kind, job.subject.type, job.subject.node) == ("straggler.job_wide", "job", None)
    assert "nic.port.cnp_handled_ratio" in {e.metric for e in job.evidence}
    assert job.cause is not None
    assert job.cause.hypothesis == "congestion"
    assert (job.cause.confidence or 0.0) > 0.8
    assert job.severity in ("info", "warning")
    assert job.blast_radius.other_findings == ()
    assert {f.kind for f in found}.isdisjoint({"congestion"})


def test_alone_it_is_no_finding():
    """A full network that slows no job is nobody's business, not even a suspected one's."""
    pipeline, counts = local_pipeline(), np.zeros(4)
    found: list[Any] = []
    for t in range(START, START + 200):
        counts += full(t, 0)
        found += pipeline.process(node_sample(t, gpus=[{}], ports=handled(counts), schema=2, job="j"))
    assert {f.kind for f in found} <= {"exporter.stale"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nic_slow", "link_errors", "clock_lock"])
def test_other_faults_are_no_congestion(kind):
    """A slow port, a bad link and a slow GPU send no more notifications."""
    assert congested(simulated(kind, 2.0)) == []
