"""The stream workers against real servers: topics of a test's own, worker processes, records in, rows out."""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic

from slowrank.telemetry import DeadLetter, Record, Suspicion, decode_dead_letter, decode_message, encode
from slowrank.telemetry.topics import DEAD_LETTERS, SUSPICIONS, TOPICS
from store.migrate import migrate
from streams.runtime.kafka.offsets import group_offsets
from streams.runtime.kafka.record_producer import key_of, topic_of

WORKER = "from cli import main; main()"


@dataclass
class Rig:
    """One installation: a topic prefix, a database and the environment its workers run in."""

    bootstrap: str
    dsn: str
    home: Path
    partitions: int = 4
    replication: int = 1
    prefix: str = field(default_factory=lambda: f"t{secrets.token_hex(4)}-")
    settings: dict[str, str] = field(default_factory=dict)
    workers: list["Worker"] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    """What stands before the command of a worker, such as ``nice``."""

    def prepare(self):
        """Create the topics and bring the database up to date."""
        self.create_topics()
        migrate(self.dsn)

    @property
    def environment(self):
        ours = {
            "SLOWRANK_KAFKA_BOOTSTRAP": self.bootstrap,
            "SLOWRANK_DATABASE_URL": self.dsn,
            "SLOWRANK_TOPIC_PREFIX": self.prefix,
            "SLOWRANK_STREAMS_RUNTIME_DIR": str(self.home),
            "SLOWRANK_STREAMS_SESSION_SECONDS": "6",
        }
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SLOWRANK_")}
        return clean | ours | self.settings

    def start(self, role):
        """Start one worker process: detect, sink, or all (the supervisor with both)."""
        worker = Worker(role, self)
        self.workers.append(worker)
        return worker

    def grow(self, partitions):
        """Give every topic more partitions, as an operator does."""
        asyncio.run(self._grow(partitions))
        self.partitions = partitions

    def stop(self):
        """End every worker that still runs, and delete the topics."""
        for worker in self.workers:
            worker.terminate()
        asyncio.run(self._delete_topics())

    def send(self, records: Iterable[Record]):
        """Produce records in order, each to its topic with its key."""
        self.send_raw((topic_of(r), key_of(r), encode(r)) for r in records)

    def send_raw(self, messages: Iterable[tuple[str, bytes, bytes]]):
        """Produce (topic without prefix, key, value)."""
        asyncio.run(self._send(messages))

    def dead_letters(self) -> list[tuple[DeadLetter, dict[str, str]]]:
        """Every dead letter with its headers."""
        return [
            (decode_dead_letter(m.value), {k: v.decode() for k, v in m.headers})
            for m in asyncio.run(self._read(DEAD_LETTERS))
        ]

    def suspicions(self) -> list[Suspicion]:
        """Every suspicion."""
        return [s for s in self.stage_messages() if isinstance(s, Suspicion)]

    def stage_messages(self):
        """Everything on the topic of suspicions."""
        return [decode_message(m.value) for m in asyncio.run(self._read(SUSPICIONS))]

    def messages(self, *topics):
        """How many messages stand in topics."""
        return sum(len(asyncio.run(self._read(topic))) for topic in topics)

    def rows(self, query, *args):
        """Rows of a query on the database."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            return conn.execute(query, args).fetchall()

    def findings(self):
        """What stands about each finding on machines, without what depends on when the worker last spoke."""
        return self.rows(
            "SELECT dedup_key, kind, status, detected_at FROM findings WHERE kind NOT LIKE 'self.%%' "
            "ORDER BY dedup_key"
        )

    def own_findings(self):
        """(kind, node, status) of what slowrank says about itself."""
        return self.rows("SELECT kind, node, status FROM findings WHERE kind LIKE 'self.%%' ORDER BY 1, 2")

    def samples(self):
        """(table, node, instance, bucket, n) of all sample roll-ups."""
        return {
            (table, *row)
            for table in ("samples_10s", "nic_10s", "host_10s")
            for row in self.rows(f"SELECT node, instance, bucket, n FROM {table}")
        }

    def steps(self):
        """(job, rank, bucket, n, sum) of all step roll-ups."""
        return set(
            self.rows(
                "SELECT job_id, rank, bucket, n_steps, round(step_seconds_sum::numeric, 6) FROM steps_10s"
            )
        )

    def step_rows_stored(self):
        """How many step rows the roll-ups hold."""
        return self.rows("SELECT coalesce(sum(n_steps), 0) FROM steps_10s")[0][0]

    def lag(self, role):
        """Messages the role's group has not committed yet."""
        return asyncio.run(self._lag(role))

    def wait_until_read(self, *roles, within=90.0):
        """Wait until the groups have committed everything that was sent."""
        wait_for(
            lambda: all(self.lag(role) == 0 for role in roles), within=within, what=f"{roles} to catch up"
        )

    def create_topics(self):
        """Create all topics; the controller acknowledges them before a broker lists them."""
        asyncio.run(self._create_topics())
        wanted = {f"{self.prefix}{spec.name}" for spec in TOPICS}
        wait_for(lambda: wanted <= asyncio.run(self._listed()), within=15.0, what="topics to be listed")

    async def _listed(self):
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            await admin.start()
            return set(await admin.list_topics())
        finally:
            await admin.close()

    async def _create_topics(self):
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            await admin.create_topics(
                [
                    NewTopic(
                        f"{self.prefix}{spec.name}",
                        self.partitions,
                        self.replication,
                        topic_configs={"message.timestamp.type": "LogAppendTime"},
                    )
                    for spec in TOPICS
                ]
            )
        finally:
            await admin.close()

    async def _grow(self, partitions):
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            await admin.start()
            wanted = {f"{self.prefix}{spec.name}": NewPartitions(partitions) for spec in TOPICS}
            await admin.create_partitions(wanted)
        finally:
            await admin.close()

    async def _delete_topics(self):
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            await admin.start()
            await admin.delete_topics([f"{self.prefix}{spec.name}" for spec in TOPICS])
        finally:
            await admin.close()

    async def _send(self, messages):
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all",
            linger_ms=20,
            max_request_size=2 << 20,
            compression_type="zstd",
        )
        await producer.start()
        try:
            futures = [await producer.send(self.prefix + t, value=v, key=k) for t, k, v in messages]
            await asyncio.gather(*futures)
        finally:
            await producer.stop()

    async def _read(self, topic):
        consumer = AIOKafkaConsumer(bootstrap_servers=self.bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        try:
            places = [TopicPartition(self.prefix + topic, p) for p in range(self.partitions)]
            consumer.assign(places)
            ends, found = await consumer.end_offsets(places), []
            while any([await consumer.position(p) < ends[p] for p in places]):
                for batch in (await consumer.getmany(timeout_ms=500)).values():
                    found += batch
            return found
        finally:
            await consumer.stop()

    async def _lag(self, role):
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        consumer = AIOKafkaConsumer(bootstrap_servers=self.bootstrap)
        try:
            await admin.start()
            await consumer.start()
            held = await group_offsets(admin, f"{self.prefix}slowrank-{role}")
            topics = list(TOPICS_OF[role])
            places = [TopicPartition(self.prefix + t, p) for t in topics for p in range(self.partitions)]
            ends = await consumer.end_offsets(places)
            return sum(end - (held[p].offset if p in held else 0) for p, end in ends.items())
        finally:
            await consumer.stop()
            await admin.close()


TOPICS_OF = {
    "detect": ("node-samples", "node-events", "job-steps"),
    "sink": ("node-samples", "job-steps", "suspicions"),
}


class Worker:
    """One worker process with its log."""

    def __init__(self, role, rig):
        self.role, self.rig = role, rig
        self.log = rig.home / f"{role}-{secrets.token_hex(3)}.log"
        command = ["streams", "run"] if role == "all" else ["streams", "worker", "--role", role]
        with self.log.open("wb") as log:
            # At home, where a test may put a slowrank.toml.
            self.process = subprocess.Popen(
                [*rig.before, sys.executable, "-c", WORKER, *command],
                env=rig.environment,
                cwd=rig.home,
                stdout=log,
                stderr=log,
            )

    @property
    def alive(self):
        return self.process.poll() is None

    def health(self):
        """What the worker last wrote about itself, {} before its first round."""
        path = self.rig.home / f"streams-{self.role}-{self.process.pid}.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def wait_ready(self, within=180.0):
        """Wait until the worker has written its health; the first one ever compiles the fast path."""
        wait_for(lambda: self.health() or not self.alive, within=within, what=f"{self.role} to start")
        assert self.alive, self.log.read_text()[-3000:]
        return self

    def kill(self):
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def freeze(self):
        """Stop it without its knowledge; ``thaw`` goes on."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def terminate(self, within=30.0):
        """SIGTERM, and the exit code."""
        if self.alive:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(within)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.returncode


def wait_for(condition, *, within, what):
    """Poll until ``condition`` holds; fail after ``within`` seconds saying what was awaited."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.3)
    raise AssertionError(f"waited {within:.0f} s for {what}")


@contextmanager
def rig(bootstrap, dsn, home, **options):
    """A prepared rig whose workers are ended whatever happens."""
    made = Rig(bootstrap, dsn, home, **options)
    made.prepare()
    try:
        yield made
    finally:
        made.stop()
