"""The bus of one process: records from anywhere, one at a time, through the wire format and the pipeline.

What Kafka, the stream workers and their sinks are to a fleet: the same codec, stages and store.
"""

import logging
import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

import psycopg
from psycopg_pool import ConnectionPool

from alerts.finding import Finding
from slowrank.telemetry import (
    BadRecord,
    JobSteps,
    NodeEvent,
    NodeSample,
    Record,
    decode_event,
    decode_sample,
    decode_steps,
    encode,
)
from store import findings
from store.failures import AWAY, REFUSED
from store.heartbeats import Heartbeat, beat
from store.rows import write_rows
from streams.dead_letters import STORE_REFUSED
from streams.rollup import Rows
from streams.topology import Pipeline, local_pipeline
from streams.tuning import Tuning

log = logging.getLogger(__name__)

# Whoever may ingest invents names, and each holds a pipeline with all of its detectors.
MAX_CLUSTERS = 64
MAX_UNSAVED = 100_000
# Well below the 60 s after which /readyz misses a process (api.routes.health.STALE).
BEAT_SECONDS = 10.0

_DECODERS: dict[type, Callable[..., Record]] = {
    NodeSample: decode_sample,
    JobSteps: decode_steps,
    NodeEvent: decode_event,
}


class Bus:
    """Takes records and keeps what they give rise to in the database; may be called from any thread.

    Each cluster has a pipeline of its own, because each has its own event time. While the database is away
    findings and roll-ups wait in memory, at most ``MAX_UNSAVED`` of them.
    """

    def __init__(
        self, pool: ConnectionPool[psycopg.Connection], *, now: Callable[[], float], tuning: Tuning
    ) -> None:
        self._pool = pool
        self._now = now
        self._tuning = tuning
        self._lock = threading.Lock()
        self._pipelines: dict[str, Pipeline] = {}
        self._findings: list[Finding] = []
        self._rows: Rows = []
        self._beaten = -math.inf
        self.refused: Counter[str] = Counter()
        self.accepted = 0

    @property
    def set_aside(self) -> int:
        """How many records and suspicions a stage has raised on: bugs, each in the log."""
        return sum(pipeline.set_aside.total() for pipeline in list(self._pipelines.values()))

    def accept(self, records: Sequence[Record]) -> Mapping[int, BadRecord]:
        """Take records, in order; what they gave rise to is stored when this returns.

        A record that breaks a rule is left out, counted in ``refused`` and returned by its index.
        """
        refused: dict[int, BadRecord] = {}
        with self._lock:
            for index, record in enumerate(records):
                try:
                    self._take(record)
                except BadRecord as bad:
                    self.refused[bad.reason] += 1
                    refused[index] = bad
            self._save()
        return refused

    def finish(self, cluster: str) -> None:
        """Let the event time of a cluster that has ended reach its last record."""
        with self._lock:
            if cluster in self._pipelines:
                self._findings += self._pipelines[cluster].finish()
            self._save()

    def _take(self, record: Record) -> None:
        received = _DECODERS[type(record)](encode(record), now=self._now())
        self._findings += self._pipeline(received.cluster).process(received)
        self.accepted += 1

    def _pipeline(self, cluster: str) -> Pipeline:
        if cluster not in self._pipelines:
            if len(self._pipelines) >= MAX_CLUSTERS:
                raise BadRecord("too_many_instances", f"{MAX_CLUSTERS} clusters are open already")
            self._pipelines[cluster] = local_pipeline(self._tuning, on_rows=self._keep)
        return self._pipelines[cluster]

    def _keep(self, rows: Rows) -> None:
        self._rows += rows

    def _save(self) -> None:
        now = self._now()
        if not self._findings and not self._rows and now - self._beaten < BEAT_SECONDS:
            return
        try:
            with self._pool.connection() as conn:
                self._beat(conn, now)
                while self._findings:
                    first = self._findings[0]
                    config = self._tuning.finding(first.subject.cluster)
                    self._store(first.id, partial(findings.save, conn, first, config))
                    # Only now: what a lost connection interrupts is the first to be stored when it is back.
                    self._findings.pop(0)
                self._store("roll-ups", partial(write_rows, conn, self._rows))
                self._rows.clear()
        except AWAY as error:
            log.warning("the database is away, %d findings wait: %s", len(self._findings), error)
            del self._findings[:-MAX_UNSAVED], self._rows[:-MAX_UNSAVED]

    def _store(self, what: str, store: Callable[[], object]) -> None:
        """Store one thing; what the database refuses each time must not hold up the rest."""
        try:
            store()
        except REFUSED as error:
            self.refused[STORE_REFUSED] += 1
            log.error("the store refuses %s: %s", what, error)

    def _beat(self, conn: psycopg.Connection, now: float) -> None:
        detail = {"accepted": self.accepted, "refused": self.refused.total(), "set_aside": self.set_aside}
        at = datetime.fromtimestamp(now, UTC)
        beat(conn, Heartbeat("streams", f"local-{os.getpid()}", at, detail))
        self._beaten = now
