"""Tensor-parallel mates in the suspicion of a slow rank: how many, and how slow meanwhile."""

import numpy as np
import pytest

from benchmarks.detection.step_jobs import synchronous
from tests.streams.job.job_tables import healthy, packed, run

RANKS, ONSET = 32, 100
PLACES = np.arange(RANKS)

# Four ranks of a group side by side, two groups on a node.
DENSE = {"tp": PLACES % 4, "dp": PLACES // 4 % 4, "pp": PLACES // 16}

# The ranks of a group on two nodes.
WIDE = {"dp": PLACES % 4, "tp": PLACES // 4 % 4, "pp": PLACES // 16}


def suspicions(slowdowns, *, coords=DENSE, work=None, every=1, later=0):
    """Return the suspicions of a job whose ranks become slow, each ``later`` steps after the one before."""
    seconds = healthy(steps=200, ranks=RANKS) if work is None else work
    for place, (rank, ratio) in enumerate(slowdowns.items()):
        seconds[ONSET + place * later :: every, rank] *= ratio
    places = {name: at.tolist() for name, at in coords.items()}
    return [s for s in run(synchronous(seconds, overhead=0.05, coords=places)) if s.subject.rank is not None]


def slow_ranks(slowdowns, **job):
    """Return (rank, size of its group, how slow its mates are) of each slow rank, as first reported."""
    found = [s for s in suspicions(slowdowns, **job) if s.state == "raise"]
    return sorted((s.subject.rank, s.ranks_in_group, s.mates) for s in found)


@pytest.mark.parametrize("ratio", [1.05, 1.2, 1.5])
def test_a_rank_that_is_slow_alone_has_mates_that_are_not(ratio):
    """Where compute leaves the collectives out, its mates are as they were."""
    assert slow_ranks({9: ratio}) == [(9, 4, "")]


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("ratio", [1.1, 1.5])
def test_mates_that_wait_within_their_compute_are_as_slow(ratio, every):
    """All of them look alike, also where they are slow in every third step only."""
    slow = dict.fromkeys(range(8, 12), ratio if every == 1 else 1.5)
    assert slow_ranks(slow, every=every) == [(rank, 4, "as_slow") for rank in range(8, 12)]


@pytest.mark.parametrize(("own", "others"), [(1.4, 1.2), (1.54, 1.1)])
def test_the_slowest_knows_that_its_mates_are_less_slow(own, others):
    """They wait for a part of its work: whoever is clearly slower than all of them is the one."""
    slow = dict.fromkeys(range(8, 12), others) | {9: own}
    assert (9, 4, "less_slow") in slow_ranks(slow)


def test_two_slow_ranks_of_a_group_are_two():
    """As long as the others of their group are well, neither explains the other."""
    assert slow_ranks({9: 1.5, 10: 1.2}) == [(9, 4, ""), (10, 4, "")]


def test_uneven_work_makes_no_rank_the_slowest():
    """Where steps differ by a tenth, mates that happen to do less for some steps are no less slow."""
    work = packed(steps=200, ranks=RANKS).reshape(200, 8, 4).max(axis=2).repeat(4, axis=1)
    assert all(
        mates != "less_slow" for _, _, mates in slow_ranks(dict.fromkeys(range(8, 12), 1.5), work=work)
    )


@pytest.mark.parametrize(
    "coords", [WIDE, {name: DENSE[name] for name in ("dp", "pp")}, {"tp": DENSE["tp"], "pp": DENSE["pp"]}]
)
def test_no_group_is_given_where_none_is_known(coords):
    """On several nodes, without a place in it, and where coordinates do not distinguish all ranks."""
    assert slow_ranks({9: 1.2}, coords=coords) == [(9, 0, "")]


@pytest.mark.parametrize("group", [(8, 9), (10, 11), (12, 13, 14, 15)])
def test_ranks_in_a_row_are_led_by_the_slowest_where_no_coordinates_are_known(group):
    """They are a tensor-parallel group by all appearances: of a node's eight only they are slow, alike."""
    slow = dict.fromkeys(group, 1.3) | {group[1]: 1.4}
    last = {s.subject.rank: (s.ranks_in_group, s.mates) for s in suspicions(slow, coords={})}
    assert last == {r: (len(group), "less_slow" if r == group[1] else "") for r in group}


@pytest.mark.parametrize("group", [(8, 9), (12, 13, 14, 15)])
@pytest.mark.parametrize("ratio", [1.1, 1.3])
def test_ranks_in_a_row_that_nothing_distinguishes_are_as_slow(group, ratio):
    """Two faults of one size that begin in one step on one node, and nowhere else, are one."""
    last = {s.subject.rank: s.mates for s in suspicions(dict.fromkeys(group, ratio), coords={})}
    assert last == dict.fromkeys(group, "as_slow")


@pytest.mark.parametrize(("on", "off"), [(30, 20), (8, 40)], ids=["mostly", "at times"])
def test_ranks_in_a_row_that_are_slow_on_and_off_are_led_by_the_slowest(on, off):
    """Also in what is said of them while they are well, or when they are slow for the second time."""
    work = healthy(steps=400, ranks=RANKS)
    steps = np.flatnonzero((np.arange(400) - ONSET) % (on + off) < on)
    steps = steps[steps >= ONSET]
    work[steps, 8:10] *= 1.3
    work[steps, 9] *= 1.4 / 1.3
    found = suspicions({}, coords={}, work=work)
    assert {s.kind for s in found} >= {"straggler.fail_slow"}
    told = {(s.subject.rank, s.ranks_in_group, s.mates) for s in found}
    assert told == {(8, 2, ""), (9, 2, "less_slow")}


def test_a_known_group_is_not_replaced_by_a_likely_one():
    """All eight ranks of a node are one group: two that are slow alone are two."""
    work, coords = healthy(steps=200, ranks=8), {"tp": np.arange(8)}
    assert slow_ranks({2: 1.4, 3: 1.3}, work=work, coords=coords) == [(2, 8, ""), (3, 8, "")]


@pytest.mark.parametrize(
    ("slow", "later"),
    [
        ({8: 1.4, 9: 1.3}, 40),
        ({8: 1.3, 9: 1.4}, 40),
        ({9: 1.4, 10: 1.3}, 0),
        ({8: 1.4, 9: 1.1}, 0),
        ({8: 1.4, 9: 1.3, 10: 1.3}, 0),
    ],
    ids=[
        "one after the other",
        "the slower one later",
        "of two groups",
        "less than half as slow",
        "one more",
    ],
)
def test_ranks_that_need_no_group_to_be_slow_are_on_their_own(slow, later):
    """No coordinates are known, and their steps do not look like a group's either: none leads the other."""
    found = suspicions(slow, coords={}, later=later)
    assert {s.subject.rank: s.mates for s in found} == dict.fromkeys(slow, "")
    assert "less_slow" not in {s.mates for s in found}
