"""Rolls up the step rows of jobs by rank and bucket; records of many nodes are folded as columns.

The records of a bucket wait until its rows are due. Those of nodes that send the same number of ranks form a
page: turn t takes the t-th record of each, so that every sum is taken in the order in which the records of a
node came, and is that of adding row by row, bit for bit. Row by row go the records that are not one row for
each rank within one bucket, and all others of a node with one of them in the same bucket.
"""

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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

# Of each column of ``StepRollups.seconds``: the column of step rows that it aggregates, and whether it is the
# largest value instead of the sum.
_READ = [name.removesuffix("_sum").removesuffix("_max") for name in COLUMNS]
_LARGEST = np.array([[name.endswith("_max")] for name in COLUMNS])

_PLACE = ("rank", "gpu_index", *COORDS)

Ranks = tuple[int, ...]
IntArray = npt.NDArray[np.int64]


class Totals(NamedTuple):
    """What a bucket holds of one rank: steps, ``COLUMNS``, first and last step."""

    n: int
    seconds: Sequence[float]
    first: int
    last: int


@dataclass(slots=True)
class Columns:
    """The same of ``ranks``, all of which have ``n`` steps: [COLUMNS, ranks] and [ranks]; NaN: none read.

    The arrays are replaced, never changed.
    """

    ranks: Ranks
    n: int
    seconds: FloatArray
    first: IntArray
    last: IntArray

    def totals(self) -> Iterator[tuple[int, Totals]]:
        """Yield each rank with its totals."""
        each = zip(self.ranks, self.seconds.T.tolist(), self.first.tolist(), self.last.tolist(), strict=True)
        for rank, seconds, first, last in each:
            yield rank, Totals(self.n, seconds, first, last)


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
        """Add one row: its step, and of each of ``COLUMNS`` the value to aggregate."""
        if self.columns is not None:
            self.by_rank, self.columns = dict(self.columns.totals()), None
        before = self.by_rank.get(rank)
        if before is None:
            self.by_rank[rank] = Totals(1, seconds, step, step)
            return
        joined = [join(a, b) for join, a, b in zip(_JOINS, before.seconds, seconds, strict=True)]
        self.by_rank[rank] = Totals(before.n + 1, joined, min(before.first, step), max(before.last, step))

    def columns_by_rank(self) -> tuple[IntArray, IntArray, FloatArray, IntArray, IntArray]:
        """Return ranks, ascending, and of each its steps, ``COLUMNS``, its first and its last step."""
        if (held := self.columns) is not None:
            ranks, order = _ascending(held.ranks)
            n = np.full(len(ranks), held.n)
            return ranks, n, held.seconds[:, order], held.first[order], held.last[order]
        ranks = np.array(sorted(self.by_rank))
        each = [self.by_rank[rank] for rank in ranks.tolist()]
        seconds = np.array([one.seconds for one in each]).T
        n, first, last = (np.array([getattr(one, name) for one in each]) for name in ("n", "first", "last"))
        return ranks, n, seconds, first, last


# A node sends the same ranks with every step: holds those of 4,096 nodes.
@functools.lru_cache(maxsize=4096)
def _ascending(ranks: Ranks) -> tuple[IntArray, IntArray | slice]:
    """Return the ranks in ascending order, and where they stand in ``ranks``."""
    order = np.argsort(ranks)
    return np.array(ranks)[order], slice(None) if sorted(ranks) == list(ranks) else order


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
        # Start of the last bucket that took a whole record.
        self._start = -math.inf
        # Ends of the first dirty bucket and of the oldest one; before which bucket no place is due.
        self._due = self._oldest = math.inf
        self._places_due = -math.inf

    def add(self, record: JobSteps) -> None:
        """Add the rows of a record not seen before; rows without a time are left out."""
        self._world_size = max(self._world_size, record.world_size)
        block = STEP_SCHEMAS[record.schema].rows
        (ts,) = read(block, record.rows, ("ts",)).values()
        if not ts:
            return
        self._note_places(record, len(ts))
        first, last = min(ts), max(ts)
        if not self._start <= first < self._start + BUCKET_SECONDS:
            self._start = first // BUCKET_SECONDS * BUCKET_SECONDS
        # A NaN makes the sum one; it is cheaper to see than each.
        if last < self._start + BUCKET_SECONDS and self._distinct and math.isfinite(sum(ts)):
            self._put(self._start, record, None)
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
            if start >= self._places_due:
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
        self._places_due = -math.inf

    def _put(self, start: float, record: JobSteps, at: Sequence[int] | None) -> None:
        bucket = self._open.get(start)
        if bucket is None:
            bucket = self._open[start] = StepBucket(dirty=False)
        if not bucket.dirty:
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
        if all(self._written.get(rank, (None,))[0] == place for rank, place in self._places.items()):
            self._places_due = min(at for _, at in self._written.values()) + PLACE_SECONDS


def fold_steps(waiting: Iterable[Waiting]) -> None:
    """Fold records of one bucket of many nodes, in the order in which they came."""
    nodes: dict[int, list[Waiting]] = {}
    for one in waiting:
        nodes.setdefault(id(one.bucket), []).append(one)
    pages: dict[tuple[int, int, int, bool], list[list[Waiting]]] = {}
    for own in nodes.values():
        first = own[0]
        if first.bucket.takes_columns(first.ranks) and all(_alike(one, first) for one in own):
            page = first.record.schema, len(first.ranks), len(own), first.bucket.columns is None
            pages.setdefault(page, []).append(own)
        else:
            for one in own:
                _add_rows(one)
    for (schema, _, turns, _), alike in pages.items():
        _fold_page(STEP_SCHEMAS[schema].rows, turns, alike)


def _alike(one: Waiting, first: Waiting) -> bool:
    return one.at is None and one.ranks == first.ranks and one.record.schema == first.record.schema


def _add_rows(one: Waiting) -> None:
    block = STEP_SCHEMAS[one.record.schema].rows
    held = read(block, one.record.rows, ("step", *_READ))
    steps, rows = held["step"], list(zip(*(held[name] for name in _READ), strict=True))
    for row in range(len(rows)) if one.at is None else one.at:
        one.bucket.add(one.ranks[row], steps[row], rows[row])


def _fold_page(block: Block, turns: int, page: Sequence[Sequence[Waiting]]) -> None:
    width, count = len(page[0][0].ranks), len(page)
    held = stacked(block, [own[t].record.rows for t in range(turns) for own in page])
    shape = turns, count * width
    steps: IntArray = held["step"].reshape(shape)
    read_now = np.stack([held[name].reshape(shape) for name in _READ], axis=1).astype(np.float64)
    before = [own[0].bucket.columns for own in page]
    # Either none or all of a page have columns.
    if joined := [columns for columns in before if columns]:
        read_now = np.concatenate((np.hstack([c.seconds for c in joined])[None], read_now))
        steps = np.concatenate(
            ([np.hstack([c.first for c in joined]), np.hstack([c.last for c in joined])], steps)
        )
    first, last, seconds = steps.min(axis=0), steps.max(axis=0), read_now[0]
    unread = np.isnan(read_now)
    # Infinite values of both signs give NaN, which is what adding them one by one gives, too.
    with np.errstate(invalid="ignore"):
        for now, blank in zip(read_now[1:], unread[1:], strict=True):
            both = np.where(_LARGEST, np.where(now > seconds, now, seconds), seconds + now)
            seconds = np.where(blank, seconds, np.where(np.isnan(seconds), now, both))
    for i, (own, columns) in enumerate(zip(page, before, strict=True)):
        at = slice(i * width, (i + 1) * width)
        # Copies: a view would keep the arrays of the whole page.
        parts = seconds[:, at].copy(), first[at].copy(), last[at].copy()
        own[0].bucket.columns = Columns(own[0].ranks, (columns.n if columns else 0) + turns, *parts)


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


_JOINS = tuple(_larger if largest else _plus for (largest,) in _LARGEST)
