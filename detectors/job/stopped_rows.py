"""Which ranks did not arrive at the step at which a job stopped."""

from collections.abc import Collection, Mapping

# Rows that a step lacks on average anyway, from which on a missing one is no evidence. Chosen: of twenty
# pauses of a job one is then named by chance.
_MOST_LOST = 0.05

# Weight left of a step one step later: the loss is that of some 200 steps (chosen).
_FORGET = 0.995

# Steps and lost rows with which a job begins. Chosen: a job without losses counts from its first step on, and
# a row lost early ends that for a while.
_PRIOR_STEPS, _PRIOR_LOST = 20.0, 0.5

# Missing rows of one gap that count. Chosen: a rank that is silent for longer is lost (``missing_rows``),
# which does not measure how often single rows are.
_MOST_OF_GAP = 8

# Share of the ranks, above which those that did not arrive are named no more: then the ones that did are the
# exception (chosen: a majority).
_MOST_ABSENT = 0.5


class StoppedRows:
    """Follows how often rows are lost anyway, to judge those that are missing where a job stops.

    The rate epsilon [per rank and step] counts gaps that ended: a row that is missing now may be the fault,
    and must not excuse itself. A step of R ranks then lacks epsilon R rows by chance, and that the step at
    which a job stops lacks some is evidence against their ranks only while epsilon R < 0.05.
    """

    def __init__(self) -> None:
        self._silent: dict[int, int] = {}
        self._known: frozenset[int] = frozenset()
        self._lost, self._steps = _PRIOR_LOST, _PRIOR_STEPS

    @property
    def lost_per_step(self) -> float:
        """Rows that a step lacks on average, of all ranks."""
        return self._lost / self._steps

    def update(self, present: frozenset[int]) -> None:
        """Take a closed step with rows of the ranks ``present``."""
        lost = 0
        if present != self._known or self._silent:
            self._known |= present
            lost = sum(self._silent.pop(rank) for rank in self._silent.keys() & present)
            for rank in self._known - present:
                self._silent[rank] = min(_MOST_OF_GAP, self._silent.get(rank, 0) + 1)
        self._lost = _FORGET * self._lost + lost
        self._steps = _FORGET * self._steps + 1.0

    def absent(self, reached: Mapping[int, int], newest: int, ranks: Collection[int]) -> list[int]:
        """Return, ascending, those of ``ranks`` that did not arrive at step ``newest``, where it is evidence.

        ``reached``: the last step of each. Ranks that missed steps before the last are left out: they may
        have been silent for long.
        """
        if self.lost_per_step >= _MOST_LOST:
            return []
        behind = sorted(rank for rank in ranks if reached.get(rank, newest) < newest)
        if len(behind) > _MOST_ABSENT * len(ranks):
            return []
        return [rank for rank in behind if self._silent.get(rank, 0) < 2]
