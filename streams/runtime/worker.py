"""One worker process: puts a role, its servers and its Faust app together, and runs it."""

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import cast

import faust
import numpy as np
from aiokafka.errors import KafkaError

from detectors.changepoint.detector import ChangeDetectorBank
from detectors.changepoint.offline_segmentation import MIN_STEPS, offline_check
from detectors.changepoint.standardise import Scale
from slowrank.settings import Settings
from slowrank.telemetry.topics import SUSPICIONS, topic_name
from streams.config.settings import Tuning
from streams.runtime.background import BackgroundTask, Routine
from streams.runtime.detect_worker import Detect
from streams.runtime.faust_app import READS, Role, build, group
from streams.runtime.finding_sink import FindingSink
from streams.runtime.gc_tuning import collect_less_often
from streams.runtime.housekeeping import Housekeeper, health_file
from streams.runtime.kafka.acks import Take
from streams.runtime.kafka.batches.transport import BatchConsumer, BatchTransport
from streams.runtime.kafka.message import PartitionId
from streams.runtime.kafka.moved_keys import MovedKeys
from streams.runtime.kafka.offsets import Probe
from streams.runtime.kafka.partition_growth import PartitionCounts
from streams.runtime.kafka.producer import DurableProducer
from streams.runtime.log_filter import limit_log_rates
from streams.runtime.monitoring.health import Health
from streams.runtime.monitoring.load import REPORT_SECONDS, LoadMeter, Report, group_of, leave
from streams.runtime.monitoring.metrics import SinkMetrics, new_registry, serve
from streams.runtime.monitoring.self_monitor import SelfMonitor
from streams.runtime.monitoring.watchdog import Watchdog
from streams.runtime.partitions.context import WorkerContext
from streams.runtime.partitions.rebuild import read_on, reread
from streams.runtime.preflight import await_kafka, require
from streams.runtime.private_folder import Unprepared, make_private
from streams.runtime.rollup_sink import RollUpSink
from streams.runtime.sink_store import SinkStore
from streams.runtime.snapshots.identity import identity
from streams.runtime.snapshots.snapshot_folder import SnapshotFolder
from streams.runtime.snapshots.snapshot_writer import SnapshotWriter
from streams.runtime.write_buffer import RowBuffer

log = logging.getLogger(__name__)

# Time without a message after which a partition's open buckets are written: one bucket of ten seconds.
IDLE_SECONDS = 10.0

# Between two heartbeats in the database. ``/readyz`` misses a process after a minute without one.
BEAT_SECONDS = 5.0

# Between two looks of the self monitor. Chosen: a lag that grows is reported within 15 s, at the third or
# fourth look after it has begun (``streams_lag_seconds``).
LOOK_SECONDS = 3.0

# Between two prunings of old rows. Chosen: the shortest retention is hours.
RETENTION_SECONDS = 3600.0


def run(settings: Settings, tuning: Tuning, role: Role) -> None:
    """Run one worker until a signal stops it; ends the process. Raises ``Unprepared``."""
    limit_log_rates(time.monotonic)
    await_kafka(settings, role)
    require(settings, role)
    if role == "detect":
        load_kernels()
    collect_less_often()
    make_private(settings.streams_runtime_dir)
    health = Health(role, time.monotonic)
    registry = new_registry(health, time.time)
    work: DetectWork | SinkWork = (
        DetectWork(settings, tuning, health)
        if role == "detect"
        else SinkWork(settings, tuning, health, SinkMetrics(registry))
    )
    serve(settings, role, registry)
    app = build(settings, role, work)
    if isinstance(app.transport, BatchTransport):
        work.meter(LoadMeter(app.transport.buffers.values(), time.monotonic))
        health.member = lambda: cast("BatchConsumer", app.consumer).member_id
    faust.Worker(app, loglevel="info", redirect_stdouts=False).execute_from_commandline()


def load_kernels() -> None:
    """Compile the kernel of the change detectors, or read it from numba's cache on disk; import ruptures.

    It takes seconds: before the group is joined, not within the first message or before the first finding.
    """
    # As many series as one call of the kernel takes side by side, and more samples than warm-up and baseline
    # (80), so that what runs only once a level is known is compiled as well.
    bank = ChangeDetectorBank([Scale("identity", 1.0)] * 64)
    for second in range(120):
        bank.update(float(second), np.zeros(64))
    offline_check(np.zeros(2 * MIN_STEPS), MIN_STEPS)


def snapshot_folder(settings: Settings, tuning: Tuning, health: Health) -> SnapshotFolder | None:
    """Return the folder of a detecting worker's snapshots, None where they are off or it cannot be used."""
    if not settings.streams_snapshot_seconds:
        return None
    folder = (settings.streams_state_dir or settings.streams_runtime_dir / "state") / "snapshots"
    try:
        make_private(folder)
    except (OSError, Unprepared) as error:
        log.error("no snapshots in %s, a restart will read the log again: %s", folder, error)
        return None
    return SnapshotFolder(
        folder,
        identity=identity(tuning, settings.streams_job_memory_mib),
        read_on=partial(read_on, settings.kafka_bootstrap),
        counts=health.snapshots,
        now=time.time,
    )


class Servers:
    """Connections to the brokers and the housekeeping, which both roles have."""

    def __init__(
        self, settings: Settings, role: Role, health: Health, *, snapshots: SnapshotFolder | None = None
    ) -> None:
        self.probe = Probe(settings.kafka_bootstrap, group(settings, role))
        limit = settings.streams_stall_seconds
        self.housekeeper = Housekeeper(
            health=health,
            probe=self.probe,
            watchdog=Watchdog(health, no_event=limit, no_commit=2 * limit, orphaned=4 * limit),
            file=health_file(settings.streams_runtime_dir, role, os.getpid()),
        )
        self.background = BackgroundTask()
        self._load_group = group_of(settings, role)
        self._meter: LoadMeter | None = None
        self._assigned: set[PartitionId] = set()
        self._loads = Routine(self._leave_load, seconds=REPORT_SECONDS, clock=health.clock)
        self._producer = DurableProducer(settings.kafka_bootstrap, health)
        self.context = WorkerContext(
            name=partial(topic_name, prefix=settings.topic_prefix),
            reread=partial(reread, settings.kafka_bootstrap),
            producer=self._producer,
            health=health,
            now=time.time,
            window=60.0 * settings.streams_rebuild_minutes,
            snapshots=snapshots,
        )

    def meter(self, meter: LoadMeter) -> None:
        """Measure the worker's load by ``meter``, and report it."""
        self._meter = meter

    def round(self, assigned: set[PartitionId]) -> None:
        """Report the load when it is time."""
        self._assigned = assigned
        self._loads.round()

    async def _leave_load(self) -> None:
        if self._meter is None:
            return
        self.context.health.load = self._meter.measure()
        report = Report(self.context.health.load, time.time())
        with suppress(KafkaError):
            await leave(self.probe, self._load_group, self._assigned, report)

    def moves(self) -> MovedKeys:
        """Return a placement of keys of its own."""
        growth = PartitionCounts(self.probe, self.context.name("slowrank-partitions"), time.time)
        return MovedKeys(self.context.health.role, growth.counts, self.probe.committed, self.context.health)

    async def prepare(self, assigned: set[PartitionId], work: Detect | RollUpSink) -> None:
        """Build the state of partitions that were not read yet and may stay idle with work left in them.

        That is a job that hangs, a bucket not written, or records held back to be put in order. A new
        partition of a topic that grew may have such work from before.
        """
        unread = assigned.difference(work.partitions.states)
        committed = self.housekeeper.committed
        owing = {p for p in unread if p in committed or await work.partitions.has_past(p)}
        if not owing:
            return
        with suppress(KafkaError):
            # Asked anew: whoever had the partition before may have committed since the last round.
            committed = await self.probe.committed()
            for place in sorted(owing):
                # No message carries the log's time: the window is counted back from now, and the state of a
                # partition that has been idle for longer is empty.
                await work.prepare(place, committed.get(place, 0), timestamp=time.time())

    async def stop(self) -> None:
        """Give up what runs in the background and disconnect from the brokers."""
        await self._loads.stop()
        await self.background.stop()
        await self._producer.close()
        await self.probe.close()


class DetectWork:
    """Telemetry to suspicions."""

    def __init__(self, settings: Settings, tuning: Tuning, health: Health) -> None:
        folder = snapshot_folder(settings, tuning, health)
        self._servers = Servers(settings, "detect", health, snapshots=folder)
        self._moves = self._servers.moves()
        memory = settings.streams_job_memory_mib << 20
        context = self._servers.context
        self._detect = Detect(context, tuning=tuning, job_memory_bytes=memory, moves=self._moves)
        self._writer = None
        if folder is not None:
            self._writer = SnapshotWriter(
                self._detect.partitions,
                folder,
                durable=lambda: context.producer.post([]),
                counts=health.snapshots,
                clock=health.clock,
                seconds=settings.streams_snapshot_seconds,
            )
        self._writing = BackgroundTask()

    @property
    def takes(self) -> Mapping[str, Take]:
        """All telemetry goes the same way."""
        return {self._servers.context.name(topic): self._detect.take for topic in READS["detect"]}

    def meter(self, meter: LoadMeter) -> None:
        """Measure the load by ``meter``."""
        self._servers.meter(meter)

    async def round(self, assigned: set[PartitionId]) -> None:
        """Report health, and advance event time in idle partitions."""
        ends = await self._servers.housekeeper.round(assigned, self._detect.partitions.positions)
        self._servers.round(assigned)
        self._servers.background.begin(partial(self._servers.prepare, assigned, self._detect))
        self._detect.idle(assigned, ends)
        if self._writer is not None:
            self._writing.begin(self._writer.round)

    def rebalanced(self) -> None:
        """Ask for the partition counts before the next message is taken."""
        self._moves.rebalanced()

    async def stop(self) -> None:
        """Write the last snapshots, and disconnect from the brokers."""
        await self._writing.stop()
        if self._writer is not None:
            await self._writer.stop()
        await self._servers.stop()
        self._servers.housekeeper.close()


class SinkWork:
    """Telemetry to roll-ups, suspicions to findings; prunes the database, monitors the pipeline."""

    def __init__(self, settings: Settings, tuning: Tuning, health: Health, metrics: SinkMetrics) -> None:
        self._health = health
        self._servers = Servers(settings, "sink", health)
        self._store = SinkStore(settings, tuning.finding, health, metrics)
        self._beat_at = health.clock()
        self._moves = (self._servers.moves(), self._servers.moves())
        context, rows = self._servers.context, RowBuffer(self._store.write, health, health.clock)
        self._rollups = RollUpSink(context, rows=rows, moves=self._moves[0])
        self._findings = FindingSink(
            context, save=self._store.save, rows=rows, tuning=tuning, moves=self._moves[1]
        )
        self._monitor = SelfMonitor(settings, store=self._store.save_own, metrics=metrics, wall=time.time)
        self._routines = (
            Routine(self._monitor.look, seconds=LOOK_SECONDS, clock=health.clock),
            Routine(self._store.prune, seconds=RETENTION_SECONDS, clock=health.clock),
        )

    @property
    def takes(self) -> Mapping[str, Take]:
        """Telemetry is rolled up, suspicions become findings."""
        name = self._servers.context.name
        return {name(topic): self._rollups.take for topic in READS["sink"]} | {
            name(SUSPICIONS): self._findings.take
        }

    def meter(self, meter: LoadMeter) -> None:
        """Measure the load by ``meter``."""
        self._servers.meter(meter)

    async def round(self, assigned: set[PartitionId]) -> None:
        """Report health, write what has gathered, and leave a heartbeat in the database."""
        positions = self._rollups.partitions.positions | self._findings.partitions.positions
        await self._servers.housekeeper.round(assigned, positions)
        self._servers.round(assigned)
        self._servers.background.begin(partial(self._write, assigned))
        for routine in self._routines:
            routine.round()

    async def _write(self, assigned: set[PartitionId]) -> None:
        now = self._health.clock()
        if now - self._beat_at >= BEAT_SECONDS:
            self._beat_at = now
            await asyncio.to_thread(self._store.beat)
        suspicions = self._servers.context.name(SUSPICIONS)
        await self._servers.prepare({p for p in assigned if p[0] != suspicions}, self._rollups)
        self._rollups.partitions.retain(assigned)
        self._findings.partitions.retain(assigned)
        await self._rollups.write_idle(IDLE_SECONDS)

    def rebalanced(self) -> None:
        """Ask for the partition counts before the next message is taken."""
        for moves in self._moves:
            moves.rebalanced()

    async def stop(self) -> None:
        """Disconnect from the brokers, then from the database."""
        for routine in self._routines:
            await routine.stop()
        await self._servers.stop()
        await self._monitor.close()
        await asyncio.to_thread(self._store.close)
        self._servers.housekeeper.close()
