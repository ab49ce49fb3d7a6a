"""A simple pipeline for comparison: JSON with named fields, and one Python object per series."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec
import orjson

from slowrank.telemetry import JobSteps, NodeSample
from slowrank.telemetry.columns import unpack
from slowrank.telemetry.schema import SAMPLE_SCHEMAS, STEP_SCHEMAS

Series = tuple[str, str, str]
"""Node, instance, metric."""


class Detector(Protocol):
    """Detector of one series."""

    def update(self, x: float) -> bool:
        """Process a value; return whether the series is in alarm."""
        ...


class RollingZ:
    """Alarm on three values in a row that are five sigma from the mean of the last minute."""

    def __init__(self, window: int = 60) -> None:
        self._values: deque[float] = deque(maxlen=window)
        self._sum = self._squares = 0.0
        self._out = 0

    def update(self, x: float) -> bool:
        values = self._values
        n = len(values)
        far = False
        if n == values.maxlen:
            mean = self._sum / n
            variance = max(self._squares / n - mean * mean, 1e-12 * mean * mean, 1e-12)
            far = abs(x - mean) > 5.0 * math.sqrt(variance)
            oldest = values[0]
            self._sum -= oldest
            self._squares -= oldest * oldest
        values.append(x)
        self._sum += x
        self._squares += x * x
        self._out = self._out + 1 if far else 0
        return self._out >= 3


class FastBocpd:
    """BOCPD of the compiled library fast-bocpd, R = 200; it never alarms."""

    def __init__(self) -> None:
        import fast_bocpd

        model, hazard = fast_bocpd.GaussianNIG(0, 1, 1, 1), fast_bocpd.ConstantHazard(250.0)
        self._detector = fast_bocpd.BOCPD(model, hazard, 200)

    def update(self, x: float) -> bool:
        self._detector.update(x)
        return False


class PlainPipeline:
    """Read JSON records and update one detector per series; ``alarms`` are the series in alarm."""

    def __init__(self, make: Callable[[], Detector]) -> None:
        self._make = make
        self._series: dict[Series, Detector] = {}
        self._counters: dict[Series, tuple[float, float]] = {}
        self.alarms: set[Series] = set()

    def __len__(self) -> int:
        return len(self._series)

    def process(self, text: bytes) -> None:
        """Process one record."""
        record = orjson.loads(text)
        node, ts = record["node"], record["ts"]
        for instance, metric, value in _readings(record):
            if value is None:
                continue
            key = (node, instance, metric)
            if metric.endswith("_total"):
                before = self._counters.get(key)
                self._counters[key] = (ts, value)
                if before is None:
                    continue
                value = (value - before[1]) / (ts - before[0])
            detector = self._series.get(key)
            if detector is None:
                detector = self._series[key] = self._make()
            if detector.update(value):
                self.alarms.add(key)


def text_of(record: NodeSample | JobSteps) -> bytes:
    """Return a record as JSON with named fields."""
    if isinstance(record, JobSteps):
        bare = msgspec.to_builtins(msgspec.structs.replace(record, rows=b""))
        return orjson.dumps(bare | {"rows": list(unpack(STEP_SCHEMAS[record.schema].rows, record.rows))})
    schema = SAMPLE_SCHEMAS[record.schema]
    bare = msgspec.to_builtins(msgspec.structs.replace(record, gpu=b"", nic=b"", host=b""))
    blocks = {name: getattr(schema, name) for name in ("gpu", "nic", "host")}
    return orjson.dumps(bare | {k: list(unpack(block, getattr(record, k))) for k, block in blocks.items()})


def _readings(record: dict[str, Any]) -> Iterator[tuple[str, str, float | None]]:
    if "rows" in record:
        for row in record["rows"]:
            yield str(row["rank"]), "compute_seconds", row["compute_seconds"]
        return
    for block, ids in (("gpu", record["gpu_ids"]), ("nic", record["nic_ids"]), ("host", ("",))):
        for instance, row in zip(ids, record[block], strict=True):
            for metric, value in row.items():
                yield instance, metric, value
