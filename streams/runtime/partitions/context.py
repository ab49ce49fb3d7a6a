"""What the parts of one worker share."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from slowrank.telemetry import BadRecord
from slowrank.telemetry.topics import DEAD_LETTERS
from streams.runtime.kafka.dead_letters import dead_letter
from streams.runtime.kafka.message import Message, Outgoing
from streams.runtime.monitoring.health import Health
from streams.runtime.snapshots.snapshot_folder import SnapshotFolder

Reread = Callable[[str, int, float, int], AsyncIterator[Message]]
"""Yields the messages of (topic, partition) from a time stamp (Unix seconds) on and below an offset."""


class Producer(Protocol):
    """Sends messages to Kafka."""

    def post(self, messages: Sequence[Outgoing]) -> asyncio.Future[None]:
        """Take messages to send; the future is done when they, and all posted before them, are durable."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """Topic names on the broker, the log, the producer, the worker's health and its clock.

    ``now`` returns Unix seconds. ``window`` is how many seconds of telemetry rebuild a partition's state;
    with ``snapshots`` less is read again.
    """

    name: Callable[[str], str]
    reread: Reread
    producer: Producer
    health: Health
    now: Callable[[], float]
    window: float
    snapshots: SnapshotFolder | None = None

    def send_on(self, moved: Outgoing) -> asyncio.Future[None]:
        """Send a message to the partition that its key has moved to."""
        self.health.outputs["sent_on"] += 1
        return self.producer.post([moved])

    def dead_letter(self, message: Message, error: BadRecord) -> Outgoing:
        """Count a message that cannot be used, and return its dead letter."""
        self.health.dead_letters[message.topic, error.reason] += 1
        return dead_letter(message, error, topic=self.name(DEAD_LETTERS))
