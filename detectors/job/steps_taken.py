"""The latest steps of a job: what each took, and which ranks finished last."""

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

# The steps that an onset is dated in (256, ``StragglerConfig.history``), and some before them.
KEPT_STEPS = 384

# The last ranks of each step that are kept. Chosen: those of a machine of eight, and one other.
LAST_RANKS = 9

# Values that are kept of a step beside its last ranks, and steps that are kept beyond ``KEPT_STEPS``: cutting
# the front at every step would copy all of them each time.
_FIELDS, _SPARE_STEPS = 6, 64

LastRanks = tuple[tuple[int, float], ...]
"""Ranks with their own seconds in a step, all but waiting: the last one to finish first."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A step that ended at ``ts`` and took ``seconds`` of ``gpus``, with ``work`` [s] by its healthy ranks.

    ``paid``: seconds of it that are on accounts already; ``paid_always``: those on accounts without a past,
    beside it. ``last``: empty where they are not known.
    """

    ts: float
    seconds: float
    work: float
    gpus: int
    paid: float = 0.0
    last: LastRanks = ()
    paid_always: float = 0.0


class StepsTaken:
    """The latest steps, ``KEPT_STEPS`` and some more, in 120 bytes each."""

    def __init__(self) -> None:
        self._values = array("d")
        # Rank and seconds of each of the last ranks; NaN where there are fewer.
        self._last = array("f")

    def __len__(self) -> int:
        return len(self._values) // _FIELDS

    def append(self, taken: Taken) -> None:
        """Keep a step, the latest."""
        paid = taken.paid, taken.paid_always
        self._values.extend((taken.ts, taken.seconds, taken.work, taken.gpus, *paid))
        last = taken.last[:LAST_RANKS]
        self._last.extend(chain(chain.from_iterable(last), repeat(math.nan, 2 * (LAST_RANKS - len(last)))))
        if len(self) > KEPT_STEPS + _SPARE_STEPS:
            del self._values[: _FIELDS * _SPARE_STEPS]
            del self._last[: 2 * LAST_RANKS * _SPARE_STEPS]

    def last(self, steps: int) -> list[Taken]:
        """Return so many of the latest, in order."""
        if not steps:
            return []
        values = _in_parts(self._values[-_FIELDS * steps :], _FIELDS)
        ranks = _in_parts(self._last[-2 * LAST_RANKS * steps :], 2 * LAST_RANKS)
        return [
            Taken(ts, seconds, work, int(gpus), paid, _known(last), always)
            for (ts, seconds, work, gpus, paid, always), last in zip(values, ranks, strict=True)
        ]

    def take(self, steps: int) -> list[Taken]:
        """Return so many of the latest, in order, and hold them no longer."""
        taken = self.last(steps)
        del self._values[len(self._values) - _FIELDS * len(taken) :]
        del self._last[len(self._last) - 2 * LAST_RANKS * len(taken) :]
        return taken

    def since(self, ts: float) -> int:
        """Return how many of the latest ended after ``ts``."""
        times = self._values[::_FIELDS]
        return len(times) - bisect_right(times, ts)

    def clear(self) -> None:
        """Hold none of them."""
        del self._values[:]
        del self._last[:]


def _known(last: Sequence[float]) -> LastRanks:
    return tuple((int(rank), seconds) for rank, seconds in _in_parts(last, 2) if not math.isnan(rank))


def _in_parts(values: Iterable[float], size: int) -> Iterator[tuple[float, ...]]:
    return zip(*(iter(values),) * size, strict=True)
