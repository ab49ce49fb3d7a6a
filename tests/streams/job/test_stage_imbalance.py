"""JobStage on uneven work: findings about the job, and slow ranks in spite of it."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.detection.step_jobs import Coords, synchronous
from tests.streams.job.job_tables import (
    believed,
    healthy,
    job_level,
    layout,
    packed,
    run,
    steps_between,
)


@pytest.mark.parametrize("with_coords", [True, False])
def test_long_stage_is_a_finding_about_the_job(with_coords):
    """A stage with more work, named by its coordinates where there are any, makes no rank suspect."""
    work = healthy(seed=8)
    work[:, 12:] *= 1.4
    suspicions = run(synchronous(work, overhead=1.0, coords=layout(16, 4) if with_coords else None))
    assert believed(suspicions) == {}
    (stage,) = job_level(suspicions)
    assert (stage.kind, stage.subject.rank) == ("straggler.job_wide", None)
    assert list(stage.hypotheses) == ["imbalance.stage"]
    assert stage.subject.coords == ({"pp": 3} if with_coords else None)


@pytest.mark.parametrize("with_coords", [True, False])
def test_a_slow_group_that_fills_a_machine_may_be_the_machine(with_coords):
    """Where no coordinates tell it to be a stage, the finding says whose ranks they are, and that a slow
    machine is another explanation."""
    work = healthy(ranks=32, seed=8)
    work[:, 16:24] *= 1.4
    (found,) = job_level(run(synchronous(work, overhead=1.0, coords=layout(32, 4) if with_coords else None)))
    if with_coords:
        assert list(found.hypotheses) == ["imbalance.stage"]
        return
    assert found.hypotheses["imbalance.stage"] > found.hypotheses["imbalance.machine"] > 0
    assert found.evidence[0].note == "ranks 16-23 (all those of node-0002)"


@pytest.mark.parametrize("coords", [None, layout(64, 1)], ids=["no coordinates", "coordinates"])
@pytest.mark.parametrize("nodes", [(2, 5), (1, 3, 4)])
def test_nodes_that_are_as_much_slower_from_the_start_are_named_in_a_finding_about_the_job(nodes, coords):
    """They may be a class, of another model or under a power limit, as well as faults of each."""
    work = healthy(ranks=64, seed=8)
    work[:, np.isin(np.arange(64) // 8, nodes)] *= 1.25
    suspicions = run(synchronous(work, overhead=0.5, coords=coords))
    assert believed(suspicions) == {}
    (found,) = job_level(suspicions)
    assert list(found.hypotheses) == ["imbalance.machine"]
    names = [f"node-{node:04d}" for node in nodes]
    assert found.evidence[0].note == f"nodes {', '.join(names)}"
    assert [(s.subject.type, s.subject.node) for s in found.suspects] == [("node", name) for name in names]


@pytest.mark.parametrize("coords", [None, layout(64, 1)], ids=["no coordinates", "coordinates"])
@pytest.mark.parametrize("nodes", [(0, 2, 5, 6, 7), (0, 1, 3, 4, 6, 7)])
def test_most_nodes_that_become_slow_are_named_in_a_finding_about_the_job(nodes, coords):
    """Beside those that did not; it has an onset, and what the job loses since then is on its account."""
    work = healthy(ranks=64, seed=8)
    slow = work.copy()
    slow[100:, np.isin(np.arange(64) // 8, nodes)] *= 1.25
    table = synchronous(slow, overhead=0.2, coords=coords)
    suspicions = run(table)
    assert believed(suspicions) == {}
    (found,) = job_level(suspicions)
    assert list(found.hypotheses) == ["imbalance.slowed_machine"]
    assert [s.subject.node for s in found.suspects] == [f"node-{node:04d}" for node in nodes]
    assert found.onset == pytest.approx(table.ts[100], abs=2.0)
    lost = 64 * (slow.max(axis=1) - work.max(axis=1)).sum()
    last = [s.lost.gpu_seconds for s in suspicions if s.lost is not None][-1]
    assert 0.7 * lost < last < 1.1 * lost


CAUSAL = (0.75, 0.9, 1.05, 1.2)


def context_parallel(ranks, tp, pp=1):
    """Coordinates of ranks in the order tp, cp (4), dp, pp, and how much of the causal mask each works on."""
    r = np.arange(ranks)
    cp, per = r // tp % len(CAUSAL), ranks // pp
    coords = {"tp": r % tp, "cp": cp, "dp": r % per // (len(CAUSAL) * tp), "pp": r // per}
    return {name: at.tolist() for name, at in coords.items()}, np.array(CAUSAL)[cp]


@pytest.mark.parametrize(("ranks", "tp", "pp"), [(64, 4, 1), (128, 8, 1), (64, 8, 1), (128, 2, 4)])
def test_uneven_positions_from_the_start_are_how_work_is_divided(ranks, tp, pp):
    """Whether a position fills half of a node, one node of each replica or less: no machine is named."""
    coords, share = context_parallel(ranks, tp, pp)
    suspicions = run(synchronous(healthy(ranks=ranks, seed=8) * share, overhead=0.3, coords=coords))
    assert believed(suspicions) == {}
    (found,) = job_level(suspicions)
    assert list(found.hypotheses) == ["imbalance.context"]
    assert found.subject.coords == {"cp": 3}
    assert found.slowdown_ratio == pytest.approx(1.2 / 0.9, rel=0.02)
    assert found.suspects == ()


@pytest.mark.parametrize("exponent", [1.0, 0.1], ids=["uneven", "hardly uneven"])
@pytest.mark.parametrize("since", [0, 100])
def test_a_stage_with_more_work_is_found_beside_uneven_positions(since, exponent):
    """Each is a finding with its own cost, or the stage alone where the positions are nearly even."""
    coords, share = context_parallel(128, 2, 4)
    work = healthy(ranks=128, seed=8) * share**exponent
    work[since:, np.array(coords["pp"]) == 3] *= 1.4
    table = synchronous(work, overhead=0.3, coords=coords)
    suspicions = run(table)
    assert believed(suspicions) == {}
    found = {next(iter(s.hypotheses)): s for s in job_level(suspicions)}
    assert {name: s.subject.coords for name, s in found.items()} == {
        "imbalance.stage": {"pp": 3},
        **({"imbalance.context": {"cp": 3}} if exponent == 1.0 else {}),
    }
    assert found["imbalance.stage"].slowdown_ratio == pytest.approx(1.4, rel=0.02)
    if since:
        assert abs(steps_between(table, table.ts[since], found["imbalance.stage"].onset)) <= 2


@pytest.mark.parametrize(("position", "factor"), [(0, 1.9), (3, 1.1)])
def test_a_slow_rank_is_found_beside_uneven_positions(position, factor):
    """Whatever its position has to do."""
    coords, share = context_parallel(64, 4)
    work = healthy(ranks=64, seed=8) * share
    rank = 17 + 4 * position
    work[100:, rank] *= factor
    assert set(believed(run(synchronous(work, overhead=0.3, coords=coords)))) == {rank}


@pytest.mark.parametrize(
    "coords",
    [None, {"tp": np.arange(64) % 4}, {"ep": np.arange(64) % 8}, {"dp": np.arange(64) // 4 % 4}],
    ids=["none", "tp", "ep", "dp of each stage"],
)
def test_two_nodes_that_stand_as_a_stage_may_be_one(coords):
    """Where no coordinates tell otherwise, as those do not that several ranks share."""
    work = healthy(ranks=64, seed=8)
    work[:, 32:48] *= 1.25
    (found,) = job_level(run(synchronous(work, overhead=0.5, coords=coords)))
    assert found.hypotheses["imbalance.stage"] > found.hypotheses["imbalance.machine"] > 0
    assert found.evidence[0].note == "ranks 32-47 (all those of node-0004, node-0005)"


def test_two_nodes_are_no_stage_where_coordinates_tell_all_ranks_apart():
    """With dp and tp alone no dimension is left."""
    work = healthy(ranks=64, seed=8)
    work[:, 32:48] *= 1.25
    dp, tp = np.arange(64) // 4, np.arange(64) % 4
    table = synchronous(work, overhead=0.5, coords={"dp": dp.tolist(), "tp": tp.tolist()})
    (found,) = job_level(run(table))
    assert list(found.hypotheses) == ["imbalance.machine"]


@pytest.mark.parametrize(
    ("tensor", "slow", "causes"),
    [(8, set(range(24, 32)), []), (4, set(), ["imbalance.stage", "imbalance.machine"])],
    ids=["four replicas", "four stages of two replicas"],
)
def test_a_node_slow_from_the_start_may_be_a_stage_where_ranks_share_coordinates(tensor, slow, causes):
    """With dp and tp alone, of which each rank has its own only where there are no stages."""
    work, rank = healthy(ranks=32, seed=8), np.arange(32)
    work[:, 24:] *= 1.3
    dp = rank // 8 if tensor == 8 else rank // 4 % 2
    coords = {"dp": dp.tolist(), "tp": (rank % tensor).tolist()}
    found = run(synchronous(work, overhead=0.5, coords=coords))
    assert set(believed(found)) == slow
    assert [list(s.hypotheses) for s in job_level(found)] == ([causes] if causes else [])


@pytest.mark.parametrize("coords", [None, layout(64, 1)], ids=["no coordinates", "coordinates"])
def test_nodes_that_are_slower_by_different_amounts_from_the_start_are_named_each(coords):
    work = healthy(ranks=64, seed=8)
    work[:, 16:24] *= 1.15
    work[:, 40:48] *= 1.4
    slow = believed(run(synchronous(work, overhead=0.5, coords=coords)))
    assert set(slow) == {*range(16, 24), *range(40, 48)}


@pytest.mark.parametrize("whole", [True, False])
def test_a_stage_that_fills_a_node_and_slows_in_mid_run_is_the_node(whole):
    """A stage keeps its layers; half of the ranks of a node are its tensor-parallel group, which may slow."""
    work = healthy(steps=240, ranks=32, seed=8)
    work[120:, 16 : 24 if whole else 20] *= 1.2
    suspicions = run(synchronous(work, overhead=0.5, coords=layout(32, 4)))
    assert set(believed(suspicions)) == set(range(16, 24 if whole else 20))
    assert job_level(suspicions) == []


def test_a_stage_that_gets_more_work_for_a_while_is_dated_and_cleared():
    """The imbalance begins with the first long step, not the job, and ends when the work is even again."""
    work = healthy(steps=400, noise=0.01)
    work[150:280, 12:] *= 1.4
    table = synchronous(work, coords=layout(16, 4))
    found = [s for s in run(table) if s.state != "update"]
    assert [(s.state, s.subject.coords) for s in found] == [("raise", {"pp": 3}), ("clear", {"pp": 3})]
    assert abs(steps_between(table, table.ts[150], found[0].onset)) <= 2
    assert steps_between(table, table.ts[150], found[0].ts) <= 25
    assert 0 < steps_between(table, table.ts[280], found[1].ts) <= 45


PLACES = np.arange(64)
CUT: Coords = {
    "dp": (PLACES // 8 % 4).tolist(),
    "tp": (PLACES % 8).tolist(),
    "pp": (PLACES // 32).tolist(),
}


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.005, 0.02])
@pytest.mark.parametrize("seed", range(2))
def test_a_position_of_the_layers_that_becomes_slow_is_a_finding_about_the_job(noise, seed):
    """On all nodes alike, so that no machine is named; dated by the first slow step, and cleared."""
    work = healthy(steps=400, ranks=64, noise=noise, seed=seed)
    work[:, 32:] *= 1.06
    work[150:280, PLACES % 8 == 3] *= 1.2
    table = synchronous(work, overhead=0.05, coords=CUT)
    suspicions = run(table)
    assert believed(suspicions) == {}
    found = [s for s in suspicions if s.state != "update"]
    assert [(s.state, s.subject.coords) for s in found] == [("raise", {"tp": 3}), ("clear", {"tp": 3})]
    assert list(found[0].hypotheses) == ["imbalance.position"]
    assert found[0].slowdown_ratio == pytest.approx(1.2, abs=0.01)
    assert abs(steps_between(table, table.ts[150], found[0].onset)) <= 2
    assert steps_between(table, table.ts[150], found[0].ts) <= 25
    assert 0 < steps_between(table, table.ts[280], found[1].ts) <= 45


@pytest.mark.parametrize(
    ("dimension", "since", "hypothesis"), [("cp", 0, "imbalance.context"), ("tp", 100, "imbalance.position")]
)
def test_lost_rows_hide_no_slow_part_of_a_job(dimension, since, hypothesis):
    """Some in nearly every step, and all of one rank: the others of its stage are there."""
    coords, _ = context_parallel(64, 4, 2)
    work = healthy(ranks=64)
    work[since:, np.array(coords[dimension]) == 1] *= 1.3
    read = np.random.default_rng(4).random(work.shape) > 0.05
    read[:, 40] = False
    found = job_level(run(synchronous(work, overhead=0.1, coords=coords), only=read))
    (slow,) = (s for s in found if s.kind == "straggler.job_wide")
    assert (list(slow.hypotheses), slow.subject.coords) == ([hypothesis], {dimension: 1})
    assert slow.slowdown_ratio == pytest.approx(1.3, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("every", "factor", "found"), [(16, 1.25, True), (4, 1.2, True), (16, 1.05, False)])
def test_without_coordinates_every_nth_rank_that_becomes_slow_is_a_finding_about_the_job(
    every, factor, found
):
    """A position or a replica: rows do not tell which, and no rank is named."""
    work = healthy(steps=300, ranks=64, seed=1)
    work[150:, PLACES % every == 3] *= factor
    table = synchronous(work, overhead=0.05)
    suspicions = run(table)
    assert believed(suspicions) == {}
    job = [s for s in job_level(suspicions) if s.kind == "straggler.job_wide"]
    assert [list(s.hypotheses) for s in job] == [["imbalance.position"]] * found
    for s in job:
        assert s.slowdown_ratio == pytest.approx(factor, abs=0.01)
        assert abs(steps_between(table, table.ts[150], s.onset)) <= 2


@pytest.mark.slow
def test_a_position_stays_slow_when_its_onset_is_no_longer_held():
    work = healthy(steps=600, ranks=64)
    work[100:, PLACES % 8 == 3] *= 1.2
    found = job_level(run(synchronous(work, overhead=0.05, coords=CUT)))
    assert [s.subject.coords for s in found] == [{"tp": 3}]


@pytest.mark.slow
@pytest.mark.parametrize(
    "slow",
    [(0, PLACES % 8 == 3), (150, PLACES == 11), (150, PLACES // 8 == 1), (150, PLACES % 8 < 0)],
    ids=["a cut that always was so", "one rank", "one node", "none"],
)
@pytest.mark.parametrize("seed", range(2))
def test_no_position_is_slow_where_its_ranks_did_not_change_together(slow, seed):
    since, ranks = slow
    work = healthy(steps=400, ranks=64, noise=0.01, seed=seed)
    work[since:, ranks] *= 1.2
    assert job_level(run(synchronous(work, overhead=0.05, coords=CUT))) == []


def test_uneven_work_that_comes_and_goes_is_dated_and_cleared():
    """A job that packs sequences for a while is uneven for that while."""
    work = healthy(steps=500)
    work[150:320] *= packed(steps=170)
    table = synchronous(work)
    found = [s for s in run(table) if s.state != "update"]
    assert [(s.state, list(s.hypotheses)) for s in found] == [
        ("raise", ["imbalance.workload"]),
        ("clear", ["imbalance.workload"]),
    ]
    assert abs(steps_between(table, table.ts[150], found[0].onset)) <= 5
    assert steps_between(table, table.ts[320], found[1].ts) <= 80


@pytest.mark.parametrize("noise", [0.01, 0.02])
@pytest.mark.parametrize("coords", [None, layout(16, 4), layout(16, 8), layout(16, 16)])
def test_ordinary_noise_is_no_imbalance(noise, coords):
    """Ranks that scatter by one or two per cent, and stages of a few ranks, are even enough."""
    for seed in range(3):
        assert job_level(run(synchronous(healthy(noise=noise, seed=seed), coords=coords))) == []


@pytest.mark.parametrize(("factor", "slow"), [(1.0, []), (1.05, [11]), (1.1, [11])])
@pytest.mark.parametrize("seed", range(2))
def test_stages_of_one_replica_share_its_uneven_batches(factor, slow, seed):
    """In a packed pipeline job the other stages of the replica distinguish the batch from the rank."""
    places = layout(32, 4)
    batch = np.exp(np.random.default_rng(seed).normal(0, 0.1, (200, 8)))
    work = healthy(ranks=32, seed=seed) * batch[:, places["dp"]]
    work[90:, 11] *= factor
    table = synchronous(work, overhead=0.1, coords=places)
    found = believed(run(table))
    assert sorted(found) == slow
    assert all(steps_between(table, table.ts[90], s.ts) <= 12 for s in found.values())


@pytest.mark.parametrize("seed", range(4))
def test_packed_batches_are_a_finding_about_the_job(seed):
    """Work that differs by chance from step to step makes no rank suspect."""
    suspicions = run(synchronous(packed(seed=seed)))
    assert believed(suspicions) == {}
    assert [list(s.hypotheses) for s in job_level(suspicions)] == [["imbalance.workload"]]


@pytest.mark.parametrize(("factor", "within"), [(1.2, 60), (1.5, 15)])
def test_finds_the_rank_that_is_always_slow_in_packed_work(factor, within):
    """In 10 % scatter, persistence of identity names the rank and no other."""
    work = packed(steps=260, seed=2)
    work[120:, 5] *= factor
    table = synchronous(work)
    found = believed(run(table))
    assert set(found) == {5}
    assert steps_between(table, table.ts[120], found[5].ts) <= within


def test_uneven_work_goes_on_beside_a_slow_rank():
    """It is reported until the last step, at about the same cost an hour, and the rank as well."""
    work = packed(steps=260, seed=2)
    work[120:, 5] *= 1.2
    table = synchronous(work)
    reported = [s for s in run(table) if s.lost is not None and s.state != "clear"]
    for about in ("job", "rank"):
        latest = [s for s in reported if s.subject.type == about][-1]
        assert steps_between(table, latest.ts, table.ts[-1]) <= 35
    uneven = [s.lost.gpus for s in reported if s.subject.type == "job" and s.lost is not None]
    assert uneven[-1] == pytest.approx(uneven[0], rel=0.3)


def test_token_counts_make_small_faults_visible_in_packed_work():
    """With tokens given, 5 % is found within thirty steps although steps differ by 15 %."""
    rng = np.random.default_rng(12)
    tokens = 8192 * np.exp(rng.normal(0, 0.15, (200, 16)))
    work = healthy(seed=12) * (0.1 + 0.9 * tokens / 8192)
    work[110:, 5] *= 1.05
    table = dataclasses.replace(synchronous(work), tokens=tokens)
    found = believed(run(table))
    assert set(found) == {5}
    assert steps_between(table, table.ts[110], found[5].ts) <= 30


def test_a_group_is_named_by_what_its_ranks_alone_share():
    """Busier experts are a group of their own; that all ranks are of stage 0 means nothing."""
    expert = np.arange(16) // 8
    coords: dict[str, Sequence[int]] = {
        "dp": (np.arange(16) % 8).tolist(),
        "pp": [0] * 16,
        "ep": expert.tolist(),
    }
    work = healthy()
    work[:, expert == 1] *= 1.4
    [found] = job_level(run(synchronous(work, coords=coords)))
    assert found.subject.coords == {"ep": 1}
    assert found.evidence[0].note == "ep=1"
    work[90:, 2] *= 1.2
    [slow] = believed(run(synchronous(work, coords=coords))).values()
    assert (slow.subject.rank, slow.evidence[0].peers.group) == (2, "ep=0")


@pytest.mark.parametrize("coords", [None, layout(16, 4)], ids=["no coordinates", "stages"])
@pytest.mark.parametrize(("factor", "slow"), [(1.0, set()), (1.1, {5})])
@pytest.mark.parametrize("seed", range(3))
def test_squared_lengths_distinguish_packed_batches_of_equal_tokens(seed, factor, slow, coords):
    """Batches cut to one number of tokens take longer with long sequences; where their lengths are sent, a
    slow rank is named within thirty steps, and a healthy one never.
    """
    lengths = 16384 * np.random.default_rng(seed).dirichlet(np.full(8, 0.5), (200, 16))
    squares = (lengths**2).sum(axis=-1)
    work = healthy(seed=seed) * (0.6 + 0.4 * squares / squares.mean())
    work[110:, 5] *= factor
    table = synchronous(work, coords=coords)
    table = dataclasses.replace(table, tokens=np.full_like(squares, 16384), squares=squares)
    found = believed(run(table))
    assert set(found) == slow
    assert all(steps_between(table, table.ts[110], s.ts) <= 30 for s in found.values())


@pytest.mark.parametrize("since", [0, 90])
@pytest.mark.parametrize("spread", [0.0, 0.05])
@pytest.mark.parametrize("amount", ["tokens", "squares"])
def test_a_rank_that_reports_more_work_is_not_slow(since, spread, amount):
    """Twenty per cent more of it take twenty per cent longer, whether or not amounts varied before."""
    amounts = 8192 * np.exp(np.random.default_rng(3).normal(0, spread, (200, 16)))
    amounts[since:, 3] *= 1.2
    table = synchronous(healthy() * amounts / 8192, overhead=0.02)
    reported = dataclasses.replace(table, tokens=amounts)
    if amount == "squares":
        reported = dataclasses.replace(table, tokens=np.full_like(amounts, 8192), squares=amounts)
    assert not believed(run(reported))


@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_reported_work_hides_no_slow_rank(spread):
    """Neither the same amount for all, nor amounts that cost nothing, as in padded batches."""
    work = healthy()
    work[90:, 3] *= 1.2
    tokens = 8192 * np.exp(np.random.default_rng(4).normal(0, spread, work.shape))
    found = believed(run(dataclasses.replace(synchronous(work, overhead=0.02), tokens=tokens)))
    assert set(found) == {3}


def test_slowness_that_more_work_would_show_has_it_as_an_alternative():
    """The only rank of an expert: nothing distinguishes a popular expert from a slow machine."""
    work = healthy()
    work[90:, 5] *= 1.2
    for experts, possible in ((16, True), (8, False)):
        coords: Coords = {"ep": [r % experts for r in range(16)], "dp": [r // experts for r in range(16)]}
        found = believed(run(synchronous(work, overhead=0.02, coords=coords)))
        assert set(found) == {5}
        assert ("imbalance.workload" in found[5].hypotheses) == possible
        assert ("imbalance.workload" in found[5].ruled_out) == (not possible)
        assert ("expert" in found[5].note) == possible


@pytest.mark.parametrize("reported", [True, False])
def test_a_larger_batch_of_a_replica_is_not_its_ranks(reported):
    """Where tokens are reported; where they are not it stands as an alternative, of all of the replica."""
    batches = np.ones((200, 4))
    batches[90:, 2] *= 1.2
    amounts = np.repeat(batches, 4, axis=1)
    coords: Coords = {"pp": [r % 4 for r in range(16)], "dp": [r // 4 for r in range(16)]}
    table = synchronous(healthy() * amounts, overhead=0.02, coords=coords)
    findings = run(dataclasses.replace(table, tokens=8192 * amounts if reported else None))
    raised = [f for f in findings if f.kind == "straggler.fail_slow" and f.state == "raise"]
    assert [f.subject.coords for f in raised] == ([] if reported else [{"dp": 2}])
    assert all("imbalance.workload" in f.hypotheses for f in raised)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("onsets", "possible"), [((90, 90), True), ((90, 96), True), ((90, 220), False)], ids=str
)
def test_every_fourth_rank_of_a_machine_may_have_more_work_if_they_became_slow_together(onsets, possible):
    """An expert that becomes popular has all of its ranks slow at once; two faults come one by one, and the
    first is none the less sure for the second."""
    work = healthy(steps=520)
    for rank, onset in zip((2, 6), onsets, strict=True):
        work[onset:, rank] *= 1.2
    suspicions = [s for s in run(synchronous(work, overhead=0.02)) if s.kind == "straggler.fail_slow"]
    last = {s.subject.rank: s for s in suspicions}
    assert sorted(last) == [2, 6]
    assert all(("imbalance.workload" in s.hypotheses) == possible for s in last.values())
    assert possible or not any("imbalance.workload" in s.hypotheses for s in suspicions)
