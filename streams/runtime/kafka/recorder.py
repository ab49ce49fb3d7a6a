"""Writes the telemetry topics to a file of JSON rows, for replay."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from slowrank.settings import Settings
from slowrank.telemetry import BadRecord, JobEnded
from slowrank.telemetry.rows.json_rows import rows
from slowrank.telemetry.rows.row_file import opened
from slowrank.telemetry.topics import topic_name
from streams.runtime.kafka.clients import METADATA_MS
from streams.runtime.kafka.decoding import TELEMETRY
from streams.runtime.kafka.message import Message
from streams.runtime.kafka.placement import MOVED


class RecordingProblem(Exception):
    """Nothing can be recorded; the message has the cause and what to do."""


async def write_recording(settings: Settings, output: Path, *, follow: bool) -> tuple[int, int]:
    """Write the rows of every telemetry message in Kafka; return the counts of rows and unreadable messages.

    Ends where the topics ended at the start; with ``follow`` it never ends. Raises ``RecordingProblem``.
    """
    written = unreadable = 0
    decode = {topic_name(t, settings.topic_prefix): read for t, read in TELEMETRY.items()}
    try:
        messages = _messages(settings, list(decode), follow=follow)
        # Without Kafka, its topics or a message an older recording is not overwritten.
        message = await anext(messages, None)
        if message is None:
            return 0, 0
        with opened(output) as file:
            while message is not None:
                try:
                    record = decode[message.topic](message.value, message.timestamp)
                except BadRecord:
                    unreadable += 1
                else:
                    # The end of a job is recorded as the event of its node.
                    found = () if isinstance(record, JobEnded) else rows(record)
                    lines = [msgspec.json.encode(row) + b"\n" for row in found]
                    file.write(b"".join(lines))
                    written += len(lines)
                message = await anext(messages, None)
    except KafkaError as error:
        raise RecordingProblem(f"Kafka at {settings.kafka_bootstrap} does not answer ({error}).") from error
    except OSError as error:
        raise RecordingProblem(f"{output}: cannot be written ({error.strerror}).") from error
    return written, unreadable


async def _messages(settings: Settings, topics: list[str], *, follow: bool) -> AsyncIterator[Message]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings.kafka_bootstrap, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    try:
        await consumer.start()
        places = await _partitions(settings.kafka_bootstrap, topics)
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        await consumer.seek_to_beginning(*places)
        looked = time.monotonic()
        while follow or any([await consumer.position(p) < ends[p] for p in places]):
            if follow and time.monotonic() - looked >= METADATA_MS / 1000:
                looked = time.monotonic()
                await _assign_new(consumer, await _partitions(settings.kafka_bootstrap, topics))
            for place, batch in (await consumer.getmany(timeout_ms=1000)).items():
                for message in batch:
                    # What a worker sent on is in its former partition, too.
                    moved = any(name == MOVED for name, _ in message.headers)
                    if not moved and (follow or message.offset < ends[place]):
                        yield Message(
                            place.topic,
                            place.partition,
                            message.offset,
                            message.timestamp / 1000,
                            message.value or b"",
                        )
    finally:
        await consumer.stop()


async def _assign_new(consumer: AIOKafkaConsumer, places: list[TopicPartition]) -> None:
    """Read new partitions from their beginning, and the others on from their positions."""
    known = consumer.assignment()
    if new := [place for place in places if place not in known]:
        positions = {place: await consumer.position(place) for place in known}
        consumer.assign(places)
        for place, position in positions.items():
            consumer.seek(place, position)
        await consumer.seek_to_beginning(*new)


async def _partitions(bootstrap: str, topics: list[str]) -> list[TopicPartition]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        await admin.start()
        found = [t for t in await admin.describe_topics(topics) if t["error_code"] == 0]
    finally:
        await admin.close()
    missing = sorted(set(topics) - {t["topic"] for t in found})
    if missing:
        raise RecordingProblem(f"no topic {', '.join(missing)}: `slowrank topics create` makes them.")
    return [TopicPartition(t["topic"], p["partition"]) for t in found for p in t["partitions"]]
