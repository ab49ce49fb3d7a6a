"""How much of its time a worker is busy, and where it reports that.

A worker that stores findings forecasts for all. Each leaves its load on the brokers, as metadata of offsets
of a group without consumers, as ``streams.runtime.kafka.partition_growth`` does with partition counts.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from slowrank.settings import Settings
from streams.runtime.kafka.message import PartitionId

# Between two reports of a worker, and how long one counts. Chosen: one that missed three has stopped.
REPORT_SECONDS = 15.0
FRESH_SECONDS = 60.0


class Report(msgspec.Struct, frozen=True):
    """The busy share of a worker's time, measured ``at`` (Unix seconds)."""

    load: float
    at: float


class Idle(Protocol):
    """Where a task of the worker waits for messages."""

    @property
    def idle_seconds(self) -> float: ...


class Metadata(Protocol):
    """Texts by partition on the brokers; both methods may raise ``KafkaError``."""

    async def metadata(self, group: str, /) -> dict[PartitionId, str]: ...

    async def store_metadata(self, group: str, texts: Mapping[PartitionId, str], /) -> None: ...


class LoadMeter:
    """Measures one worker: the larger of the CPU time of its event loop and the time that a topic was busy.

    A task that waits for the database is busy too: more messages would wait. ``clock`` is in seconds.
    """

    def __init__(self, tasks: Iterable[Idle], clock: Callable[[], float]) -> None:
        self._tasks = list(tasks)
        self._clock = clock
        self._before = self._now()
        self.load = 0.0

    def measure(self) -> float:
        """Return the load since the last call, which must be in the thread of the event loop."""
        before, self._before = self._before, self._now()
        (then, cpu, idle), (now, cpu_now, idle_now) = before, self._before
        passed = max(1e-9, now - then)
        busy = [1.0 - (b - a) / passed for a, b in zip(idle, idle_now, strict=True)]
        self.load = min(1.0, max(0.0, (cpu_now - cpu) / passed, *busy))
        return self.load

    def _now(self) -> tuple[float, float, list[float]]:
        return self._clock(), time.thread_time(), [task.idle_seconds for task in self._tasks]


def group_of(settings: Settings, role: str) -> str:
    """Return the group that holds the loads of a role."""
    return f"{settings.topic_prefix}slowrank-load-{role}"


async def leave(brokers: Metadata, group: str, places: Iterable[PartitionId], report: Report) -> None:
    """Leave a report on the brokers, for one of the worker's partitions. Raises ``KafkaError``."""
    text = msgspec.json.encode(report).decode()
    await brokers.store_metadata(group, dict.fromkeys(sorted(places)[:1], text))


async def latest(brokers: Metadata, group: str, now: float) -> Report | None:
    """Return the report of the busiest worker, None where none is fresh. Raises ``KafkaError``."""
    reports = [report for text in (await brokers.metadata(group)).values() if (report := _read(text))]
    fresh = [report for report in reports if report.at > now - FRESH_SECONDS]
    return max(fresh, key=lambda report: report.load, default=None)


def _read(text: str) -> Report | None:
    try:
        return msgspec.json.decode(text.encode(), type=Report)
    except msgspec.DecodeError:
        return None
