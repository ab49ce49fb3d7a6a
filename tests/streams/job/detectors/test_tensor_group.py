"""Tensor-parallel mates in the suspicion of a slow rank: how many, and how slow meanwhile."""

import numpy as np
import pytest

from benchmarks.detection.step_jobs import synchronous
from tests.streams.job.job_tables import healthy, packed, run

RANKS, ONSET = 32, 100
PLACES = np.arange(RANKS)
DENSE = {"tp": PLACES % 4, "dp": PLACES // 4 % 4, "pp": PLACES // 16}
"""Four ranks of a group side by side, two groups on a node."""

WIDE = {"dp": PLACES % 4, "tp": PLACES // 4 % 4, "pp": PLACES // 16}
"""The ranks of a group on two nodes."""


def slow_ranks(slowdowns, *, coords=DENSE, work=None, every=1):
    """Return (rank, size of its group, how slow its mates are) of each slow rank, as first reported."""
    seconds = healthy(steps=200, ranks=RANKS) if work is None else work
    for rank, ratio in slowdowns.items():
        seconds[ONSET::every, rank] *= ratio
    places = {name: at.tolist() for name, at in coords.items()}
    raised = run(synchronous(seconds, overhead=0.05, coords=places))
    found = [s for s in raised if s.state == "raise" and s.subject.rank is not None]
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
