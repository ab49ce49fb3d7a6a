"""Slowness that rotates between ranks is workload, not hardware.

Sees what neither ``job.spike_rate`` nor ``intermittence`` can: that one rank is slow after another, for
spells that each would pass for a fault.

A hot expert or a long shard makes one rank after the other slow for a while (a spell). One spell looks like a
fault that passed. Spells are of one cause where they begin together, as on a machine, or are of one rank. A
rank beside which, within ``WINDOW`` steps, spells of ``ROUND`` - 1 other causes have ended is the next in a
rotation: it has to be slow for ``TIMES_LONGEST`` times the longest of them to be reported, unless it is slow
more often than each rank is by chance (a Poisson variable of the mean number of the others' spells). What
makes ranks slow by turns makes them about as slow: spells by less than half of what a rank is slow by say
nothing of it.

An expert that stays popular makes spells of minutes, each of which would pass for a fault that has ended. Of
a rank that is the next of those, each of which began when the one before was over, work remains an
explanation (``by_turns``); it is reported no later. One other is enough where it recovered as the rank became
slow, ``_TOGETHER`` steps apart at most: work that leaves one rank goes to another, while a second fault
within ``WINDOW`` steps begins then by chance in one of 45 cases.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detectors.chance import beyond_chance
from detectors.peers.intermittence import SUSPECT

Floats = npt.NDArray[np.float64]

# Chosen: steps for which a spell that has ended counts.
WINDOW = 500

# Chosen: steps up to which a spell makes the next rank wait; a longer one may have been a fault.
SHORT = 50

# Chosen: steps up to which a longer one may be work, which stays popular for minutes, and for which it counts
# when it is over: as positions of work do (``shared_work``).
LONG_WINDOW = 1000

# Chosen: so many different causes, one after the other, are a rotation; two may be two faults.
ROUND = 3

# Chosen: slowness of so many times the longest spell of the others is no spell.
TIMES_LONGEST = 2

# Chosen: steps in a row in which a rank is not slow, for its spell to have ended: as many as show one.
OVER = 3

# Chosen, of what a rank was slow by when its spell was found: from here on it still is (``alternatives``).
_STILL = 0.5

# Chosen, of what a rank is slow by: spells of others that are of its kind.
_ALIKE = 0.5

# Chosen: steps by which the first steps of spells that have one cause are dated apart, and by which one that
# follows another is dated too early.
_TOGETHER = 5

# Chosen: a rank in a thousand windows, over all ranks (``intermittence``).
_CHANCE = 1e-3


@dataclass(frozen=True, slots=True)
class _Spell:
    rank: int
    began: int
    ended: int
    size: float

    @property
    def steps(self) -> int:
        return self.ended - self.began


@dataclass(slots=True)
class _Standing:
    """A spell that has not ended: by ``least`` or more the rank still is slow, ``over`` steps it was not."""

    began: int
    least: float
    lasting: bool
    over: int = 0


@dataclass(slots=True)
class _Last:
    """The steps from one in which a rank ``began`` to be slow, by ``least`` or more, to the ``last`` in which
    it was so, well or not in between: work that stays wanders."""

    began: int
    last: int
    least: float
    lasting: bool

    def takes_over_from(self, other: "_Last") -> bool:
        """Return whether it began as ``other`` ended; a short one by far less is noise (``patience``)."""
        steps = other.last + 1 - other.began
        counts = steps <= LONG_WINDOW and (steps > SHORT or other.least >= _ALIKE * self.least)
        return counts and other.began < self.began and abs(self.began - other.last - 1) <= _TOGETHER


class RotatingSlowness:
    """Follows those of a job's ``ranks`` that look slow, step by step."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._standing: dict[int, _Standing] = {}
        self._ended: deque[_Spell] = deque()
        self._lingered: deque[_Spell] = deque()
        self._last: dict[int, _Last] = {}
        self._taken_over: dict[int, int] = {}
        self._step = 0

    def begin(self, rank: int, *, step: int, size: float, lasting: bool = False) -> None:
        """Take a rank that looks slow since ``step`` by ``size`` (log ratio), against its past or, if
        ``lasting``, its peers alone."""
        if rank not in self._standing:
            self._standing[rank] = _Standing(step, _STILL * size, lasting)
            self._taken_over.pop(rank, None)
            self._last[rank] = _Last(step, self._step, _STILL * size, lasting)
            self._look_who_is_over(rank)

    def update(self, step: int, *, change: Floats, lasting: Floats) -> None:
        """Take a step: log ratios less what is usual (``change``) and as they are, [ranks]."""
        self._step = step
        for rank, spell in list(self._standing.items()):
            ratio = (lasting if spell.lasting else change)[rank]
            # A step that was not read shows neither.
            if ratio < spell.least:
                spell.over += 1
            elif ratio >= spell.least:
                spell.over = 0
            if spell.over >= OVER:
                del self._standing[rank]
                ended = _Spell(rank, spell.began, step - OVER + 1, spell.least / _STILL)
                if ended.steps <= LONG_WINDOW:
                    (self._ended if ended.steps <= SHORT else self._lingered).append(ended)
        for spells, window in ((self._ended, WINDOW), (self._lingered, LONG_WINDOW)):
            while spells and spells[0].ended < step - window:
                spells.popleft()
        for rank, slow in list(self._last.items()):
            if (lasting if slow.lasting else change)[rank] >= slow.least:
                slow.last = step
            elif slow.last < step - LONG_WINDOW:
                del self._last[rank]
        for rank in self._standing:
            # Who recovered as it became slow has shown so by then.
            if step - self._standing[rank].began <= _TOGETHER + OVER:
                self._look_who_is_over(rank)

    def _look_who_is_over(self, rank: int) -> None:
        """Note whether ``rank`` became slow as another one recovered, which was not slow for some steps."""
        new = self._last[rank]
        others = (slow for other, slow in self._last.items() if other != rank)
        if any(new.takes_over_from(slow) for slow in others if self._step - slow.last >= OVER):
            self._taken_over[rank] = new.began

    @property
    def visited(self) -> list[int]:
        """The ranks whose spells are a rotation; empty while there is none."""
        causes = _causes(self._ended)
        return sorted({s.rank for s in self._ended}) if len(causes) >= ROUND else []

    def outlasts(self, rank: int, *, step: int) -> bool:
        """Whether ``rank`` was or is slow for longer than a spell; True for one never seen."""
        if rank in self._standing:
            return step - self._standing[rank].began > SHORT
        return all(spell.rank != rank for spell in self._ended)

    def patience(self, rank: int, *, size: float = 0.0) -> int:
        """Return for how many steps ``rank`` has to be slow by ``size`` (log ratio) to be more than one more
        spell; mostly 0."""
        spells = [spell for spell in self._ended if spell.size >= _ALIKE * size]
        foreign = [cause for cause in _causes(spells) if all(spell.rank != rank for spell in cause)]
        if len(foreign) < ROUND - 1:
            return 0
        own = sum(spell.rank == rank for spell in spells)
        usual = (len(spells) - own + 0.5) / (self._ranks - 1)
        if own >= max(SUSPECT, beyond_chance(usual, _CHANCE / self._ranks)):
            return 0
        return TIMES_LONGEST * max(spell.steps for cause in foreign for spell in cause)

    def by_turns(self, rank: int, *, size: float, steps: int) -> bool:
        """Return whether ``rank``, slow by ``size`` (log ratio) for ``steps`` at least, may be the next of a
        rotation.

        So it may be for ``LONG_WINDOW`` steps where another one recovered as it became slow, and for
        ``TIMES_LONGEST`` times the longest spell where ``ROUND`` - 1 other causes made ranks about as slow
        for ``LONG_WINDOW`` steps at most, one after the other, and have ended by themselves.
        """
        if rank in self._taken_over:
            return self._step - self._taken_over[rank] <= LONG_WINDOW
        if rank in self._last:
            # Fewer steps are held than a spell may last.
            steps = max(steps, self._step - self._last[rank].began)
        alike = [s for s in (*self._ended, *self._lingered) if _ALIKE * size <= s.size <= size / _ALIKE]
        foreign = _in_turn(cause for cause in _causes(alike) if all(spell.rank != rank for spell in cause))
        if len(foreign) < ROUND - 1:
            return False
        return steps <= TIMES_LONGEST * max(spell.steps for cause in foreign for spell in cause)

    def excuses(self, rank: int) -> bool:
        """Return whether ``rank`` was slow for a spell of a rotation, which has ended."""
        own = [spell.size for spell in self._ended if spell.rank == rank]
        if rank in self._standing or not own:
            return False
        return self.patience(rank, size=max(own)) > 0


def _causes(spells: Iterable[_Spell]) -> list[list[_Spell]]:
    """Return the spells of each cause: those that began together, unless most of their ranks had one before,
    as those of a machine that is slow again and again."""
    causes: list[list[_Spell]] = []
    for spell in sorted(spells, key=lambda spell: (spell.began, spell.rank)):
        if causes and spell.began - causes[-1][0].began <= _TOGETHER:
            causes[-1].append(spell)
        else:
            causes.append([spell])
    seen, new = set[int](), list[list[_Spell]]()
    for cause in causes:
        ranks = {spell.rank for spell in cause}
        if 2 * len(ranks & seen) <= len(ranks):
            new.append(cause)
        seen |= ranks
    return new


def _in_turn(causes: Iterable[list[_Spell]]) -> list[list[_Spell]]:
    """Return as many of the causes as there are of which each began when the one before had ended."""
    chosen: list[list[_Spell]] = []
    over = -math.inf
    for cause in sorted(causes, key=_ended):
        if min(spell.began for spell in cause) >= over - _TOGETHER:
            chosen.append(cause)
            over = _ended(cause)
    return chosen


def _ended(cause: list[_Spell]) -> int:
    return max(spell.ended for spell in cause)
