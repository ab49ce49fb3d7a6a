"""What a snapshot of a partition holds, and how the log goes on from it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from streams.runtime.kafka.message import Message, PartitionId
from streams.runtime.partitions.clock_offsets import ClockCorrector
from streams.runtime.partitions.reorder_buffer import ReorderBuffer
from streams.runtime.snapshots.snapshot_file import Header, Refused
from streams.runtime.snapshots.snapshot_folder import ReadOn, mark_of

# Difference of two readings of one log time, which is in milliseconds.
CLOCK_SECONDS = 1e-3


@dataclass(frozen=True, slots=True)
class Parts:
    """The state of a partition, and the records that are held back before it."""

    state: Any
    order: ReorderBuffer[Any] | None
    clock: ClockCorrector[Any] | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """The state of a partition just before ``offset``, which was logged at ``timestamp`` (Unix seconds).

    ``since``: log time from which on messages are read when there is no snapshot.
    """

    place: PartitionId
    offset: int
    timestamp: float
    since: float


async def rest_of_log(read_on: ReadOn, header: Header, wanted: Wanted) -> AsyncIterator[Message]:
    """Yield the messages that a snapshot lacks.

    Raises ``Refused`` before the first of them where the snapshot must not be used. A log that does not hold
    the snapshot's last message is another one, or no longer reaches back so far.
    """
    if header.next_offset > wanted.offset and header.last.timestamp > 2 * wanted.timestamp - wanted.since:
        # More than a window: the offsets were set back, so that all this is processed again.
        raise Refused("ahead", f"it ends at {header.next_offset}, {wanted.offset} is committed")
    topic, partition = wanted.place
    known, first = False, True
    async for message in read_on(
        topic, partition, header.last.offset, max(wanted.offset, header.next_offset)
    ):
        if not known:
            _recognise(header, message)
            known = True
        if not header.next_offset <= message.offset < wanted.offset:
            continue
        if first and message.timestamp < wanted.since:
            raise Refused(
                "old", f"the log goes on {wanted.since - message.timestamp:.0f} s before the window"
            )
        first = False
        yield message
    if not known:
        raise Refused("other_log", f"the log has no offset {header.last.offset}")


def _recognise(header: Header, message: Message) -> None:
    found, last = mark_of(message), header.last
    same = (found.offset, found.digest) == (last.offset, last.digest)
    if not same or abs(found.timestamp - last.timestamp) > CLOCK_SECONDS:
        raise Refused("other_log", f"offset {last.offset} of the log is another message")
