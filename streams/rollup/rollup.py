"""Ten-second roll-ups of samples and steps, as rows that may be written repeatedly.

A bucket is closed when the time of its own source has passed it, so that a spool that drains an hour late is
rolled up like live data. An addition to a closed bucket gives its row again with a larger ``n``; the store
keeps the row with the largest.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from slowrank.telemetry import JobEnded, JobSteps, NodeSample
from slowrank.telemetry.names import COORDS
from slowrank.telemetry.schema import STEP_SCHEMAS
from store.telemetry.batches import Row
from store.telemetry.buckets import BUCKET_SECONDS, RankPlace, StepRollup
from streams.columns import columns
from streams.rollup.buckets import changed
from streams.rollup.columnar import SampleQueue
from streams.rollup.samples import NodeBuckets

GRACE_SECONDS = 2.0
"""Time after the end of a bucket for records out of order. Chosen: a later record only costs one more
write."""

IDLE_SECONDS = 30.0
"""Time without a record after which a source's open buckets are closed. Chosen: three buckets."""

KEEP_SECONDS = 300.0
"""Closed buckets are kept for so long. Chosen: a later record begins anew with a smaller ``n``, and is
dropped."""

PLACE_SECONDS = 300.0
"""After which the place of a rank is written again where it has not changed. Chosen: a thirtieth of the
writes of its roll-ups."""

MAX_SEEN = 4096
"""Record ids of a source before those older than ``KEEP_SECONDS`` are dropped. Chosen: bounds memory."""

Rows = list[Row]
"""Rows for the store: roll-ups and paces."""

B = TypeVar("B", "NodeBuckets", "StepBuckets")


STEP_SECONDS = ("step_seconds", "compute_seconds", "wait_seconds", "checkpoint_seconds")
"""Columns of step rows that are rolled up."""


@dataclass(slots=True)
class _StepBucket:
    """The steps of the ranks of one node in one bucket: rank -> running sums."""

    rows: dict[int, list[float]] = field(default_factory=dict)
    dirty: bool = True


class StepBuckets:
    """Buckets of one (cluster, job, attempt, node)."""

    def __init__(self, first: JobSteps) -> None:
        self._cluster, self._job, self._attempt = first.cluster, first.job_id, first.attempt
        self._node = first.node
        self._open: dict[float, _StepBucket] = {}
        self._places: dict[int, tuple[int | None, ...]] = {}
        self._written: dict[int, tuple[tuple[int | None, ...], float]] = {}
        self._world_size = 0

    def add(self, record: JobSteps) -> None:
        """Add the rows of a record not seen before."""
        held = columns(STEP_SCHEMAS[record.schema].rows, record.rows)
        self._world_size = max(self._world_size, record.world_size)
        ranks, first = np.unique(held["rank"], return_index=True)
        where = zip(*(held[name][first].tolist() for name in ("gpu_index", *COORDS)), strict=True)
        self._places.update(zip(ranks.tolist(), (tuple(map(_known, at)) for at in where), strict=True))
        wanted = ("rank", "step", "ts", *STEP_SECONDS)
        for rank, step, ts, *seconds in zip(*(held[name].tolist() for name in wanted), strict=True):
            start = ts // BUCKET_SECONDS * BUCKET_SECONDS
            bucket = self._open.setdefault(start, _StepBucket())
            bucket.dirty = True
            sums = bucket.rows.get(rank)
            bucket.rows[rank] = _started(step, *seconds) if sums is None else _added(sums, step, *seconds)

    def close(self, before: float, forget: float) -> Iterator[StepRollup | RankPlace]:
        """Yield the changed rows of buckets that end by ``before``; drop those that end by ``forget``.

        With them come the places of their ranks, where these are new or were not written for long.
        """
        for start, bucket in changed(self._open, before, forget):
            yield from self._rows(start, bucket)
            yield from self._due_places(start, bucket)

    def _due_places(self, start: float, bucket: _StepBucket) -> Iterator[RankPlace]:
        for rank, row in sorted(bucket.rows.items()):
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
                step=int(row[-1]),
                at=start,
            )

    def _rows(self, start: float, bucket: _StepBucket) -> Iterator[StepRollup]:
        for rank, sums in sorted(bucket.rows.items()):
            n, step, slowest, compute, longest, wait, checkpoint, first, last = sums
            yield StepRollup(
                cluster=self._cluster,
                job_id=self._job,
                attempt=self._attempt,
                rank=rank,
                node=self._node,
                bucket=start,
                n_steps=int(n),
                step_seconds_sum=step,
                step_seconds_max=slowest,
                compute_seconds_sum=compute,
                compute_seconds_max=longest,
                wait_seconds_sum=wait,
                checkpoint_seconds_sum=checkpoint,
                first_step=int(first),
                last_step=int(last),
            )


@dataclass(slots=True)
class _Source(Generic[B]):
    """The buckets of one source, the ids of its records, and its times.

    ``time`` is its own event time; ``received`` is the group's at its last record: a spool that drains late
    is not idle.
    """

    buckets: B
    received: float
    seen: dict[tuple[str, int], float] = field(default_factory=dict)
    time: float = -math.inf

    def fresh(self, record: NodeSample | JobSteps, now: float) -> bool:
        """Return whether this record is new, and add its id."""
        self.received = max(now, record.ts)
        identity, ts = (record.boot_id, record.seq), record.ts
        if identity in self.seen:
            return False
        self.seen[identity] = ts
        if ts > self.time:
            self.time = ts
            if len(self.seen) > MAX_SEEN:
                self.seen = {k: t for k, t in self.seen.items() if t > ts - KEEP_SECONDS}
        return True

    def close(self, before: float) -> Rows:
        """Return the changed rows of buckets that end by ``before``."""
        return list(self.buckets.close(before, self.time - KEEP_SECONDS))


class RollUp:
    """All sources of one key group."""

    def __init__(self) -> None:
        self._queue = SampleQueue()
        self._nodes: dict[tuple[str, str], _Source[NodeBuckets]] = {}
        self._jobs: dict[tuple[str, str, int, str], _Source[StepBuckets]] = {}
        self._now = -math.inf

    def add(self, record: NodeSample | JobSteps | JobEnded) -> Rows:
        """Add one record, in any order and repeatedly; return the rows of the buckets it closed."""
        if isinstance(record, NodeSample):
            node = self._nodes.get((record.cluster, record.node))
            if node is None:
                node = _Source(self._new_node(), self._now)
                self._nodes[record.cluster, record.node] = node
            if not node.fresh(record, self._now):
                return []
            node.buckets.add(record)
            return node.close(node.time - GRACE_SECONDS)
        if isinstance(record, JobEnded):
            return []
        key = (record.cluster, record.job_id, record.attempt, record.node)
        job = self._jobs.setdefault(key, _Source(StepBuckets(record), self._now))
        if not job.fresh(record, self._now):
            return []
        job.buckets.add(record)
        return job.close(job.time - GRACE_SECONDS)

    def _new_node(self) -> NodeBuckets:
        return NodeBuckets(self._queue)

    def tick(self, event_time: float) -> Rows:
        """Close the open buckets of idle sources; drop sources gone for long."""
        self._now = max(self._now, event_time)
        idle, gone = self._now - IDLE_SECONDS, self._now - KEEP_SECONDS
        rows = [row for source in self._all() if source.received < idle for row in source.close(math.inf)]
        self._nodes = {k: s for k, s in self._nodes.items() if s.received >= gone}
        self._jobs = {k: s for k, s in self._jobs.items() if s.received >= gone}
        return rows

    def flush(self) -> Rows:
        """Close all buckets, full or not; more may still be added to them."""
        return [row for source in self._all() for row in source.close(math.inf)]

    def _all(self) -> tuple[_Source[NodeBuckets] | _Source[StepBuckets], ...]:
        return (*self._nodes.values(), *self._jobs.values())


def _known(value: int) -> int | None:
    """Return a coordinate, None for the number that stands for a missing one."""
    return value if value >= 0 else None


def _started(step: int, whole: float, compute: float, wait: float, checkpoint: float) -> list[float]:
    return [1, whole, whole, compute, compute, wait, checkpoint, step, step]


def _added(
    sums: list[float], step: int, whole: float, compute: float, wait: float, checkpoint: float
) -> list[float]:
    n, total, slowest, computed, longest, waited, saved, first, last = sums
    return [
        n + 1,
        _plus(total, whole),
        _larger(slowest, whole),
        _plus(computed, compute),
        _larger(longest, compute),
        _plus(waited, wait),
        _plus(saved, checkpoint),
        min(first, step),
        max(last, step),
    ]


def _plus(a: float, b: float) -> float:
    if b != b:
        return a
    return b if a != a else a + b


def _larger(a: float, b: float) -> float:
    if b != b:
        return a
    return b if a != a else max(a, b)
