"""Measures how far all workers are behind and counts dead letters, and stores findings about both.

The storing worker does it for all roles: it has the database, and a worker that is down cannot report itself.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from aiokafka.errors import KafkaError

from alerts.finding import Finding
from slowrank.settings import Settings
from slowrank.telemetry.topics import DEAD_LETTERS, topic_name
from store.error_classes import UNAVAILABLE
from streams.runtime.faust_app import READS, group
from streams.runtime.kafka.offsets import Probe
from streams.runtime.monitoring.capacity import CapacityTrend, Forecast
from streams.runtime.monitoring.load import group_of, latest
from streams.runtime.monitoring.metrics import SinkMetrics
from streams.runtime.monitoring.self_findings import (
    DEAD_LETTER_WINDOW_SECONDS,
    Backlog,
    Observation,
    SelfFindings,
)

log = logging.getLogger(__name__)

# For one look. Chosen: as long as a client takes for a broker that is away, several times; the client may
# wait for ever for a deleted topic.
LONGEST_SECONDS = 30.0


class SelfMonitor:
    """``store`` blocks, takes one finding, and raises what ``store`` raises; ``wall`` is in Unix seconds."""

    def __init__(
        self,
        settings: Settings,
        *,
        store: Callable[[Finding], object],
        metrics: SinkMetrics,
        wall: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._name = partial(topic_name, prefix=settings.topic_prefix)
        self._store = store
        self._metrics = metrics
        self._wall = wall
        self._probe = Probe(settings.kafka_bootstrap, group(settings, "sink"))
        self._backlogs = {role: Backlog() for role in READS}
        self._unstored: list[Finding] = []
        # By then the watchdog has ended a stuck worker and the supervisor has started it again.
        limit = 4 * settings.streams_stall_seconds
        growing = settings.streams_lag_seconds
        self._findings = SelfFindings(
            settings.cluster, behind_seconds=limit, started=wall(), growing_seconds=growing
        )
        self._trends = {role: CapacityTrend() for role in READS}

    async def look(self) -> None:
        """Look once; what cannot be stored now is stored next time."""
        try:
            seen = await asyncio.wait_for(self._observe(), LONGEST_SECONDS)
            self._unstored += self._findings.update(self._wall(), seen)
        except (KafkaError, TimeoutError) as error:
            log.warning("the lag of the workers is unknown: %r", error)
        try:
            while self._unstored:
                # In order, and dropped only when stored: a resolved version must come after its open one.
                await asyncio.to_thread(self._store, self._unstored[0])
                self._unstored.pop(0)
        except UNAVAILABLE as error:
            log.warning(
                "%d findings about slowrank itself wait for the database: %s", len(self._unstored), error
            )

    async def close(self) -> None:
        """Disconnect from the brokers."""
        await self._probe.close()

    async def _observe(self) -> Observation:
        read = {role: {self._name(topic) for topic in topics} for role, topics in READS.items()}
        dead_letters = self._name(DEAD_LETTERS)
        places = await self._probe.partitions({dead_letters}.union(*read.values()))
        ends = await self._probe.ends(place for place in places if place[0] != dead_letters)
        behind: dict[str, float] = {}
        for role, topics in read.items():
            committed = await self._probe.committed(group(self._settings, role))
            mine = {place: end for place, end in ends.items() if place[0] in topics}
            behind[role] = self._backlogs[role].note(self._wall(), mine, committed)
            self._metrics.behind(role, behind[role])
        recent = await self._probe.count_since(
            [place for place in places if place[0] == dead_letters], self._wall() - DEAD_LETTER_WINDOW_SECONDS
        )
        return Observation(behind, recent, await self._forecasts())

    async def _forecasts(self) -> dict[str, Forecast]:
        found: dict[str, Forecast] = {}
        for role, trend in self._trends.items():
            now = self._wall()
            if (report := await latest(self._probe, group_of(self._settings, role), now)) is not None:
                trend.note(report.at, report.load)
            if (forecast := trend.forecast(now)) is not None:
                found[role] = forecast
                self._metrics.capacity(role, forecast)
        return found
