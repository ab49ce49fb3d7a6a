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

import numpy as np
import numpy.typing as npt

from slowrank.telemetry import JobSteps
from slowrank.telemetry.schema import MISSING_INT, STEP_SCHEMAS
from streams.arrays import columns

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

COORDS = ("dp", "pp", "tp", "cp", "ep")
SECONDS = ("step", "compute", "wait", "data", "comm", "checkpoint")

_VALUES = (*(f"{name}_seconds" for name in SECONDS), "tokens")
_KEYS = ("step", "rank", "local_rank", "gpu_index", *COORDS)
_MAX_OPEN = 512
_GRACE_SECONDS = 5.0
_GRACE_STEPS = 5.0
_GRACE_AT = frozenset((1, 8, 64))
_SEEN_STEPS = 20
_ASTRAY_ROWS = 10
_ROWS_IN_WINDOW = 2.0


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
    """One whole step: ``ranks`` [n] ascending, ``ts`` [n] of their rows, ``values`` [seconds + tokens, n]."""

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
        before = self.last_ts.get(rank, ts)
        if ts > before:
            self._gaps.append(ts - before)
        self.last_ts[rank] = max(ts, before)
        if (self.closed is not None and step <= self.closed) or rank in self._rows(step):
            self.late_rows += self.window is None
            self._note_late(row)
            return []
        self._astray.pop(rank, None)
        known = self.identities.get(rank)
        if known is None or not (row.identity is known or row.identity.is_part_of(known)):
            self.identities[rank] = row.identity
            self.changed = True
        opened = self._open.setdefault(step, _Open(ts))
        opened.rows[rank] = (ts, row.values)
        self.last_step[rank] = max(step, self.last_step.get(rank, step))
        self._newest = max(self._newest, step)
        self.event_time = max(self.event_time, ts)
        self._learn_grace(float(row.values[0]))
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

    def _rows(self, step: int) -> dict[int, tuple[float, Floats]]:
        opened = self._open.get(step)
        return opened.rows if opened else {}

    def _learn_grace(self, seconds: float) -> None:
        if seconds > 0:
            self._durations.append(seconds)
            self._measured += 1
            if self._measured in _GRACE_AT or self._measured % 256 == 0:
                self._usual = float(np.median(self._durations))
                self._grace = max(_GRACE_SECONDS, _GRACE_STEPS * self._usual)

    def _close(self) -> list[Step]:
        closed = []
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
        reported = len(opened.rows)
        if self.world_size and len(self._recent) < _SEEN_STEPS:
            return reported >= self.world_size
        return (
            bool(self._expected) and reported >= len(self._expected) and self._expected <= opened.rows.keys()
        )

    def _note_closed(self, step: Step) -> None:
        self.closed, self.closed_at = step.number, max(self.closed_at, step.closed_at)
        reported = frozenset(step.ranks.tolist())
        if self._recent and self._recent[-1] == reported:
            reported = self._recent[-1]  # one object for equal sets keeps the union below cheap
        self._recent.append(reported)
        self._expected = frozenset().union(*set(self._recent))


@dataclass(frozen=True, slots=True)
class Row:
    """One rank's report of one step; ``values`` are the seconds of ``SECONDS``, then tokens."""

    step: int
    rank: int
    ts: float
    values: Floats
    identity: Identity


def rows_of(record: JobSteps) -> Iterator[Row]:
    """Read a record row by row; rows without a step, rank or time are left out."""
    read = columns(STEP_SCHEMAS[record.schema].rows, record.rows)
    values = np.stack([read[name] for name in _VALUES], axis=1).astype(np.float64, copy=False)
    model = record.labels.get("gpu_model", "")
    keys = zip(*(read[name].tolist() for name in _KEYS), strict=True)
    for i, (key, ts) in enumerate(zip(keys, read["ts"].tolist(), strict=True)):
        if MISSING_INT in key[:2] or not math.isfinite(ts):
            continue
        yield Row(key[0], key[1], ts, values[i], _identity(record.node, key[2:], model))


@lru_cache(maxsize=1 << 16)
def _identity(node: str, place: tuple[int, ...], model: str) -> Identity:
    local_rank, gpu_index, *coords = (None if value == MISSING_INT else value for value in place)
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
