"""What the storing worker writes to and prunes from the database."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime

from alerts.config import FindingConfig
from alerts.finding import Finding
from slowrank.settings import Settings
from store import retention
from store.error_classes import UNAVAILABLE
from store.findings.findings import save
from store.findings.self_findings import save_self_finding
from store.heartbeats import Heartbeat, beat
from store.pool import open_pool
from store.telemetry.batches import write_rows
from streams.rollup.rollup import Rows
from streams.runtime.monitoring.health import Health
from streams.runtime.monitoring.metrics import SinkMetrics

log = logging.getLogger(__name__)

# Longest wait for a connection to store a finding about slowrank itself; the next look tries again.
OWN_SECONDS = 5.0


class SinkStore:
    """Calls of ``store`` over one pool of connections; they block. ``config_of`` takes a cluster's name."""

    def __init__(
        self,
        settings: Settings,
        config_of: Callable[[str], FindingConfig],
        health: Health,
        metrics: SinkMetrics,
    ) -> None:
        self._settings = settings
        self._config_of = config_of
        self._health = health
        self._metrics = metrics
        self._instance = f"{socket.gethostname()}-{os.getpid()}"
        self._pool = open_pool(settings.dsn(), max_size=4, name="slowrank-streams")

    def save(self, finding: Finding) -> None:
        """Store a version of a finding, and measure how long it took from the onset."""
        with self._pool.connection() as conn:
            change = save(conn, finding, self._config_of(finding.subject.cluster))
        self._metrics.saved(finding, change, time.time() - finding.onset)

    def save_own(self, finding: Finding) -> None:
        """Store a finding about slowrank itself."""
        with self._pool.connection(timeout=OWN_SECONDS) as conn:
            save_self_finding(conn, finding, self._config_of(finding.subject.cluster))

    def write(self, rows: Rows) -> None:
        """Store roll-ups and paces."""
        with self._pool.connection() as conn:
            write_rows(conn, rows)

    def beat(self) -> None:
        """Store the worker's heartbeat; log where the database does not answer."""
        try:
            with self._pool.connection(timeout=2.0) as conn:
                beat(conn, Heartbeat("streams", self._instance, datetime.now(UTC), self._health.report()))
        except UNAVAILABLE as error:
            log.warning("no heartbeat could be stored: %s", error)

    async def prune(self) -> None:
        """Delete what is past its retention; log where the database does not answer."""

        def pruned() -> None:
            with self._pool.connection() as conn:
                now = datetime.now(UTC)
                retention.prune_as_sink(conn, self._settings, now=now, config_of=self._config_of)

        try:
            await asyncio.to_thread(pruned)
        except UNAVAILABLE as error:
            log.warning("old rows are kept until the next attempt: %s", error)

    def close(self) -> None:
        """Close the connections; wait five seconds for those in use."""
        self._pool.close(5.0)
