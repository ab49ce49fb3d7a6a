"""Repeated short slowness: evidence that keeps coming and going without staying."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

WINDOW = 200
SUSPECT = 3
CERTAIN = 4
"""Excursions within ``WINDOW`` steps to suspect a rank, and to believe it without a second kind of evidence.

Two neighbouring steps make an excursion; single spikes (garbage collection) do not reach half the threshold.
"""


@dataclass(frozen=True, slots=True)
class Excursion:
    """The excursions of one rank: how many, how far back the first was (steps), and the share of steps
    in them.
    """

    count: int
    age: int
    share: float


class Excursions:
    """Counts per rank how often evidence rose above half the threshold, [ranks]."""

    def __init__(self, ranks: int) -> None:
        self._rose = np.zeros((WINDOW, ranks), dtype=bool)
        self._high = np.zeros((WINDOW, ranks), dtype=bool)
        self._steps = 0
        self.count = np.zeros(ranks, dtype=np.int64)

    def update(self, high: Bools) -> None:
        """Take for every rank whether its evidence is above half the threshold now."""
        slot = self._steps % WINDOW
        rose = high & ~self._high[slot - 1]
        self.count += rose.astype(np.int64) - self._rose[slot]
        self._rose[slot], self._high[slot] = rose, high
        self._steps += 1

    def of(self, rank: int) -> Excursion:
        """Return the excursions of one rank."""
        order = np.arange(self._steps - min(self._steps, WINDOW), self._steps) % WINDOW
        rose = np.flatnonzero(self._rose[order, rank])
        age = len(order) - int(rose[0]) if rose.size else 0
        share = float(self._high[order, rank][-age:].mean()) if age else 0.0
        return Excursion(int(self.count[rank]), age, share)
