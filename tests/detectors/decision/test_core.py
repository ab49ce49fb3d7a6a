"""The decision core of hypotheses on whole jobs."""

import numpy as np
import pytest

from detectors.decision.core import HypothesisCore
from detectors.straggler.core import DecisionCore
from tests.detectors.decision.jobs import layout, named, noise, run, times


def test_it_is_a_decision_core():
    """It stands where the present core does."""
    core: DecisionCore = HypothesisCore(layout(8))
    assert core.update(times(0, np.ones(8))).slow == ()


@pytest.mark.parametrize("rho", [0.5, 0.95])
def test_autocorrelated_noise_of_healthy_ranks_accuses_nobody(rho):
    """The noise of a window is that of windows, whatever correlates its steps."""
    compute = np.exp(noise(400, 32, seed=3, sd=0.02, rho=rho))
    assert named(run(compute, layout(32))[0]) == set()


def test_a_rank_twice_as_slow_from_the_start_is_named_within_five_steps():
    """In the middle of a warm-up that all ranks share."""
    compute = np.exp(noise(30, 16, seed=4))
    compute[:10] *= np.linspace(2.0, 1.0, 10)[:, None]
    compute[:, 3] *= 2.35
    found, _ = run(compute, layout(16))
    [(step, slow)] = found
    assert slow.rank == 3
    assert step < 5
    assert slow.lasting
    assert slow.alone
    assert slow.ratio == pytest.approx(2.35, rel=0.03)


def test_a_rank_slow_in_some_of_the_first_steps_is_not_slow_since_the_start():
    """Nearly all early steps must be slow: compilation takes a few of them."""
    compute = np.exp(noise(60, 16, seed=5))
    compute[[0, 1, 3], 3] *= 2.35
    assert named(run(compute, layout(16))[0]) == set()


@pytest.mark.parametrize("seed", range(3))
def test_four_of_ten_ranks_slow_by_five_percent_are_named(seed):
    """Location and spread are those of the faster part."""
    compute = np.exp(noise(250, 10, seed=seed))
    compute[120:, [1, 4, 5, 8]] *= 1.05
    assert named(run(compute, layout(10, per_node=16))[0]) == {1, 4, 5, 8}


def test_six_of_ten_slow_ranks_are_not_named():
    """Where most of the job has moved the unchanged ranks cannot be identified."""
    compute = np.exp(noise(250, 10, seed=1))
    compute[120:, :6] *= 1.05
    assert named(run(compute, layout(10, per_node=16))[0]) == set()


@pytest.mark.parametrize("factor", [1.1, 1.5, 2.0])
def test_the_size_is_that_of_what_was_measured(factor):
    """Slow noise makes the spread of single steps small beside the effect; no clip may hide it."""
    compute = np.exp(noise(200, 16, seed=6, sd=0.01, rho=0.95))
    compute[120:, 5] *= factor
    found, _ = run(compute, layout(16))
    assert named(found) == {5}
    assert found[0][1].ratio == pytest.approx(factor, rel=0.05)


def test_a_slow_node_is_one_cause():
    """All of its ranks begin at once, and one unit explains them."""
    compute = np.exp(noise(200, 32, seed=7))
    compute[120:, 8:16] *= 1.08
    found, core = run(compute, layout(32))
    assert named(found) == set(range(8, 16))
    [(_, unit)] = core.held_units
    assert unit.explained.unit == "node"
    assert unit.explained.members == tuple(range(8, 16))


def test_units_of_the_same_members_are_reported_as_alternatives():
    """A tensor-parallel group that fills a node: the rows do not show which of the two it is."""
    where = layout(32, tp=np.arange(32) % 8, dp=np.arange(32) // 8)
    compute = np.exp(noise(200, 32, seed=8))
    compute[120:, 8:16] *= 1.08
    _, core = run(compute, where)
    [(_, unit)] = core.held_units
    weights = {h.unit: h.probability for h in unit.explained.hypotheses}
    assert weights.keys() >= {"node", "tensor", "replica"}
    assert weights["node"] == pytest.approx(weights["tensor"]) == pytest.approx(weights["replica"])
    assert "rank" in unit.explained.ruled_out


def test_work_that_a_rank_reports_is_no_fault_of_its_own():
    """Twenty per cent more tokens and time; another rank is slow without more work."""
    tokens = np.exp(noise(200, 16, seed=9, sd=0.1))
    tokens[100:, 2] *= 1.2
    compute = tokens * np.exp(noise(200, 16, seed=10))
    compute[120:, 7] *= 1.08
    assert named(run(compute, layout(16), tokens=tokens)[0]) == {7}


def test_long_transfers_of_a_rank_that_waits_least_are_found_without_their_column():
    """What is left of a step beside waits and work is its own time."""
    compute = np.exp(noise(200, 16, seed=11))
    rest = 0.2 * np.exp(noise(200, 16, seed=12, sd=0.05))
    rest[120:, 4] += 0.5
    found, _ = run(compute, layout(16), rest=rest)
    assert {(slow.timing, slow.rank) for _, slow in found} == {("rest", 4)}


def test_permuting_the_ranks_permutes_the_explanation():
    """No rank is treated by its number."""
    rng = np.random.default_rng(13)
    compute = np.exp(noise(200, 16, seed=14))
    compute[120:, [3, 12]] *= 1.07
    order = rng.permutation(16)
    where = layout(16, per_node=16)
    plain, _ = run(compute, where)
    moved, _ = run(compute[:, order], where)
    assert {(step, int(order[s.rank]), round(s.ratio, 6)) for step, s in moved} == {
        (step, s.rank, round(s.ratio, 6)) for step, s in plain
    }


def test_a_rank_recovers_and_is_slow_again():
    """Each time is an event of its own."""
    compute = np.exp(noise(400, 16, seed=15))
    compute[120:180, 3] *= 1.2
    compute[280:, 3] *= 1.2
    core, events = HypothesisCore(layout(16)), []
    for number, seconds in enumerate(compute):
        result = core.update(times(number, seconds))
        events += [("slow", s.rank, number // 100) for s in result.slow]
        events += [("recovered", rank, number // 100) for _, rank in result.recovered]
    assert events == [("slow", 3, 1), ("recovered", 3, 1), ("slow", 3, 2)]


def test_slow_ranks_are_handed_on_to_another_core():
    """A core of another set of ranks goes on with them, and finds who recovers."""
    compute = np.exp(noise(200, 16, seed=16))
    compute[120:, 3] *= 1.2
    _, core = run(compute, layout(16))
    after = HypothesisCore(layout(8))
    after.resume(core.held())
    results = [after.update(times(n, np.exp(row))) for n, row in enumerate(noise(60, 8, seed=17))]
    assert [r for result in results for r in result.recovered] == [("compute", 3)]


def test_a_class_of_slower_machines_is_no_fault():
    """Every third node is slower from the start: another model that nothing names."""
    compute = np.exp(noise(120, 48, seed=18))
    compute[:, np.arange(48) // 8 % 3 == 0] *= 1.4
    found, _ = run(compute, layout(48, dp=np.arange(48)))
    assert named(found) == set()


def of_pairs(*, slow, factor, steps=60, seed=19):
    """Return the compute of four stages of two ranks each, of which one is slow, and their layout."""
    rank = np.arange(8)
    compute = np.exp(noise(steps, 8, seed=seed, sd=0.008)) * np.array([1.0, 1.2, 1.1, 1.6])[rank // 2]
    compute[:, slow] *= factor
    return compute, layout(8, pp=rank // 2, dp=rank % 2)


@pytest.mark.parametrize(("factor", "within"), [(1.1, 20), (2.0, 5)])
def test_a_rank_of_a_role_of_two_is_slow_since_the_start(factor, within):
    """Its only peer and what the others of a stage differ by show it."""
    [(step, slow)], _ = run(*of_pairs(slow=[5], factor=factor))
    assert (slow.rank, slow.lasting, slow.peers) == (5, True, 1)
    assert step < within


def test_a_slow_rank_of_a_small_role_recovers():
    """Its own past contains the slowness, and shows when it ends."""
    compute, where = of_pairs(slow=[5], factor=1.3, steps=120)
    compute[60:, 5] /= 1.3
    core = HypothesisCore(where)
    results = [core.update(times(number, seconds)) for number, seconds in enumerate(compute)]
    assert [slow.rank for result in results for slow in result.slow] == [5]
    assert [gone for result in results for gone in result.recovered] == [("compute", 5)]
    assert core.held() == []


@pytest.mark.parametrize("slow", [[], [1, 3], [0, 1]])
def test_pairs_that_differ_in_many_roles_or_not_at_all_accuse_nobody(slow):
    """Two of four pairs may be of different machines; a whole stage has more work."""
    found, _ = run(*of_pairs(slow=slow, factor=1.3))
    assert named(found) == set()
