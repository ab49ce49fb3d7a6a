"""Records to bytes and back, with every limit checked: nothing unchecked passes this module.

Concerned with the msgpack form; the JSON twin is in ``twin``, the limits in ``checks``.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from slowrank.telemetry.checks import (
    MAX_MESSAGE_BYTES,
    BadRecord,
    check_event,
    check_sample,
    check_steps,
    check_suspicion,
)
from slowrank.telemetry.records import DeadLetter, JobSteps, NodeEvent, NodeSample, Suspicion

_encoder = msgspec.msgpack.Encoder()
_samples = msgspec.msgpack.Decoder(NodeSample)
_steps = msgspec.msgpack.Decoder(JobSteps)
_events = msgspec.msgpack.Decoder(NodeEvent)
_suspicions = msgspec.msgpack.Decoder(Suspicion)
_dead_letters = msgspec.msgpack.Decoder(DeadLetter)

T = TypeVar("T")


def encode(record: NodeSample | JobSteps | NodeEvent | Suspicion | DeadLetter) -> bytes:
    """Return the msgpack form of any record."""
    return _encoder.encode(record)


def decode_sample(payload: bytes, *, now: float | None = None) -> NodeSample:
    """Read one ``node-samples`` message; ``now`` (Unix seconds) switches the time window on.

    Raises ``BadRecord``.
    """
    return check_sample(_decode(_samples.decode, payload), now=now)


def decode_steps(payload: bytes, *, now: float | None = None) -> JobSteps:
    """Read one ``job-steps`` message; see ``decode_sample``."""
    return check_steps(_decode(_steps.decode, payload), now=now)


def decode_event(payload: bytes, *, now: float | None = None) -> NodeEvent:
    """Read one ``node-events`` message; see ``decode_sample``."""
    return check_event(_decode(_events.decode, payload), now=now)


def decode_suspicion(payload: bytes) -> Suspicion:
    """Read one ``suspicions`` message. Raises ``BadRecord``."""
    return check_suspicion(_decode(_suspicions.decode, payload))


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
