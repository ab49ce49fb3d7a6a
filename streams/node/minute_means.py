"""The means of each node's features by the minute, for the comparison of nodes in the cluster stage.

Samples are keyed by node, so that no worker has all nodes of a cluster (docs/decisions/0013).
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from slowrank.telemetry import MinuteMeans, NodeSample
from slowrank.telemetry.schema import SAMPLE_SCHEMAS, Block
from streams.columns import FloatArray, as_float, stacked
from streams.gray_features import FEATURES, LARGEST, WINDOW_SECONDS, due
from streams.node.node_table import turns
from streams.suspicions import Location

_FEWEST_ROWS = 64

# Samples in one operation. Measured: their columns stay in the CPU cache, half the time of a whole fleet at
# once.
_TOGETHER = 512


class MinuteSums:
    """Sums each node's features by whole minutes of event time.

    A node's samples are added one by one, in their order: batches and other nodes change no bit of the sums.
    """

    def __init__(self) -> None:
        self._minutes: dict[float, _Minute] = {}
        self._now = -math.inf

    def take(self, samples: Sequence[NodeSample]) -> None:
        """Add samples; those of a minute that was sent are too late."""
        by_minute: dict[float, list[NodeSample]] = {}
        for sample in samples:
            by_minute.setdefault(sample.ts // WINDOW_SECONDS * WINDOW_SECONDS, []).append(sample)
        for start, taken in by_minute.items():
            if due(start) > self._now:
                self._minutes.setdefault(start, _Minute()).add(taken)

    def tick(self, event_time: float) -> list[MinuteMeans]:
        """Return the means of each node in the minutes that are over by ``event_time``."""
        self._now = max(self._now, event_time)
        over = sorted(start for start in self._minutes if due(start) <= self._now)
        return [row for start in over for row in self._minutes.pop(start).rows(start)]


class _Minute:
    """The sums of one minute, a row for each node; job, rack and switch are those of its first sample."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], int] = {}
        self._locations: list[Location] = []
        self._sums = np.zeros((_FEWEST_ROWS, len(FEATURES)))
        self._read = np.zeros((_FEWEST_ROWS, len(FEATURES)))
        self._samples = np.zeros(_FEWEST_ROWS)

    def add(self, samples: Sequence[NodeSample]) -> None:
        values = _features(samples)
        read = ~np.isnan(values)
        values[~read] = 0.0
        rows = np.array([self._row(sample) for sample in samples])
        # ``+=`` by index would keep only the second of two samples of one node.
        for turn in turns(samples):
            self._sums[rows[turn]] += values[turn]
            self._read[rows[turn]] += read[turn]
            self._samples[rows[turn]] += 1.0

    def rows(self, start: float) -> Iterator[MinuteMeans]:
        """Yield the means of each node, in the order of their names."""
        means = self._sums / np.maximum(self._read, 1.0)
        for _, row in sorted(self._rows.items()):
            values = zip(FEATURES, means[row].tolist(), self._read[row].tolist(), strict=True)
            location = self._locations[row]
            yield MinuteMeans(
                cluster=location.cluster,
                node=location.node,
                job_id=location.job_id,
                rack=location.rack,
                switch=location.switch,
                ts=due(start),
                start=start,
                samples=int(self._samples[row]),
                means={name: x for name, x, n in values if n},
            )

    def _row(self, sample: NodeSample) -> int:
        key = (sample.cluster, sample.node)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = len(self._locations)
            self._locations.append(Location.of(sample))
            if row == len(self._samples):
                self._sums, self._read = _doubled(self._sums), _doubled(self._read)
                self._samples = _doubled(self._samples)
        return row


def _doubled(table: FloatArray) -> FloatArray:
    return np.concatenate((table, np.zeros_like(table)))


def _features(samples: Sequence[NodeSample]) -> FloatArray:
    """Return the means over the devices of each sample, [samples, features]; NaN where none was read."""
    values = np.full((len(samples), len(FEATURES)), np.nan)
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
                there = [column for column, name in enumerate(FEATURES) if name in block.offsets]
                if parts[0]:
                    values[np.ix_(some, there)] = _means(block, parts, [FEATURES[c] for c in there])
    return values


def _means(block: Block, parts: Sequence[bytes], names: Sequence[str]) -> FloatArray:
    """Return the means of the values read over the instances of each part, [parts, names].

    Instances are added one by one, as the order of ``sum`` depends on the shape of the array.
    """
    held = stacked(block, parts)
    total, count = np.zeros((2, len(parts), len(names)))
    for values in np.stack([as_float(held[name]) for name in names]).transpose(2, 1, 0):
        read = np.abs(values) <= LARGEST
        total += np.where(read, values, 0.0)
        count += read
    mean: FloatArray = np.where(count > 0, total / np.maximum(count, 1.0), np.nan)
    return mean
