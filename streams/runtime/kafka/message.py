"""Messages of the log and their places. Needs no Kafka client: ``slowrank up`` keeps snapshots by them."""

from dataclasses import dataclass

Headers = list[tuple[str, bytes]]
PartitionId = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the log; ``timestamp`` in Unix seconds.

    ``moved`` is where a message was before a worker sent it on (``streams.runtime.kafka.placement.MOVED``).
    """

    topic: str
    partition: int
    offset: int
    timestamp: float
    value: bytes
    key: bytes = b""
    moved: str = ""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to send, to the partition of its key if ``partition`` is None."""

    topic: str
    key: bytes
    value: bytes
    headers: Headers
    partition: int | None = None
