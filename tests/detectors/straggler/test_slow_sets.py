"""Machines and replicas that are slow as one where single ranks do not show it."""

import numpy as np
import pytest

from detectors.peers.replicas import Replicas
from detectors.straggler.step_detector import StragglerDetector
from tests.detectors.straggler.step_times import of_compute

MACHINES, EACH, ONSET = 6, 8, 150
RANKS = MACHINES * EACH
SLOW = set(range(3 * EACH, 4 * EACH))


def run(factor, *, steps=230, machines=True, shared=0.0, own=0.3, seed=1):
    """Return in which step each rank was found slow; ``factor`` [ranks] is its slowness from ``ONSET`` on.

    The log work of a rank varies by ``own`` (sd) from step to step, that of all ranks of a machine by
    ``shared``, for 40 steps at a time. Without ``machines`` each rank has one to itself.
    """
    rng, node = np.random.default_rng(seed), np.arange(RANKS) // EACH
    detector = StragglerDetector(RANKS, np.zeros(RANKS, dtype=np.intp), nodes=node if machines else None)
    ts = 1000.0
    found: dict[int, int] = {}
    for s in range(steps):
        if s % 40 == 0:
            lingers = shared * rng.normal(size=MACHINES)[node]
        work = np.exp(own * rng.normal(size=RANKS) + lingers) * (factor if s >= ONSET else 1.0)
        ts += work.max()
        for slow in detector.update(of_compute(500 + s, ts, work)).slow:
            found.setdefault(slow.rank, s)
    return found


def slowed(ranks, by):
    factor = np.ones(RANKS)
    factor[list(ranks)] = by
    return factor


@pytest.mark.parametrize("seed", range(4))
def test_a_slow_machine_is_named_as_a_whole_and_sooner_than_its_ranks_by_themselves(seed):
    found = run(slowed(SLOW, 1.3), seed=seed)
    assert set(found) == SLOW
    assert max(found.values()) < ONSET + 40
    assert not SLOW & set(run(slowed(SLOW, 1.3), machines=False, steps=ONSET + 40, seed=seed))


@pytest.mark.parametrize("seed", range(6))
def test_none_is_named_where_work_merely_varies(seed):
    assert not run(np.ones(RANKS), steps=500, seed=seed)


@pytest.mark.parametrize("seed", range(6))
def test_work_that_stays_with_a_machine_for_a_while_is_no_fault(seed):
    """A shard of long sequences makes all ranks that read it slow, one machine after the other."""
    assert not run(np.ones(RANKS), shared=0.1, steps=500, seed=seed)


def test_a_rank_that_is_far_slower_makes_no_slow_machine():
    """It moves the mean of its machine as much as a slow machine would."""
    found = run(slowed({25}, 6.0))
    assert set(found) == {25}


def test_half_of_a_machine_is_no_slow_machine():
    found = run(slowed(range(24, 28), 1.6), steps=ONSET + 30)
    assert not set(found) - set(range(24, 28))


STAGES, REPLICAS = 2, 24
REPLICA = np.tile(np.arange(REPLICAS), STAGES)
WHOLE = set(np.flatnonzero(REPLICA == 7).tolist())


def run_replicas(slowness, *, steps=260, batch=0.05, lingers=0.0, own=0.01, seed=1):
    """Return in which step each rank was found slow, and who is slow in the end; ``slowness(step)`` [ranks]
    is a factor of what a rank takes.

    Each replica draws a batch of another size in every step (log sd ``batch``), and in every 40th one a shard
    (``lingers``), for its rank of either stage; a stage is half of the machines.
    """
    rng, ranks = np.random.default_rng(seed), STAGES * REPLICAS
    node = np.arange(ranks) // 4
    detector = StragglerDetector(
        ranks, np.arange(ranks) // REPLICAS, nodes=node, replicas=Replicas.of(REPLICA, node)
    )
    ts = 1000.0
    found: dict[int, int] = {}
    for s in range(steps):
        if s % 40 == 0:
            shard = lingers * rng.normal(size=REPLICAS)
        drawn = (batch * rng.normal(size=REPLICAS) + shard)[REPLICA] + own * rng.normal(size=ranks)
        work = np.exp(drawn) * slowness(s)
        ts += work.max()
        for slow in detector.update(of_compute(500 + s, ts, work)).slow:
            found.setdefault(slow.rank, s)
    return found, {held.rank for held in detector.held()}


def slowed_replica(by, *, begin=ONSET, end=1000, ranks=WHOLE):
    """Return the factors of a job in which ``ranks`` take ``by`` times as long from ``begin`` to ``end``."""
    factor = np.ones(STAGES * REPLICAS)
    factor[list(ranks)] = by
    return lambda step: factor if begin <= step < end else 1.0


@pytest.mark.parametrize("seed", range(4))
def test_a_slow_replica_is_no_batch(seed):
    """A batch differs in the next step; what all ranks of a replica show for many steps is their own."""
    found, held = run_replicas(slowed_replica(1.2), seed=seed)
    assert set(found) == held == WHOLE
    assert max(found.values()) < ONSET + 30


@pytest.mark.parametrize(("most", "named"), [(1.3, WHOLE), (1.07, set())])
def test_a_replica_that_is_far_slower_than_batches_differ_needs_half_of_the_past(most, named):
    """It slows over 60 steps early in a job, so that it has been slow for most of what was seen."""

    def slowness(step):
        return slowed_replica(1 + (most - 1) * min(max(step - 25, 0) / 60, 1.0), begin=0)(step)

    assert set(run_replicas(slowness, steps=135)[0]) == named


def test_a_replica_that_was_slow_recovers_and_may_be_slow_again():
    def slowness(step):
        return slowed_replica(1.25, end=ONSET + 60)(step) * slowed_replica(1.25, begin=ONSET + 150)(step)

    assert run_replicas(slowness, batch=0.03, steps=ONSET + 140)[1] == set()
    assert run_replicas(slowness, batch=0.03, steps=ONSET + 200)[1] == WHOLE


@pytest.mark.parametrize("lingers", [0.0, 0.05])
@pytest.mark.parametrize("seed", range(4))
def test_uneven_batches_and_shards_are_no_slow_replica(seed, lingers):
    assert not run_replicas(lambda _: 1.0, steps=500, seed=seed, lingers=lingers)[0]


def test_one_rank_of_a_replica_is_slow_by_itself():
    found, held = run_replicas(slowed_replica(1.3, ranks={7}))
    assert set(found) == held == {7}


def run_from_start(factor, *, nodes=3, noise=0.035, differ=0.003, seed=1):
    """Return who is found slow in 400 steps of a pipeline of four stages, two replicas on each of ``nodes``;
    ``factor`` [ranks] is what a rank takes longer from the first step on, beside what healthy ones differ
    by for good (log sd ``differ``)."""
    rng, ranks = np.random.default_rng(seed), nodes * EACH
    node, stage = np.arange(ranks) // EACH, np.arange(ranks) % 4
    detector = StragglerDetector(ranks, stage, nodes=node)
    usual = np.exp(differ * rng.normal(size=ranks)) * factor
    ts = 1000.0
    found: set[int] = set()
    for s in range(400):
        work = usual * np.exp(noise * rng.normal(size=ranks))
        ts += work.max()
        found |= {slow.rank for slow in detector.update(of_compute(s, ts, work)).slow}
    return found


@pytest.mark.parametrize("seed", range(3))
def test_a_machine_with_a_third_of_each_role_is_slow_from_the_start(seed):
    """The others seem to be quicker than they are by the noise of a step, which would hide it."""
    factor = np.ones(3 * EACH)
    factor[:EACH] = 1.08
    assert run_from_start(factor, seed=seed) == set(range(EACH))


@pytest.mark.parametrize("seed", range(3))
def test_machines_that_always_differed_are_not_slow(seed):
    """As on shared hosts, and of two kinds."""
    rng = np.random.default_rng(seed)
    hosts = np.repeat(np.exp(0.03 * rng.normal(size=6)), EACH)
    assert not run_from_start(hosts, nodes=6, differ=0.02, seed=seed)
    assert not run_from_start(np.where(np.arange(48) < 16, 1.12, 1.0), nodes=6, seed=seed)
