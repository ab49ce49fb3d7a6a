"""What is no slow rank though its ratio is high: noise of many steps, and a position of the layer."""

from dataclasses import replace

import numpy as np
import pytest

from detectors.peers.peers import PeerGroups
from detectors.peers.places.place_mates import PlaceMates
from detectors.peers.shards import Shards
from detectors.peers.step_times import StepTimes
from detectors.straggler.alternatives.confirmation import is_confirmed
from detectors.straggler.alternatives.dealt_anew import is_dealt_anew
from detectors.straggler.alternatives.usual_noise import is_as_usual
from detectors.straggler.candidate import Candidate
from detectors.straggler.core import StepResult
from detectors.straggler.onset_time import Dated
from detectors.straggler.step_detector import StragglerDetector

STEPS, RANKS = 800, 8


def named(compute, **job):
    """Return the ranks found slow, as ``found`` does."""
    return {slow.rank for slow in found(compute, **job)}


def found(compute, *, roles=True, per_node=8, nodes=None, first=500, tokens=None):
    """Return what is found slow in ``compute`` [steps, ranks] of a job seen from step ``first`` on."""
    ranks = compute.shape[1]
    known = np.zeros(ranks, dtype=np.intp) if roles else None
    core = StragglerDetector(ranks, known, nodes=np.arange(ranks) // per_node if nodes is None else nodes)
    return [slow for result in feed(core, compute, first=first, tokens=tokens) for slow in result.slow]


def feed(core, compute, *, first=500, tokens=None):
    """Return the result of each step."""
    ranks = compute.shape[1]
    nan, out = np.full(ranks, np.nan), list[StepResult]()
    tokens = np.full(compute.shape, np.nan) if tokens is None else tokens
    for number, work in enumerate(compute):
        step = np.full(ranks, np.nanmax(work) + 0.1)
        times = StepTimes(
            number=first + number, ts=np.full(ranks, 1e9 + 2.0 * number), step=step, compute=work,
            wait=step - work - 0.1, data=nan, comm=nan, checkpoint=nan, tokens=tokens[number],
        )  # fmt: skip
        out.append(core.update(times))
    return out


def slow_noise(seed, *, sd=0.008, steps=60.0):
    """Return log noise [steps, ranks] that forgets within so many steps, beside 1 % in each step."""
    rng = np.random.default_rng(seed)
    keep = np.exp(-1.0 / steps)
    level, out = sd * rng.normal(size=RANKS), []
    for _ in range(STEPS):
        level = keep * level + np.sqrt(1 - keep**2) * sd * rng.normal(size=RANKS)
        out.append(level + 0.01 * rng.normal(size=RANKS))
    return np.array(out)


@pytest.mark.slow
def test_noise_of_many_steps_is_no_slow_rank():
    """Healthy ranks that wander by 0.8 % are two per cent off for a while; all of them do so."""
    assert sum(len(named(np.exp(slow_noise(seed)))) for seed in range(3)) <= 1


@pytest.mark.parametrize("factor", [1.03, 1.05])
def test_small_effects_beyond_the_noise_are_named(factor):
    """Where blocks of steps scatter by little, three per cent stand out."""
    compute = np.exp(0.01 * np.random.default_rng(1).normal(size=(300, 16)))
    compute[150:, 4] *= factor
    assert named(compute) == {4}


@pytest.mark.parametrize(
    ("slow", "later", "expected"),
    [
        ([3, 11], 0, set()),
        ([3, 11], 40, {3, 11}),
        ([3, 12], 0, {3, 12}),
        ([3], 0, {3}),
        ([*range(8), *range(16, 24)], 0, {*range(8), *range(16, 24)}),
    ],
    ids=["one place", "one after the other", "other places", "one rank", "two machines"],
)
def test_ranks_at_one_place_of_two_machines_do_not_become_slow_at_once(slow, later, expected):
    """Machines fail one by one: without coordinates, what reaches one rank of each is their work."""
    compute = np.exp(0.01 * np.random.default_rng(4).normal(size=(240, 40)))
    for number, rank in enumerate(slow):
        compute[120 + number * later :, rank] *= 1.2
    assert named(compute, roles=False) == expected


@pytest.mark.parametrize(
    ("slow", "expected"),
    [([1, 5, 9, 13], set()), ([1, 6, 9, 15], {1, 6, 9, 15}), ([4, 5, 6, 7], {4, 5, 6, 7})],
    ids=["every fourth", "any four", "a machine"],
)
def test_every_kth_rank_at_once_is_a_position_without_coordinates(slow, expected):
    """A popular expert slows its ranks on all machines; a machine slows its own."""
    compute = np.exp(0.01 * np.random.default_rng(2).normal(size=(200, 16)))
    compute[120:, slow] *= 1.3
    assert named(compute, roles=False, per_node=4) == expected


@pytest.mark.parametrize(
    ("machines", "expected"),
    [
        ({1, 5, 9, 13}, set()),
        ({1, 5, 9, 13, 14}, {14}),
        ({1, 4, 5, 9, 11}, {1, 4, 5, 9, 11}),
        ({0, 4, 8, 10, 11, 12, 15}, {0, 4, 8, 10, 11, 12, 15}),
    ],
    ids=len,
)
def test_machines_at_other_places_show_that_every_fourth_one_is_no_position(machines, expected):
    """Of seven machines out of sixteen four may well be every fourth one."""
    compute = np.exp(0.01 * np.random.default_rng(4).normal(size=(200, 64)))
    compute[120:, np.isin(np.arange(64) // 4, sorted(machines))] *= 1.12
    assert {rank // 4 for rank in named(compute, roles=False, per_node=4)} == expected


@pytest.mark.parametrize(
    ("slow", "expected"),
    [
        ([3], {3}),
        ([3, 11, 19, 27, 35, 43, 51, 59], {3, 11, 19, 27, 35, 43, 51, 59}),
        ([3, 19, 35, 51], set()),
    ],
    ids=["one rank", "a machine", "every other rank of a machine"],
)
def test_a_machine_to_which_ranks_were_dealt_in_turn_is_no_position(slow, expected):
    """Its ranks stand at one place of every eight, as those of a position do, and fill it."""
    compute = np.exp(0.01 * np.random.default_rng(3).normal(size=(200, 64)))
    compute[120:, slow] *= 1.3
    assert named(compute, roles=False, nodes=np.arange(64) % 8) == expected


@pytest.mark.parametrize(("machines", "is_named"), [(2, True), (10, False)])
def test_ranks_of_many_machines_that_always_were_slower_are_no_faults(machines, is_named):
    """By different amounts, and another rank of each machine: roles are others than they were taken for."""
    rng = np.random.default_rng(2)
    slow = {8 * machine + int(rng.integers(8)) for machine in range(machines)}
    compute = np.exp(0.01 * rng.normal(size=(120, 128)))
    compute[:, sorted(slow)] *= rng.uniform(1.3, 2.0, size=machines)
    assert named(compute) == (slow if is_named else set())


@pytest.mark.parametrize("hiccups", [0, 1])
def test_a_small_slowdown_that_delays_no_step_is_not_reported(hiccups):
    """In every step another rank takes a tenth longer, so that a rank 2.5 % slower holds up none."""
    rng = np.random.default_rng(8)
    work = np.exp(0.003 * rng.normal(size=(260, 16)))
    work[100:, 3] *= 1.025
    for step, late in enumerate(rng.integers(4, 16, 260)):
        work[step, late] *= 1.1**hiccups
    assert named(work) == (set() if hiccups else {3})


@pytest.mark.parametrize(("steps", "expected"), [(45, set()), (120, {3})])
def test_a_small_slowdown_that_many_ranks_hide_is_reported_when_it_lasts(steps, expected):
    """Of 400 ranks another one is the slowest of nearly every step by chance."""
    work = np.exp(0.012 * np.random.default_rng(8).normal(size=(150 + steps, 400)))
    work[150:, 3] *= 1.03
    assert named(work) == expected


@pytest.mark.parametrize(("steps", "expected"), [(80, set()), (120, {3})])
def test_two_per_cent_among_many_ranks_are_reported_after_a_hundred_steps(steps, expected):
    """By then healthy ranks are hardly as far off."""
    work = np.exp(0.013 * np.random.default_rng(8).normal(size=(150 + steps, 400)))
    work[150:, 3] *= 1.023
    assert named(work) == expected


@pytest.mark.parametrize(
    ("slow", "expected"), [(range(8, 16), set(range(8, 16))), (range(4, 12), set())], ids=["one", "two"]
)
def test_a_machine_that_slows_by_little_at_once_is_reported_soon(slow, expected):
    """Its eight ranks seldom wander together, as eight of two machines may."""
    work = np.exp(0.012 * np.random.default_rng(8).normal(size=(180, 400)))
    work[150:, list(slow)] *= 1.024
    assert named(work) == expected


@pytest.mark.parametrize("steps", [10.0, 60.0, 300.0])
def test_hosts_that_wander_are_no_slow_machines(steps):
    """All eight ranks of each are off by the same, by 0.6 % (sd) for so many steps."""
    rng, keep = np.random.default_rng(0), np.exp(-1.0 / steps)
    level, logs = 0.006 * rng.normal(size=32), []
    for _ in range(600):
        level = keep * level + np.sqrt(1 - keep**2) * 0.006 * rng.normal(size=32)
        logs.append(np.repeat(level, 8) + 0.005 * rng.normal(size=256))
    assert named(np.exp(logs)) == set()


@pytest.mark.parametrize(("ranks", "expected"), [(128, {3}), (32, set())])
def test_a_rank_that_always_was_three_per_cent_slower_is_reported_among_many(ranks, expected):
    """How much healthy ones differ for good is known of many."""
    rng = np.random.default_rng(8)
    work = np.exp(0.004 * rng.normal(size=(120, ranks)) + 0.003 * rng.normal(size=ranks))
    work[:, 3] = np.exp(0.004 * rng.normal(size=120)) * 1.034
    assert named(work) == expected


@pytest.mark.parametrize("seed", [3, 34, 55])
def test_ranks_of_a_long_tail_that_always_were_slower_are_no_faults(seed):
    """Of lasting differences under Student's t the largest is far from the spread, not from the next one."""
    rng = np.random.default_rng(seed)
    lasting = 0.006 / np.sqrt(3) * rng.standard_t(3, size=64)
    assert named(np.exp(0.004 * rng.normal(size=(160, 64)) + lasting)) == set()


@pytest.mark.parametrize(("steps", "expected"), [(80, set()), (300, {4})], ids=["80 steps", "300 steps"])
def test_in_uneven_work_a_small_slowdown_is_named_when_it_lasts(steps, expected):
    """Ranks that differ by 3 % in each step hide four per cent in one of them from the job, not for long."""
    compute = np.exp(0.03 * np.random.default_rng(1).normal(size=(200 + steps, 24)))
    compute[200:, 4] *= 1.045
    assert named(compute) == expected


def hot_experts(seed, *, ranks=48, positions=4):
    """Return compute [steps, ranks] where each 20 steps another position is 3 to 8 % longer, in noise of some
    tens of steps."""
    rng = np.random.default_rng(seed)
    parts = range(ranks // RANKS)
    log = np.hstack([slow_noise(seed * 10 + part, sd=0.005, steps=15.0) for part in parts])[:400]
    for start in range(0, 400, 20):
        log[start : start + 20, rng.integers(positions) :: positions] += rng.uniform(0.03, 0.08)
    return np.exp(log)


@pytest.mark.parametrize("seed", [1, 6])
def test_experts_that_are_popular_in_turn_accuse_no_rank_without_coordinates(seed):
    """Only some ranks of the position pass the threshold; they are compared with the others of it."""
    compute = hot_experts(seed)
    assert named(compute, roles=False, per_node=4) == set()
    compute[200:, 9] *= 1.1
    assert named(compute, roles=False, per_node=4) == {9}


def moving_pairs(*moves, steps=600, ranks=16):
    """Return compute [steps, ranks] in which each of ``moves`` (ranks, first, last) is 1.2 times as slow."""
    compute = np.exp(0.02 * np.random.default_rng(7).normal(size=(steps, ranks)))
    for slow, first, last in moves:
        compute[first:last, slow] *= 1.2
    return compute


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        ([([11, 15], 200, 600)], {11, 15}),
        ([([11, 15], 200, 600), ([2, 6], 200, 600)], set()),
        ([([11, 15], 200, 400), ([10, 14], 400, 600), ([1, 5], 450, 600)], {11, 15}),
        ([([11, 14], 200, 600), ([2, 7], 300, 600)], {11, 14, 2, 7}),
        ([([11, 15], 200, 350), ([1, 5], 350, 480), ([3], 500, 600)], {11, 15, 3}),
        ([([11], 200, 600), ([15], 260, 600), ([1], 330, 600), ([5], 390, 600)], {11, 15, 1, 5}),
    ],
    ids=["one pair", "two pairs", "pairs in turn", "other pairs", "one rank besides", "one by one"],
)
def test_pairs_of_a_machine_are_a_position_once_it_has_two(moves, expected):
    """An expert that two ranks of each stage have lingers; which ones they are, no coordinates tell."""
    assert named(moving_pairs(*moves), roles=False) == expected


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        ([([2, 3, 10, 11], 200, 600)], {2, 3, 10, 11}),
        ([([2, 3, 10, 11], 200, 600), ([20, 21, 28, 29], 230, 600)], {2, 3, 10, 11}),
        ([([2, 3, 10, 11], 200, 210), ([20, 21, 28, 29], 205, 600)], {2, 3, 10, 11}),
        ([([2, 3], 200, 600), ([20, 21], 300, 600)], {2, 3, 20, 21}),
        ([([0, 1, 10, 11], 200, 600), ([20, 21, 30, 31], 300, 600)], {0, 1, 10, 11, 20, 21, 30, 31}),
    ],
    ids=["once", "elsewhere too", "in turn", "of one machine each", "at other places"],
)
def test_parts_of_several_machines_that_rise_in_one_step_again_and_again_are_a_position(moves, expected):
    """Two GPUs of two machines do not fail in one step, and others of two others in another one."""
    assert named(moving_pairs(*moves, ranks=64, steps=420), roles=False, per_node=4) == expected


def test_a_pair_that_was_named_is_excused_once_its_position_shows():
    """Its finding ends while it is still slow."""
    detector = StragglerDetector(16, None, nodes=np.arange(16) // 8)
    results = feed(detector, moving_pairs(([11, 15], 200, 600), ([1, 5], 300, 600)))
    excused = {rank: number for number, result in enumerate(results) for rank in result.excused}
    assert set(excused) == {11, 15}
    assert 300 < min(excused.values()) < 320


@pytest.mark.parametrize(("mate", "expected"), [(1.2, False), (1.0, True)], ids=["its mate too", "it alone"])
def test_an_expert_of_two_ranks_is_seen_in_the_steps_in_which_it_was_popular(mate, expected):
    """In 14 of 27 steps for one and in 13 for the other: the medians over all of them differ."""
    rank = np.arange(16)
    shards = Shards.from_coords({"ep": rank // 2 % 4}, rank // 8)
    core = StragglerDetector(16, rank % 2, nodes=rank // 8, shards=shards)
    compute = np.exp(0.01 * np.random.default_rng(1).normal(size=(127, 16)))
    compute[100:114, 1] *= 1.2
    compute[100:113, 9] *= mate
    feed(core, compute)
    x = core.ratios.history.last("x", 27)
    onset = Dated(at=1e9, lo=1e9, hi=1e9)
    effect = np.median(x, axis=0)
    slow = Candidate(
        timing="compute", rank=1, lasting=False, onset=onset, x=x, effect=effect, sigma=0.01, baseline=100
    )
    alone = PlaceMates(PeerGroups.of(rank), None)
    assert slow.size > 0.15 > 0.05 > slow.effect[9]
    # Persistent, which 14 slow ones of 27 are by chance.
    x = np.where(rank == 1, np.abs(x), x)
    assert is_confirmed(core.ratios, replace(slow, x=x), rank == 1, alone) is expected


def test_a_small_slowdown_that_grows_again_and_again_is_named():
    """Half of its steps are below what matters; those at its heights are not."""
    compute = np.exp(0.01 * np.random.default_rng(1).normal(size=(700, 48)))
    compute[200:, 4] *= 1.0 + 0.056 * (np.arange(500) % 140) / 140
    assert 4 in named(compute)


def test_a_rank_whose_peers_became_quicker_is_not_slow():
    """Those of one machine were held up for a while, and are as quick as it again."""
    compute = np.exp(0.02 * np.random.default_rng(1).normal(size=(400, 9)))
    compute[20:300, :8] *= 1.8
    assert 8 not in named(compute, roles=False)


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ({7: 1.3, 21: 1.3, 22: 1.31, 30: 1.29}, set()),
        ({7: 1.2, 21: 1.3, 22: 1.45, 30: 1.6}, {7, 21, 22, 30}),
        ({7: 1.3, 30: 1.3}, {7, 30}),
        (dict.fromkeys([7, *range(16, 24)], 1.3), {7, *range(16, 24)}),
    ],
    ids=["four alike", "four by different amounts", "two alike", "a machine and one alike"],
)
def test_ranks_of_several_machines_that_always_were_slower_by_the_same_are_of_one_kind(factors, expected):
    """Under one power limit, say; as many faults would not be of one size."""
    compute = np.exp(0.01 * np.random.default_rng(6).normal(size=(150, 40)))
    for rank, factor in factors.items():
        compute[:, rank] *= factor
    assert named(compute, first=0) == expected


@pytest.mark.parametrize("seed", range(3))
def test_what_a_baseline_leaves_of_a_class_of_machines_is_no_change(seed):
    """Four machines of twenty are a tenth slower for good; at first, usual ratios are drawn to their role."""
    compute = np.exp(0.02 * np.random.default_rng(seed).normal(size=(90, 160)))
    compute[:, np.isin(np.arange(160) // 8, [2, 5, 9, 13])] *= 1.1
    assert named(compute, first=0) == set()


def test_what_most_of_a_role_takes_is_usual():
    """Of 25 ranks 16, on one machine, take twice as long since the start: the others are quick."""
    node = np.repeat([0, 1], [16, 9])
    compute = np.exp(0.01 * np.random.default_rng(3).normal(size=(60, 25)))
    compute[:, node == 0] *= 2.5
    assert named(compute, nodes=node, first=0) == set()


@pytest.mark.parametrize("slow", [set(), set(range(48, 56))], ids=["healthy", "slow"])
def test_a_machine_with_most_of_a_stage_is_slow_by_what_it_shows_in_another(slow):
    """Since the start: the three others of its stage seem to be quick."""
    compute = np.exp(0.05 * np.random.default_rng(5).normal(size=(80, 72)))
    compute[:, sorted(slow)] *= 1.7
    core = StragglerDetector(72, np.arange(72) // 9, nodes=np.arange(72) // 8)
    assert {found.rank for result in feed(core, compute, first=0) for found in result.slow} == slow


def test_a_machine_that_is_most_of_a_stage_is_no_position():
    """Every third rank of the third stage is slow to three quarters, and so are the others of its machine."""
    compute = np.exp(0.01 * np.random.default_rng(2).normal(size=(200, 48)))
    compute[120:, 24:32] *= 1.7
    assert named(compute, roles=False) == set(range(24, 32))


@pytest.mark.parametrize("slow", [set(), {5}], ids=["healthy", "one is slow"])
@pytest.mark.parametrize("seed", range(3))
def test_longer_batches_now_and_then_are_work(seed, slow):
    """A seventh of the steps has a fifth more tokens, a dozen in a row on one rank or another."""
    rng = np.random.default_rng(seed)
    tokens = np.full((250, 32), 16384.0)
    for rank in range(32):
        for first in np.flatnonzero(rng.random(250) < 0.013):
            tokens[first : first + 12, rank] = 19660.0
    compute = tokens / 16384.0 * np.exp(0.012 * rng.normal(size=tokens.shape))
    compute[150:, [*slow]] *= 1.15
    assert named(compute, tokens=tokens) == slow


@pytest.mark.parametrize(
    ("factor", "slow"), [(1.25, set()), (1.5, set(range(24, 32)))], ids=["explained", "slower than that"]
)
def test_more_work_of_all_ranks_of_a_role_that_fills_a_machine_is_no_fault(factor, slow):
    """A hot expert is one machine: its ranks have as many tokens as each other, and more than all others."""
    compute = np.exp(0.01 * np.random.default_rng(5).normal(size=(200, 64)))
    tokens = np.full(compute.shape, 32768.0)
    compute[120:, 24:32] *= factor
    tokens[120:, 24:32] *= 1.25
    nodes = np.arange(64) // 8
    results = feed(StragglerDetector(64, nodes, nodes=nodes), compute, tokens=tokens)
    assert {found.rank for result in results for found in result.slow} == slow


def test_a_replica_with_a_rank_at_one_place_of_its_machines_is_slow_by_itself():
    """Every eighth rank works on its batch, which is each fourth place of every other machine."""
    rng = np.random.default_rng(1)
    tokens = np.tile(rng.integers(10_000, 20_000, size=(160, 8)).astype(float), 8)
    compute = tokens / 15_000.0 * np.exp(0.02 * rng.normal(size=tokens.shape))
    compute[100:, 7::8] *= 1.4
    assert named(compute, roles=False, per_node=4, tokens=tokens) == set(range(7, 64, 8))


@pytest.mark.parametrize(("factor", "expected"), [(1.0, set()), (1.07, {20, 21})], ids=["healthy", "slow"])
def test_stages_are_learnt_from_who_works_on_one_batch(factor, expected):
    """Beside two that differ by 3 %, less than steps scatter, ranks slow since the start by 7 % stand
    out."""
    rng = np.random.default_rng(3)
    tokens = np.repeat(rng.integers(10_000, 20_000, size=(80, 16)).astype(float), 4, axis=1)
    stage = np.array([0.0, 0.0, 0.03, 0.03])[np.arange(64) % 4]
    compute = tokens / 15_000.0 * np.exp(stage + 0.02 * rng.normal(size=tokens.shape))
    compute[:, 20:22] *= factor
    assert named(compute, roles=False, first=0, tokens=tokens) == expected


@pytest.mark.parametrize(
    ("factor", "expected"), [(1.0, set()), (1.1, {7})], ids=["healthy", "two steps of it"]
)
def test_one_step_of_a_coarse_clock_is_no_slow_rank(factor, expected):
    """Times of 1.95 s in tenths of a second: some ranks are mostly rounded up and others down."""
    rng = np.random.default_rng(1)
    usual = 1.95 + 0.01 * rng.normal(size=64)
    compute = usual * np.exp(0.012 * rng.normal(size=(240, 64)))
    compute[140:, 7] *= factor
    assert named(np.round(compute, 1)) == expected


@pytest.mark.parametrize(("factor", "expected"), [(1.0, set()), (1.5, {5})], ids=["healthy", "one slow"])
def test_ranks_that_wander_by_a_tenth_for_many_steps_hide_only_what_is_no_larger(factor, expected):
    """Work that moves between ranks for a hundred steps is as large as many a fault, and they all have it."""
    compute = np.exp(np.hstack([slow_noise(n, sd=0.06, steps=100.0) for n in range(3)]))[:500]
    compute[400:, 5] *= factor
    assert named(compute) == expected


@pytest.mark.parametrize(("lingers", "expected"), [(0.01, False), (100.0, True)], ids=["one step", "many"])
def test_noise_is_followed_beyond_the_longest_blocks_as_it_falls_in_shorter_ones(lingers, expected):
    """What is more than six sigmas of 100 steps is less than six of the 25 that can be seen."""
    others = np.hstack([slow_noise(n, sd=0.02, steps=lingers)[:256] for n in range(2)])
    sigma = float(np.std(others)) * 1.25
    size = 7.0 * sigma / np.sqrt(100)
    assert is_as_usual(size, 25, others)
    assert bool(is_as_usual(size, 100, others, block_steps=25)) is expected


def test_times_of_a_coarse_clock_may_show_noise_in_long_blocks_alone():
    """Most of three steps in a row are alike, and most of six are not."""
    rng = np.random.default_rng(1)
    for _ in range(600):
        others = rng.choice([0.0, 0.0, 0.0, 1.0], size=(64, 4))
        assert is_as_usual(1e-9, 12, others, block_steps=6) or not is_as_usual(1e-9, 6, others)


def test_ranks_that_work_visits_one_after_the_other_show_how_far_it_takes_them():
    """Their blocks are too few to show in the noise of all."""
    others = 0.01 * np.random.default_rng(2).normal(size=(240, 40))
    for number in range(3):
        assert not is_as_usual(0.2, 40, others)
        others[80 * number : 80 * number + 40, 7 * number] += 0.18
    assert is_as_usual(0.2, 40, others)
    assert not is_as_usual(0.3, 40, others)


def test_a_machine_left_out_moves_no_peer():
    """Twelve of 20 ranks are 6 % slower for good: without a machine of these the median is the others'."""
    usual = np.repeat([0.0, 0.06], [8, 12])
    compute = np.exp(usual + 0.004 * np.random.default_rng(5).normal(size=(160, 20)))
    compute[150:, 16:] *= 1.2
    slow = found(compute, per_node=4)
    assert {one.rank for one in slow} == {16, 17, 18, 19}
    assert [one.ratio for one in slow] == pytest.approx([1.2] * 4, abs=0.01)


@pytest.mark.parametrize(("reporting", "expected"), [(6, {12}), (4, {12}), (3, set())])
def test_the_compute_of_a_few_is_compared_where_the_others_report_none(reporting, expected):
    """Two machines, one without the column: steps are as long on all ranks, and tell nothing."""
    compute = np.exp(0.01 * np.random.default_rng(1).normal(size=(120, 14)))
    compute[60:, 12] *= 1.3
    compute[:, : 14 - reporting] = np.nan
    assert named(compute) == expected


@pytest.mark.parametrize("slowdown", [1.05, 1.1, 1.2])
def test_a_machine_that_always_was_slow_is_named_without_coordinates(slowdown):
    """One in the middle, where all others are alike, does the work of a stage no more than these do."""
    compute = np.exp(0.005 * np.random.default_rng(7).normal(size=(200, 64)))
    compute[:, 8:16] *= slowdown
    assert named(compute, first=0, roles=False) == set(range(8, 16))


@pytest.mark.parametrize("onset", [30, 40])
def test_two_machines_that_were_well_at_first_are_no_class(onset):
    """They become slow in one step, ten steps after those of warm-up, or twenty."""
    compute = np.exp(0.01 * np.random.default_rng(1).normal(size=(120, 64)))
    slow = np.isin(np.arange(64) // 8, [1, 4])
    compute[onset:, slow] *= 1.1
    assert named(compute, first=0) == set(np.flatnonzero(slow))


def dealt(seed, *, nodes=8, spread=0.15, lasts=70, steps=400):
    """Return compute [steps, ranks] of replicas of a machine each, whose batches are long or short for some
    steps: all change at once."""
    rng = np.random.default_rng(seed)
    levels = rng.normal(0.0, spread, (steps // lasts + 1, nodes)).repeat(lasts, axis=0)[:steps]
    of_step = rng.normal(0.0, 0.02, (steps, nodes))
    return np.exp((levels + of_step).repeat(8, axis=1) + rng.normal(0.0, 0.005, (steps, 8 * nodes)))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(4), range(4, 8)])
def test_work_that_is_dealt_out_anew_accuses_few_machines(seeds):
    """Where some machines take less than before in the step in which others come to take more: without asking
    for that 28 of the 64 are, of all eight jobs."""
    accused = [len({rank // 8 for rank in named(dealt(seed), per_node=8)}) for seed in seeds]
    assert sum(accused) <= 6


@pytest.mark.parametrize("nodes", [(3,), (3, 6), (1, 3, 6)])
def test_machines_that_become_slow_at_once_are_no_work_dealt_out_anew(nodes):
    """None of the others takes less for it."""
    compute = np.exp(0.01 * np.random.default_rng(2).normal(size=(200, 64)))
    slow = np.isin(np.arange(64) // 8, nodes)
    compute[100:, slow] *= 1.3
    assert named(compute) == set(np.flatnonzero(slow).tolist())


@pytest.mark.parametrize("seed", [2, 3])
def test_a_start_with_long_steps_on_all_ranks_is_no_work_dealt_out_anew(seed):
    """Where caches are cold at first, those whose steps were longest come to take much less."""
    rng = np.random.default_rng(seed)
    compute = np.exp(0.01 * rng.normal(size=(140, 10)))
    compute[:10] *= np.exp(1.8 + 0.9 * rng.normal(size=(10, 10)))
    compute[:, 2] *= 1.2
    assert named(compute, roles=False, per_node=1, first=0) == {2}


@pytest.mark.parametrize(("before", "told"), [(1.0, 1.2), (0.9, 1.2), (0.7, 1.2 / 0.7)])
def test_a_rank_that_was_quicker_is_as_slow_as_it_is_beside_its_peers(before, told):
    """And not as it is beside its own past, unless most of it is its own."""
    compute = np.exp(0.005 * np.random.default_rng(4).normal(size=(240, 16)))
    compute[:120, 5] *= before
    compute[120:, 5] *= 1.2
    [slow] = [one for one in found(compute) if one.rank == 5]
    assert slow.ratio == pytest.approx(told, abs=0.02)


@pytest.mark.parametrize(
    ("shifts", "expected"),
    [
        ({3: 0.3, 1: 0.1, 4: -0.2, 6: -0.15}, True),
        ({3: 0.3, 1: 0.1, 5: 0.2}, False),
        ({3: 0.3, 1: 0.1, 4: -0.2}, False),
        ({3: 0.3, 4: -0.2, 6: -0.15}, True),
        ({3: 0.3}, False),
        ({3: 0.3, 4: -0.05, 6: -0.05}, False),
    ],
    ids=["two rise, two fall", "none falls", "one falls", "one rises", "alone", "the others hardly move"],
)
def test_work_is_dealt_out_anew_where_machines_fall_as_others_rise(shifts, expected):
    """Machine 3 of eight becomes slow."""
    compute = np.exp(0.01 * np.random.default_rng(6).normal(size=(90, 64)))
    for machine, shift in shifts.items():
        compute[60:, np.arange(64) // 8 == machine] *= np.exp(shift)
    core = StragglerDetector(64, np.zeros(64, dtype=np.intp), nodes=np.arange(64) // 8)
    list(feed(core, compute))
    x = np.log(compute[60:])
    slow = Candidate(
        timing="compute", rank=24, lasting=False, onset=Dated(0.0, 0.0, 0.0), x=x,
        effect=np.median(x, axis=0), sigma=0.01, baseline=60,
    )  # fmt: skip
    assert is_dealt_anew(core.ratios, slow) == expected


def test_a_slowdown_is_not_dated_back_to_long_steps_of_all_ranks():
    """In a burst as of a slow file system some ranks are far behind the others for a moment."""
    rng = np.random.default_rng(3)
    compute = np.exp(0.01 * rng.normal(size=(100, 10)))
    compute[60:68] *= np.exp(1.5 + 0.9 * rng.normal(size=(8, 10)))
    compute[60:68, 2] *= 2.0
    compute[72:, 2] *= 1.2
    [slow] = [one for one in found(compute, roles=True, per_node=1) if one.rank == 2]
    assert abs((slow.onset - 1e9) / 2.0 - 72) <= 1
