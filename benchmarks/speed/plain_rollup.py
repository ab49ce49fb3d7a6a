"""Roll-ups sample by sample and row by row: the oracle of ``streams.rollup`` and of its speed."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.speed.plain_counters import Counters
from slowrank.telemetry import JobSteps, NodeSample
from slowrank.telemetry.names import COORDS
from slowrank.telemetry.schema import MISSING_INT, SAMPLE_SCHEMAS, STEP_SCHEMAS
from slowrank.telemetry.schema import Block as Layout
from store.telemetry.buckets import (
    BUCKET_SECONDS,
    ROLLED,
    Block,
    NodeLatest,
    RankPlace,
    SampleRollup,
    StepRollup,
)
from streams.columns import Array, FloatArray, as_float, columns, runs
from streams.rollup.buckets import changed
from streams.rollup.rollup import RollUp
from streams.rollup.steps import PLACE_SECONDS

BLOCKS: tuple[Block, ...] = ("gpu", "nic", "host")

_ROWS = {
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


class _Sums:
    """Running aggregates [rolled columns, instances] of one block over one bucket."""

    def __init__(self, block: Block) -> None:
        self.ids: list[str] = []
        self.samples: list[int] = []
        self._rows = _ROWS[block]
        self._value = np.empty((len(ROLLED[block]), 0))
        self._count = np.empty((len(ROLLED[block]), 0))

    def add(self, ids: tuple[str, ...], now: FloatArray) -> None:
        """Add one sample: ``now`` [rolled columns, instances], NaN where nothing was read."""
        at = self._positions(ids)
        before, read = self._value[:, at], ~np.isnan(now)
        joined = now.copy()
        for kind, join in (("sum", np.add), ("min", np.minimum), ("max", np.maximum), ("or", _union)):
            rows = self._rows[kind]
            if len(rows):
                joined[rows] = join(before[rows], now[rows])
        joined = np.where(np.isnan(before), now, joined)
        self._value[:, at] = np.where(read, joined, before)
        self._count[:, at] += read
        for i in at:
            self.samples[i] += 1

    def values(self) -> FloatArray:
        """Return the aggregates [rolled columns, instances]."""
        found, mean = self._value.copy(), self._rows["mean"]
        found[mean] /= np.maximum(self._count[mean], 1)
        return found

    def _positions(self, ids: tuple[str, ...]) -> list[int]:
        new = [name for name in ids if name not in self.ids]
        if new:
            self.ids += new
            self.samples += [0] * len(new)
            blank = np.full((len(self._value), len(new)), np.nan)
            self._value = np.hstack((self._value, blank))
            self._count = np.hstack((self._count, np.zeros_like(blank)))
        place = {name: i for i, name in enumerate(self.ids)}
        return [place[name] for name in ids]


@dataclass(slots=True)
class _Bucket:
    sums: dict[Block, _Sums]
    latest: NodeLatest
    dirty: bool = True


class PlainBuckets:
    """Buckets of one node."""

    def __init__(self) -> None:
        self._open: dict[float, _Bucket] = {}
        self._counters = {block: Counters() for block in BLOCKS}
        self._cluster, self._node = "", ""
        self._ts = -math.inf

    def add(self, sample: NodeSample) -> None:
        """Add a new sample. A late one adds its gauges, but no increases of its counters."""
        self._cluster, self._node = sample.cluster, sample.node
        schema = SAMPLE_SCHEMAS[sample.schema]
        start = sample.ts // BUCKET_SECONDS * BUCKET_SECONDS
        bucket = self._open.get(start)
        if bucket is None:
            bucket = self._open[start] = _Bucket({b: _Sums(b) for b in BLOCKS}, _latest(sample))
        host_ids = ("",) if sample.host else ()
        for block, layout, data, ids in (
            ("gpu", schema.gpu, sample.gpu, sample.gpu_ids),
            ("nic", schema.nic, sample.nic, sample.nic_ids),
            ("host", schema.host, sample.host, host_ids),
        ):
            if ids:
                now = self._reading(_named(block), layout, (data, ids), sample)
                bucket.sums[_named(block)].add(ids, now)
        bucket.dirty = True
        if sample.ts >= bucket.latest.last_seen_at:
            bucket.latest = _latest(sample)
        self._ts = max(sample.ts, self._ts)

    def close(self, before: float, forget: float) -> Iterator[SampleRollup | NodeLatest]:
        """Yield the changed rows of buckets that end by ``before``; drop those that end by ``forget``."""
        for start, bucket in changed(self._open, before, forget):
            yield from self._rows(start, bucket)

    def _reading(
        self, block: Block, layout: Layout, held: tuple[bytes, tuple[str, ...]], sample: NodeSample
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
        delta = _ROWS[block]["delta"]
        found[np.setdiff1d(np.arange(len(rolled)), delta)] = now
        if sample.ts > self._ts:
            counters = np.array([columns[rolled[int(i)].metric] for i in delta], np.int64)
            found[delta] = self._increases(block, counters, (ids, sample))
        return found

    def _increases(
        self, block: Block, counters: Array, held: tuple[tuple[str, ...], NodeSample]
    ) -> FloatArray:
        ids, sample = held
        rise = self._counters[block].update(sample.ts, ids, counters)
        # A counter that went back began at zero: what it shows it has counted since. A sum may count that;
        # for a rule it is unknown (``Increase``), as it must not look like a spike.
        return np.where(rise.reset, as_float(counters), rise.delta)

    def _rows(self, start: float, bucket: _Bucket) -> Iterator[SampleRollup | NodeLatest]:
        for block, sums in bucket.sums.items():
            values = sums.values()
            for i, instance in enumerate(sums.ids):
                row = tuple(float(v) for v in values[:, i])
                yield SampleRollup(block, self._cluster, self._node, instance, start, sums.samples[i], row)
        yield bucket.latest


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


# Columns of step rows that are rolled up.
STEP_SECONDS = ("step_seconds", "compute_seconds", "wait_seconds", "checkpoint_seconds")


@dataclass(slots=True)
class _StepBucket:
    """The steps of the ranks of one node in one bucket: rank -> running sums."""

    rows: dict[int, list[float]] = field(default_factory=dict)
    dirty: bool = True


class PlainStepBuckets:
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


class PlainRollUp(RollUp):
    """All sources of one key group, each sample and each step row aggregated as it comes."""

    def _new_node(self) -> Any:
        return PlainBuckets()

    def _new_job(self, first: JobSteps) -> Any:
        return PlainStepBuckets(first)
