"""Machines that wait for data since one moment: one finding about their job, and none about each."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.detection.step_jobs import records, synchronous
from detectors.straggler.core import HeldSlow
from detectors.straggler.loading_together import LoadingTogether
from detectors.straggler.step_detector import StragglerDetector
from streams.cluster.stage import FindingStage
from streams.job.stage import JobStage
from streams.node.stage import NodeStage
from streams.pipeline import Pipeline
from tests.streams.job.job_tables import healthy

RANKS, PER_NODE, STEPS, ONSET = 64, 8, 160, 80
NODE = np.arange(RANKS) // PER_NODE


def findings_of(onsets, *, until=STEPS, steps=STEPS):
    """Return the last version of each finding that was notified, of a job whose nodes load slowly from their
    ``onsets`` [steps] on."""
    work, rng = healthy(steps=steps, ranks=RANKS), np.random.default_rng(3)
    data = 0.02 * np.exp(rng.normal(0.0, 0.3, work.shape))
    quick = (work + data).max(axis=1)
    for node, onset in onsets.items():
        slow = np.flatnonzero(node == NODE)
        data[onset:until, slow] += 0.3 * np.exp(rng.normal(0.0, 0.3, (until - onset, slow.size)))
    step = np.repeat((work + data).max(axis=1, keepdims=True), RANKS, axis=1)
    table = replace(synchronous(work), data=data, step=step, wait=step - work - data, ranks_per_node=PER_NODE)
    pipeline = Pipeline(node=NodeStage(), job=JobStage(), finding=FindingStage())
    versions = [f for record in records(table) for f in pipeline.process(record)]
    last = {f.id: f for f in [*versions, *pipeline.catch_up()]}
    opened = [f for f in last.values() if f.status != "suspected" and not f.group_key]
    return opened, (step[:, 0] - quick).sum() * RANKS


def names(subjects):
    return sorted(int(subject.node.rpartition("-")[2].lstrip("n")) for subject in subjects)


@pytest.mark.parametrize(("nodes", "onset"), [((1, 3, 6), 0), ((1, 3, 6), ONSET), ((0, 4, 7), ONSET)])
def test_nodes_that_wait_since_one_moment_are_one_finding(nodes, onset):
    """All of them are its suspects and none is to be evicted; what the job lost by its last report is on its
    account."""
    [found], waited = findings_of(dict.fromkeys(nodes, onset))
    assert (found.kind, found.subject.type) == ("data.loader_slow", "job")
    assert found.cause.hypothesis == "data.shared"
    assert (found.action.code, found.action.eviction) == ("CHECK_DATA", None)
    assert names(suspect.subject for suspect in found.suspects) == list(nodes)
    assert 3600.0 * found.gpu_hours_lost == pytest.approx(waited, rel=0.3)


@pytest.mark.parametrize("onsets", [{2: ONSET}, {2: ONSET, 5: ONSET}, {1: 40, 3: 80, 6: 120}])
def test_nodes_that_wait_by_themselves_are_named_each(onsets):
    found, _ = findings_of(onsets)
    assert [f.kind for f in found] == ["data.loader_slow"] * len(onsets)
    assert names(f.subject for f in found) == sorted(onsets)


def test_it_is_over_when_no_node_waits_any_more():
    [found], _ = findings_of(dict.fromkeys((1, 3, 6), 40), until=100, steps=500)
    assert (found.subject.type, found.status) == ("job", "resolved")


def test_it_goes_on_across_a_restart_and_leaves_a_machine_that_has_a_fault_of_its_own():
    """What was slow together stays so, and what was not does not become so."""
    core = StragglerDetector(RANKS, None, nodes=NODE)
    together, alone = [8, 9, 24, 48], [16, 32, 40]
    core.resume([HeldSlow("data", rank, size=0.3, together=rank in together) for rank in together + alone])
    assert core.loading_together.tolist() == together
    assert {slow.rank for slow in core.held() if slow.together} == set(together)
    assert [core.is_part("data", rank) for rank in alone] == [False] * 3


def test_the_machine_that_is_left_is_taken_for_itself_after_a_while():
    found, raised = dict.fromkeys([8, 24, 48], (100, 4)), np.zeros(RANKS, dtype=np.bool_)
    raised[[8, 24, 48]] = True
    loading = LoadingTogether(NODE)
    assert loading.update(found, raised, 104) == []
    assert loading.members.tolist() == [8, 24, 48]
    raised[[24, 48]] = False
    left = [loading.update({}, raised, now) for now in range(105, 160)]
    assert [ranks for ranks in left if ranks] == [[8]]
    assert not loading.members.size
