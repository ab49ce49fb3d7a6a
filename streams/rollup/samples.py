"""Aggregates the samples of one node by bucket, as declared by the store (``ROLLED``).

``NodeBuckets`` holds the state and folds single samples; ``streams.rollup.columnar`` folds those of many
nodes at once into the same state, by the same functions ``joined`` and ``increases``.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from slowrank.telemetry import NodeSample
from slowrank.telemetry.schema import MISSING_INT, SAMPLE_SCHEMAS
from slowrank.telemetry.schema import Block as Layout
from store.telemetry.buckets import BUCKET_SECONDS, ROLLED, Block, NodeLatest, SampleRollups
from streams.columns import Array, FloatArray, Mask, as_float, runs
from streams.node.counters import plausible
from streams.rollup.buckets import BucketQueue, changed

BLOCKS: tuple[Block, ...] = ("gpu", "nic", "host")

# By block and way of joining: which of the rolled columns are joined so.
ROWS = {
    block: {
        kind: np.array([i for i, rolled in enumerate(ROLLED[block]) if rolled.aggregate in kinds], np.intp)
        for kind, kinds in (
            ("sum", ("mean", "delta")),
            ("mean", ("mean",)),
            ("min", ("min",)),
            ("max", ("max",)),
            ("or", ("or",)),
            ("delta", ("delta",)),
        )
    }
    for block in BLOCKS
}


_METRICS = {block: {rolled.metric for rolled in ROLLED[block]} for block in BLOCKS}


class Sums:
    """Running aggregates [rolled columns, instances] of one block over one bucket.

    ``value`` is NaN where nothing was read yet, ``count`` how often something was.
    """

    def __init__(self, block: Block) -> None:
        self.ids: tuple[str, ...] = ()
        self.samples: list[int] = []
        self._rows = ROWS[block]
        self.value = np.empty((len(ROLLED[block]), 0))
        self.count = np.empty((len(ROLLED[block]), 0))

    def add(self, ids: tuple[str, ...], now: FloatArray) -> None:
        """Add one sample: ``now`` [rolled columns, instances], NaN where nothing was read."""
        at = self._positions(ids)
        self.value[:, at], read = joined(self._rows, self.value[:, at], now)
        self.count[:, at] += read
        for i in at:
            self.samples[i] += 1

    def fits(self, ids: tuple[str, ...]) -> bool:
        """Return whether the instances are those that a sample with these ``ids`` would leave."""
        return not self.ids or self.ids == ids

    def begin(self, ids: tuple[str, ...]) -> None:
        """Take the instances of ``ids``, which must fit."""
        if not self.ids:
            self.ids, self.samples = ids, [0] * len(ids)
            self.value = np.full((len(self.value), len(ids)), np.nan)
            self.count = np.zeros_like(self.value)

    def values(self) -> FloatArray:
        """Return the aggregates [rolled columns, instances]."""
        found, mean = self.value.copy(), self._rows["mean"]
        found[mean] /= np.maximum(self.count[mean], 1)
        return found

    def _positions(self, ids: tuple[str, ...]) -> list[int]:
        known = set(self.ids)
        new = tuple(name for name in ids if name not in known)
        if new:
            self.ids += new
            self.samples += [0] * len(new)
            blank = np.full((len(self.value), len(new)), np.nan)
            self.value = np.hstack((self.value, blank))
            self.count = np.hstack((self.count, np.zeros_like(blank)))
        place = {name: i for i, name in enumerate(self.ids)}
        return [place[name] for name in ids]


class Readings:
    """The last reading ``value`` [counters, instances] of the counters of one block; MISSING_INT before."""

    def __init__(self, block: Block) -> None:
        self.ids: tuple[str, ...] = ()
        self.value = np.full((len(ROWS[block]["delta"]), 0), MISSING_INT, np.int64)

    def fits(self, ids: tuple[str, ...]) -> bool:
        """Return whether ``align`` would leave every reading."""
        return not self.ids or self.ids == ids

    def align(self, ids: tuple[str, ...]) -> None:
        """Take the instances of ``ids``, with the readings of those that were there before."""
        if ids == self.ids:
            return
        before = {name: i for i, name in enumerate(self.ids)}
        value = np.full((len(self.value), len(ids)), MISSING_INT, np.int64)
        for i, name in enumerate(ids):
            if name in before:
                value[:, i] = self.value[:, before[name]]
        self.ids, self.value = ids, value


@dataclass(slots=True)
class SampleBucket:
    """Aggregates of one node over ten seconds, and its latest sample in them."""

    sums: dict[Block, Sums]
    latest: NodeSample
    dirty: bool = True


class Waiting(NamedTuple):
    """A sample that is not in its bucket's aggregates yet; ``late`` if a later one was added before it."""

    node: "NodeBuckets"
    bucket: SampleBucket
    sample: NodeSample
    late: bool


class NodeBuckets:
    """Buckets of one node. Samples wait in ``queue`` until rows of their bucket are due."""

    def __init__(self, queue: BucketQueue[Waiting]) -> None:
        self._queue = queue
        self._open: dict[float, SampleBucket] = {}
        self.readings = {block: Readings(block) for block in BLOCKS}
        self._cluster, self._node = "", ""
        self._ts = -math.inf
        # Ends of the first dirty bucket and of the oldest one.
        self._due = self._oldest = math.inf

    def add(self, sample: NodeSample) -> None:
        """Add a new sample. A late one adds its gauges, but no increases of its counters."""
        self._cluster, self._node = sample.cluster, sample.node
        start = sample.ts // BUCKET_SECONDS * BUCKET_SECONDS
        bucket = self._open.get(start)
        if bucket is None:
            bucket = self._open[start] = SampleBucket({b: Sums(b) for b in BLOCKS}, sample)
        bucket.dirty = True
        if sample.ts >= bucket.latest.ts:
            bucket.latest = sample
        end = start + BUCKET_SECONDS
        if end < self._due:
            self._due = end
        if end < self._oldest:
            self._oldest = end
        late = sample.ts <= self._ts
        self._queue.add(start, Waiting(self, bucket, sample, late))
        if not late:
            self._ts = sample.ts

    def fold(self, waiting: Waiting) -> None:
        """Join one sample to the aggregates of its bucket."""
        sample = waiting.sample
        schema = SAMPLE_SCHEMAS[sample.schema]
        for block, layout, data, ids in (
            ("gpu", schema.gpu, sample.gpu, sample.gpu_ids),
            ("nic", schema.nic, sample.nic, sample.nic_ids),
            ("host", schema.host, sample.host, host_ids(sample)),
        ):
            if ids:
                now = self._reading(_named(block), layout, (data, ids), late=waiting.late)
                waiting.bucket.sums[_named(block)].add(ids, now)

    def close(self, before: float, forget: float) -> Iterable[SampleRollups | NodeLatest]:
        """Return the changed rows of buckets that end by ``before``; drop those that end by ``forget``."""
        # Asked once a tick for every node: almost always nothing is due.
        if before < self._due and forget < self._oldest:
            return ()
        self._queue.fold(before - BUCKET_SECONDS)
        rows = [
            row for start, bucket in changed(self._open, before, forget) for row in self._rows(start, bucket)
        ]
        ends = {start + BUCKET_SECONDS: bucket.dirty for start, bucket in self._open.items()}
        self._oldest = min(ends, default=math.inf)
        self._due = min((end for end, dirty in ends.items() if dirty), default=math.inf)
        return rows

    def _reading(
        self, block: Block, layout: Layout, held: tuple[bytes, tuple[str, ...]], *, late: bool
    ) -> FloatArray:
        data, ids = held
        rolled = ROLLED[block]
        columns = {
            name: row for run in runs(layout, data) for name, row in zip(run.names, run.values, strict=True)
        }
        # A schema older than a column lacks it.
        if absent := _METRICS[block] - columns.keys():
            columns |= dict.fromkeys(absent, np.full(len(ids), MISSING_INT))
        now = np.array([as_float(columns[r.metric]) for r in rolled if r.aggregate != "delta"])
        found = np.full((len(rolled), len(ids)), np.nan)
        delta = ROWS[block]["delta"]
        found[np.setdiff1d(np.arange(len(rolled)), delta)] = now
        # Between a late sample and the last one lie increases that are counted already.
        if not late:
            readings = self.readings[block]
            readings.align(ids)
            counters = np.array([columns[rolled[int(i)].metric] for i in delta], np.int64)
            found[delta], readings.value = increases(readings.value, counters)
        return found

    def _rows(self, start: float, bucket: SampleBucket) -> Iterator[SampleRollups | NodeLatest]:
        for block, sums in bucket.sums.items():
            if sums.ids:
                yield SampleRollups(
                    block, self._cluster, self._node, sums.ids, start, tuple(sums.samples), sums.values()
                )
        yield _latest(bucket.latest)


def host_ids(sample: NodeSample) -> tuple[str, ...]:
    """Return the instances of the host block: the host itself, or none where the sample lacks it."""
    return ("",) if sample.host else ()


def joined(rows: dict[str, Array], before: FloatArray, now: FloatArray) -> tuple[FloatArray, Mask]:
    """Join readings ``now`` to aggregates ``before`` [rolled columns, n], elementwise.

    Return the aggregates, and where something was read. ``rows``: the columns by way of joining (``ROWS``).
    """
    read, found = ~np.isnan(now), now.copy()
    for kind, join in (("sum", np.add), ("min", np.minimum), ("max", np.maximum), ("or", _union)):
        at = rows[kind]
        if len(at):
            found[at] = join(before[at], now[at])
    found = np.where(np.isnan(before), now, found)
    return np.where(read, found, before), read


def increases(before: Array, now: Array) -> tuple[FloatArray, Array]:
    """Return by how much counters [counters, n] rose, NaN where that is unknown, and their last readings.

    A counter that went back began at zero: what it shows it has counted since. A sum may count that; for a
    rule it is unknown (``streams.node.counters.Increase``), as it must not look like a spike.
    """
    read = plausible(now)
    known = read & (before != MISSING_INT)
    difference = np.where(known, now - before, 0)
    rise = np.where(known, difference.astype(np.float64), np.nan)
    return np.where(difference < 0, as_float(now), rise), np.where(read, now, before)


def _named(block: str) -> Block:
    return next(b for b in BLOCKS if b == block)


def _latest(sample: NodeSample) -> NodeLatest:
    return NodeLatest(
        cluster=sample.cluster,
        node=sample.node,
        last_seen_at=sample.ts,
        boot_id=sample.boot_id,
        seq=sample.seq,
        gpus=len(sample.gpu_ids),
        nics=len(sample.nic_ids),
        job_id=sample.job_id,
        rack=sample.labels.get("rack"),
        switch=sample.labels.get("switch"),
    )


def _union(a: FloatArray, b: FloatArray) -> FloatArray:
    bits = np.nan_to_num(a).astype(np.int64) | np.nan_to_num(b).astype(np.int64)
    return bits.astype(np.float64)
