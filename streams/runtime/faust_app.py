"""The Faust apps: one that detects, one that stores, in consumer groups of their own.

A database that is away holds up the storing app alone. Topics are raw bytes and belong to the operator
(``slowrank topics create``); a message is acknowledged when its outputs are durable. Messages come in
batches, or one by one through Faust's agents (``streams_transport``).
"""

from collections.abc import Mapping
from typing import Any, Literal, Protocol, cast

import faust
from faust.types import StreamT

from slowrank.settings import Settings
from slowrank.telemetry.topics import JOB_STEPS, NODE_EVENTS, NODE_SAMPLES, SUSPICIONS
from streams.runtime.kafka.acks import Acks, Take
from streams.runtime.kafka.batches.buffer import BatchBuffer
from streams.runtime.kafka.batches.runner import process
from streams.runtime.kafka.batches.transport import MAX_POLL_RECORDS, BatchConsumer, BatchTransport
from streams.runtime.kafka.clients import METADATA_MS
from streams.runtime.kafka.message import Message, PartitionId
from streams.runtime.kafka.placement import MOVED

Role = Literal["detect", "sink"]
# The topics each role takes messages from.
READS: dict[Role, tuple[str, ...]] = {
    "detect": (NODE_SAMPLES, NODE_EVENTS, JOB_STEPS),
    "sink": (NODE_SAMPLES, JOB_STEPS, SUSPICIONS),
}

# Between two rounds of a worker: the tick of event time.
ROUND_SECONDS = 1.0


class Work(Protocol):
    """What a role does in an app."""

    @property
    def takes(self) -> Mapping[str, Take]:
        """Topic to the handler of its messages, which may block and raises only when cancelled."""
        ...

    async def round(self, assigned: set[PartitionId]) -> None:
        """Do what is not driven by messages; called every second with the partitions assigned."""
        ...

    def rebalanced(self) -> None:
        """Handle a new assignment of partitions: a topic may have grown."""
        ...

    async def stop(self) -> None:
        """Close all connections; no message follows."""
        ...


def build(settings: Settings, role: Role, work: Work) -> faust.App:
    """Return the app of a role, ready for a worker."""
    in_batches = settings.streams_transport == "batch"
    app = faust.App(
        group(settings, role),
        broker=[f"kafka://{server.strip()}" for server in settings.kafka_bootstrap.split(",")],
        autodiscover=False,
        # Faust's web page has no authentication; topics, also that of Faust's leader, are created by the
        # operator.
        web_enabled=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        consumer_auto_offset_reset="earliest",
        # By this the leader of the group notices that a topic grew, and assigns the new partitions.
        consumer_metadata_max_age_ms=METADATA_MS,
        broker_commit_interval=1.0,
        broker_session_timeout=settings.streams_session_seconds,
        broker_heartbeat_interval=settings.streams_session_seconds / 10,
        # A database may be away for an hour; that is no reason to rebalance.
        broker_max_poll_interval=3600.0,
        broker_max_poll_records=MAX_POLL_RECORDS if in_batches else None,
        producer_request_timeout=30.0,
        # Waiting for a blocked message would hold up every rebalance and every stop.
        stream_wait_empty=False,
        datadir=str(settings.streams_runtime_dir / f"faust-{role}"),
        worker_redirect_stdouts=False,
    )
    (_read_batches if in_batches else _read_messages)(app, work.takes)
    _connect(app, work)
    return app


def group(settings: Settings, role: Role) -> str:
    """Return the consumer group of a role."""
    return f"{settings.topic_prefix}slowrank-{role}"


def _connect(app: faust.App, work: Work) -> None:
    async def rounds() -> None:
        await work.round({(tp.topic, tp.partition) for tp in app.consumer.assignment()})

    async def stopping(*_: Any, **__: Any) -> None:
        await work.stop()

    async def rebalanced(*_: Any, **__: Any) -> None:
        work.rebalanced()

    # Both: a message of the new distribution may be taken before the second comes.
    app.on_partitions_revoked.connect(rebalanced)
    app.on_partitions_assigned.connect(rebalanced)

    app.timer(ROUND_SECONDS)(rounds)
    app.on_before_shutdown.connect(stopping)


def _read_batches(app: faust.App, takes: Mapping[str, Take]) -> None:
    # Set before ``app.topics`` is touched, which keeps the transport that it finds.
    transport = app.transport = BatchTransport(app.conf.broker_consumer, app, takes)
    for topic, take in takes.items():
        app.topics.add(_raw(app, topic))
        _runner(app, transport.buffers[topic], take)


def _runner(app: faust.App, buffer: BatchBuffer, take: Take) -> None:
    # What it raises ends the worker, and the supervisor starts another.
    async def run() -> None:
        await process(buffer, cast("BatchConsumer", app.consumer), take)

    app.task(run)


def _read_messages(app: faust.App, takes: Mapping[str, Take]) -> None:
    for topic, take in takes.items():
        _agent(app, topic, take)


def _raw(app: faust.App, topic: str) -> Any:
    # Raw: a decoder that raised inside Faust would end the agent, again and again, on one bad message.
    return app.topic(topic, key_type=bytes, key_serializer="raw", value_type=bytes, value_serializer="raw")


def _agent(app: faust.App, topic: str, take: Take) -> None:
    # With more at a time Faust may commit past a message still under way (faust-streaming #606).
    @app.agent(_raw(app, topic), name=f"take-{topic}", concurrency=1)
    async def agent(stream: StreamT[bytes]) -> None:
        # Faust's own acknowledgement comes also when the body is cancelled, and would lose the message.
        unacked = cast("faust.Stream[bytes]", stream).noack()
        async with Acks(unacked.ack) as acks:
            async for event in unacked.events():
                await acks.put(event, await take(_message(event.message)))


def _message(raw: Any) -> Message:
    # A message without a value (a tombstone) becomes a dead letter like any other that cannot be read.
    moved = (dict(raw.headers or ()).get(MOVED) or b"").decode(errors="replace")
    return Message(
        raw.topic, raw.partition, raw.offset, raw.timestamp, raw.value or b"", raw.key or b"", moved
    )
