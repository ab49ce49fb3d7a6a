"""Slowness that rotates between ranks is workload, not hardware.

Sees what neither ``spike_rate`` nor ``intermittence`` can: that one rank is slow after another, for spells
that each would pass for a fault.

A hot expert or a long shard makes one rank after the other slow for a while (a spell). One spell looks like a
fault that passed. After spells of ``ROUND`` different ranks within ``WINDOW`` steps, a rank has to be slow
for ``TIMES_LONGEST`` times the longest spell of the others before it is reported.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]

# Chosen: steps for which a spell that has ended counts.
WINDOW = 500

# Chosen: steps up to which it is a spell; a rank slow for longer had a fault.
SHORT = 50

# Chosen: so many different ranks whose spells have ended are a rotation; two may be two faults.
ROUND = 3

# Chosen: slowness of so many times the longest spell of the others is no spell.
TIMES_LONGEST = 2


@dataclass(frozen=True, slots=True)
class _Spell:
    rank: int
    ended: int
    steps: int


class RotatingSlowness:
    """Follows the ranks of a job that look slow, step by step."""

    def __init__(self) -> None:
        self._began: dict[int, int] = {}
        self._ended: deque[_Spell] = deque()

    def begin(self, rank: int, *, step: int) -> None:
        """Take a rank that looks slow since ``step``."""
        self._began.setdefault(rank, step)

    def update(self, step: int, *, slow: Bools) -> None:
        """Take a step: which ranks [ranks] have any evidence against them."""
        for rank in [rank for rank in self._began if not slow[rank]]:
            lasted = step - self._began.pop(rank)
            if lasted <= SHORT:
                self._ended.append(_Spell(rank, step, lasted))
        while self._ended and self._ended[0].ended < step - WINDOW:
            self._ended.popleft()

    def outlasts(self, rank: int, *, step: int) -> bool:
        """Whether ``rank`` was or is slow for longer than a spell; True for one never seen."""
        if rank in self._began:
            return step - self._began[rank] > SHORT
        return all(spell.rank != rank for spell in self._ended)

    def patience(self, rank: int) -> int:
        """Return for how many steps ``rank`` has to be slow to be more than one more spell; mostly 0."""
        others = [spell for spell in self._ended if spell.rank != rank]
        if len({spell.rank for spell in others}) < ROUND:
            return 0
        return TIMES_LONGEST * max(spell.steps for spell in others)
