"""What each node read in a minute: told by the node stage, compared by the finding stage.

Nodes are keyed one by one, so no worker sees all of a cluster; they come together where its suspicions do
(docs/decisions/0013). A node's minute goes there as the end of a suspicion that nobody ever raised.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from slowrank.telemetry import NodeSample, Suspicion
from slowrank.telemetry.schema import SAMPLE_SCHEMAS, Block
from streams.arrays import FloatArray, as_float, stacked
from streams.fleet import turns
from streams.suspicions import Place, told

READINGS_KIND = "self.readings"

FEATURES = (
    "gpu.utilization_ratio", "gpu.memory_utilization_ratio", "gpu.tensor_active_ratio",
    "gpu.dram_active_ratio", "gpu.clock.sm_hz", "gpu.clock.mem_hz", "gpu.power_watts", "gpu.temp_celsius",
    "gpu.temp.mem_celsius", "gpu.pcie.tx_bytes_per_second", "gpu.pcie.rx_bytes_per_second",
    "gpu.nvml_call_seconds", "host.cpu.utilization_ratio", "host.cpu.iowait_ratio", "host.cpu.steal_ratio",
    "host.load1", "host.run_queue", "host.pressure.cpu_some_ratio", "host.pressure.memory_some_ratio",
    "host.pressure.io_some_ratio",
)  # fmt: skip

SAMPLES = "samples"
"""Beside the features: of how many samples a minute is made."""

WINDOW_SECONDS = 60.0
LATE_SECONDS = 10.0
"""A minute is told, and judged, so long after its end."""

LARGEST = 1e15
"""In its unit: whatever is beyond is no reading of any feature."""

_FEWEST_ROWS = 64
# Samples whose columns stay in the cache of the processor: half the time of a whole fleet at once.
_TOGETHER = 512


class Readings:
    """Sums each node's features by whole minutes of event time, and tells their means.

    A node's sums are made of its samples one by one, in their order: how samples are cut into batches, and
    which nodes stand beside it, changes no bit of them.
    """

    def __init__(self) -> None:
        self._minutes: dict[float, _Minute] = {}
        self._now = -math.inf

    def take(self, samples: Sequence[NodeSample]) -> None:
        """Take samples; those of a minute that was told are too late."""
        by_minute: dict[float, list[NodeSample]] = {}
        for sample in samples:
            by_minute.setdefault(sample.ts // WINDOW_SECONDS * WINDOW_SECONDS, []).append(sample)
        for start, taken in by_minute.items():
            if due(start) > self._now:
                self._minutes.setdefault(start, _Minute()).add(taken)

    def tick(self, event_time: float) -> list[Suspicion]:
        """Return what each node read in the minutes that are over by ``event_time``."""
        self._now = max(self._now, event_time)
        over = sorted(start for start in self._minutes if due(start) <= self._now)
        return [row for start in over for row in self._minutes.pop(start).rows(start)]


def due(start: float) -> float:
    """Return when (event time) the minute that begins at ``start`` is told and judged."""
    return start + WINDOW_SECONDS + LATE_SECONDS


def means_of(minute: Suspicion) -> list[float]:
    """Return the means of ``FEATURES`` in a node's minute; NaN is not read."""
    return [minute.readings.get(name, math.nan) for name in FEATURES]


class _Minute:
    """The sums of one minute, a row for each node; where it stands is what its first sample says."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], int] = {}
        self._places: list[Place] = []
        self._sums = np.zeros((_FEWEST_ROWS, len(FEATURES)))
        self._read = np.zeros((_FEWEST_ROWS, len(FEATURES)))
        self._samples = np.zeros(_FEWEST_ROWS)

    def add(self, samples: Sequence[NodeSample]) -> None:
        values = _features(samples)
        read = ~np.isnan(values)
        values[~read] = 0.0
        rows = np.array([self._row(sample) for sample in samples])
        # Of a node that is there twice ``+=`` would keep the second alone.
        for turn in turns(samples):
            self._sums[rows[turn]] += values[turn]
            self._read[rows[turn]] += read[turn]
            self._samples[rows[turn]] += 1.0

    def rows(self, start: float) -> Iterator[Suspicion]:
        """Yield what each node read, in the order of their names."""
        means = self._sums / np.maximum(self._read, 1.0)
        for _, row in sorted(self._rows.items()):
            values = zip(FEATURES, means[row].tolist(), self._read[row].tolist(), strict=True)
            readings = {SAMPLES: float(self._samples[row])}
            yield told(
                READINGS_KIND,
                self._places[row].whole_node(),
                detector="gray",
                family="telemetry",
                ts=due(start),
                onset=start,
                readings=readings | {name: x for name, x, n in values if n},
            )

    def _row(self, sample: NodeSample) -> int:
        key = (sample.cluster, sample.node)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = len(self._places)
            self._places.append(Place.of(sample))
            if row == len(self._samples):
                self._sums, self._read = _doubled(self._sums), _doubled(self._read)
                self._samples = _doubled(self._samples)
        return row


def _doubled(table: FloatArray) -> FloatArray:
    return np.concatenate((table, np.zeros_like(table)))


def _features(samples: Sequence[NodeSample]) -> FloatArray:
    """Return [samples, features]: of each sample the mean over its devices, NaN where none was read."""
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
                there = [column for column, name in enumerate(FEATURES) if name in block.places]
                if parts[0]:
                    values[np.ix_(some, there)] = _means(block, parts, [FEATURES[c] for c in there])
    return values


def _means(block: Block, parts: Sequence[bytes], names: Sequence[str]) -> FloatArray:
    """Return [parts, names]: the mean of what was read over the instances of each part.

    Instance by instance, as ``sum`` promises no order: a mean is the same whatever stands beside it.
    """
    held = stacked(block, parts)
    total, count = np.zeros((2, len(parts), len(names)))
    for values in np.stack([as_float(held[name]) for name in names]).transpose(2, 1, 0):
        read = np.abs(values) <= LARGEST
        total += np.where(read, values, 0.0)
        count += read
    mean: FloatArray = np.where(count > 0, total / np.maximum(count, 1.0), np.nan)
    return mean
