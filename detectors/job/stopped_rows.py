"""Which ranks did not arrive at the step at which a job stopped."""

from collections.abc import Collection, Mapping

# Share of steps that lack rows anyway, from which on a missing one is no evidence. Chosen: of twenty pauses
# of a job one is then named by chance.
_MOST_LACKING = 0.05

# Weight left of a step one step later: the share is that of some 200 steps (chosen).
_FORGET = 0.995

# Steps, and such that lack rows, with which a job begins. Chosen: a job without losses counts from its first
# step on, and a row lost early ends that for a while.
_PRIOR_STEPS, _PRIOR_LACKING = 20.0, 0.5

# Steps of one gap that count. Chosen: a rank that is silent for longer is lost (``missing_rows``), which does
# not measure how often single rows are.
_MOST_OF_GAP = 8

# Share of the ranks, above which those that did not arrive are named no more: then the ones that did are the
# exception (chosen: a majority).
_MOST_ABSENT = 0.5


class StoppedRows:
    """Follows how often steps lack rows anyway, to judge those that are missing where a job stops.

    The share counts gaps that ended: a row that is missing now may be the fault, and must not excuse itself.
    Gaps that end together count as their longest, and not once for each rank: a node whose path breaks for
    ten steps leaves ten steps that lack rows, however many ranks it has. That the step at which a job stops
    lacks some is evidence against their ranks only while less than 0.05 of the steps do so by chance.
    """

    def __init__(self, before: "StoppedRows | None" = None) -> None:
        """Begin with the share of ``before``, the attempt before: its rows go the same way."""
        self._silent: dict[int, int] = {}
        self._known: frozenset[int] = frozenset()
        self._lacking: float = _PRIOR_LACKING if before is None else before._lacking
        self._steps: float = _PRIOR_STEPS if before is None else before._steps

    @property
    def lacking(self) -> float:
        """Share of the steps that lack rows."""
        return self._lacking / self._steps

    def update(self, present: frozenset[int]) -> None:
        """Take a closed step with rows of the ranks ``present``."""
        ended = 0
        if present != self._known or self._silent:
            self._known |= present
            ended = max((self._silent.pop(rank) for rank in self._silent.keys() & present), default=0)
            for rank in self._known - present:
                self._silent[rank] = min(_MOST_OF_GAP, self._silent.get(rank, 0) + 1)
        self._lacking = _FORGET * self._lacking + ended
        self._steps = _FORGET * self._steps + 1.0

    def absent(self, reached: Mapping[int, int], newest: int, ranks: Collection[int]) -> list[int]:
        """Return, ascending, those of ``ranks`` that did not arrive at step ``newest``, where it is evidence.

        ``reached``: the last step of each. Ranks that missed steps before the last are left out: they may
        have been silent for long.
        """
        if self.lacking >= _MOST_LACKING:
            return []
        behind = sorted(rank for rank in ranks if reached.get(rank, newest) < newest)
        if len(behind) > _MOST_ABSENT * len(ranks):
            return []
        return [rank for rank in behind if self._silent.get(rank, 0) < 2]
