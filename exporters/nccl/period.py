"""The repeating sequence in a series of collectives, which is one training step."""

from collections.abc import Sequence
from itertools import pairwise

Kind = tuple[str, int]
"""What is compared: the function of a collective and its bytes."""

# Whole repetitions that a sequence must have. Chosen: two may be chance in the first steps, whose buckets
# differ from those of later ones.
REPEATS = 3
# The same where collectives are equal, so that time alone divides them into steps. Chosen: so many
# repetitions of nearly a step are not alike by chance.
REPEATS_OF_EQUALS = 8
# The longest of the repetitions against the shortest. Chosen: equal buckets of one step, of which one is
# preceded by the step's compute, differ by more; a checkpoint among the repetitions delays the result.
SPREAD = 2.0


def step_period(kinds: Sequence[Kind], ends: Sequence[float]) -> int | None:
    """Return how many collectives one step has, None while that is unknown.

    It is the least p with ``kinds[i] == kinds[i - p]`` throughout whose repetitions, between the ``ends``
    (seconds) of their first collectives, take about equally long.

    >>> step_period([("AllReduce", 8), ("AllReduce", 4)] * 3, [0, 1, 10, 11, 20, 21])
    2
    >>> step_period([("AllReduce", 8)] * 16, [t for n in range(8) for t in (10 * n, 10 * n + 1)])
    2
    """
    least = _least_period(kinds)
    if least is None:
        return None
    if _regular(ends[::least]):
        return least
    longest = len(kinds) // REPEATS_OF_EQUALS
    return next((p for p in range(2 * least, longest + 1, least) if _regular(ends[::p])), None)


def least_rotation(pattern: Sequence[Kind]) -> int:
    """Return where the lexicographically least rotation begins: the same for every rank, wherever it starts.

    >>> least_rotation([("AllReduce", 8), ("AllGather", 4)])
    1
    """
    twice = [*pattern, *pattern]
    return min(range(len(pattern)), key=lambda i: twice[i : i + len(pattern)])


def _least_period(kinds: Sequence[Kind]) -> int | None:
    for period in range(1, len(kinds) // REPEATS + 1):
        if all(kinds[i] == kinds[i - period] for i in range(period, len(kinds))):
            return period
    return None


def _regular(ends: Sequence[float]) -> bool:
    gaps = [later - earlier for earlier, later in pairwise(ends)]
    return max(gaps) <= SPREAD * min(gaps)
