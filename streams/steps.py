"""Gathers step rows of one job attempt into whole steps.

A step is whole when every rank expected has reported it, or when the job's own event time has passed it by a
grace. Steps close in order; what comes later is counted. Everything is decided row by row, so batches do not
matter, and no clock is read.

Workers that count their steps independently of each other have no common steps. Then stretches of time stand
for steps, and each rank's first row in one for the rank.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from slowrank.telemetry import JobSteps
from slowrank.telemetry.schema import STEP_SCHEMAS, STEP_V1, Block
from streams.arrays import columns, runs

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

COORDS = ("dp", "pp", "tp", "cp", "ep")
SECONDS = ("step", "compute", "wait", "data", "comm", "checkpoint")

NOTES = ("tokens", "loss", "grad_norm")

ROLLOUT = "rollout"
"""The phase label of ranks that generate while others train: nobody's work is like theirs, so that only the
step they share with the others counts.
"""

_VALUES = (*(f"{name}_seconds" for name in SECONDS), *NOTES)
_PLACE = Block(tuple(c for c in STEP_V1.columns if c.kind == "key" and c.name not in ("step", "ts")))
"""The columns that say where a rank is. They follow step and time, in every later schema too."""

_BEFORE_PLACE = 16
"""Bytes of a row's step and time."""

_KEYS = ("rank", "local_rank", "gpu_index", *COORDS)

_MAX_OPEN = 512
"""Steps waited for at once: a rank that sends one row far ahead must not hold all memory."""

_GRACE_SECONDS = 5.0
_GRACE_STEPS = 5.0
_LINGER_SECONDS = 2.0
"""How long a step that all others reported waits for ranks that have been silent for a while."""

_GRACE_AT = frozenset((1, 8, 64))
"""Rows after which the grace is measured, then every 256: counted by rows, so that batches do not matter."""

_SEEN_STEPS = 20
"""Steps in which a rank is still expected; a job that shrank closes its steps by grace for so long."""

_ASTRAY_ROWS = 10
_ROWS_IN_WINDOW = 2.0
"""Usual steps that one stretch of time holds, so that nearly every rank has a row in each."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Where a rank runs and which part of the job it is."""

    node: str
    local_rank: int | None
    gpu_index: int | None
    coords: tuple[tuple[str, int], ...]
    model: str

    def is_part_of(self, known: "Identity") -> bool:
        """Tell whether this says nothing that ``known`` does not: rows may leave out what does not change."""
        return (
            self.node == known.node
            and self.local_rank in (None, known.local_rank)
            and self.gpu_index in (None, known.gpu_index)
            and self.coords in ((), known.coords)
            and self.model in ("", known.model)
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One whole step: ``ranks`` [n] ascending, ``ts`` [n] of their rows, ``values`` [seconds + notes, n]."""

    number: int
    ranks: Ints
    ts: Floats
    values: Floats

    @property
    def closed_at(self) -> float:
        """Event time at which the step was known in full: its latest row."""
        return float(self.ts.max())


@dataclass(slots=True)
class _Open:
    first_ts: float
    rows: dict[int, tuple[float, Floats]] = field(default_factory=dict)


class StepAligner:
    """Row by row into steps, for one attempt of a job.

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
        self._measured = 0
        self._newest = 0
        self._usual = float("nan")
        self._grace = _GRACE_SECONDS
        self._gaps: deque[float] = deque(maxlen=256)
        self._astray: dict[int, int] = {}

    def by_time(self) -> "StepAligner":
        """Return an aligner for the same ranks that goes by time, in stretches in which each has two rows."""
        fresh = StepAligner(self.world_size, window=_ROWS_IN_WINDOW * float(np.median(self._gaps)))
        fresh.identities.update(self.identities)
        return fresh

    def number(self, row: "Row") -> int:
        """Return the number of the step, or of the stretch of time, that a row belongs to."""
        return row.step if self.window is None else int(row.ts // self.window)

    def rolled_back(self, row: "Row") -> bool:
        """Tell whether a row says that its rank went back to a step it had already done: a silent restart."""
        if self.window is not None:
            return False
        if self.closed is None or row.step > self.closed or row.ts <= self.closed_at + self._grace:
            return False
        return row.step < self.last_step.get(row.rank, row.step)

    def add(self, row: "Row") -> list[Step]:
        """Take one row; return the steps that it completes, in order."""
        step, rank, ts = self.number(row), row.rank, row.ts
        before = self.last_ts.get(rank)
        if before is None:
            self.last_ts[rank] = ts
        elif ts > before:
            self._gaps.append(ts - before)
            self.last_ts[rank] = ts
        opened = self._open.get(step)
        if (self.closed is not None and step <= self.closed) or (opened and rank in opened.rows):
            self.late_rows += self.window is None
            self._note_late(row)
            return []
        if self._astray:
            self._astray.pop(rank, None)
        known = self.identities.get(rank)
        if known is None or not (row.identity is known or row.identity.is_part_of(known)):
            self.identities[rank] = row.identity
            self.changed = True
        if opened is None:
            opened = self._open[step] = _Open(ts)
        opened.first_ts = min(opened.first_ts, ts)
        opened.rows[rank] = (ts, row.values)
        if step > self.last_step.get(rank, -1):
            self.last_step[rank] = step
            self._newest = max(self._newest, step)
        self.event_time = max(self.event_time, ts)
        self._learn_grace(row.values.item(0))
        return self._close()

    def reporting(self) -> set[int]:
        """Return the ranks heard of, late rows included, within a grace of the job's event time."""
        return {rank for rank, ts in self.last_ts.items() if ts >= self.event_time - self._grace}

    def _note_late(self, row: "Row") -> None:
        """Note a rank that goes on from its last step, now, at a number that others passed long ago."""
        if self.window is not None or row.step < self.last_step.get(row.rank, row.step):
            return
        behind = (self._newest - row.step) * self._usual
        if behind > self._grace and row.ts > self.event_time - behind / 2:
            self._astray[row.rank] = self._astray.get(row.rank, 0) + 1
            self.unrelated = self._astray[row.rank] >= _ASTRAY_ROWS and len(self._gaps) > 0

    def _learn_grace(self, seconds: float) -> None:
        if seconds > 0:
            self._durations.append(seconds)
            self._measured += 1
            if self._measured in _GRACE_AT or self._measured % 256 == 0:
                self._usual = float(np.median(self._durations))
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

    def _complete(self, opened: _Open) -> bool:
        rows = opened.rows
        if self.world_size and len(self._recent) < _SEEN_STEPS:
            return len(rows) >= self.world_size
        if not (len(rows) >= len(self._expected) > 0 and self._expected <= rows.keys()):
            return False
        # A rank long unheard of may be back with this very step: what it says must not depend on whether its
        # record or the others' came first.
        unheard = min(self.last_ts.values()) < self.event_time - self._grace
        return not unheard or self.event_time > opened.first_ts + _LINGER_SECONDS

    def _note_closed(self, step: Step) -> None:
        self.closed, self.closed_at = step.number, max(self.closed_at, step.closed_at)
        reported = frozenset(step.ranks.tolist())
        if self._recent and self._recent[-1] == reported:
            reported = self._recent[-1]  # one object for equal sets keeps the union below cheap
        self._recent.append(reported)
        self._expected = frozenset().union(*set(self._recent))


class Row(NamedTuple):
    """One rank's report of one step; ``values`` are the seconds of ``SECONDS``, then those of ``NOTES``."""

    step: int
    rank: int
    ts: float
    values: Floats
    identity: Identity


def rows_of(record: JobSteps) -> Iterator[Row]:
    """Read a record row by row; rows without a step, rank or time are left out."""
    steps, times, *others = runs(STEP_SCHEMAS[record.schema].rows, record.rows)
    seconds = next(run for run in others if run.names[: len(_VALUES)] == _VALUES)
    values = seconds.values[: len(_VALUES)].T.astype(np.float64)
    # Only a loss and a norm mean something by being infinite (``NOT_FINITE``).
    measured = values[:, : _VALUES.index("loss")]
    measured[np.isinf(measured)] = np.nan
    if record.labels.get("phase") == ROLLOUT:
        values[:, 1 : len(SECONDS)] = np.nan
    # A node says the same of its ranks with every step: what it says is looked up, not read again.
    count = len(values)
    said = record.rows[_BEFORE_PLACE * count : (_BEFORE_PLACE + _PLACE.row_size) * count]
    places = _places(record.node, record.labels.get("gpu_model", ""), said)
    rows = zip(steps.values[0].tolist(), times.values[0].tolist(), values, places, strict=True)
    for step, ts, row, (rank, identity) in rows:
        if step >= 0 and rank >= 0 and math.isfinite(ts):
            yield Row(step, rank, ts, row, identity)


@lru_cache(maxsize=1 << 14)
def _places(node: str, model: str, said: bytes) -> tuple[tuple[int, Identity], ...]:
    """Return rank and identity of each row from the bytes of its key columns."""
    read = columns(_PLACE, said)
    keys = zip(*(read[name].tolist() for name in _KEYS), strict=True)
    return tuple((rank, _identity(node, tuple(place), model)) for rank, *place in keys)


@lru_cache(maxsize=1 << 16)
def _identity(node: str, place: tuple[int, ...], model: str) -> Identity:
    local_rank, gpu_index, *coords = (None if value < 0 else value for value in place)
    known = tuple((name, c) for name, c in zip(COORDS, coords, strict=True) if c is not None)
    return Identity(node=node, local_rank=local_rank, gpu_index=gpu_index, coords=known, model=model)


def _whole(number: int, opened: _Open) -> Step:
    ranks = sorted(opened.rows)
    return Step(
        number=number,
        ranks=np.array(ranks, dtype=np.int64),
        ts=np.array([opened.rows[r][0] for r in ranks]),
        values=np.stack([opened.rows[r][1] for r in ranks], axis=1),
    )
