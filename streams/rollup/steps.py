"""Rolls up the step rows of jobs by rank and bucket; records of many nodes are folded as columns.

The records of a bucket wait until its rows are due. Those of nodes that send the same number of ranks form a
page: turn t takes the t-th record of each, so that every sum is taken in the order in which the records of a
node came, and is that of adding row by row, bit for bit. Row by row go the records that are not one row for
each rank within one bucket, and all others of a node with one of them in the same bucket.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from slowrank.telemetry import JobSteps
from slowrank.telemetry.columns import read
from slowrank.telemetry.names import COORDS
from slowrank.telemetry.schema import STEP_SCHEMAS, Block
from store.telemetry.buckets import BUCKET_SECONDS, RankPlace, StepRollups
from store.telemetry.buckets import STEP_SECONDS as COLUMNS
from streams.columns import FloatArray, stacked
from streams.rollup.buckets import BucketQueue, changed

# After which the place of a rank is written again where it has not changed. Chosen: a thirtieth of the writes
# of its roll-ups.
PLACE_SECONDS = 300.0

# Columns of step rows that are summed; of the first ``MAXIMA`` the largest is kept as well.
STEP_SECONDS = ("step_seconds", "compute_seconds", "wait_seconds", "checkpoint_seconds")
MAXIMA = 2

_SUMS, _MAXIMA = ([f"{name}_{kind}" for name in STEP_SECONDS] for kind in ("sum", "max"))

# Where the columns of ``StepRollups.seconds`` stand in sums and maxima.
_SECONDS = [[*_SUMS, *_MAXIMA[:MAXIMA]].index(name) for name in COLUMNS]

_PLACE = ("rank", "gpu_index", *COORDS)

Ranks = tuple[int, ...]
IntArray = npt.NDArray[np.int64]


class Totals(NamedTuple):
    """What a bucket holds of one rank: steps, sums of ``STEP_SECONDS``, maxima, first and last step."""

    n: int
    sums: Sequence[float]
    maxima: Sequence[float]
    first: int
    last: int


@dataclass(slots=True)
class Columns:
    """The same of ``ranks``, all of which have ``n`` steps: [columns, ranks] and [ranks]; NaN: none read."""

    ranks: Ranks
    n: int
    sums: FloatArray
    maxima: FloatArray
    first: IntArray
    last: IntArray

    def totals(self) -> Iterator[tuple[int, Totals]]:
        """Yield each rank with its totals."""
        each = zip(
            self.ranks,
            self.sums.T.tolist(),
            self.maxima.T.tolist(),
            self.first.tolist(),
            self.last.tolist(),
            strict=True,
        )
        for rank, sums, maxima, first, last in each:
            yield rank, Totals(self.n, sums, maxima, first, last)


@dataclass(slots=True)
class StepBucket:
    """The steps of the ranks of one node in one bucket: as columns, or by rank once they do not fit those."""

    columns: Columns | None = None
    by_rank: dict[int, Totals] = field(default_factory=dict)
    dirty: bool = True

    def takes_columns(self, ranks: Ranks) -> bool:
        """Return whether rows of these ranks, one each, can be joined as columns."""
        return not self.by_rank and (self.columns is None or self.columns.ranks == ranks)

    def add(self, rank: int, step: int, seconds: Sequence[float]) -> None:
        """Add one row."""
        if self.columns is not None:
            self.by_rank, self.columns = dict(self.columns.totals()), None
        before = self.by_rank.get(rank)
        if before is None:
            self.by_rank[rank] = Totals(1, seconds, seconds[:MAXIMA], step, step)
            return
        self.by_rank[rank] = Totals(
            before.n + 1,
            list(map(_plus, before.sums, seconds)),
            list(map(_larger, before.maxima, seconds[:MAXIMA])),
            min(before.first, step),
            max(before.last, step),
        )

    def columns_by_rank(self) -> tuple[IntArray, IntArray, FloatArray, IntArray, IntArray]:
        """Return ranks, ascending, and of each its steps, its ``seconds``, its first and its last step."""
        if (held := self.columns) is not None:
            order = np.argsort(held.ranks)
            seconds = np.vstack((held.sums, held.maxima))[_SECONDS]
            steps = np.full(len(order), held.n)
            ranks = np.array(held.ranks)[order]
            return ranks, steps, seconds[:, order], held.first[order], held.last[order]
        ranks = np.array(sorted(self.by_rank))
        each = [self.by_rank[rank] for rank in ranks.tolist()]
        seconds = np.array([(*one.sums, *one.maxima) for one in each]).T[_SECONDS]
        n, first, last = (np.array([getattr(one, name) for one in each]) for name in ("n", "first", "last"))
        return ranks, n, seconds, first, last


class Waiting(NamedTuple):
    """The rows ``at`` of a record that lie in a bucket; None: all, and each is of another rank."""

    bucket: StepBucket
    record: JobSteps
    ranks: Ranks
    at: Sequence[int] | None


class StepBuckets:
    """Buckets of one (cluster, job, attempt, node). Records wait in ``queue`` until their rows are due."""

    def __init__(self, first: JobSteps, queue: BucketQueue[Waiting]) -> None:
        self._cluster, self._job, self._attempt = first.cluster, first.job_id, first.attempt
        self._node = first.node
        self._queue = queue
        self._open: dict[float, StepBucket] = {}
        self._places: dict[int, tuple[int | None, ...]] = {}
        self._written: dict[int, tuple[tuple[int | None, ...], float]] = {}
        self._world_size = 0
        # The place columns of the last record as sent, its ranks, and whether each is there once.
        self._sent = b""
        self._ranks: Ranks = ()
        self._distinct = False
        # Ends of the first dirty bucket and of the oldest one.
        self._due = self._oldest = math.inf

    def add(self, record: JobSteps) -> None:
        """Add the rows of a record not seen before; rows without a time are left out."""
        self._world_size = max(self._world_size, record.world_size)
        block = STEP_SCHEMAS[record.schema].rows
        (ts,) = read(block, record.rows, ("ts",)).values()
        if not ts:
            return
        self._note_places(record, len(ts))
        start = min(ts) // BUCKET_SECONDS * BUCKET_SECONDS
        # A NaN makes the sum one; it is cheaper to see than each.
        whole = math.isfinite(sum(ts)) and max(ts) // BUCKET_SECONDS * BUCKET_SECONDS == start
        if whole and self._distinct:
            self._put(start, record, None)
            return
        parts: dict[float, list[int]] = {}
        for row, at in enumerate(ts):
            if math.isfinite(at):
                parts.setdefault(at // BUCKET_SECONDS * BUCKET_SECONDS, []).append(row)
        for start, rows in parts.items():
            self._put(start, record, rows)

    def close(self, before: float, forget: float) -> Iterable[StepRollups | RankPlace]:
        """Return the changed rows of buckets that end by ``before``; drop those that end by ``forget``.

        With them come the places of their ranks, where these are new or were not written for long.
        """
        if before < self._due and forget < self._oldest:
            return ()
        self._queue.fold(before - BUCKET_SECONDS)
        rows: list[StepRollups | RankPlace] = []
        for start, bucket in changed(self._open, before, forget):
            ranks, n, seconds, first, last = bucket.columns_by_rank()
            rows.append(
                StepRollups(
                    cluster=self._cluster,
                    job_id=self._job,
                    attempt=self._attempt,
                    node=self._node,
                    bucket=start,
                    ranks=ranks,
                    n_steps=n,
                    seconds=seconds,
                    first_step=first,
                    last_step=last,
                )
            )
            rows += self._due_places(start, zip(ranks.tolist(), last.tolist(), strict=True))
        ends = {start + BUCKET_SECONDS: bucket.dirty for start, bucket in self._open.items()}
        self._oldest = min(ends, default=math.inf)
        self._due = min((end for end, dirty in ends.items() if dirty), default=math.inf)
        return rows

    def _note_places(self, record: JobSteps, count: int) -> None:
        first_byte, end = _SPANS[record.schema]
        sent = record.rows[first_byte * count : end * count]
        # A node sends the same ranks and places with every step.
        if sent == self._sent and count == len(self._ranks):
            return
        ranks, *places = read(STEP_SCHEMAS[record.schema].rows, record.rows, _PLACE).values()
        self._sent, self._ranks, self._distinct = sent, ranks, len(set(ranks)) == len(ranks)
        where = zip(*places, strict=True)
        # Of several rows of one rank the first counts, as in the record.
        first = dict(reversed(list(zip(ranks, (tuple(map(_known, at)) for at in where), strict=True))))
        self._places.update(first)

    def _put(self, start: float, record: JobSteps, at: Sequence[int] | None) -> None:
        bucket = self._open.get(start)
        if bucket is None:
            bucket = self._open[start] = StepBucket()
        bucket.dirty = True
        end = start + BUCKET_SECONDS
        self._due, self._oldest = min(self._due, end), min(self._oldest, end)
        self._queue.add(start, Waiting(bucket, record, self._ranks, at))

    def _due_places(self, start: float, ranks: Iterable[tuple[int, int]]) -> Iterator[RankPlace]:
        for rank, last in ranks:
            place = self._places[rank]
            written, at = self._written.get(rank, (None, -math.inf))
            # An older bucket that is closed again has nothing newer to add.
            if start <= at or (place == written and start < at + PLACE_SECONDS):
                continue
            self._written[rank] = place, start
            yield RankPlace(
                cluster=self._cluster,
                job_id=self._job,
                attempt=self._attempt,
                rank=rank,
                node=self._node,
                gpu_index=place[0],
                coords=place[1:],
                world_size=self._world_size,
                step=last,
                at=start,
            )


def fold_steps(waiting: Iterable[Waiting]) -> None:
    """Fold records of one bucket of many nodes, in the order in which they came."""
    nodes: dict[int, list[Waiting]] = {}
    for one in waiting:
        nodes.setdefault(id(one.bucket), []).append(one)
    pages: dict[tuple[int, int, int], list[list[Waiting]]] = {}
    for own in nodes.values():
        first = own[0]
        if first.bucket.takes_columns(first.ranks) and all(_alike(one, first) for one in own):
            page = first.record.schema, len(first.ranks), len(own)
            pages.setdefault(page, []).append(own)
        else:
            for one in own:
                _add_rows(one)
    for (schema, _, turns), alike in pages.items():
        _fold_page(STEP_SCHEMAS[schema].rows, turns, alike)


def _alike(one: Waiting, first: Waiting) -> bool:
    return one.at is None and one.ranks == first.ranks and one.record.schema == first.record.schema


def _add_rows(one: Waiting) -> None:
    block = STEP_SCHEMAS[one.record.schema].rows
    steps, *seconds = read(block, one.record.rows, ("step", *STEP_SECONDS)).values()
    rows = list(zip(*seconds, strict=True))
    for row in range(len(rows)) if one.at is None else one.at:
        one.bucket.add(one.ranks[row], steps[row], rows[row])


def _fold_page(block: Block, turns: int, page: Sequence[Sequence[Waiting]]) -> None:
    width, count = len(page[0][0].ranks), len(page)
    held = stacked(block, [own[t].record.rows for t in range(turns) for own in page])
    shape = turns, count * width
    steps: IntArray = held["step"].reshape(shape)
    seconds = np.stack([held[name].reshape(shape) for name in STEP_SECONDS], axis=1).astype(np.float64)
    before = [own[0].bucket.columns or _blank(own[0].ranks) for own in page]
    sums, maxima = np.hstack([c.sums for c in before]), np.hstack([c.maxima for c in before])
    # Infinite values of both signs give NaN, which is what adding them one by one gives, too.
    with np.errstate(invalid="ignore"):
        for now in seconds:
            sums = _joined(sums, now, sums + now)
            maxima = _joined(maxima, now[:MAXIMA], np.where(now[:MAXIMA] > maxima, now[:MAXIMA], maxima))
    first = np.minimum(np.hstack([c.first for c in before]), steps.min(axis=0))
    last = np.maximum(np.hstack([c.last for c in before]), steps.max(axis=0))
    for i, own in enumerate(page):
        at = slice(i * width, (i + 1) * width)
        # Copies: a view would keep the arrays of the whole page.
        parts = (sums[:, at].copy(), maxima[:, at].copy(), first[at].copy(), last[at].copy())
        own[0].bucket.columns = Columns(own[0].ranks, before[i].n + turns, *parts)


def _joined(before: FloatArray, now: FloatArray, both: FloatArray) -> FloatArray:
    """Return ``both`` where both were read, else the one that was."""
    return np.where(np.isnan(now), before, np.where(np.isnan(before), now, both))


def _blank(ranks: Ranks) -> Columns:
    n = len(ranks)
    nothing: Any = np.iinfo(np.int64)
    return Columns(
        ranks,
        0,
        np.full((len(STEP_SECONDS), n), np.nan),
        np.full((MAXIMA, n), np.nan),
        np.full(n, nothing.max),
        np.full(n, nothing.min),
    )


def _span(block: Block) -> tuple[int, int]:
    """Return where the columns of places begin and end, in bytes a row; others may lie between them."""
    ends = [(at, at + np.dtype(dtype).itemsize) for at, dtype in (block.offsets[name] for name in _PLACE)]
    return min(ends)[0], max(end for _, end in ends)


_SPANS = {number: _span(schema.rows) for number, schema in STEP_SCHEMAS.items()}


def _known(value: int) -> int | None:
    """Return a coordinate, None for the number that stands for a missing one."""
    return value if value >= 0 else None


def _plus(a: float, b: float) -> float:
    if b != b:
        return a
    return b if a != a else a + b


def _larger(a: float, b: float) -> float:
    if b != b:
        return a
    return b if a != a else max(a, b)
