"""A parallel group over several nodes that is slow: one finding, with its ranks as suspects."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.detection.step_jobs import START, records, synchronous
from streams.cluster.stage import FindingStage
from streams.job.stage import JobStage
from streams.node.stage import NodeStage
from streams.pipeline import Pipeline
from tests.streams.job.job_tables import healthy

RANKS, ONSET = 64, 80
AT = np.arange(RANKS)

# Tensor-parallel groups of eight: two ranks on each of four nodes of eight.
SPREAD = {"dp": AT % 4 + 4 * (AT // 32), "tp": AT // 4 % 8, "pp": 0 * AT}

# Tensor-parallel groups that are two whole nodes.
WHOLE = {"dp": AT // 16, "tp": AT % 16, "pp": 0 * AT}

# Replicas of four stages, each on half of another node; the tensor-parallel groups are within nodes.
STAGES = {"dp": AT // 4 % 4, "tp": AT % 4, "pp": AT // 16}


def ranks_of(coords, **at):
    return np.flatnonzero(np.logical_and.reduce([coords[name] == place for name, place in at.items()]))


def findings_of(work, coords, *, ranks_per_node=8, tokens=None):
    """Return the last version of each finding that was notified and that no other one explains."""
    table = synchronous(work, overhead=0.05, coords={name: at.tolist() for name, at in coords.items()})
    table = replace(table, tokens=tokens)
    pipeline = Pipeline(node=NodeStage(), job=JobStage(), finding=FindingStage())
    versions = [
        f for r in records(replace(table, ranks_per_node=ranks_per_node)) for f in pipeline.process(r)
    ]
    last = {f.id: f for f in [*versions, *pipeline.catch_up()]}
    return [f for f in last.values() if f.status != "suspected" and not f.group_key]


def told(found):
    """Return what the findings are about: type, coordinates or rank, and severity."""
    return sorted(
        (f.subject.type, f.subject.coords if f.subject.rank is None else f.subject.rank) for f in found
    )


def slow_from(steps, ranks, factor, *, noise=0.005, seed=0, until=None, total=160):
    work = healthy(steps=total, ranks=RANKS, noise=noise, seed=seed)
    work[steps:until, ranks] *= factor
    return work


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("noise", "factor"), [(0.005, 1.2), (0.02, 1.2), (0.005, 1.05)])
@pytest.mark.parametrize(
    ("coords", "group", "severity"),
    [
        # Eighty steps at 1.2x have not cost the job half a minute.
        (SPREAD, {"dp": 5, "pp": 0}, "error"),
        (WHOLE, {"dp": 2, "pp": 0}, "error"),
        # All of a replica have its batch: more of it would show the same.
        (STAGES, {"dp": 1}, "warning"),
    ],
    ids=["parts of four nodes", "two whole nodes", "a replica on four nodes"],
)
def test_a_slow_group_is_one_finding(coords, group, severity, noise, factor, seed):
    """And not one for each of its nodes or ranks, at the severity that these would have."""
    members = ranks_of(coords, **group)
    [found] = findings_of(slow_from(ONSET, members, factor, noise=noise, seed=seed), coords)
    assert (found.kind, found.subject.type, found.subject.coords) == ("straggler.fail_slow", "group", group)
    assert found.subject.node is None
    assert sorted(s.subject.rank for s in found.suspects) == members.tolist()
    assert sum(s.probability for s in found.suspects) == pytest.approx(1.0, abs=0.01)
    assert found.slowdown_ratio == pytest.approx(factor, abs=0.01 + noise / 2)
    assert found.severity == (severity if factor > 1.1 else "warning")


def test_a_slow_replica_that_amounts_of_work_show_is_one_finding():
    """No coordinates are known; its ranks, on four nodes, report one number of tokens, step after step."""
    tokens = np.random.default_rng(4).integers(3950, 4050, (160, 4)).astype(float)[:, STAGES["dp"]]
    members = ranks_of(STAGES, dp=1)
    work = slow_from(ONSET, members, 1.2) * tokens / 4000
    [found] = findings_of(work, {}, tokens=tokens)
    assert (found.kind, found.subject.type, found.subject.coords) == ("straggler.fail_slow", "group", None)
    assert found.subject.ranks == "4-7,20-23 and 8 more"
    assert sorted(s.subject.rank for s in found.suspects) == members.tolist()
    assert found.title == "Group of ranks 4-7,20-23 and 8 more of job job is 1.20x slower than 48 peers"


def test_a_slow_replica_on_one_machine_names_it():
    """No coordinates are known; half of a machine reports one number of tokens, step after step."""
    tokens = np.random.default_rng(4).integers(3000, 5000, (160, 16)).astype(float)[:, AT // 4]
    work = slow_from(ONSET, np.arange(20, 24), 1.3) * tokens / 4000
    [found] = [f for f in findings_of(work, {}, tokens=tokens) if f.kind == "straggler.fail_slow"]
    assert (found.subject.type, found.subject.node, found.subject.ranks) == ("group", "node-0002", "20-23")
    assert sorted(s.subject.rank for s in found.suspects) == [20, 21, 22, 23]


def test_all_ranks_of_a_ramp_become_one_finding():
    """Though they cross the threshold at different steps."""
    work, members = slow_from(ONSET, [], 1.0), ranks_of(WHOLE, dp=1)
    work[ONSET:, members] *= 1 + np.clip(np.arange(1, 81) / 60, 0, 1)[:, None] * 0.15
    assert told(findings_of(work, WHOLE)) == [("group", {"dp": 1, "pp": 0})]


def test_slow_groups_of_one_family_are_one_finding_each():
    """They are no larger thing that is slow, as long as nothing besides them is."""
    work = slow_from(ONSET, ranks_of(SPREAD, dp=1), 1.3)
    work[ONSET:, ranks_of(SPREAD, dp=5)] *= 1.2
    found = sorted(findings_of(work, SPREAD), key=lambda f: -f.slowdown_ratio)
    assert [f.subject.coords for f in found] == [{"dp": 1, "pp": 0}, {"dp": 5, "pp": 0}]


@pytest.mark.parametrize(("own", "others"), [(1.4, 1.2), (1.54, 1.1)])
def test_the_rank_that_the_others_wait_for_is_named(own, others):
    """Its mates on other nodes wait for a part of its work within their compute: no finding of their own."""
    members = ranks_of(SPREAD, dp=5)
    work = slow_from(ONSET, members, others)
    work[ONSET:, members[3]] *= own / others
    assert told(findings_of(work, SPREAD)) == [("rank", members[3])]


@pytest.mark.parametrize("coords", [SPREAD, WHOLE, STAGES])
def test_a_slow_node_stays_a_node(coords):
    """Half of two groups, or a quarter of several, is no group."""
    [found] = findings_of(slow_from(ONSET, np.arange(16, 24), 1.2), coords)
    assert (found.subject.type, found.subject.node) == ("node", "node-0002")


def test_slow_nodes_that_a_replica_nearly_covers_stay_nodes():
    """Three of its four machines, whole, and one that is not of it."""
    coords = {"dp": AT // 32, "pp": AT // 8 % 4, "tp": AT % 8}
    found = findings_of(slow_from(ONSET, np.arange(24, 56), 1.2, total=120), coords)
    assert {f.subject.type for f in found} <= {"node"}


def test_a_slow_rank_is_no_group():
    assert told(findings_of(slow_from(ONSET, [9], 1.2), SPREAD)) == [("rank", 9)]


def test_a_later_fault_of_a_member_has_its_own_finding():
    """A rank that becomes much slower than its group, which was slow before: with an onset of its own."""
    members = ranks_of(SPREAD, dp=5)
    work = slow_from(ONSET, members, 1.1, total=220)
    work[140:, members[2]] *= 1.4
    group, rank = sorted(findings_of(work, SPREAD), key=lambda f: f.onset)
    assert (group.subject.type, rank.subject.rank) == ("group", members[2])
    ends = START + np.cumsum(work.max(axis=1) + 0.05)
    assert ends[138] <= rank.onset <= ends[142]


def test_the_one_that_stays_slow_has_its_own_finding():
    """When all others of its group are well again."""
    members = ranks_of(SPREAD, dp=5)
    work = slow_from(ONSET, members, 1.2, until=130, total=260)
    work[130:, members[2]] *= 1.2
    assert told(findings_of(work, SPREAD)) == [("group", {"dp": 5, "pp": 0}), ("rank", members[2])]


def test_a_relapse_is_the_same_finding():
    work, members = (
        slow_from(ONSET, ranks_of(SPREAD, dp=5), 1.2, until=120, total=260),
        ranks_of(SPREAD, dp=5),
    )
    work[200:, members] *= 1.2
    [found] = findings_of(work, SPREAD)
    assert found.status == "open"


def test_a_group_that_recovers_is_resolved():
    """With all of its ranks, none of which has a finding left."""
    work = slow_from(ONSET, ranks_of(SPREAD, dp=5), 1.2, until=120, total=520)
    assert [f.status for f in findings_of(work, SPREAD)] == ["resolved"]


def test_it_says_what_it_is_and_what_to_do():
    """Nodes to evict together, and no command to drain one of them."""
    [found] = findings_of(slow_from(ONSET, ranks_of(SPREAD, dp=5), 1.2), SPREAD)
    assert found.title == "Tensor-parallel group dp=5, pp=0 of job job is 1.20x slower than 56 peers"
    nodes = tuple(f"node-000{n}" for n in range(4, 8))
    assert f"8 ranks of job job on {', '.join(nodes)}" in found.action.text
    assert "step times do not show which" in found.action.text
    assert (found.action.code, found.action.commands) == ("RUN_DIAG", ())
    assert sorted(found.action.eviction.nodes) == list(nodes)


def test_ranks_that_may_have_more_work_are_not_to_be_evicted():
    [found] = findings_of(slow_from(ONSET, ranks_of(STAGES, dp=1), 1.2), STAGES)
    assert found.title == "Replica dp=1 of job job is 1.20x slower than 12 peers"
    assert (found.severity, found.action.eviction) == ("warning", None)


@pytest.mark.parametrize(
    ("coords", "per_node", "members", "name"),
    [
        (STAGES, 8, ranks_of(STAGES, dp=2, tp=1), "Pipeline dp=2, tp=1"),
        (
            {"dp": AT, "ep": AT % 16, "pp": 0 * AT, "tp": 0 * AT},
            8,
            np.arange(32, 48),
            "Group edp=2, pp=0, tp=0",
        ),
    ],
    ids=["pipeline", "experts"],
)
def test_pipelines_and_expert_groups_are_named_too(coords, per_node, members, name):
    work = slow_from(ONSET, members, 1.2)
    [found] = findings_of(work, coords, ranks_per_node=per_node)
    assert found.title.startswith(f"{name} of job job is 1.20x slower")
