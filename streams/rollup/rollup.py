"""Ten-second roll-ups of samples and steps, as rows that may be written repeatedly.

A bucket is closed when the time of its own source has passed it, so that a spool that drains an hour late is
rolled up like live data. An addition to a closed bucket gives its row again with a larger ``n``; the store
keeps the row with the largest.
"""

import math
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from slowrank.telemetry import JobEnded, JobSteps, NodeSample
from store.telemetry.batches import Row
from streams.rollup.buckets import BucketQueue
from streams.rollup.columnar import fold_samples
from streams.rollup.samples import NodeBuckets
from streams.rollup.samples import Waiting as WaitingSample
from streams.rollup.steps import StepBuckets, fold_steps
from streams.rollup.steps import Waiting as WaitingSteps

# Time after the end of a bucket for records out of order. Chosen: a later record only costs one more write.
GRACE_SECONDS = 2.0

# Time without a record after which a source's open buckets are closed. Chosen: three buckets.
IDLE_SECONDS = 30.0

# Closed buckets are kept for so long. Chosen: a later record begins anew with a smaller ``n``, and is
# dropped.
KEEP_SECONDS = 300.0

# Record ids of a source before those older than ``KEEP_SECONDS`` are dropped, or twice as many as are left.
# Chosen: twice those of one record a second. An id takes some 230 bytes.
MAX_SEEN = 600

# Samples of a partition that wait, and step records. Chosen: 14 MB of samples, or 340 nodes for a bucket and
# its grace. With more nodes fewer samples of each are folded at once, at a higher cost.
MOST_WAITING = 4096

Rows = list[Row]
"""Rows for the store: roll-ups and paces."""

B = TypeVar("B", "NodeBuckets", "StepBuckets")


@dataclass(slots=True)
class _Source(Generic[B]):
    """The buckets of one source, the ids of its records, and its times.

    ``time`` is its own event time; ``received`` is the group's at its last record: a spool that drains late
    is not idle.
    """

    buckets: B
    received: float
    seen: dict[tuple[str, int], float] = field(default_factory=dict)
    most: int = MAX_SEEN
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
            if len(self.seen) > self.most:
                self.seen = {k: t for k, t in self.seen.items() if t > ts - KEEP_SECONDS}
                self.most = max(MAX_SEEN, 2 * len(self.seen))
        return True

    def close(self, before: float) -> Rows:
        """Return the changed rows of buckets that end by ``before``."""
        return list(self.buckets.close(before, self.time - KEEP_SECONDS))


class RollUp:
    """All sources of one key group."""

    def __init__(self, *, most_waiting: int = MOST_WAITING) -> None:
        self._samples: BucketQueue[WaitingSample] = BucketQueue(fold_samples, most_waiting)
        self._steps: BucketQueue[WaitingSteps] = BucketQueue(fold_steps, most_waiting)
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
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = _Source(self._new_job(record), self._now)
        if not job.fresh(record, self._now):
            return []
        job.buckets.add(record)
        return job.close(job.time - GRACE_SECONDS)

    def _new_node(self) -> NodeBuckets:
        return NodeBuckets(self._samples)

    def _new_job(self, first: JobSteps) -> StepBuckets:
        return StepBuckets(first, self._steps)

    def tick(self, event_time: float) -> Rows:
        """Close the open buckets of idle sources; drop sources gone for long."""
        self._now = max(self._now, event_time)
        idle, gone = self._now - IDLE_SECONDS, self._now - KEEP_SECONDS
        quiet = [source for source in self._all() if source.received < idle]
        rows = [row for source in quiet for row in source.close(math.inf)]
        if any(source.received < gone for source in quiet):
            self._nodes = {k: s for k, s in self._nodes.items() if s.received >= gone}
            self._jobs = {k: s for k, s in self._jobs.items() if s.received >= gone}
        return rows

    def flush(self) -> Rows:
        """Close all buckets, full or not; more may still be added to them."""
        return [row for source in self._all() for row in source.close(math.inf)]

    def _all(self) -> tuple[_Source[NodeBuckets] | _Source[StepBuckets], ...]:
        return (*self._nodes.values(), *self._jobs.values())
