"""A slow rank beside those that work on its batch, from seconds of compute to who is found slow."""

from dataclasses import replace

import numpy as np
import pytest

from detectors.straggler.step_detector import StragglerDetector
from tests.detectors.straggler.step_times import of_compute

RANKS, GROUP, CHANGED = 64, 4, 120
AT = np.arange(RANKS)
OF_GROUP = AT // GROUP


def compute(*, of_group=0.0, own=0.0, rank=21, steps=220, seed=0):
    """Return seconds [steps, ranks] of groups of four whose batches differ by 15 %, ranks by 0.3 %; from
    ``CHANGED`` on ``rank`` is ``own`` slower than its mates (log ratio), and all of its group by
    ``of_group``."""
    rng = np.random.default_rng(seed)
    batch = 0.15 * rng.normal(size=(steps, RANKS // GROUP))
    x = batch[:, OF_GROUP] + 0.003 * rng.normal(size=(steps, RANKS))
    x[CHANGED:, OF_GROUP[rank] == OF_GROUP] += of_group
    x[CHANGED:, rank] += own
    return np.exp(x)


def found_slow(seconds, *, groups=OF_GROUP):
    """Return after how many slow steps each rank is found slow, whose evidence suffices alone."""
    detector = StragglerDetector(
        RANKS, np.zeros(RANKS, dtype=np.intp), tensor_groups=groups, batch_groups=groups
    )
    found: dict[int, int] = {}
    ts = 1000.0
    for step, work in enumerate(seconds):
        ts += work.max()
        for slow in detector.update(of_compute(500 + step, ts, work)).slow:
            if slow.alone:
                found.setdefault(slow.rank, step - CHANGED)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_what_a_rank_takes_longer_than_its_mates_shows_that_its_group_is_slow(seed):
    """They wait for most of its slowdown, which batches hide; 3 % are left between it and them."""
    slow = compute(of_group=0.2, own=0.03, seed=seed)
    group = set(range(20, 24))
    found = found_slow(slow)
    assert set(found) == group
    assert found[21] <= 40
    assert found.items() != found_slow(slow, groups=None).items()


@pytest.mark.parametrize("seed", range(3))
def test_who_works_on_one_batch_shows_in_the_amounts_of_work(seed):
    """Where no coordinates tell, and the amounts explain nothing of the times."""
    tokens = np.random.default_rng(seed).integers(1000, 9000, size=(220, RANKS // GROUP))[:, OF_GROUP]
    detector = StragglerDetector(RANKS, None, nodes=AT // 8)
    named = set()
    for step, work in enumerate(compute(own=0.12, seed=seed)):
        times = replace(of_compute(500 + step, 1000.0 + step, work), tokens=tokens[step].astype(float))
        named |= {slow.rank for slow in detector.update(times).slow}
    assert named == {21}


@pytest.mark.parametrize("seed", range(3))
def test_a_rank_that_is_much_slower_than_its_mates_is_named_at_once(seed):
    """Its compute has no waiting in it; of all ranks it is hardly among the slower half."""
    found = found_slow(compute(own=0.12, seed=seed))
    assert found.keys() == {21}
    assert found[21] <= 10


def test_a_rank_that_differs_from_its_mates_in_a_group_that_is_not_slow_is_hardly_named():
    """Nor is anybody while nothing changes."""
    named = [found_slow(compute(own=0.025, seed=seed)) for seed in range(20)]
    assert sum(map(bool, named)) <= 1
    assert not any(found_slow(compute(seed=seed)) for seed in range(5))


@pytest.mark.parametrize("seed", range(12))
def test_a_mate_that_becomes_quicker_makes_no_rank_slow(seed):
    """Of two, one is slower than the other then; of four, none is slower than most."""
    seconds = compute(own=-0.1, seed=seed)
    assert found_slow(seconds, groups=AT // 2) == found_slow(seconds, groups=None) == {}
    assert found_slow(seconds) == {}


def test_a_group_that_is_well_again_has_recovered():
    """At the noise of its batches little evidence would hardly ever go."""
    seconds = np.vstack([compute(of_group=0.2, own=0.03, steps=180), compute(steps=120, seed=1)])
    detector = StragglerDetector(RANKS, np.zeros(RANKS, dtype=np.intp), batch_groups=OF_GROUP)
    recovered: dict[int, int] = {}
    ts = 1000.0
    for step, work in enumerate(seconds):
        ts += work.max()
        recovered |= {rank: step for _, rank in detector.update(of_compute(500 + step, ts, work)).recovered}
    assert set(recovered) == set(range(20, 24))
    assert max(recovered.values()) <= 180 + 25


def test_ranks_without_a_group_have_no_mates():
    seconds = compute(of_group=0.2, own=0.03)
    alone = np.full(RANKS, -1, dtype=np.intp)
    assert found_slow(seconds, groups=alone) == found_slow(seconds, groups=None)
