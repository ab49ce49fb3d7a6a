"""Which partition a key belongs to, now and before its topic grew. Pure: partition counts come in.

Producers put a record into the partition that the hash of its key gives for the partition count in their
metadata. When a topic grows, half of the keys or more move, for each producer at another time, and nothing
orders a key's old partition against its new one. So workers process a key only in its present partition, and
send records in a former one on to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from aiokafka import ConsumerRecord
from aiokafka.partitioner import murmur2

from streams.runtime.kafka.message import Message, Outgoing, PartitionId

# Header of a record that was sent on: ``role:partition:offset`` of where it lay.
MOVED = "x-moved-from"

# Twice the default of five minutes after which Kafka's clients notice that a topic grew.
SLOWEST_SECONDS = 600.0


def message_of(record: "ConsumerRecord[Any, Any]") -> Message:
    """Return a record of aiokafka's consumer as a message, with where it was sent on from."""
    moved = ""
    for name, value in record.headers:
        if name == MOVED and value:
            moved = value.decode(errors="replace")
    # A message without a value (a tombstone) becomes a dead letter like any other that cannot be read.
    return Message(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp / 1000.0,
        record.value or b"",
        record.key or b"",
        moved,
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """How many partitions a topic has ``now``, and each count of the last day with the time (Unix seconds)
    until which it held."""

    now: int
    former: Mapping[int, float] = field(default_factory=dict)


@lru_cache(maxsize=65_536)
def home(key: bytes, partitions: int) -> int:
    """Return the partition that Kafka's clients choose for a key: murmur2, as in the Java client."""
    return int((murmur2(key) & 0x7FFFFFFF) % partitions)


@dataclass(slots=True)
class Placement:
    """The partition counts of the topics that one worker reads; ``role`` is the worker's."""

    role: str
    _counts: dict[str, Counts] = field(default_factory=dict)

    def update(self, counts: Mapping[str, Counts]) -> set[str]:
        """Take the counts; return the topics that have grown since the last call.

        A topic that the brokers do not list at the moment keeps its count: were it forgotten, its growth
        would not be seen, and records would be processed in states from before it.
        """
        before, self._counts = self._counts, {**self._counts, **counts}
        return {t for t, new in counts.items() if t in before and new.now != before[t].now}

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has, 0 if that was not requested yet."""
        return self._counts[topic].now if topic in self._counts else 0

    def new_home(self, message: Message) -> int | None:
        """Return the partition to send a message on to, None where it is in the right one.

        Records of a sender that uses another hash than Kafka's clients stay where they are.
        """
        counts = self._counts.get(message.topic)
        if counts is None or not counts.former or not message.key:
            return None
        new = home(message.key, counts.now)
        lies_in_a_former = any(home(message.key, n) == message.partition for n in counts.former)
        return new if lies_in_a_former and new != message.partition else None

    def belongs(self, message: Message, partition: int) -> bool:
        """Return whether a message of a former partition belongs to ``partition`` now."""
        return self.new_home(message) == partition

    def sources(self, place: PartitionId, since: float) -> Sequence[int]:
        """Return the other partitions in which a partition's keys may have been from ``since`` on."""
        topic, partition = place
        counts = self._counts.get(topic, Counts(1))
        found: set[int] = set()
        for former, until in counts.former.items():
            if until + SLOWEST_SECONDS > since:
                # If the count is a multiple of the former, each partition has its keys from a single one.
                found |= {partition % former} if counts.now % former == 0 else set(range(former))
        return sorted(found - {partition})

    def sent_on(self, message: Message, partition: int) -> Outgoing:
        """Return a message to send on to its present partition."""
        header = f"{self.role}:{message.partition}:{message.offset}".encode()
        return Outgoing(message.topic, message.key, message.value, [(MOVED, header)], partition)

    def moved_from(self, message: Message) -> tuple[int, int] | None:
        """Return the former (partition, offset) of a message that this role sent on, else None."""
        role, _, place = message.moved.partition(":")
        if role != self.role:
            return None
        partition, _, offset = place.partition(":")
        return int(partition), int(offset)
