"""The means of each node's features by the minute, for the comparisons of nodes in the cluster stage.

Samples are keyed by node, so that no worker has all nodes of a cluster (docs/decisions/0013).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from slowrank.telemetry import MinuteMeans, NodeSample
from slowrank.telemetry.schema import SAMPLE_SCHEMAS, Block
from streams.columns import Array, FloatArray, as_float, columns, stacked
from streams.gray_features import COUNTERS, GAUGES, LARGEST, OF_GPUS, WINDOW_SECONDS, due
from streams.node.counters import plausible
from streams.node.node_table import turns
from streams.suspicions import Location

_FEWEST_ROWS = 64

# Minutes that are kept until they are due, the first ones. Chosen: six hours bound what a clock far ahead
# keeps in memory, 60 kB a minute; the minutes of others come before.
_MOST_MINUTES = 360

# Samples in one operation. Measured: their columns stay in the CPU cache, half the time of a whole fleet at
# once.
_TOGETHER = 512

# Longest time over which the increase of a counter stands for a minute. Chosen: nodes may be read once a
# minute, and miss one.
_LONGEST_SECONDS = 150.0

_Node = tuple[str, str]


@dataclass(slots=True)
class _Sums:
    """Sums of what was read, and how often: of ``GAUGES`` [rows, features], and of each GPU [rows, metrics,
    gpus]."""

    gauges: tuple[FloatArray, FloatArray]
    gpus: tuple[FloatArray, FloatArray]

    @classmethod
    def of(cls, rows: int, gpus: int) -> "_Sums":
        one, two = np.zeros((2, rows, len(GAUGES))), np.zeros((2, rows, len(OF_GPUS), gpus))
        return cls((one[0], one[1]), (two[0], two[1]))

    def grown(self, rows: int, gpus: int) -> "_Sums":
        """Return a copy with room for so many rows and GPUs."""
        larger = _Sums.of(rows, gpus)
        for old, new in zip((*self.gauges, *self.gpus), (*larger.gauges, *larger.gpus), strict=True):
            new[tuple(slice(size) for size in old.shape)] = old
        return larger


class MinuteSums:
    """Sums each node's features by whole minutes of event time; of nodes in a job only, or of ``all_nodes``.

    A node's samples are added one by one, in their order: batches and other nodes change no bit of the sums.
    """

    def __init__(self, *, all_nodes: bool = True) -> None:
        self._all_nodes = all_nodes
        self._minutes: dict[float, _Minute] = {}
        # The last sample of each node in the minutes that were sent: from it on, counters rise.
        self._counted: dict[_Node, NodeSample] = {}
        self._now = -math.inf

    def take(self, samples: Sequence[NodeSample]) -> None:
        """Add samples, but not to a minute that was sent, nor to more minutes than are kept."""
        by_minute: dict[float, list[NodeSample]] = {}
        for sample in samples:
            if self._all_nodes or sample.job_id:
                by_minute.setdefault(sample.ts // WINDOW_SECONDS * WINDOW_SECONDS, []).append(sample)
        for start, taken in by_minute.items():
            if due(start) > self._now:
                self._minutes.setdefault(start, _Minute()).add(taken)
        while len(self._minutes) > _MOST_MINUTES:
            del self._minutes[max(self._minutes)]

    def tick(self, event_time: float) -> list[MinuteMeans]:
        """Return the means of each node in the minutes that are over by ``event_time``."""
        self._now = max(self._now, event_time)
        over = sorted(start for start in self._minutes if due(start) <= self._now)
        return [row for start in over for row in self._sent(start)]

    def _sent(self, start: float) -> Iterator[MinuteMeans]:
        self._counted = {n: s for n, s in self._counted.items() if s.ts >= start - _LONGEST_SECONDS}
        yield from self._minutes.pop(start).rows(start, self._counted)


class _Minute:
    """The sums of one minute, a row for each node; job, rack and switch are those of its first sample."""

    def __init__(self) -> None:
        self._rows: dict[_Node, int] = {}
        self._first: list[NodeSample] = []
        self._last: list[NodeSample] = []
        self._samples: list[int] = []
        self._same_gpus: list[bool] = []
        self._sums = _Sums.of(_FEWEST_ROWS, 0)

    def add(self, samples: Sequence[NodeSample]) -> None:
        rows = np.array([self._row(sample) for sample in samples])
        gpus = max(len(sample.gpu_ids) for sample in samples)
        height, _, width = self._sums.gpus[0].shape
        if len(self._first) > height or gpus > width:
            self._sums = self._sums.grown(max(len(self._first), 2 * height), max(gpus, width))
        gauges, of_gpus = _features(samples, self._sums.gpus[0].shape[2])
        # ``+=`` by index would keep only the second of two samples of one node.
        for turn in turns(samples):
            for (total, count), values in ((self._sums.gauges, gauges), (self._sums.gpus, of_gpus)):
                taken = values[turn]
                read = ~np.isnan(taken)
                total[rows[turn]] += np.where(read, taken, 0.0)
                count[rows[turn]] += read

    def rows(self, start: float, counted: dict[_Node, NodeSample]) -> Iterator[MinuteMeans]:
        """Yield the means of each node, in the order of their names; counters since ``counted``, which then
        is the last sample of each."""
        means, of_gpus = (
            total / np.maximum(count, 1.0) for total, count in (self._sums.gauges, self._sums.gpus)
        )
        for node, row in sorted(self._rows.items()):
            location, last = Location.of(self._first[row]), self._last[row]
            read = zip(GAUGES, means[row].tolist(), self._sums.gauges[1][row].tolist(), strict=True)
            rates = _rates(counted.get(node, self._first[row]), last)
            counted[node] = last
            gpus = last.gpu_ids if self._same_gpus[row] else ()
            each = zip(OF_GPUS, of_gpus[row], self._sums.gpus[1][row], strict=True)
            yield MinuteMeans(
                cluster=location.cluster,
                node=location.node,
                job_id=location.job_id,
                rack=location.rack,
                switch=location.switch,
                ts=due(start),
                start=start,
                samples=self._samples[row],
                means={name: x for name, x, n in read if n} | rates,
                gpus=gpus,
                of_gpus={
                    name: tuple(x[: len(gpus)].tolist())
                    for name, x, n in each
                    if gpus and n[: len(gpus)].all()
                },
            )

    def _row(self, sample: NodeSample) -> int:
        key = (sample.cluster, sample.node)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = len(self._first)
            self._first.append(sample)
            self._last.append(sample)
            self._samples.append(0)
            self._same_gpus.append(True)
        self._same_gpus[row] &= sample.gpu_ids == self._first[row].gpu_ids
        self._last[row] = sample
        self._samples[row] += 1
        return row


def _features(samples: Sequence[NodeSample], width: int) -> tuple[FloatArray, FloatArray]:
    """Return the means over the devices of each sample, [samples, features], and the readings of its GPUs,
    [samples, metrics, width]; NaN where none was read."""
    values = np.full((len(samples), len(GAUGES)), np.nan)
    of_gpus = np.full((len(samples), len(OF_GPUS), width), np.nan)
    alike: dict[tuple[int, int, int], list[int]] = {}
    for number, s in enumerate(samples):
        alike.setdefault((s.schema, len(s.gpu), len(s.host)), []).append(number)
    for (schema, _, _), numbers in alike.items():
        for first in range(0, len(numbers), _TOGETHER):
            some = numbers[first : first + _TOGETHER]
            for block, parts in (
                (SAMPLE_SCHEMAS[schema].gpu, [samples[n].gpu for n in some]),
                (SAMPLE_SCHEMAS[schema].host, [samples[n].host for n in some]),
            ):
                if not parts[0]:
                    continue
                held = stacked(block, parts)
                there = [column for column, name in enumerate(GAUGES) if name in block.offsets]
                values[np.ix_(some, there)] = _means(held, [GAUGES[c] for c in there])
                for metric, name in enumerate(OF_GPUS):
                    if name in block.offsets:
                        readings = as_float(held[name])
                        readings[~(np.abs(readings) <= LARGEST)] = np.nan
                        of_gpus[some, metric, : readings.shape[1]] = readings
    return values, of_gpus


def _means(held: dict[str, Array], names: Sequence[str]) -> FloatArray:
    """Return the means of the values read over the instances of each part, [parts, names].

    Instances are added one by one, as the order of ``sum`` depends on the shape of the array.
    """
    each = np.stack([as_float(held[name]) for name in names]).transpose(2, 1, 0)
    total, count = np.zeros((2, *each.shape[1:]))
    for values in each:
        read = np.abs(values) <= LARGEST
        total += np.where(read, values, 0.0)
        count += read
    mean: FloatArray = np.where(count > 0, total / np.maximum(count, 1.0), np.nan)
    return mean


def _rates(first: NodeSample, last: NodeSample) -> dict[str, float]:
    """Return by how much each of ``COUNTERS`` rose a second over all ports, where none began anew."""
    seconds = last.ts - first.ts
    same = (first.schema, first.boot_id, first.nic_ids) == (last.schema, last.boot_id, last.nic_ids)
    if not (same and last.nic_ids and 0 < seconds <= _LONGEST_SECONDS + WINDOW_SECONDS):
        return {}
    block: Block = SAMPLE_SCHEMAS[last.schema].nic
    before, after = columns(block, first.nic), columns(block, last.nic)
    rates = {}
    for name in COUNTERS:
        if name in block.offsets:
            read = plausible(before[name]) & plausible(after[name])
            rises = (after[name] - before[name])[read]
            if rises.size and (rises >= 0).all():
                rates[name] = float(rises.sum()) / seconds
    return rates
