"""Ranks that are slow with another: of its machine, or because they wait for it as they compute."""

import numpy as np
import pytest

from detectors.straggler.step_detector import StragglerDetector
from tests.detectors.straggler.step_times import of_compute

GROUP, ON_NODE, CHANGED = 4, 8, 60
SLOW = [8, 9, 10, 11]


def found_slow(by, *, roles, groups=None, noise, stage=1.0, since=CHANGED, steps=160, seed=1):
    """Return the step in which each rank was first found slow, and the sizes of their groups by then.

    ``by`` [ranks] is how much longer each takes from step ``since`` on, ``noise`` [ranks] the sd of its log
    times; the second half of the ranks has ``stage`` times the work.
    """
    ranks, rng = len(noise), np.random.default_rng(seed)
    nodes = np.arange(ranks) // ON_NODE
    detector = StragglerDetector(ranks, roles, nodes=nodes, tensor_groups=groups)
    work = np.where(np.arange(ranks) < ranks / 2, 1.0, stage)
    found: dict[int, int] = {}
    together: dict[int, int] = {}
    for s in range(steps):
        seconds = work * np.exp(noise * rng.normal(size=ranks)) * np.where(s >= since, by, 1.0)
        for slow in detector.update(of_compute(s, 1000.0 + s, seconds)).slow:
            found.setdefault(slow.rank, s)
            together[slow.rank] = detector.explain(slow).tensor_group
    return found, together


def known(by_mates, *, noise_of_mates, ranks=64):
    """Return when ranks were found of a known group of which the first one is 8 % slow."""
    noise, by = np.full(ranks, 0.01), np.ones(ranks)
    by[SLOW], noise[SLOW[1:]] = by_mates, noise_of_mates
    by[SLOW[0]] = 1.08
    roles = np.zeros(ranks, dtype=np.intp)
    return found_slow(by, roles=roles, groups=np.arange(ranks) // GROUP, noise=noise)[0]


@pytest.mark.parametrize("noise", [0.03, 0.04])
def test_mates_as_slow_are_found_with_the_first(noise):
    """Noisier ones cross the threshold later: one by one they would pass for faults of their own."""
    found = known(1.05, noise_of_mates=noise)
    assert sorted(found) == SLOW
    assert max(found.values()) <= CHANGED + 9


def test_mates_that_wait_for_a_part_are_not():
    assert sorted(known(1.02, noise_of_mates=0.01)) == [SLOW[0]]


def test_a_group_slow_since_the_start_is_likely_one_in_a_stage_that_was_not_known_then():
    """What ranks showed while roles were learnt is no usual state of them."""
    ranks = 128
    by = np.ones(ranks)
    by[SLOW] = 1.1
    found, together = found_slow(by, roles=None, noise=np.full(ranks, 0.02), stage=1.5, since=0)
    assert sorted(found) == SLOW
    assert set(together.values()) == {GROUP}


@pytest.mark.parametrize(("since", "within"), [(0, 25), (CHANGED, 12)], ids=["since the start", "later"])
@pytest.mark.parametrize("seed", range(3))
def test_a_machine_is_found_with_the_first_of_its_ranks(since, within, seed):
    """Its noisiest ones would take twenty steps more by themselves, or sixty."""
    ranks, slow = 64, list(range(8, 16))
    noise, by = np.full(ranks, 0.02), np.ones(ranks)
    noise[slow], by[slow] = np.linspace(0.015, 0.04, ON_NODE), 1.06
    roles = np.zeros(ranks, dtype=np.intp)
    found, _ = found_slow(by, roles=roles, noise=noise, since=since, steps=since + 40, seed=seed)
    assert sorted(found) == slow
    assert max(found.values()) <= since + within


@pytest.mark.parametrize("since", [0, CHANGED], ids=["since the start", "later"])
def test_ranks_of_the_machine_that_are_slow_by_less_are_not(since):
    """A GPU that fails on a machine that is a little slower: it is named, not its machine."""
    ranks, noise = 64, np.full(64, 0.01)
    by = np.ones(ranks)
    by[8:16], by[8] = 1.02, 1.10
    roles = np.zeros(ranks, dtype=np.intp)
    found, _ = found_slow(by, roles=roles, noise=noise, since=since, steps=since + 40)
    assert list(found) == [8]


def test_a_rank_that_is_well_again_is_not_found_with_its_machine():
    """The others stay slow, and since they became so it was for most of the time."""
    rng, ranks, slow = np.random.default_rng(1), 64, np.arange(8, 16)
    detector = StragglerDetector(ranks, np.zeros(ranks, dtype=np.intp), nodes=np.arange(ranks) // ON_NODE)
    found: list[int] = []
    for s in range(300):
        seconds = np.exp(0.01 * rng.normal(size=ranks))
        seconds[slow if s < 200 else slow[:-1]] *= 1.3 if s >= CHANGED else 1.0
        found += [one.rank for one in detector.update(of_compute(s, 1000.0 + s, seconds)).slow]
    assert sorted(found) == slow.tolist()
    assert not detector.channels["compute"].raised[15]
