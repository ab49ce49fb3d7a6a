"""One tick of a node: read every collector once and build the records to send."""

import itertools
import logging
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from exporters.collector import Collector, Columns, Event, Instant, Reading, StepRows
from exporters.current_job import CurrentJob
from exporters.spool import Dropped, SpoolStats
from slowrank.telemetry import JobSteps, NodeEvent, NodeSample, Record
from slowrank.telemetry.checks import MAX_INSTANCES, MAX_STEP_ROWS, MAX_TEXT
from slowrank.telemetry.columns import Value, pack, step_schema_of
from slowrank.telemetry.schema import CURRENT_SAMPLE_SCHEMA, SAMPLE_SCHEMAS

_log = logging.getLogger(__name__)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._:/-]")
# A whole number beyond this does not fit its column, and one from a driver is a sentinel.
_INT64 = 2**63
# A larger number becomes infinity in a 32-bit column.
_FLOAT32_MAX = 3.4e38

# The columns that the exporter fills itself, on every machine.
OWN_COLUMNS = (
    "exporter.scrape_duration_seconds",
    "exporter.spool_bytes",
    "exporter.spool_dropped_total",
    "exporter.spool_free_bytes",
    "exporter.step_rows_dropped_total",
)


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Identity of the sender; ``boot_id`` is new for every start of the exporter: no ``seq`` repeats.

    ``labels`` locate the node (rack, switch) and are part of every sample.
    """

    cluster: str
    node: str
    boot_id: str
    labels: Mapping[str, str] = field(default_factory=dict)


class Exporter:
    """Build the records of one node: a ``NodeSample`` a tick, and ``JobSteps`` and ``NodeEvent``."""

    def __init__(self, identity: NodeIdentity, collectors: Sequence[Collector]) -> None:
        self._identity = identity
        self._collectors = collectors
        # One sequence for each topic, so that a gap in it means dropped records.
        self._sample_seq = itertools.count()
        self._steps_seq = itertools.count()
        self._event_seq = itertools.count()
        self._job = CurrentJob()
        self._failures: Counter[str] = Counter()
        self._seconds = math.nan
        self._ticks = 0

    def tick(self, now: Instant, spool: SpoolStats, drops: Sequence[Dropped] = ()) -> list[Record]:
        """Read every collector and return the records, the sample first.

        ``drops`` are the records dropped since the last tick, which are reported to the consumers.
        """
        readings = [self._collect(collector, now) for collector in self._collectors]
        steps = [rows for reading in readings for rows in reading.steps]
        self._job.update(steps, now.monotonic)
        events = [event for reading in readings for event in reading.events]
        events += [_drop_event(drop, now) for drop in drops]
        self._ticks += 1
        return [
            self._sample(readings, now, self._own_columns(spool)),
            *(record for rows in steps for record in self._steps(rows, now)),
            *(self._event(event) for event in events),
        ]

    def took(self, seconds: float) -> None:
        """Record how long the last tick took, for the next sample."""
        self._seconds = seconds

    def metrics(self) -> dict[str, float]:
        """Return the exporter's and its collectors' counters by metric name without prefix."""
        found: dict[str, float] = {"ticks_total": self._ticks, "scrape_duration_seconds": self._seconds}
        for collector in self._collectors:
            name = collector.name
            found[f'collector_failures_total{{collector="{name}"}}'] = self._failures[name]
            found.update(collector.metrics())
        return found

    def close(self) -> None:
        """Close every collector."""
        for collector in self._collectors:
            collector.close()

    def _collect(self, collector: Collector, now: Instant) -> Reading:
        try:
            return collector.collect(now)
        except Exception:
            # The supervising loop of this process: a broken collector must not stop the others.
            self._failures[collector.name] += 1
            if self._failures[collector.name] == 1:
                _log.exception("collector %s failed; its values are missing", collector.name)
            return Reading()

    def _own_columns(self, spool: SpoolStats) -> Columns:
        counters: dict[str, float] = {}
        for collector in self._collectors:
            counters.update(collector.metrics())
        return {
            "exporter.scrape_duration_seconds": self._seconds,
            "exporter.spool_bytes": spool.bytes,
            "exporter.spool_dropped_total": spool.dropped_total,
            "exporter.spool_free_bytes": spool.free_bytes,
            "exporter.step_rows_dropped_total": counters.get("step_rows_dropped_total"),
        }

    def _sample(self, readings: Sequence[Reading], now: Instant, own: Columns) -> NodeSample:
        schema = SAMPLE_SCHEMAS[CURRENT_SAMPLE_SCHEMA]
        gpu = _merged(reading.gpu for reading in readings)
        nic = _merged(reading.nic for reading in readings)
        host = {name: value for reading in readings for name, value in reading.host.items()} | dict(own)
        return NodeSample(
            schema=schema.id,
            cluster=self._identity.cluster,
            node=self._identity.node,
            boot_id=self._identity.boot_id,
            seq=next(self._sample_seq),
            ts=now.wall,
            job_id=self._job.job_id(),
            labels={
                **self._identity.labels,
                **{name: value for reading in readings for name, value in reading.labels.items()},
            },
            gpu_ids=tuple(gpu),
            nic_ids=tuple(nic),
            row_bytes=schema.row_bytes,
            gpu=pack(schema.gpu, list(gpu.values())),
            nic=pack(schema.nic, list(nic.values())),
            host=pack(schema.host, [_packable(host)]),
        )

    def _steps(self, steps: StepRows, now: Instant) -> Iterator[JobSteps]:
        for start in range(0, max(len(steps.rows), len(steps.open)), MAX_STEP_ROWS):
            rows = steps.rows[start : start + MAX_STEP_ROWS]
            schema = step_schema_of(rows)
            yield JobSteps(
                schema=schema.id,
                cluster=self._identity.cluster,
                job_id=steps.job_id,
                attempt=steps.attempt,
                node=self._identity.node,
                boot_id=self._identity.boot_id,
                seq=next(self._steps_seq),
                ts=now.wall,
                world_size=steps.world_size,
                labels=dict(steps.labels),
                row_bytes=schema.row_bytes,
                rows=pack(schema.rows, rows),
                open=steps.open[start : start + MAX_STEP_ROWS],
            )

    def _event(self, event: Event) -> NodeEvent:
        return NodeEvent(
            cluster=self._identity.cluster,
            node=self._identity.node,
            boot_id=self._identity.boot_id,
            seq=next(self._event_seq),
            ts=event.ts,
            source=event.source,
            code=event.code,
            severity=event.severity,
            subject={k: _name(v) if isinstance(v, str) else v for k, v in event.subject.items()},
            message=event.message[:MAX_TEXT],
            raw=event.raw[:MAX_TEXT],
        )


def _merged(parts: Iterator[Mapping[str, Columns]]) -> dict[str, dict[str, Value]]:
    instances: dict[str, dict[str, Value]] = {}
    for part in parts:
        for instance, columns in part.items():
            name = _name(instance)
            if name in instances or len(instances) < MAX_INSTANCES:
                instances.setdefault(name, {}).update(_packable(columns))
    return instances


def _packable(columns: Columns) -> dict[str, Value]:
    """Leave out values that do not fit their column: a counter beyond int64 is a driver's sentinel."""
    return {
        name: value
        for name, value in columns.items()
        if value is not None
        and (abs(value) < _INT64 if isinstance(value, int) else abs(value) < _FLOAT32_MAX)
    }


def _name(text: str) -> str:
    return _NOT_IN_NAMES.sub("-", text[:128]) or "-"


def _drop_event(drop: Dropped, now: Instant) -> Event:
    lost = f"{drop.records} records of boot {drop.boot_id}, seq {drop.first_seq} to {drop.last_seq}"
    return Event(
        ts=now.wall,
        source="exporter",
        code="exporter.records_lost",
        severity="warning",
        subject={"records": drop.records},
        message=f"{lost}, were dropped before they could be sent: {drop.reason}",
    )
