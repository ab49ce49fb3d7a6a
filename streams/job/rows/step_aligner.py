"""Gathers step rows of one job attempt into whole steps.

A step is whole when every rank expected has reported it, or when the job's own event time has passed it by a
grace. Steps close in order; what comes later is counted. Everything is decided as if row by row, so batches
do not matter, and no clock is read.

Workers that count their steps independently of each other have no common steps. Then stretches of time stand
for steps, and each rank's first row in one for the rank.
"""

import math
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import is_not
from statistics import median

import numpy as np
import numpy.typing as npt

from detectors.peers.step_times import StepTimes
from streams.job.rows.step_rows import LOSSES, SQUARES, Identity, Rows

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]

# Steps waited for at once. Chosen: minutes of short steps; a rank that sends one row far ahead must not hold
# all memory.
_MAX_OPEN = 512

# A step that not all have reported waits for the others so long, or so many usual steps where those are
# longer. Chosen: exporters send once a second, so that five sends of a rank may be late before its row is
# left out; a longer wait delays all findings of a job with lost rows.
_GRACE_SECONDS = 5.0
_GRACE_STEPS = 5.0

# How long a step that all others reported waits for ranks that have been silent for a while. Chosen: one send
# of an exporter, and the time it takes.
_LINGER_SECONDS = 2.0

# Rows after which the grace is measured, first and later: counted by rows, so that batches do not matter.
# Chosen: often while little is known, later as seldom as the cost of a median suggests.
_GRACE_AT = (1, 8, 64)
_GRACE_EVERY = 256

# Steps in which a rank is still expected. Chosen: a rank that misses fewer is late, not gone; a job that
# shrank closes its steps by grace for so long.
_SEEN_STEPS = 20

# Rows of one rank, one after the other, at numbers that others passed long ago, from which numbers mean
# nothing. Chosen: a batch of late rows of one exporter is shorter.
_ASTRAY_ROWS = 10

# Usual steps that one stretch of time holds. Chosen: the least with which nearly every rank has a row in
# each.
_ROWS_IN_WINDOW = 2.0


@dataclass(frozen=True, slots=True)
class Step:
    """One whole step: ``ranks`` [n] ascending, ``ts`` [n] of their rows, ``values`` [seconds + notes, n] as
    in ``Rows``.

    ``present`` is the set of the ranks. ``closed_at`` is the event time at which the step was known in full,
    that of its latest row.
    """

    number: int
    present: frozenset[int]
    ranks: Ints
    ts: Floats
    values: Floats
    closed_at: float = field(init=False)

    def __post_init__(self) -> None:
        # Once: every detector asks for it, and there may be thousands of ranks.
        object.__setattr__(self, "closed_at", float(self.ts.max()))

    def over(self, roster: Sequence[int]) -> tuple[Floats, Floats]:
        """Return ``ts`` and ``values`` of all ranks of an ascending ``roster``, which holds those of the
        step; NaN for the others."""
        if len(roster) == len(self.ranks):
            return self.ts, self.values
        slots = np.searchsorted(np.array(roster), self.ranks)
        ts, values = np.full(len(roster), np.nan), np.full((len(self.values), len(roster)), np.nan)
        ts[slots], values[:, slots] = self.ts, self.values
        return ts, values

    def times(self, roster: Sequence[int], *, numbered: bool = True) -> StepTimes:
        """Return the step as a decision core takes it, over an ascending ``roster``.

        ``numbered``: rows were aligned by their step numbers.
        """
        ts, values = self.over(roster)
        seconds, compute, wait, data, comm, checkpoint, tokens = values[:7]
        return StepTimes(
            number=self.number, ts=ts, step=seconds, compute=compute, wait=wait, data=data, comm=comm,
            checkpoint=checkpoint, tokens=tokens, squares=values[SQUARES] if len(values) > SQUARES else None,
            numbered=numbered,
        )  # fmt: skip


@dataclass(slots=True)
class _Open:
    first_ts: float
    ranks: set[int] = field(default_factory=set)
    parts: list[Rows] = field(default_factory=list)


class StepAligner:
    """Rows into steps, for one attempt of a job: ``add`` takes as many at a time as ``together`` allows.

    ``identities`` holds the last known place of every rank; ``changed`` is true when one of them moved since
    it was last cleared. With ``window`` (seconds), rows are aligned by time and not by their step numbers;
    ``unrelated`` becomes true when step numbers turn out to mean nothing across ranks.
    """

    def __init__(self, world_size: int = 0, *, window: float | None = None) -> None:
        self.world_size = world_size
        self.window = window
        self.unrelated = False
        self.identities: dict[int, Identity] = {}
        self.last_step: dict[int, int] = {}
        self.last_ts: dict[int, float] = {}
        self.changed = False
        self.late_rows = 0
        self.event_time = float("-inf")
        self.closed: int | None = None
        self.closed_at = float("-inf")
        self._open: dict[int, _Open] = {}
        self._recent: deque[frozenset[int]] = deque(maxlen=_SEEN_STEPS)
        self._expected: frozenset[int] = frozenset()
        self._durations: deque[float] = deque(maxlen=64)
        self._measured, self._measure_at = 0, _GRACE_AT[0]
        self._newest = 0
        self._usual = float("nan")
        self._grace = _GRACE_SECONDS
        self._gaps: deque[float] = deque(maxlen=256)
        self._astray: dict[int, int] = {}

    @property
    def waiting(self) -> int:
        """Rows held for steps that are not whole yet."""
        return sum(len(opened.ranks) for opened in self._open.values())

    def by_time(self) -> "StepAligner":
        """Return an aligner for the same ranks that goes by time, in stretches in which each has two rows."""
        fresh = StepAligner(self.world_size, window=_ROWS_IN_WINDOW * float(np.median(self._gaps)))
        fresh.identities.update(self.identities)
        return fresh

    def forget_times(self) -> None:
        """Take that times seen so far are not those of the rows to come: a node's clock was ahead."""
        self.event_time = -math.inf
        self.last_ts.clear()

    def number(self, rows: Rows, k: int = 0) -> int:
        """Return the number of the step, or of the stretch of time, that row ``k`` belongs to."""
        return rows.steps[k] if self.window is None else int(rows.ts[k] // self.window)

    def rolled_back(self, rows: Rows, k: int) -> bool:
        """Whether by row ``k`` its rank went back to a step it had already done: a silent restart."""
        step = rows.steps[k]
        if self.window is not None or self.closed is None or step > self.closed:
            return False
        # A late row is as old as its step; only one made well after that step was closed did it anew.
        made_anew = rows.ts[k] > self.closed_at + self._grace
        return made_anew and step < self.last_step.get(rows.ranks[k], step)

    def together(self, rows: Rows, k: int) -> int:
        """Return how many rows from row ``k`` on ``add`` may take at once: with what it gives for them one by
        one.

        They are of one step that is not closed and of ranks that it does not have yet, and none of them but
        the last may close a step or be the one at which the grace is measured.
        """
        number, stop, steps = self.number(rows, k), k + 1, rows.steps
        if self.window is None:
            while stop < len(steps) and steps[stop] == number:
                stop += 1
        else:
            while stop < len(steps) and self.number(rows, stop) == number:
                stop += 1
        ranks, opened = set(rows.ranks[k:stop]), self._open.get(number)
        closed = self.closed is not None and number <= self.closed
        if closed or len(ranks) < stop - k or (opened is not None and not opened.ranks.isdisjoint(ranks)):
            return 1
        undecided = self._undecided(number, rows.ts[k:stop])
        return max(1, min(undecided, self._measure_at - self._measured))

    def add(self, rows: Rows) -> list[Step]:
        """Take the next rows, one or as many as ``together`` allows; return the steps they complete, in
        order."""
        number = self.number(rows)
        self._note_times(rows)
        opened = self._open.get(number)
        if (self.closed is not None and number <= self.closed) or (opened and rows.ranks[0] in opened.ranks):
            # By time, a second row in a stretch is nothing unusual: a stretch holds two of them.
            self.late_rows += self.window is None
            self._note_late(rows)
            return []
        if self._astray:
            for rank in rows.ranks:
                self._astray.pop(rank, None)
        if opened is None:
            opened = self._open[number] = _Open(rows.ts[0])
        opened.first_ts = min(opened.first_ts, min(rows.ts))
        opened.ranks.update(rows.ranks)
        opened.parts.append(rows)
        self._note_places(number, rows)
        self.event_time = max(self.event_time, max(rows.ts))
        self._learn_grace(rows.values[0].tolist())
        return self._close()

    def late_for(self, step: Step) -> set[int]:
        """Return the ranks that are not in a step but sent rows, late ones included, within a grace of the
        job's event time."""
        if len(step.present) == len(self.last_ts):
            return set()
        oldest = self.event_time - self._grace
        return {rank for rank, ts in self.last_ts.items() if ts >= oldest and rank not in step.present}

    def _undecided(self, number: int, ts: Sequence[float]) -> int:
        """Return how many rows of new ranks of one step, with times ``ts``, close nothing but by the last."""
        oldest = min(self._open, default=number)
        opened, own = self._open.get(min(number, oldest)), number <= oldest
        room = self._needed() - (0 if opened is None else len(opened.ranks))
        first_ts = math.inf if opened is None else opened.first_ts
        if own:
            first_ts = min(first_ts, min(ts))
        overdue = max(self.event_time, max(ts)) > first_ts + self._grace
        if overdue or room <= 0 or len(self._open) >= _MAX_OPEN:
            return 0
        return min(len(ts), room) if own else len(ts)

    def _note_times(self, rows: Rows) -> None:
        last_ts = self.last_ts
        for rank, ts in zip(rows.ranks, rows.ts, strict=True):
            before = last_ts.get(rank)
            if before is None:
                last_ts[rank] = ts
            elif ts > before:
                self._gaps.append(ts - before)
                last_ts[rank] = ts

    def _note_places(self, number: int, rows: Rows) -> None:
        """Note where the ranks are, and what step they have reached."""
        known = map(self.identities.get, rows.ranks)
        if any(map(is_not, known, rows.identities)):
            self._place(rows)
        if number >= self._newest:
            self.last_step.update(dict.fromkeys(rows.ranks, number))
            self._newest = number
            return
        for rank in rows.ranks:
            if number > self.last_step.get(rank, -1):
                self.last_step[rank] = number

    def _place(self, rows: Rows) -> None:
        for rank, identity in zip(rows.ranks, rows.identities, strict=True):
            known = self.identities.get(rank)
            if known is None or not identity.is_part_of(known):
                self.identities[rank] = identity
                self.changed = True

    def _note_late(self, rows: Rows) -> None:
        """Note a rank that goes on from its last step, now, at a number that others passed long ago."""
        step, rank, ts = rows.steps[0], rows.ranks[0], rows.ts[0]
        if self.window is not None or step < self.last_step.get(rank, step):
            return
        behind = (self._newest - step) * self._usual
        # A row that was long on its way is as old as its number; this one was made lately.
        if behind > self._grace and ts > self.event_time - behind / 2:
            self._astray[rank] = self._astray.get(rank, 0) + 1
            self.unrelated = self._astray[rank] >= _ASTRAY_ROWS and len(self._gaps) > 0

    def _learn_grace(self, seconds: list[float]) -> None:
        measured = [s for s in seconds if 0 < s < math.inf]
        self._durations.extend(measured)
        self._measured += len(measured)
        if self._measured >= self._measure_at:
            later = self._measured - self._measured % _GRACE_EVERY + _GRACE_EVERY
            self._measure_at = next((n for n in _GRACE_AT if n > self._measured), later)
            self._usual = median(self._durations)
            self._grace = max(_GRACE_SECONDS, _GRACE_STEPS * self._usual)

    def _close(self) -> list[Step]:
        closed: list[Step] = []
        while self._open:
            number = min(self._open)
            opened = self._open[number]
            overdue = self.event_time > opened.first_ts + self._grace or len(self._open) > _MAX_OPEN
            if not (overdue or self._complete(opened)):
                break
            del self._open[number]
            closed.append(_whole(number, opened))
            self._note_closed(closed[-1])
        return closed

    def _needed(self) -> int:
        """Return how many ranks a step must have at least to be complete."""
        # Until it is seen who reports; later a rank that never does would make every step wait out the grace.
        if self.world_size and len(self._recent) < _SEEN_STEPS:
            return self.world_size
        return len(self._expected) or sys.maxsize

    def _complete(self, opened: _Open) -> bool:
        if len(opened.ranks) < self._needed():
            return False
        if self.world_size and len(self._recent) < _SEEN_STEPS:
            return True
        if not self._expected <= opened.ranks:
            return False
        # A rank long silent may be back with this very step: the result must not depend on whether its record
        # or the others' came first.
        silent = min(self.last_ts.values()) < self.event_time - self._grace
        return not silent or self.event_time > opened.first_ts + _LINGER_SECONDS

    def _note_closed(self, step: Step) -> None:
        self.closed, self.closed_at = step.number, max(self.closed_at, step.closed_at)
        before, reported = set(self._recent), step.present
        if self._recent and self._recent[-1] == reported:
            reported = self._recent[-1]  # one object for equal sets keeps the union below cheap
        self._recent.append(reported)
        if (kept := set(self._recent)) != before:
            self._expected = frozenset().union(*kept)


def _whole(number: int, opened: _Open) -> Step:
    ranks = np.array([rank for part in opened.parts for rank in part.ranks], dtype=np.int64)
    ts = np.array([at for part in opened.parts for at in part.ts])
    order = np.argsort(ranks)
    together = _side_by_side([part.values for part in opened.parts])
    values = together.take(order, axis=1).astype(np.float64)
    for measured in (values[: LOSSES.start], values[LOSSES.stop :]):
        measured[np.isinf(measured)] = np.nan
    return Step(
        number=number, present=frozenset(opened.ranks), ranks=ranks[order], ts=ts[order], values=values
    )


def _side_by_side(parts: list[Values]) -> Values:
    """Join [values, n] of parts along n; what only some of them have is NaN in the others."""
    most = max(map(len, parts))
    return np.concatenate([p if len(p) == most else _padded(p, most) for p in parts], axis=1)


def _padded(values: Values, rows: int) -> Values:
    return np.pad(values, ((0, rows - len(values)), (0, 0)), constant_values=np.nan)
