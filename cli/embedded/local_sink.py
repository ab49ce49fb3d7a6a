"""The bus of one process: records from anywhere, one at a time, through the wire format and the pipeline.

What Kafka, the stream workers and their sinks are to a fleet: the same codec, stages and store.
"""

import logging
import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
from slowrank.telemetry.checks import BAD_TIME
from store import findings
from store.failures import AWAY, REFUSED
from store.heartbeats import Heartbeat, beat
from store.rows import write_rows
from streams.clocks import Clocks
from streams.dead_letters import STORE_REFUSED
from streams.job_memory import JobMemory
from streams.job_stage import DEFAULT_MEMORY_BYTES
from streams.lanes import LIVE_SECONDS
from streams.receive_time import ReceiveTime
from streams.reorder import MOST, PATIENCE_SECONDS
from streams.rollup import Rows
from streams.topology import Pipeline, local_pipeline
from streams.tuning import Tuning

log = logging.getLogger(__name__)

# Whoever may ingest invents names, and each holds a pipeline with all of its detectors.
MAX_CLUSTERS = 64
# A cluster without a record for so long makes room for a new one when there are too many: its nodes have left
# (streams.silence.SilenceConfig.expected), and its findings are in the database.
ABANDONED_SECONDS = 3600.0
# Event time follows the second last of five records. Where no further record comes for so long (five reports
# of an exporter), what came is judged without: a fatal event may be the last thing that a machine sends.
SETTLE_SECONDS = 5.0
# Behind the time of the last message: another node's record of the same second may still be on its way.
MARGIN_SECONDS = 5.0
MAX_UNSAVED = 100_000
# Well below the 60 s after which /readyz misses a process (api.routes.health.STALE).
BEAT_SECONDS = 10.0

_DECODERS: dict[type, Callable[..., Record]] = {
    NodeSample: decode_sample,
    JobSteps: decode_steps,
    NodeEvent: decode_event,
}


@dataclass(slots=True)
class _Cluster:
    """A cluster's pipeline, and the receive time that moves it while no record comes.

    ``live``: the last record was of this minute, and nobody said that it was the last. ``moved``: receive
    time has moved the pipeline since. After such a silence the senders empty what they kept one after the
    other: the records of the first seconds are held back and taken in order of their time, so that the first
    sender does not make the others look late.
    """

    pipeline: Pipeline
    tuning: Tuning
    received: float
    receive: ReceiveTime = field(default_factory=ReceiveTime)
    event_time: float = -math.inf
    live: bool = False
    moved: bool = False
    settled: bool = False
    clocks: Clocks[None] = field(default_factory=Clocks)
    held: list[Record] = field(default_factory=list)
    until: float = -math.inf

    def take(self, record: Record, now: float, *, fits: bool = True) -> list[Finding] | None:
        """Take a record that came at ``now`` (Unix seconds); return the findings of it.

        None: it does not fit into the limits of time, and nothing is known of its node's clock.
        """
        ready = self.clocks.take(record, None, logged=now, fits=fits)
        if not ready and not fits:
            return None
        self.received, self.settled = now, False
        return self._taken(ready, now)

    def _taken(self, ready: Sequence[tuple[Record, None]], now: float) -> list[Finding]:
        judged = map(self.tuning.judged, self.clocks.news())
        findings = self.pipeline.suspect([s for s in judged if s is not None])
        for record, _ in ready:
            if self.moved:
                self.moved, self.until = False, now + PATIENCE_SECONDS
            if now >= self.until:
                findings += self.pipeline.process(record)
                continue
            self.held.append(record)
            findings += self.release() if len(self.held) >= MOST else []
        return findings

    def batch_ended(self, now: float) -> None:
        """Take that a batch of records ended at ``now``."""
        self.receive.received()
        self.event_time = self.pipeline.time
        self.live = bool(self.held) or self.event_time > now - LIVE_SECONDS

    def tick(self, now: float) -> list[Finding]:
        """Let receive time come to ``now``; return the findings of that."""
        seconds = self.receive.look(now, listening=True)
        findings = self._taken(self.clocks.reach(now), now)
        if self.held:
            return findings + (self.release() if now >= self.until else [])
        if not self.settled and now - self.received >= SETTLE_SECONDS:
            self.settled = True
            findings += self.pipeline.catch_up()
        if not self.live or not seconds:
            return findings
        self.moved = True
        return findings + self.pipeline.tick(self.event_time + seconds - MARGIN_SECONDS)

    def release(self) -> list[Finding]:
        """Take what was held back, in order of its time."""
        held, self.held = sorted(self.held, key=lambda record: record.ts), []
        self.until = -math.inf
        findings = [finding for record in held for finding in self.pipeline.process(record)]
        self.event_time = self.pipeline.time
        return findings

    def finish(self) -> list[Finding]:
        """Take that the last record has come."""
        self.live = False
        kept = self._taken(self.clocks.reach(math.inf), math.inf)
        return [*kept, *self.release(), *self.pipeline.finish()]


class Bus:
    """Takes records and keeps what they give rise to in the database; may be called from any thread.

    Each cluster has a pipeline of its own, because each has its own event time. ``tick`` moves on the time of
    those from which nothing comes. While the database is away findings and roll-ups wait in memory, at most
    ``MAX_UNSAVED`` of them.
    """

    def __init__(
        self,
        pool: ConnectionPool[psycopg.Connection],
        *,
        now: Callable[[], float],
        tuning: Tuning,
        job_memory_bytes: int = DEFAULT_MEMORY_BYTES,
    ) -> None:
        self._pool = pool
        self._now = now
        self._tuning = tuning
        self._job_memory_bytes = job_memory_bytes
        self._lock = threading.Lock()
        self._clusters: dict[str, _Cluster] = {}
        self._findings: list[Finding] = []
        self._rows: Rows = []
        self._beaten = -math.inf
        self.refused: Counter[str] = Counter()
        self.accepted = 0
        self.jobs = JobMemory()

    @property
    def set_aside(self) -> int:
        """How many records and suspicions a stage has raised on: bugs, each in the log."""
        return sum(cluster.pipeline.set_aside.total() for cluster in list(self._clusters.values()))

    def accept(self, records: Sequence[Record]) -> Mapping[int, BadRecord]:
        """Take records, in order; what they gave rise to is stored when this returns.

        A record that breaks a rule is left out, counted in ``refused`` and returned by its index.
        """
        refused: dict[int, BadRecord] = {}
        with self._lock:
            senders = set()
            for index, record in enumerate(records):
                try:
                    senders.add(self._take(record))
                except BadRecord as bad:
                    self.refused[bad.reason] += 1
                    refused[index] = bad
            now = self._now()
            for name in senders:
                self._clusters[name].batch_ended(now)
            self._save()
        return refused

    def tick(self) -> None:
        """Let time pass for clusters from which nothing comes; call once a second."""
        with self._lock:
            now = self._now()
            for cluster in self._clusters.values():
                self._findings += cluster.tick(now)
            self._save()

    def close(self) -> None:
        """Judge what was accepted and store it; nothing comes any more."""
        with self._lock:
            for cluster in self._clusters.values():
                self._findings += cluster.finish()
            self._save()

    def finish(self, cluster: str) -> None:
        """Let the event time of a cluster that has ended reach its last record; it is not missed any more."""
        with self._lock:
            if cluster in self._clusters:
                self._findings += self._clusters[cluster].finish()
            self._save()

    def _take(self, record: Record) -> str:
        now, data = self._now(), encode(record)
        refused: BadRecord | None = None
        try:
            received = _DECODERS[type(record)](data, now=now)
        except BadRecord as bad:
            if bad.reason != BAD_TIME or record.cluster not in self._clusters:
                raise
            received, refused = _DECODERS[type(record)](data), bad
        cluster = self._clusters.get(received.cluster) or self._new_cluster(received.cluster, now)
        found = cluster.take(received, now, fits=refused is None)
        if found is None and refused is not None:
            raise refused
        self._findings += found or []
        self.accepted += 1
        return received.cluster

    def _new_cluster(self, name: str, now: float) -> _Cluster:
        if len(self._clusters) >= MAX_CLUSTERS:
            self._make_room(now)
        pipeline = local_pipeline(self._tuning, on_rows=self._keep, job_memory_bytes=self._job_memory_bytes)
        cluster = self._clusters[name] = _Cluster(pipeline, self._tuning, now)
        return cluster

    def _make_room(self, now: float) -> None:
        """Let the cluster go that has been quiet longest, if that is long. Raises ``BadRecord``."""
        name = min(self._clusters, key=lambda n: self._clusters[n].received)
        if self._clusters[name].received > now - ABANDONED_SECONDS:
            detail = (
                f"{MAX_CLUSTERS} clusters are open already, each with records of the last hour: "
                "correct the cluster's name, or send to another `slowrank up`"
            )
            raise BadRecord("too_many_instances", detail)
        self._findings += self._clusters.pop(name).finish()

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
        self.jobs = sum((c.pipeline.job_memory for c in self._clusters.values()), start=JobMemory())
        at = datetime.fromtimestamp(now, UTC)
        beat(conn, Heartbeat("streams", f"local-{os.getpid()}", at, detail))
        self._beaten = now
