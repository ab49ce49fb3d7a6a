"""How the GPUs of a node run under load by the minute, for the comparison with the job's other nodes.

Samples are keyed by node, so that no worker has all nodes of a job (docs/decisions/0013).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from detectors.robust import nan_median
from slowrank.telemetry import LoadedMinute, NodeSample
from slowrank.telemetry.messages import HeldBy
from slowrank.telemetry.schema import SAMPLE_SCHEMAS
from streams.columns import FloatArray, Mask, as_float, stacked
from streams.gray_features import WINDOW_SECONDS, due
from streams.node.detectors.clock_history import BUSY, CLOCK
from streams.node.rules.state_rules import HW_SLOWDOWN, HW_THERMAL, POWER_BRAKE, SW_POWER_CAP, SW_THERMAL
from streams.suspicions import Location

# One sample of a node in so many seconds is read. Chosen: six a minute show a level as well as sixty do.
EVERY_SECONDS = 10.0

# Bits of NVML's reasons, the gravest first: the software power cap is usual at full load.
_HELD_BY: tuple[tuple[HeldBy, int], ...] = (
    ("thermal", SW_THERMAL | HW_THERMAL),
    ("power_brake", POWER_BRAKE),
    ("slowdown", HW_SLOWDOWN),
    ("power_cap", SW_POWER_CAP),
)

_Key = tuple[str, str, str]
"""Cluster, node and job ("": none is named)."""


@dataclass(slots=True)
class _Loaded:
    """The samples of a node in one minute: how many were read, and those of them under load."""

    location: Location
    since: float = math.inf
    read: int = 0
    clocks: list[float] = field(default_factory=list)
    used: list[float] = field(default_factory=list)
    limit: float = 0.0
    model: str = ""
    bits: int = -1


class LoadedMinutes:
    """Gathers the samples of nodes with GPUs, by job where they name it; batches change nothing."""

    def __init__(self) -> None:
        self._minutes: dict[float, dict[_Key, _Loaded]] = {}
        self._read_at: dict[tuple[str, str], float] = {}
        self._now = -math.inf

    def take(self, samples: Sequence[NodeSample]) -> None:
        """Add samples; those of a minute that was sent are too late."""
        alike: dict[tuple[int, int], list[NodeSample]] = {}
        for sample in samples:
            if sample.gpu and self._is_due(sample):
                alike.setdefault((sample.schema, len(sample.gpu)), []).append(sample)
        for some in alike.values():
            self._add(some)

    def tick(self, event_time: float) -> list[LoadedMinute]:
        """Return the minutes that are over by ``event_time``, of the nodes that were loaded in them."""
        self._now = max(self._now, event_time)
        over = sorted(start for start in self._minutes if due(start) <= self._now)
        if over:
            self._read_at = {node: at for node, at in self._read_at.items() if at > over[-1]}
        return [minute for start in over for minute in _sent(start, self._minutes.pop(start))]

    def _is_due(self, sample: NodeSample) -> bool:
        node, turn = (sample.cluster, sample.node), sample.ts // EVERY_SECONDS * EVERY_SECONDS
        if self._read_at.get(node) == turn or due(_start(sample)) <= self._now:
            return False
        self._read_at[node] = turn
        return True

    def _add(self, samples: Sequence[NodeSample]) -> None:
        """Add samples of one shape."""
        held = stacked(SAMPLE_SCHEMAS[samples[0].schema].gpu, [s.gpu for s in samples])
        used = as_float(held["gpu.utilization_ratio"])
        loaded = used > BUSY

        def median(metric: str) -> FloatArray:
            return nan_median(np.where(loaded, as_float(held[metric]), np.nan), axis=1)

        clock, limit, fastest = map(median, (CLOCK, "gpu.power_limit_watts", "gpu.clock.sm_max_hz"))
        at_work = nan_median(np.where(loaded, used, np.nan), axis=1)
        bits = _shared_bits(as_float(held["gpu.throttle_reasons"]), loaded)
        # Fewer than half of the GPUs do not stand for the node, and a clock below 1 Hz is no reading.
        counts = (2 * loaded.sum(axis=1) >= loaded.shape[1]) & (clock >= 1)
        for k, sample in enumerate(samples):
            minute = self._minute(sample)
            minute.read += 1
            if counts[k]:
                minute.since = min(minute.since, sample.ts)
                minute.clocks.append(float(clock[k]))
                minute.used.append(float(at_work[k]))
                minute.limit = float(np.nan_to_num(limit[k])) or minute.limit
                known = f"{fastest[k] / 1e6:.0f} MHz" if fastest[k] > 0 else minute.model
                minute.model = sample.labels.get("gpu_model") or known
                minute.bits = max(minute.bits, 0) | bits[k] if bits[k] >= 0 else minute.bits

    def _minute(self, sample: NodeSample) -> _Loaded:
        minutes = self._minutes.setdefault(_start(sample), {})
        key = sample.cluster, sample.node, sample.job_id or ""
        if key not in minutes:
            minutes[key] = _Loaded(Location.of(sample))
        return minutes[key]


def _start(sample: NodeSample) -> float:
    return sample.ts // WINDOW_SECONDS * WINDOW_SECONDS


def _shared_bits(reasons: FloatArray, loaded: Mask) -> list[int]:
    """Return for each sample the bits of reasons [n, gpus] that half of its loaded GPUs have or more; -1
    where no reasons are read."""
    read = loaded & (reasons >= 0)
    bits = np.where(read, reasons, 0).astype(np.int64)
    count = read.sum(axis=1)
    shared = np.zeros(len(reasons), np.int64)
    for _, some in _HELD_BY:
        shared |= np.where(2 * (bits & some != 0).sum(axis=1) >= np.maximum(count, 1), some, 0)
    found: list[int] = np.where(count > 0, shared, -1).tolist()
    return found


def _sent(start: float, minutes: dict[_Key, _Loaded]) -> Iterator[LoadedMinute]:
    for _, minute in sorted(minutes.items()):
        # A node that pauses for most of the minute has no level.
        if minute.clocks and 2 * len(minute.clocks) >= minute.read:
            yield _message(start, minute)


def _message(start: float, minute: _Loaded) -> LoadedMinute:
    at = minute.location
    held: HeldBy = next((name for name, some in _HELD_BY if minute.bits & some), "nothing")
    return LoadedMinute(
        cluster=at.cluster,
        node=at.node,
        job_id=at.job_id,
        rack=at.rack,
        switch=at.switch,
        ts=due(start),
        start=start,
        since=minute.since,
        model=minute.model,
        clock_hz=math.fsum(minute.clocks) / len(minute.clocks),
        utilization_ratio=math.fsum(minute.used) / len(minute.used),
        limit_watts=minute.limit,
        held_by="unknown" if minute.bits < 0 else held,
    )
