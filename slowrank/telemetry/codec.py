"""Encode records to msgpack and decode them, with validation (``checks``); as JSON: ``json_rows``."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from slowrank.telemetry.checks import (
    MAX_MESSAGE_BYTES,
    BadRecord,
    check_event,
    check_job_ended,
    check_message,
    check_sample,
    check_steps,
    unknown_version,
)
from slowrank.telemetry.compact import ARRAYS, COMPACT_VERSION, CompactSample, CompactSteps, compact
from slowrank.telemetry.messages import MESSAGE_VERSION, JobEnded, StageMessage
from slowrank.telemetry.old_messages import OldMessage, job_end, of_version_2, upgraded
from slowrank.telemetry.records import VERSION, DeadLetter, JobSteps, NodeEvent, NodeSample

_encoder = msgspec.msgpack.Encoder()
_samples = msgspec.msgpack.Decoder(NodeSample)
_steps = msgspec.msgpack.Decoder(JobSteps)
_compact_samples = msgspec.msgpack.Decoder(CompactSample)
_compact_steps = msgspec.msgpack.Decoder(CompactSteps)
_events = msgspec.msgpack.Decoder(NodeEvent)
_messages = msgspec.msgpack.Decoder(StageMessage)
_old_messages = msgspec.msgpack.Decoder(OldMessage)
_job_ends = msgspec.msgpack.Decoder(JobEnded)
_dead_letters = msgspec.msgpack.Decoder(DeadLetter)

T = TypeVar("T")


class _Version(msgspec.Struct):
    v: int = VERSION


_versions = msgspec.msgpack.Decoder(_Version)


def encode(record: NodeSample | JobSteps | NodeEvent | StageMessage | JobEnded | DeadLetter) -> bytes:
    """Return the msgpack form of any record or message; of samples and step rows the compact one."""
    if isinstance(record, NodeSample | JobSteps) and record.v == VERSION:
        return _encoder.encode(compact(record))
    return _encoder.encode(record)


def decode_sample(payload: bytes, *, now: float | None = None) -> NodeSample:
    """Decode one ``node-samples`` message; with ``now`` (Unix seconds) its time must be near.

    Raises ``BadRecord``.
    """
    if payload[:1] in ARRAYS:
        sent = _decode(_compact_samples.decode, payload)
        if sent.v != COMPACT_VERSION:
            raise unknown_version(sent.v, COMPACT_VERSION)
        return check_sample(sent.record(), now=now)
    return check_sample(_decode(_samples.decode, payload), now=now)


def decode_steps(payload: bytes, *, now: float | None = None) -> JobSteps:
    """Read one record of step rows; see ``decode_sample``."""
    if payload[:1] in ARRAYS:
        sent = _decode(_compact_steps.decode, payload)
        if sent.v != COMPACT_VERSION:
            raise unknown_version(sent.v, COMPACT_VERSION)
        return check_steps(sent.record(), now=now)
    return check_steps(_decode(_steps.decode, payload), now=now)


def decode_steps_or_end(payload: bytes, *, now: float | None = None) -> JobSteps | JobEnded:
    """Read one ``job-steps`` message: step rows, or that their job has ended; see ``decode_sample``."""
    try:
        record = decode_steps(payload, now=now)
    except BadRecord as error:
        # Step rows, thousands a second, have no tag; the end of a job has one.
        if error.reason != "undecodable":
            raise
        try:
            ended = _job_ends.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise error from None
        return check_job_ended(_of_this_version(ended), now=now)
    return job_end(record) or record


def _of_this_version(ended: JobEnded) -> JobEnded:
    # In version 2 it had the same fields.
    return msgspec.structs.replace(ended, v=MESSAGE_VERSION) if ended.v == 2 else ended


def decode_event(payload: bytes, *, now: float | None = None) -> NodeEvent:
    """Read one ``node-events`` message; see ``decode_sample``."""
    return check_event(_decode(_events.decode, payload), now=now)


def decode_message(payload: bytes) -> StageMessage:
    """Read one ``suspicions`` message, of this version or an older one. Raises ``BadRecord``."""
    version = _decode(_versions.decode, payload).v
    if version == MESSAGE_VERSION:
        return check_message(_decode(_messages.decode, payload))
    if version == 2:
        return check_message(of_version_2(_decode(_messages.decode, payload)))
    if version != VERSION:
        raise unknown_version(version, MESSAGE_VERSION)
    return check_message(_decode(lambda data: upgraded(_old_messages.decode(data)), payload))


def decode_dead_letter(payload: bytes) -> DeadLetter:
    """Read one ``dead-letters`` message. Raises ``BadRecord``."""
    return _decode(_dead_letters.decode, payload)


def _decode(decode: Callable[[bytes], T], payload: bytes) -> T:
    if len(payload) > MAX_MESSAGE_BYTES:
        raise BadRecord("oversize", f"{len(payload)} bytes, at most {MAX_MESSAGE_BYTES}")
    try:
        return decode(payload)
    # 256 kB have room for more nesting than the stack: msgspec then raises RecursionError.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecord("undecodable", str(error)[:200]) from error
