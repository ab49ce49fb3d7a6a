"""One worker process: puts a role, its servers and its Faust app together, and runs it."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

import faust
import numpy as np
from aiokafka.errors import KafkaError

from alerts.finding import Finding
from detectors.changepoint.detector import ChangeDetectorBank
from detectors.changepoint.standardise import Scale
from slowrank.settings import Settings
from slowrank.telemetry.topics import SUSPICIONS, topic_name
from store import retention
from store.error_classes import UNAVAILABLE
from store.findings.findings import save
from store.findings.self_findings import save_self_finding
from store.heartbeats import Heartbeat, beat
from store.pool import open_pool
from store.telemetry.batches import write_rows
from streams.config.settings import Tuning
from streams.rollup.rollup import Rows
from streams.runtime.background import BackgroundTask, Routine
from streams.runtime.detect_worker import Detect
from streams.runtime.faust_app import READS, Role, Take, Work, build, group
from streams.runtime.gc_tuning import collect_seldom
from streams.runtime.housekeeping import Housekeeper, health_file
from streams.runtime.kafka.moved_keys import Moves
from streams.runtime.kafka.offsets import Place, Probe
from streams.runtime.kafka.partition_growth import Growth
from streams.runtime.kafka.producer import DurableProducer
from streams.runtime.log_filter import hush
from streams.runtime.monitoring.health import Health
from streams.runtime.monitoring.metrics import SinkMetrics, new_registry, serve
from streams.runtime.monitoring.self_monitor import SelfMonitor
from streams.runtime.monitoring.watchdog import Watchdog
from streams.runtime.partitions.rebuild import reread
from streams.runtime.preflight import await_kafka, demand, make_own
from streams.runtime.sink_worker import Sink
from streams.runtime.write_buffer import RowBuffer

log = logging.getLogger(__name__)

# A partition that brought nothing for so long has its open buckets written.
QUIET_SECONDS = 10.0
# Between two signs of life in the database: ``/readyz`` misses a process after a minute without one.
BEAT_SECONDS = 5.0
LOOK_SECONDS = 15.0
# For a connection to store what a look found about slowrank itself; the next look tries again.
OWN_SECONDS = 5.0
RETENTION_SECONDS = 3600.0


def run(settings: Settings, tuning: Tuning, role: Role) -> None:
    """Run one worker until it is told to stop; ends the process. Raises ``Unprepared``."""
    hush(time.monotonic)
    await_kafka(settings, role)
    demand(settings, role)
    if role == "detect":
        compile_kernel()
    collect_seldom()
    make_own(settings.streams_runtime_dir)
    health = Health(role, time.monotonic)
    registry = new_registry(health, time.time)
    work: Work = (
        DetectWork(settings, tuning, health)
        if role == "detect"
        else SinkWork(settings, tuning, health, SinkMetrics(registry))
    )
    serve(settings, role, registry)
    app = build(settings, role, work)
    faust.Worker(app, loglevel="info", redirect_stdouts=False).execute_from_commandline()


def compile_kernel() -> None:
    """Compile the kernel of the change detectors, or read it from numba's cache on disk.

    It takes seconds: before the group is joined, not within the first message.
    """
    # As many series as one call of the kernel takes side by side, and more samples than warm-up and baseline
    # (80), so that what runs only once a level is known is compiled as well.
    bank = ChangeDetectorBank([Scale("identity", 1.0)] * 64)
    for second in range(120):
        bank.update(float(second), np.zeros(64))


class DetectWork:
    """Telemetry to suspicions."""

    def __init__(self, settings: Settings, tuning: Tuning, health: Health) -> None:
        self._name = partial(topic_name, prefix=settings.topic_prefix)
        self._chore = BackgroundTask()
        self._outlet = DurableProducer(settings.kafka_bootstrap, health)
        self._probe = Probe(settings.kafka_bootstrap, group(settings, "detect"))
        self._tender = _tender(settings, health, self._probe)
        self._moves = _moves(settings, health, self._probe)
        self._detect = Detect(
            name=self._name,
            reread=partial(reread, settings.kafka_bootstrap),
            outlet=self._outlet,
            health=health,
            now=time.time,
            window=60.0 * settings.streams_rebuild_minutes,
            tuning=tuning,
            job_memory_bytes=settings.streams_job_memory_mib << 20,
            moves=self._moves,
        )

    @property
    def takes(self) -> Mapping[str, Take]:
        """All telemetry goes the same way."""
        return {self._name(topic): self._detect.take for topic in READS["detect"]}

    async def round(self, assigned: set[Place]) -> None:
        """Keep the books, and let time pass for jobs that have fallen quiet."""
        ends = await self._tender.round(assigned, self._detect.positions)
        self._chore.begin(partial(self._prepare, assigned))
        self._detect.idle(assigned, ends)

    async def _prepare(self, assigned: set[Place]) -> None:
        unread = assigned.difference(self._detect.positions)
        await _prepare(unread, self._tender, self._probe, self._detect)

    def rebalanced(self) -> None:
        """Ask for the partition counts before the next message is taken."""
        self._moves.rebalanced()

    async def stop(self) -> None:
        """Let go of the brokers."""
        await self._chore.stop()
        await self._outlet.close()
        await self._probe.close()
        self._tender.close()


class SinkWork:
    """Telemetry to roll-ups, suspicions to findings; looks after the database and the pipeline as well."""

    def __init__(self, settings: Settings, tuning: Tuning, health: Health, metrics: SinkMetrics) -> None:
        self._name = partial(topic_name, prefix=settings.topic_prefix)
        self._health = health
        self._metrics = metrics
        self._settings = settings
        self._config_of = tuning.finding
        self._pool = open_pool(settings.dsn(), max_size=4, name="slowrank-streams")
        self._chore = BackgroundTask()
        self._outlet = DurableProducer(settings.kafka_bootstrap, health)
        self._probe = Probe(settings.kafka_bootstrap, group(settings, "sink"))
        self._tender = _tender(settings, health, self._probe)
        self._instance = f"{socket.gethostname()}-{os.getpid()}"
        self._beat_at = health.clock()
        self._moves = (_moves(settings, health, self._probe), _moves(settings, health, self._probe))
        self._sink = Sink(
            name=self._name,
            reread=partial(reread, settings.kafka_bootstrap),
            outlet=self._outlet,
            health=health,
            now=time.time,
            window=60.0 * settings.streams_rebuild_minutes,
            save=self._save,
            rows=RowBuffer(self._write, health, health.clock),
            tuning=tuning,
            telemetry_moves=self._moves[0],
            suspicion_moves=self._moves[1],
        )
        self._lookout = SelfMonitor(settings, store=self._save_own, metrics=metrics, wall=time.time)
        self._routines = (
            Routine(self._lookout.look, seconds=LOOK_SECONDS, clock=health.clock),
            Routine(self._forget_old, seconds=RETENTION_SECONDS, clock=health.clock),
        )

    @property
    def takes(self) -> Mapping[str, Take]:
        """Telemetry is rolled up, suspicions become findings."""
        telemetry = {self._name(topic): self._sink.take_telemetry for topic in READS["sink"]}
        return telemetry | {self._name(SUSPICIONS): self._sink.take_suspicion}

    async def round(self, assigned: set[Place]) -> None:
        """Keep the books, write what has gathered, and leave a sign of life in the database."""
        await self._tender.round(assigned, self._sink.positions)
        self._chore.begin(partial(self._store, assigned))
        for routine in self._routines:
            routine.round()

    async def _store(self, assigned: set[Place]) -> None:
        now = self._health.clock()
        if now - self._beat_at >= BEAT_SECONDS:
            self._beat_at = now
            await asyncio.to_thread(self._beat)
        unread = {p for p in assigned.difference(self._sink.positions) if p[0] != self._name(SUSPICIONS)}
        await _prepare(unread, self._tender, self._probe, self._sink)
        await self._sink.idle(assigned)
        await self._sink.quiet(QUIET_SECONDS)

    def rebalanced(self) -> None:
        """Ask for the partition counts before the next message is taken."""
        for moves in self._moves:
            moves.rebalanced()

    async def stop(self) -> None:
        """Let go of the brokers and of the database."""
        await self._chore.stop()
        for routine in self._routines:
            await routine.stop()
        await self._outlet.close()
        await self._probe.close()
        await self._lookout.close()
        # After all that stores.
        await asyncio.to_thread(self._pool.close, 5.0)
        self._tender.close()

    def _save(self, finding: Finding) -> None:
        with self._pool.connection() as conn:
            change = save(conn, finding, self._config_of(finding.subject.cluster))
        self._metrics.saved(finding, change, time.time() - finding.onset)

    def _save_own(self, finding: Finding) -> None:
        with self._pool.connection(timeout=OWN_SECONDS) as conn:
            save_self_finding(conn, finding, self._config_of(finding.subject.cluster))

    async def _forget_old(self) -> None:
        def forget() -> None:
            with self._pool.connection() as conn:
                now = datetime.now(UTC)
                retention.prune_as_sink(conn, self._settings, now=now, config_of=self._config_of)

        try:
            await asyncio.to_thread(forget)
        except UNAVAILABLE as error:
            log.warning("old roll-ups stay for another %.0f s: %s", RETENTION_SECONDS, error)

    def _write(self, rows: Rows) -> None:
        with self._pool.connection() as conn:
            write_rows(conn, rows)

    def _beat(self) -> None:
        try:
            with self._pool.connection(timeout=2.0) as conn:
                beat(conn, Heartbeat("streams", self._instance, datetime.now(UTC), self._health.report()))
        except UNAVAILABLE as error:
            log.warning("no sign of life could be left in the database: %s", error)


def _tender(settings: Settings, health: Health, probe: Probe) -> Housekeeper:
    limit = settings.streams_stall_seconds
    watchdog = Watchdog(health, no_event=limit, no_commit=2 * limit, orphaned=4 * limit)
    file = health_file(settings.streams_runtime_dir, health.role, os.getpid())
    return Housekeeper(health=health, probe=probe, watchdog=watchdog, file=file)


def _moves(settings: Settings, health: Health, probe: Probe) -> Moves:
    growth = Growth(probe, f"{settings.topic_prefix}slowrank-partitions", time.time)
    return Moves(health.role, growth.counts, probe.committed, health)


class _Prepared(Protocol):
    async def has_past(self, place: Place) -> bool: ...

    async def prepare(self, place: Place, offset: int, *, timestamp: float) -> None: ...


async def _prepare(unread: set[Place], tender: Housekeeper, probe: Probe, work: _Prepared) -> None:
    # A partition may stay quiet with something in it that is not done: a job that hangs, a bucket not
    # written, records held back to be put in order. A new one of a topic that grew may owe it from before.
    owing = {place for place in unread if place in tender.committed or await work.has_past(place)}
    if not owing:
        return
    with suppress(KafkaError):
        # Asked anew: whoever had the partition before may have committed since the last round.
        committed = await probe.committed()
        for place in sorted(owing):
            # No message comes to tell the log's time: the window is counted back from now, and what has been
            # quiet for longer is built empty.
            await work.prepare(place, committed.get(place, 0), timestamp=time.time())
