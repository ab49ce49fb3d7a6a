"""Ranks that are slow for good, and ranks that merely differ."""

from dataclasses import replace

import numpy as np
import pytest

from detectors.peers.replicas import Replicas
from detectors.peers.shards import Shards
from detectors.peers.step_times import StepTimes
from detectors.straggler.step_detector import StragglerDetector
from tests.detectors.straggler.step_times import of_compute

RANKS = 32


def named(lasting, *, noise=0.006, steps=150, seed=3):
    """Return the ranks found slow where ranks take ``lasting`` [ranks] times as long from the start."""
    rng = np.random.default_rng(seed)
    detector = StragglerDetector(RANKS, np.zeros(RANKS, dtype=np.intp))
    nan, ts, found = np.full(RANKS, np.nan), 1000.0, set()
    for s in range(steps):
        work = lasting * np.exp(noise * rng.normal(size=RANKS))
        ts += work.max()
        times = StepTimes(
            number=500 + s, ts=np.full(RANKS, ts), step=np.full(RANKS, work.max()), compute=work, wait=nan,
            data=nan, comm=nan, checkpoint=nan, tokens=nan,
        )  # fmt: skip
        found |= {a.rank for a in detector.update(times).slow}
    return found


def test_ranks_of_shared_hardware_are_not_slow():
    """There they differ by 6.5 % for good besides what neighbours add; few steps must not hide it."""
    for seed in range(6):
        lasting = np.exp(0.065 * np.random.default_rng(seed).normal(size=RANKS))
        assert not named(lasting, noise=0.02, steps=60, seed=seed)


@pytest.mark.parametrize("seed", range(4))
def test_ranks_that_all_differ_are_not_slow(seed):
    """On hardware shared with others ranks differ by some per cent for good, and none is faulty."""
    assert not named(np.exp(np.random.default_rng(seed).uniform(-0.09, 0.09, RANKS)), seed=seed)


@pytest.mark.parametrize(("spread", "slowdown"), [(0.003, 1.10), (0.003, 1.20), (0.03, 1.40), (0.06, 2.0)])
def test_one_far_slower_than_the_others_differ_is_named(spread, slowdown):
    """Slow for good means slower than peers differ among themselves."""
    lasting = np.exp(spread * np.random.default_rng(1).normal(size=RANKS))
    lasting[7] = slowdown
    assert named(lasting) == {7}


def steps_until(*, alone, burst=100, after=0, spikes=0.0, size=1.4, seed=5):
    """Return in how many steps, of ``burst`` slow ones and some ``after`` them, a rank is found slow (stands
    ``alone``); None if never.

    Every step of a healthy rank is 1.4 times as long with probability ``spikes``.
    """
    rng = np.random.default_rng(seed)
    detector = StragglerDetector(RANKS, np.zeros(RANKS, dtype=np.intp))
    nan, ts, found_slow = np.full(RANKS, np.nan), 1000.0, False
    for s in range(150 + burst + after):
        work = np.exp(0.005 * rng.normal(size=RANKS)) * np.where(rng.random(RANKS) < spikes, 1.4, 1.0)
        work[9] = np.exp(0.005 * rng.normal()) * (size if 150 <= s < 150 + burst else 1.0)
        ts += work.max()
        times = StepTimes(
            number=500 + s, ts=np.full(RANKS, ts), step=np.full(RANKS, work.max()), compute=work, wait=nan,
            data=nan, comm=nan, checkpoint=nan, tokens=nan,
        )  # fmt: skip
        found_slow |= 9 in {a.rank for a in detector.update(times).slow}
        if found_slow and (not alone or detector.is_alone("compute", 9)):
            return s - 149
    return None


@pytest.mark.parametrize(
    ("spikes", "size", "expected"),
    [(0.0, 1.4, 3), (0.0, 1.2, 3), (0.003, 1.4, 4)],
    ids=["large", "a fifth", "spikes"],
)
def test_three_far_steps_stand_alone_where_healthy_ranks_show_none(spikes, size, expected):
    """A job that spikes now and then needs a fourth step."""
    assert steps_until(alone=False, spikes=spikes, size=size) == 3
    assert steps_until(alone=True, spikes=spikes, size=size) == expected


@pytest.mark.parametrize(
    ("size", "burst", "expected"),
    [(1.08, 7, None), (1.14, 7, None), (1.08, 12, 9), (1.14, 12, 9), (1.2, 7, 3)],
)
def test_a_small_slowdown_of_some_steps_may_pass(size, burst, expected):
    """As that of a machine which saves a checkpoint in the background."""
    assert steps_until(alone=False, size=size, burst=burst, after=20) == expected


def test_two_far_steps_are_no_slow_rank():
    """As recorded: two in a row happen to healthy ranks."""
    assert steps_until(alone=False, burst=2) is None


def named_in_replicas(work, *, replicas=2, on_node=8, stages=2):
    """Return the ranks found slow in a job of ``stages`` of as many ranks, dealt out to ``replicas``."""
    at = np.arange(work.shape[1])
    stage, replica = at // (at.size // stages), at // (at.size // stages // replicas) % replicas
    shared = Replicas.of(replica, at // on_node)
    detector = StragglerDetector(at.size, stage, replicas=shared, nodes=at // on_node)
    ts, found = 1000.0, set()
    for s, seconds in enumerate(work):
        ts += seconds.max()
        found |= {a.rank for a in detector.update(of_compute(500 + s, ts, seconds)).slow}
    return found


def test_machines_of_a_replica_that_differ_for_good_are_no_batch():
    """Where all work is alike, the mates of a slow node are compared with its peers and not with it."""
    noise = 0.002 * np.random.default_rng(5).normal(size=(160, RANKS))
    work = np.exp(noise + np.where(np.arange(RANKS) // 8 % 2, 0.005, -0.005))
    work[100:, :8] *= 1.2
    assert named_in_replicas(work) == set(range(8))


@pytest.mark.parametrize("slow", [(1, 9, 17, 25), (1, 9, 17)])
def test_the_machines_of_one_replica_of_eight_are_no_class(slow):
    """They, or most of them, are slower since the start, as many by as much: so would machines of another
    model be, and those of one replica of four may."""
    noise, machine = 0.002 * np.random.default_rng(5).normal(size=(60, 256)), np.arange(256) // 8
    of_replica, others = np.isin(machine, slow), np.isin(machine, (1, 10, 17, 25))
    found = named_in_replicas(np.exp(noise + 0.2 * of_replica), replicas=8, stages=4)
    assert found == set(np.flatnonzero(of_replica).tolist())
    assert not named_in_replicas(np.exp(noise + 0.2 * others), replicas=8, stages=4)
    of_four = np.isin(np.arange(128) // 8, (1, 5, 9, 13))
    assert not named_in_replicas(np.exp(noise[:, :128] + 0.2 * of_four), replicas=4, stages=4)


@pytest.mark.parametrize("seed", range(4))
def test_a_class_of_machines_that_most_replicas_have_twice_is_no_batch(seed):
    """Every second machine is slower; 13 of 16 replicas have both of their ranks on such, or on others."""
    rng, at = np.random.default_rng(seed), np.arange(250)
    noise = 0.03 * rng.normal(size=(120, 250))
    work = np.exp(noise + np.where(at // 16 % 2, 0.0, 0.105))
    assert not named_in_replicas(work, replicas=125, on_node=16)
    work[80:, 134] *= 1.3
    assert named_in_replicas(work, replicas=125, on_node=16) == {134}


def named_among_far_steps(share, size, *, slow=1.0, seed=0):
    """Return who is found slow how many steps after the 150th, from when on rank 9 takes ``slow`` times as
    long.

    Every rank takes ``size`` times as long in a ``share`` of its steps, drawn anew for each.
    """
    rng = np.random.default_rng(seed)
    detector = StragglerDetector(RANKS, np.zeros(RANKS, dtype=np.intp))
    nan, ts = np.full(RANKS, np.nan), 1000.0
    found: dict[int, int] = {}
    for s in range(300):
        work = np.exp(0.004 * rng.normal(size=RANKS)) * np.where(rng.random(RANKS) < share, size, 1.0)
        work[9] *= slow if s >= 150 else 1.0
        ts += work.max()
        times = StepTimes(
            number=500 + s, ts=np.full(RANKS, ts), step=np.full(RANKS, work.max()), compute=work, wait=nan,
            data=nan, comm=nan, checkpoint=nan, tokens=nan,
        )  # fmt: skip
        verdict = detector.update(times)
        for a in (*verdict.slow, *verdict.intermittent):
            found.setdefault(a.rank, s - 149)
    return found


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("size", [1.08, 1.25])
@pytest.mark.parametrize("share", [0.1, 0.2, 0.3])
def test_ranks_that_are_all_far_off_now_and_then_are_not_slow(share, size, seed):
    """Where a tenth of the healthy steps are long, three in a row at one rank happen by chance."""
    assert named_among_far_steps(share, size, seed=seed) == {}


@pytest.mark.parametrize("spikes", [0.03, 0.045])
def test_four_far_steps_in_a_row_are_no_slow_rank_where_one_in_thirty_is(spikes):
    """Of 64 ranks one has four in a row once in 5,000 to 20,000 steps."""
    assert steps_until(alone=False, spikes=spikes, burst=4) is None


@pytest.mark.parametrize(("share", "within"), [(0.03, 5), (0.1, 12), (0.3, 30)])
@pytest.mark.parametrize("slow", [1.2, 1.5])
def test_a_slow_rank_differs_from_far_steps_by_being_so_always(share, within, slow):
    """It takes the more steps the more often healthy ones are long."""
    (rank, steps), *others = named_among_far_steps(share, 1.25, slow=slow).items()
    assert (rank, others) == (9, [])
    assert 3 <= steps <= within


def named_besides_compute(culprits, roles, *, waits_read, noise=0.0, on_node=1, passing=None, seed=3):
    """Return who is found slow in what, and how many steps after the 90th, from when on ``culprits`` are busy
    with what they do not name; ``waits_read``: ranks report their waits, and else only the collectives they
    wait in. ``noise`` is that of what they do not name; ``passing``: a rank that is so for ten steps alone.
    """
    rng, ranks = np.random.default_rng(seed), len(roles)
    detector = StragglerDetector(ranks, np.array(roles, dtype=np.intp), nodes=np.arange(ranks) // on_node)
    nan, ts = np.full(ranks, np.nan), 1000.0
    found: dict[tuple[str, int], int] = {}
    for s in range(150):
        work = np.exp(0.01 * rng.normal(size=ranks))
        own = work + np.where(np.isin(np.arange(ranks), culprits) & (s >= 90), 0.3, 0.0)
        own += noise * rng.gamma(1.0, size=ranks) if noise else 0.0
        if passing is not None and 90 <= s < 100:
            own[passing] += 3.0
        waits = own.max() - own
        ts += own.max()
        times = StepTimes(
            number=500 + s, ts=np.full(ranks, ts), step=np.full(ranks, own.max()), compute=work, data=nan,
            wait=waits if waits_read else nan, comm=nan if waits_read else waits, checkpoint=nan, tokens=nan,
        )  # fmt: skip
        for a in detector.update(times).slow:
            found.setdefault((a.timing, a.rank), s - 90)
    return found


def test_where_no_wait_is_reported_the_rank_that_does_not_wait_in_collectives_is_named():
    """A rank that is held up outside of its compute comes last to them, and the others wait there."""
    assert named_besides_compute(5, [0] * 16, waits_read=False) == {("rest", 5): 19}


def test_waits_of_all_show_a_slow_rank_without_a_mate():
    """Whoever is held up, all ranks of the job wait for it, whatever their role."""
    assert named_besides_compute(0, [0] + [1] * 15, waits_read=True).keys() == {("rest", 0)}


def test_what_a_machine_does_besides_is_found_of_all_its_ranks_at_once():
    """Noise decides when each crosses the threshold, and their onsets would be dated apart."""
    found = named_besides_compute(range(8, 16), [0] * 32, waits_read=True, noise=0.08, on_node=8)
    assert found.keys() == {("rest", rank) for rank in range(8, 16)}
    assert len(set(found.values())) == 1


@pytest.mark.parametrize("seed", range(4))
def test_a_rank_of_that_machine_that_is_well_is_not_found_with_it(seed):
    found = named_besides_compute(
        range(8, 15), [0] * 32, waits_read=True, noise=0.08, on_node=8, passing=15, seed=seed
    )
    assert found.keys() == {("rest", rank) for rank in range(8, 15)}


def slow_while_loading(work, data, *, on_node=1, roles="alike", **of):
    """Return who is found slow in what, by seconds of compute and loading, both [steps, ranks]."""
    ranks = work.shape[1]
    roles = np.zeros(ranks, dtype=np.intp) if isinstance(roles, str) else roles
    detector = StragglerDetector(ranks, roles, nodes=np.arange(ranks) // on_node, **of)
    nan, ts, found = np.full(ranks, np.nan), 1000.0, set()
    for s, (own, loading) in enumerate(zip(work, data, strict=True)):
        step = np.full(ranks, (own + loading).max())
        ts += step[0]
        times = StepTimes(
            number=500 + s, ts=np.full(ranks, ts), step=step, compute=own, wait=step - own - loading,
            data=loading, comm=nan, checkpoint=nan, tokens=nan,
        )  # fmt: skip
        found |= {(a.timing, a.rank) for a in detector.update(times).slow}
    return found


def first_epoch(rng, *, steps=160, ranks=16):
    """Loading that takes half of a step, by chance, while nothing is cached, and next to nothing after."""
    data = 0.04 * rng.gamma(4, 0.25, (steps, ranks))
    data[:100] *= 10 * rng.uniform(0.5, 1.8, (100, ranks))
    return data


def long_tail(rng, *, steps=160, ranks=16):
    """Loading whose logs scatter by 0.9."""
    return 0.05 * rng.gamma(4, 0.25, (steps, ranks)) * np.exp(0.9 * rng.normal(size=(steps, ranks)))


def changes_its_kind(rng, *, steps=160, ranks=16):
    """Loading that scatters far more from a step on."""
    data = 0.02 * rng.gamma(4, 0.25, (steps, ranks))
    data[80:] *= 8 * np.exp(0.7 * rng.normal(size=(80, ranks)))
    return data


@pytest.mark.parametrize("loading", [first_epoch, long_tail, changes_its_kind])
def test_independent_waits_accuse_no_loader(loading):
    """Of many ranks over many steps one waits longest for some time, by chance."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        work = np.exp(0.004 * rng.normal(size=(160, 16)))
        assert slow_while_loading(work, loading(rng), on_node=8) == set()


@pytest.mark.parametrize(("loading", "within"), [(first_epoch, 14), (long_tail, 8), (changes_its_kind, 3)])
def test_a_slow_loader_is_found_among_independent_waits(loading, within):
    """A rank that waits for most of a step longer than the others, each time, from step 40 on."""
    rng = np.random.default_rng(3)
    work = np.exp(0.004 * rng.normal(size=(160, 16)))[: 40 + within]
    data = loading(rng)[: 40 + within]
    data[40:, 5] += 0.8
    assert slow_while_loading(work, data, on_node=8) == {("data", 5)}


@pytest.mark.parametrize(("longer", "expected"), [(0.02, set()), (0.15, {("data", 5)})])
def test_loading_that_is_a_little_longer_is_not_reported_while_others_load_longest(longer, expected):
    """In each step some rank loads for longer than the one that always takes a little more."""
    rng = np.random.default_rng(6)
    work = np.exp(0.005 * rng.normal(size=(200, 32)))
    data = 0.03 * np.exp(0.6 * rng.normal(size=(200, 32)))
    data[100:, 5] += longer
    assert slow_while_loading(work, data) == expected


def test_a_rank_that_loads_less_than_the_others_is_not_slow_when_its_work_grows():
    """What it loads less is a smaller share of the work then; most ranks are of a machine whose loader
    stalls."""
    rng = np.random.default_rng(4)
    work = np.exp(0.005 * rng.normal(size=(160, 14)))
    work[90:] *= 3.0
    data = np.where(np.arange(14) < 8, 3.0, 0.01) + 0.01 * rng.random((160, 14))
    found = slow_while_loading(work, data, on_node=8)
    assert not {rank for _, rank in found} & set(range(8, 14))


@pytest.mark.parametrize(
    ("loaders", "expected"),
    [(range(8, 16), {("data", rank) for rank in range(8, 16)}), (range(0, 64, 8), set())],
    ids=["a machine", "the first rank of each"],
)
def test_a_machine_that_loads_longer_than_all_others_is_named_where_work_varies(loaders, expected):
    """As long as any is known of, by a tenth of the work; one rank of each machine may load for the rest."""
    rng = np.random.default_rng(2)
    work = np.exp(0.15 * rng.normal(size=(80, 64)))
    data = 0.025 * np.exp(0.4 * rng.normal(size=(80, 64)))
    data[5:, list(loaders)] += 0.1
    assert slow_while_loading(work, data, on_node=8) == expected


@pytest.mark.parametrize("loaders", [[3, 42], [*range(8, 24)]], ids=["two ranks", "two machines"])
def test_slow_loaders_of_several_machines_do_not_excuse_each_other(loaders):
    rng = np.random.default_rng(3)
    data = 0.02 * np.exp(0.3 * rng.normal(size=(60, 64)))
    data[:, loaders] += 0.3
    found = slow_while_loading(np.exp(0.01 * rng.normal(size=(60, 64))), data, on_node=8)
    assert found == {("data", rank) for rank in loaders}


TENSOR_PLACE = np.arange(32) % 4
LAYOUTS = {
    "stage on one node": (np.arange(8), {"roles": np.arange(32) // 8}),
    "first of each tensor group": (np.arange(0, 32, 8), {"roles": np.zeros(32, dtype=np.intp)}),
    "first of each tensor group of a stage": (
        np.arange(0, 16, 4),
        {"roles": np.arange(32) // 16, "shards": Shards((TENSOR_PLACE,), np.arange(32) // 8)},
    ),
    "every fourth of half, no coordinates": (np.arange(0, 16, 4), {"roles": None}),
    "first half, no coordinates": (np.arange(16), {"roles": None}),
}


def loaded_for_others(loaders, *, seed, steps=300):
    """Return work and loading [steps, 32] where ``loaders`` alone load, for a tenth of their work."""
    rng = np.random.default_rng(seed)
    work = np.exp(0.008 * rng.normal(size=(steps, 32)))
    data = 0.003 * np.exp(0.5 * rng.normal(size=(steps, 32)))
    data[:, loaders] += 0.1 * np.exp(0.35 * rng.normal(size=(steps, len(loaders))))
    return work, data


@pytest.mark.parametrize(("loaders", "layout"), LAYOUTS.values(), ids=LAYOUTS)
def test_ranks_that_load_for_others_are_not_slow(loaders, layout):
    """They load longer than the rest from the start, and vary by as much more."""
    for seed in range(4):
        work, data = loaded_for_others(loaders, seed=seed)
        assert slow_while_loading(work, data, on_node=8, **layout) == set()


@pytest.mark.parametrize(("loaders", "layout"), LAYOUTS.values(), ids=LAYOUTS)
def test_a_rank_that_loads_for_others_and_becomes_slow_is_found_alone(loaders, layout):
    """Within eight steps, by a fifth of the work."""
    work, data = loaded_for_others(loaders, seed=1, steps=158)
    data[150:, loaders[1]] += 0.2
    assert slow_while_loading(work, data, on_node=8, **layout) == {("data", int(loaders[1]))}


def test_independent_long_waits_of_few_loaders_accuse_none():
    """The others, who load nothing, tell nothing of what waits are usual."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        work, data = loaded_for_others(np.arange(8), seed=seed)
        data[:, :8] = 0.06 * np.exp(1.0 * rng.normal(size=(300, 8)))
        assert slow_while_loading(work, data, on_node=8, roles=np.arange(32) // 8) == set()


@pytest.mark.parametrize(
    ("longer", "timings"), [(0.02, {"compute"}), (0.2, {"compute", "data"})], ids=["a little", "as much"]
)
def test_a_host_that_computes_slower_by_far_more_than_it_loads_is_no_slow_loader(longer, timings):
    """Its processors are short for both."""
    rng = np.random.default_rng(5)
    work = np.exp(0.008 * rng.normal(size=(220, 32)))
    data = 0.003 * np.exp(0.5 * rng.normal(size=(220, 32)))
    work[150:, 8:16] *= 1.0 + 0.15 * rng.gamma(2, 0.5, (70, 8))
    data[150:, 8:16] += longer * rng.gamma(4, 0.25, (70, 8))
    found = slow_while_loading(work, data, on_node=8)
    assert found == {(timing, rank) for timing in timings for rank in range(8, 16)}


def loads(seed):
    """Return work and loading [steps, ranks] of 19 ranks, 16 of them on one machine."""
    rng = np.random.default_rng(seed)
    return np.exp(0.01 * rng.normal(size=(160, 19))), 0.01 * np.exp(0.5 * rng.normal(size=(160, 19)))


def test_a_machine_with_most_of_the_job_that_loads_for_long_is_compared_with_the_others():
    """The median of all is that of its ranks."""
    work, data = loads(8)
    data[100:, :16] += 2.0
    assert slow_while_loading(work, data, on_node=16) == {("data", rank) for rank in range(16)}


@pytest.mark.parametrize("seed", range(3))
def test_a_machine_with_most_of_the_job_is_no_slow_loader_for_what_is_usual(seed):
    """Its loaders share a host and take a little longer from the start; storage stalls for some steps, for
    all ranks or for its own."""
    work, data = loads(seed)
    data[:, :16] += 0.08
    assert slow_while_loading(work, data, on_node=16) == set()
    rng = np.random.default_rng(seed + 100)
    bursts = rng.lognormal(-1, 1, size=(160, 19)) * (rng.random((160, 1)) < 0.15)
    assert slow_while_loading(work, data + bursts, on_node=16) == set()
    of_host = 0.5 * (rng.random((160, 1)) < 0.15) * (np.arange(19) < 16)
    assert slow_while_loading(work, data + of_host, on_node=16) == set()


def come_and_go(ranks):
    """Return which ranks are found intermittent where ``ranks`` are 1.5 times slower for two steps of 20."""
    rng = np.random.default_rng(11)
    detector = StragglerDetector(RANKS, np.zeros(RANKS, dtype=np.intp), nodes=np.arange(RANKS) // 4)
    nan, ts, found = np.full(RANKS, np.nan), 1000.0, set()
    for s in range(300):
        work = np.exp(0.005 * rng.normal(size=RANKS))
        if s >= 150:
            work[[r for i, r in enumerate(ranks) if (s + 5 * i) % 20 < 2]] *= 1.5
        ts += work.max()
        times = StepTimes(
            number=500 + s, ts=np.full(RANKS, ts), step=np.full(RANKS, work.max()), compute=work, wait=nan,
            data=nan, comm=nan, checkpoint=nan, tokens=nan,
        )  # fmt: skip
        found |= {a.rank for a in detector.update(times).intermittent}
    return found


def test_ranks_that_come_and_go_on_several_machines_have_work_that_wanders():
    """Two may both be faulty, and so may those of one machine; three machines at once are not."""
    assert come_and_go([5]) == {5}
    assert come_and_go([5, 17]) == {5, 17}
    assert come_and_go([4, 5, 6]) == {4, 5, 6}
    assert come_and_go([5, 17, 29]) == set()


def test_an_expert_that_was_popular_leaves_no_rank_that_comes_and_goes():
    """Its ranks rise again and again while it is; of what is usual of them by then, one step is far off."""
    rng, part = np.random.default_rng(11), np.arange(12) % 4
    shards = Shards.from_coords({"ep": part}, np.arange(12) // 10)
    detector = StragglerDetector(12, np.zeros(12, dtype=np.intp), nodes=np.arange(12) // 10, shards=shards)
    ts, found = 1000.0, set()
    for s in range(260):
        work = np.exp(0.005 * rng.normal(size=12))
        hot = 3 if s < 44 or s >= 110 else 1
        work[part == hot] *= 1.1 if s % 9 else 1.0
        work[1] *= 1.2 if s == 93 else 1.0
        ts += work.max()
        found |= {a.rank for a in detector.update(of_compute(500 + s, ts, work)).intermittent}
    assert found == set()


def test_a_machine_whose_loading_grows_is_found_with_the_first_of_its_ranks():
    """Each of its ranks passes the threshold in another step, up to a minute apart."""
    rng, slow = np.random.default_rng(11), np.arange(64) // 8 == 1
    detector = StragglerDetector(64, np.zeros(64, dtype=np.intp), nodes=np.arange(64) // 8)
    ts, found = 1000.0, dict[int, int]()
    pace = np.where(slow, np.linspace(0.001, 0.003, 64), 0.0)
    for s in range(260):
        work = np.exp(0.02 * rng.normal(size=64))
        data = 0.02 * np.exp(0.3 * rng.normal(size=64)) + pace * max(s - 150, 0)
        ts += 1.2
        times = replace(of_compute(500 + s, ts, work), data=data)
        for one in detector.update(times).slow:
            found.setdefault(one.rank, s)
    assert sorted(found) == np.flatnonzero(slow).tolist()
    assert max(found.values()) - min(found.values()) <= 5


def test_a_trainer_is_named_beside_more_ranks_that_generate():
    """Ranks that are never read tell nothing of who stands at the place of a slow one."""
    ranks, trainers, rng = 96, 32, np.random.default_rng(8)
    detector, found, ts = StragglerDetector(ranks, None, nodes=np.arange(ranks) // 8), [], 0.0
    for step in range(100):
        work = np.full(ranks, np.nan)
        work[:trainers] = np.exp(0.008 * rng.normal(size=trainers))
        work[14] *= 1.0 if step < 60 else 1.2
        ts += np.nanmax(work)
        times = replace(of_compute(step, ts, work), step=np.full(ranks, np.nanmax(work)))
        found += [(step, slow.rank) for slow in detector.update(times).slow]
    assert [rank for _, rank in found] == [14]
    assert found[0][0] <= 70


def test_ranks_are_compared_from_when_they_tell_what_they_compute():
    """Step times alone compare nobody; what was concluded from them does not hold later."""
    rng, found, ts = np.random.default_rng(9), set(), 0.0
    detector = StragglerDetector(RANKS, np.zeros(RANKS, dtype=np.intp))
    for step in range(160):
        work = np.exp(0.008 * rng.normal(size=RANKS))
        work[5] *= 1.0 if step < 120 else 1.3
        ts += work.max()
        times = of_compute(step, ts, work)
        if step < 60:
            times = replace(times, compute=np.full(RANKS, np.nan))
        found |= {slow.rank for slow in detector.update(times).slow}
    assert found == {5}


@pytest.mark.parametrize("without", [range(150, 151), range(150, 160), range(150, 180)], ids=len)
def test_a_slow_rank_is_followed_beyond_steps_that_come_without_their_parts(without):
    """What was concluded holds until the rank is seen to be well, which may be while nobody tells."""
    rng, found, ended, ts = np.random.default_rng(10), [], [], 0.0
    detector = StragglerDetector(RANKS, np.zeros(RANKS, dtype=np.intp))
    for step in range(300):
        work = np.exp(0.008 * rng.normal(size=RANKS))
        work[5] *= 1.2 if 100 <= step < 155 else 1.0
        ts += work.max()
        times = of_compute(step, ts, work)
        if step in without:
            times = replace(times, compute=np.full(RANKS, np.nan))
        result = detector.update(times)
        found += [slow.rank for slow in result.slow]
        ended += [rank for timing, rank in result.recovered if timing == "compute"]
    assert (found, ended) == ([5], [5])
