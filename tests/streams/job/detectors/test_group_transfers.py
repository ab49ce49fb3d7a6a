"""Transfers: a slow link makes its group a finding about the job, and names no rank where several are as
likely.
"""

import math

import numpy as np
import pytest

from alerts.finding import Finding
from benchmarks.detection.localisation import steps_of
from simulator.cluster.layout import ClusterSpec, JobSpec
from simulator.faults.fault import Fault
from simulator.jobs.job import RunningJob
from slowrank.telemetry import Suspicion
from streams.cluster.stage import FindingStage
from tests.streams.job.job_tables import SuspectingStage

JOB = JobSpec(dp=4, pp=4, tp=8, step_seconds=2.0)
SPEC = ClusterSpec(nodes=16, jobs=(JOB,))


def run(*faults, until=240.0, job=JOB, seed=3):
    """Return the suspicions of a simulated job, and its findings by kind and coordinates."""
    spec = ClusterSpec(nodes=SPEC.nodes, jobs=(job,))
    running = RunningJob(spec, job, faults, np.random.default_rng(seed))
    stage, finding, found = SuspectingStage(), FindingStage(), []
    last: dict[str, Finding] = {}
    for step in steps_of(spec, running, until):
        for record in step:
            for s in stage.process(record):
                assert isinstance(s, Suspicion)
                found.append(s)
                finding.process(s)
        last |= {f.id: f for f in finding.tick(math.ceil(step[0].ts))}
    return found, list(last.values())


def slow_nic(node=5, gpu=3, factor=4.0):
    return Fault(kind="nic_slow", node=node, gpu=gpu, onset=100.0, magnitude=factor)


def test_a_slow_port_is_a_finding_about_its_data_parallel_group():
    """Node 5 holds stage 1: ranks (pp=1, tp=3) share the delay, and no rank is suspect."""
    found, findings = run(slow_nic())
    opened = [f for f in findings if f.status == "open"]
    assert [(f.kind, f.subject.coords, f.cause.hypothesis) for f in opened] == [
        ("straggler.job_wide", {"pp": 1, "tp": 3}, "group")
    ]
    assert opened[0].title.startswith("Group pp=1, tp=3 of job")
    assert opened[0].severity in ("info", "warning")
    assert [s.subject.rank for s in opened[0].suspects] == [35, 43, 51, 59]
    assert all(0.2 < s.probability <= 0.25 for s in opened[0].suspects)
    evicted = opened[0].action.eviction
    assert evicted.nodes == tuple(s.subject.node for s in opened[0].suspects)
    assert evicted.probability > 0.8
    assert "One is bad with probability" in opened[0].action.text
    assert abs(opened[0].onset - SPEC.start - 100.0) < 15.0
    assert not [s for s in found if s.subject.rank is not None]


def test_it_ends_when_the_port_is_well_again():
    """Two quiet rounds clear the suspicion."""
    fault = Fault(kind="nic_slow", node=5, gpu=3, onset=60.0, duration=80.0, magnitude=4.0)
    found, _ = run(fault, until=260.0)
    assert [s.state for s in found if s.detector == "group_votes"][-1] == "clear"


@pytest.mark.parametrize("seed", range(3))
def test_healthy_jobs_have_no_slow_group(seed):
    """A hundred steps without a fault lead to no word about transfers."""
    found, _ = run(seed=seed)
    assert found == []


def test_congestion_names_no_group():
    """What slows all groups alike is none of theirs."""
    found, _ = run(Fault(kind="congestion", node=0, onset=100.0, magnitude=3.0))
    assert [s for s in found if s.detector == "group_votes"] == []


def test_a_slow_rank_is_not_its_group():
    """A rank that computes slowly is named, and no group beside it."""
    found, _ = run(Fault(kind="silent_slow", node=5, gpu=3, onset=100.0, magnitude=1.3))
    assert {s.subject.rank for s in found} == {43}
