"""In-process sink: records pass through the wire format and the pipeline, findings go to the database.

Replaces Kafka, the stream workers and their sinks in one process, with the same codec, stages and store.
"""

import logging
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool

from alerts.finding import Finding
from cli.embedded.unheld_findings import UnheldFindings
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
from store.error_classes import REFUSED, UNAVAILABLE
from store.findings import findings
from store.findings.findings import LiveFinding
from store.heartbeats import Heartbeat, beat
from store.telemetry.batches import count, write_rows
from streams.config.settings import Tuning
from streams.job.memory import JobMemory
from streams.job.stage import DEFAULT_MEMORY_BYTES
from streams.pipeline import Pipeline, local_pipeline
from streams.rollup.rollup import Rows
from streams.runtime.kafka.dead_letters import STORE_REFUSED
from streams.runtime.partitions.clock_offsets import ClockCorrector
from streams.runtime.partitions.partition import LIVE_SECONDS
from streams.runtime.partitions.receive_time import ReceiveTime
from streams.runtime.partitions.reorder_buffer import MOST, PATIENCE_SECONDS
from streams.runtime.snapshots.snapshot_file import Mark, Refused, Snapshot
from streams.runtime.snapshots.snapshot_folder import SnapshotFolder
from streams.runtime.snapshots.snapshot_writer import MOST_CPU
from streams.runtime.snapshots.state_codec import BadState

log = logging.getLogger(__name__)

# Clients choose the names, and each cluster has a pipeline with all detectors. Chosen: far more clusters than
# one machine serves.
MAX_CLUSTERS = 64
# At the limit, a cluster without a record for this long is closed for a new one: its nodes are no longer
# expected (streams.node.liveness), and its findings are in the database.
ABANDONED_SECONDS = 3600.0
# The watermark follows the second last of five records. Without a further record for this long (five reports
# of an exporter) the pipeline catches up: a fatal event may be the last record that a machine sends.
SETTLE_SECONDS = 5.0
# Behind the time of the last record: another node's record of the same second may still be in transit.
MARGIN_SECONDS = 5.0
# Findings, and rows, kept while the database is unavailable, the latest of each. Chosen: bounds the memory.
MAX_UNSAVED = 100_000
# Well below the 60 s after which /readyz reports a process as missing (api.routes.health.STALE).
BEAT_SECONDS = 10.0
# Between two snapshots, and their largest share of a core, as in a stream worker. Chosen: what a process that
# is killed lost is less than LONGEST_STOP_SECONDS, with the time of a start.
SNAPSHOT_SECONDS = 10.0
# A state older than this is not restored, for no log covers the time between. Chosen: enough for a restart by
# hand, and below the 600 s after which detectors forget a node (``SilenceConfig.expected``).
LONGEST_STOP_SECONDS = 300.0

# How far the event time of findings may be behind the time at which the state was saved. Chosen: records are
# held for 20 s, and clocks and spools are some seconds behind.
LAG_SECONDS = 60.0
_PLACE = ("up", 0)
_NO_LOG = Mark(0, 0.0, "")

_DECODERS: dict[type, Callable[..., Record]] = {
    NodeSample: decode_sample,
    JobSteps: decode_steps,
    NodeEvent: decode_event,
}


# Fields of a ``_ClusterPipeline`` in its snapshots.
_KEPT = ("received", "event_time", "live", "settled", "clocks", "held", "until")


@dataclass(slots=True)
class _ClusterPipeline:
    """A cluster's pipeline, and the receive time that advances it while no record comes.

    ``live``: the last record is less than a minute old, and the cluster was not finished. ``moved``: receive
    time has advanced the pipeline since. After such a gap the senders flush their spools one after the other:
    the records of the first seconds are held back and processed in order of their time, so that those of the
    first sender do not make the others late.
    """

    pipeline: Pipeline
    tuning: Tuning
    received: float
    receive: ReceiveTime = field(default_factory=ReceiveTime)
    event_time: float = -math.inf
    live: bool = False
    moved: bool = False
    settled: bool = False
    clocks: ClockCorrector[None] = field(default_factory=ClockCorrector)
    held: list[Record] = field(default_factory=list)
    until: float = -math.inf

    def take(self, record: Record, now: float, *, fits: bool = True) -> list[Finding] | None:
        """Process a record received at ``now`` (Unix seconds); return its findings.

        None where its time is out of bounds (``fits``) and the offset of its node's clock is unknown.
        """
        ready = self.clocks.take(record, None, logged=now, fits=fits)
        if not ready and not fits:
            return None
        self.received, self.settled = now, False
        return self._taken(ready, now)

    def _taken(self, ready: Sequence[tuple[Record, None]], now: float) -> list[Finding]:
        judged = map(self.tuning.judged, self.clocks.suspicions())
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
        """Update the state of receive time after a batch of records that ended at ``now``."""
        self.receive.received()
        self.event_time = self.pipeline.time
        self.live = bool(self.held) or self.event_time > now - LIVE_SECONDS

    def tick(self, now: float) -> list[Finding]:
        """Advance receive time to ``now``; return the findings of that."""
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
        """Process the records that were held back, in order of their time."""
        held, self.held = sorted(self.held, key=lambda record: record.ts), []
        self.until = -math.inf
        findings = [finding for record in held for finding in self.pipeline.process(record)]
        self.event_time = self.pipeline.time
        return findings

    def snapshot(self) -> dict[str, Any]:
        """Return the state, to be saved before the next record."""
        return {"pipeline": self.pipeline.snapshot(), **{name: getattr(self, name) for name in _KEPT}}

    def restore(self, kept: Mapping[str, Any], *, age: float) -> None:
        """Take what ``snapshot`` returned ``age`` seconds ago, in a process that starts.

        Senders may drain their spools first, and what came since the snapshot is lost: no node is silent,
        and no job stopped, before the senders have connected again.
        """
        self.pipeline.restore(kept["pipeline"])
        for name in _KEPT:
            setattr(self, name, kept[name])
        self.moved = True
        self.pipeline.resume(self.pipeline.time + age + PATIENCE_SECONDS)

    def finish(self) -> list[Finding]:
        """Process what is left after the last record."""
        self.live = False
        kept = self._taken(self.clocks.reach(math.inf), math.inf)
        return [*kept, *self.release(), *self.pipeline.finish()]


class LocalSink:
    """Runs records through the pipeline and stores findings and roll-ups; thread-safe.

    One pipeline for each cluster, because each has its own event time. ``tick`` advances the time of clusters
    that send nothing. While the database is unavailable findings and roll-ups are kept in memory, at most
    ``MAX_UNSAVED`` of each. With ``snapshots`` the detectors go on from where the last process stopped, if
    that was less than ``LONGEST_STOP_SECONDS`` ago.
    """

    def __init__(
        self,
        pool: ConnectionPool[psycopg.Connection],
        *,
        now: Callable[[], float],
        tuning: Tuning,
        job_memory_bytes: int = DEFAULT_MEMORY_BYTES,
        snapshots: SnapshotFolder | None = None,
    ) -> None:
        self._pool = pool
        self._now = now
        self._tuning = tuning
        self._job_memory_bytes = job_memory_bytes
        self._lock = threading.Lock()
        self._clusters: dict[str, _ClusterPipeline] = {}
        self._findings: list[Finding] = []
        self._rows: Rows = []
        self._beaten = -math.inf
        self.refused: Counter[str] = Counter()
        self.accepted = 0
        self.jobs = JobMemory()
        self._snapshots = snapshots
        self._snapshot_due = now() + SNAPSHOT_SECONDS
        self._unheld = UnheldFindings(self._forgotten(self._restore()))

    @property
    def set_aside(self) -> int:
        """Count of records and suspicions on which a stage raised an exception; each is in the log."""
        return sum(cluster.pipeline.set_aside.total() for cluster in list(self._clusters.values()))

    def accept(self, records: Sequence[Record]) -> Mapping[int, BadRecord]:
        """Process records in order; their findings are stored when this returns.

        An invalid record is skipped, counted in ``refused`` and returned by its index.
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
        """Advance the time of clusters that send nothing; call once a second."""
        with self._lock:
            now = self._now()
            for cluster in self._clusters.values():
                self._findings += cluster.tick(now)
            self._end_unheld(now)
            self._save()
            began = time.thread_time()
            due = now >= self._snapshot_due
            snapshot = self._snapshot() if due else None
        if due:
            self._write(snapshot)
            self._snapshot_due = now + max(SNAPSHOT_SECONDS, (time.thread_time() - began) / MOST_CPU)

    def close(self) -> None:
        """Finish all clusters, store their findings, and write the last snapshot."""
        with self._lock:
            for cluster in self._clusters.values():
                self._findings += cluster.finish()
            self._save()
            self._write(self._snapshot())

    def finish(self, cluster: str) -> None:
        """Advance event time to a cluster's last record; the cluster is not reported as silent afterwards."""
        with self._lock:
            if cluster in self._clusters:
                self._findings += self._clusters[cluster].finish()
            self._save()

    def _snapshot(self) -> Snapshot | None:
        """Return a snapshot of all clusters; None where findings are not stored, which would then be lost."""
        if self._snapshots is None or self._findings:
            return None
        if self.set_aside:
            # The state may be why a stage raised, and must not outlive the process.
            self._snapshots.drop(_PLACE)
            return None
        try:
            state = {name: cluster.snapshot() for name, cluster in self._clusters.items()}
            return self._snapshots.frozen(_PLACE, state, last=_NO_LOG, next_offset=0, partitions=0)
        except (BadState, TypeError) as error:
            log.error("no snapshots, a restart will begin anew: %s", error)
            self._snapshots = None
            return None

    def _write(self, snapshot: Snapshot | None) -> None:
        if self._snapshots is not None and snapshot is not None:
            self._snapshots.save(_PLACE, snapshot)

    def _restore(self) -> float:
        """Restore the last snapshot; return when it was taken, -inf without one."""
        saved = None if self._snapshots is None else self._snapshots.load(_PLACE, partitions=0)
        if self._snapshots is None or saved is None:
            return -math.inf
        now = self._now()
        # A clock that was set back meanwhile says nothing about how long the stop was.
        if not 0 <= (age := now - saved.header.taken_at) <= LONGEST_STOP_SECONDS:
            self._snapshots.refuse(_PLACE, Refused("old", f"it was taken {age:.0f} s ago"))
            return -math.inf
        try:
            for name, kept in saved.state.items():
                self._new_cluster(name, now).restore(kept, age=age)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._clusters.clear()
            self._snapshots.refuse(_PLACE, Refused("unreadable", f"{type(error).__name__}: {error}"))
            return -math.inf
        self._snapshots.used(_PLACE)
        return saved.header.taken_at

    def _forgotten(self, since: float) -> list[LiveFinding]:
        """Return the open findings that were detected since the state was saved, all without a state."""
        try:
            with self._pool.connection() as conn:
                return [f for f in findings.live(conn) if f.detected_at.timestamp() > since - LAG_SECONDS]
        except UNAVAILABLE as error:
            log.warning("findings of the last process stay open until they expire: %s", error)
            return []

    def _end_unheld(self, now: float) -> None:
        ended = self._unheld.ended(now)
        try:
            for finding in ended:
                # One that expired long ago may have been deleted.
                with suppress(findings.NotFound), self._pool.connection() as conn:
                    findings.end_unheld(conn, finding.id, datetime.fromtimestamp(now, UTC))
                self._unheld.end(finding)
        except UNAVAILABLE as error:
            log.warning("the database is unavailable, %d findings are resolved later: %s", len(ended), error)

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
        self._unheld.update(received, now)
        self.accepted += 1
        return received.cluster

    def _new_cluster(self, name: str, now: float) -> _ClusterPipeline:
        if len(self._clusters) >= MAX_CLUSTERS:
            self._make_room(now)
        pipeline = local_pipeline(self._tuning, on_rows=self._keep, job_memory_bytes=self._job_memory_bytes)
        cluster = self._clusters[name] = _ClusterPipeline(pipeline, self._tuning, now)
        return cluster

    def _make_room(self, now: float) -> None:
        """Close the cluster that sent nothing for longest. Raises ``BadRecord`` if that is too short."""
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
                    self._unheld.hold(first)
                    config = self._tuning.finding(first.subject.cluster)
                    self._store(first.id, partial(findings.save, conn, first, config))
                    # Only now: after a lost connection this finding is the first to be stored.
                    self._findings.pop(0)
                self._store("roll-ups", partial(write_rows, conn, self._rows))
                self._rows.clear()
        except UNAVAILABLE as error:
            log.warning(
                "the database is unavailable, %d findings are kept in memory: %s", len(self._findings), error
            )
            self._beat_while_refused(now, error)
            del self._findings[:-MAX_UNSAVED]
            totals = accumulate(count([row]) for row in reversed(self._rows))
            kept = sum(total <= MAX_UNSAVED for total in totals)
            del self._rows[: len(self._rows) - kept]

    def _store(self, what: str, store: Callable[[], object]) -> None:
        """Store one item; an item that the database always refuses must not block the rest."""
        try:
            store()
        except REFUSED as error:
            self.refused[STORE_REFUSED] += 1
            log.error("the database refuses %s, which is dropped: %s", what, error)

    def _beat_while_refused(self, now: float, error: Exception) -> None:
        """Say that nothing is stored, where the database still takes so much, as with a disk that is full."""
        # Without a state the database has not answered, and /readyz says so by itself.
        if getattr(error, "sqlstate", None) is None:
            return
        try:
            with self._pool.connection(timeout=1.0) as conn:
                why = str(error).partition("\n")[0][:200]
                self._beat(conn, now, {"waiting_for": ["database"], "error": why})
        except UNAVAILABLE as again:
            log.warning("no heartbeat could be stored: %s", again)

    def _beat(self, conn: psycopg.Connection, now: float, more: Mapping[str, object] | None = None) -> None:
        detail: dict[str, object] = {
            "accepted": self.accepted,
            "refused": self.refused.total(),
            "set_aside": self.set_aside,
            **(more or {}),
        }
        self.jobs = sum((c.pipeline.job_memory for c in self._clusters.values()), start=JobMemory())
        at = datetime.fromtimestamp(now, UTC)
        beat(conn, Heartbeat("streams", f"local-{os.getpid()}", at, detail))
        self._beaten = now
