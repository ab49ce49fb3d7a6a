"""Records to bytes and back, with every limit checked: nothing unchecked passes this module.

Concerned with the msgpack form; the JSON twin is in ``twin``. A record that breaks a rule raises
``BadRecord`` with a reason from ``REASONS``, which is also the label it is counted under.
"""

import math
import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from slowrank.telemetry.records import VERSION, DeadLetter, JobSteps, NodeEvent, NodeSample, Suspicion
from slowrank.telemetry.schema import SAMPLE_SCHEMAS, STEP_SCHEMAS, Block

MAX_MESSAGE_BYTES = 256 * 1024
MAX_INSTANCES = 512
MAX_STEP_ROWS = 1024
MAX_LABELS = 32
MAX_TEXT = 4096
MAX_AGE_SECONDS = 24 * 3600.0
MAX_AHEAD_SECONDS = 300.0
DEAD_LETTER_BYTES = 4096

REASONS = (
    "oversize",
    "undecodable",
    "unknown_version",
    "unknown_schema",
    "column_length",
    "bad_label",
    "bad_number",
    "bad_time",
    "too_many_instances",
)

_NAME = re.compile(r"[A-Za-z0-9._:/-]{1,128}")


class BadRecord(ValueError):
    """A record that must not enter: ``reason`` is one of ``REASONS``, ``detail`` is for people."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


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
    return _decode(_suspicions.decode, payload)


def decode_dead_letter(payload: bytes) -> DeadLetter:
    """Read one ``dead-letters`` message. Raises ``BadRecord``."""
    return _decode(_dead_letters.decode, payload)


def check_sample(record: NodeSample, *, now: float | None = None) -> NodeSample:
    """Return ``record`` if it keeps every rule, else raise ``BadRecord``."""
    _check_version(record.v)
    schema = SAMPLE_SCHEMAS.get(record.schema)
    if schema is None:
        raise BadRecord("unknown_schema", f"node-samples schema {record.schema} is not in the registry")
    _check_names(cluster=record.cluster, node=record.node, boot_id=record.boot_id)
    if record.job_id is not None:
        _check_names(job_id=record.job_id)
    _check_labels(record.labels)
    _check_time(record.ts, now)
    _check_ids(record.gpu_ids)
    _check_ids(record.nic_ids)
    _check_block("gpu", schema.gpu, record.gpu, len(record.gpu_ids))
    _check_block("nic", schema.nic, record.nic, len(record.nic_ids))
    _check_block("host", schema.host, record.host, 1 if record.host else 0)
    return record


def check_steps(record: JobSteps, *, now: float | None = None) -> JobSteps:
    """Return ``record`` if it keeps every rule, else raise ``BadRecord``."""
    _check_version(record.v)
    schema = STEP_SCHEMAS.get(record.schema)
    if schema is None:
        raise BadRecord("unknown_schema", f"job-steps schema {record.schema} is not in the registry")
    _check_names(cluster=record.cluster, node=record.node, job_id=record.job_id, boot_id=record.boot_id)
    _check_labels(record.labels)
    _check_time(record.ts, now)
    rows, rest = divmod(len(record.rows), schema.rows.row_size)
    if rest:
        raise BadRecord(
            "column_length", f"{len(record.rows)} bytes are not whole {schema.rows.row_size}-byte rows"
        )
    if rows > MAX_STEP_ROWS:
        raise BadRecord("too_many_instances", f"{rows} step rows, at most {MAX_STEP_ROWS} a message")
    return record


def check_event(record: NodeEvent, *, now: float | None = None) -> NodeEvent:
    """Return ``record`` if it keeps every rule, else raise ``BadRecord``."""
    _check_version(record.v)
    _check_names(cluster=record.cluster, node=record.node, source=record.source, code=record.code)
    _check_time(record.ts, now)
    if len(record.message) > MAX_TEXT or len(record.raw) > MAX_TEXT or len(record.subject) > MAX_LABELS:
        raise BadRecord("oversize", f"message and raw hold at most {MAX_TEXT} characters")
    for key, value in record.subject.items():
        _check_names(subject_key=key)
        if isinstance(value, str):
            _check_names(subject_value=value)
    return record


def _decode(decode: Callable[[bytes], T], payload: bytes) -> T:
    if len(payload) > MAX_MESSAGE_BYTES:
        raise BadRecord("oversize", f"{len(payload)} bytes, at most {MAX_MESSAGE_BYTES}")
    try:
        return decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecord("undecodable", str(error)[:200]) from error


def _check_version(version: int) -> None:
    if version != VERSION:
        raise BadRecord("unknown_version", f"record version {version}, this reader knows {VERSION}")


def _check_names(**names: str) -> None:
    for field, name in names.items():
        if not _NAME.fullmatch(name):
            raise BadRecord("bad_label", f"{field} must be 1 to 128 characters of A-Z a-z 0-9 . _ : / -")


def _check_labels(labels: dict[str, str]) -> None:
    if len(labels) > MAX_LABELS:
        raise BadRecord("too_many_instances", f"{len(labels)} labels, at most {MAX_LABELS}")
    for key, value in labels.items():
        _check_names(label=key, label_value=value)


def _check_ids(ids: tuple[str, ...]) -> None:
    if len(ids) > MAX_INSTANCES:
        raise BadRecord("too_many_instances", f"{len(ids)} instances, at most {MAX_INSTANCES}")
    if len(set(ids)) != len(ids):
        raise BadRecord("bad_label", "instance ids repeat")
    for instance in ids:
        _check_names(instance=instance)


def _check_time(ts: float, now: float | None) -> None:
    if not math.isfinite(ts) or ts <= 0:
        raise BadRecord("bad_time", f"ts {ts} is no time")
    if now is not None and not (now - MAX_AGE_SECONDS <= ts <= now + MAX_AHEAD_SECONDS):
        raise BadRecord("bad_time", f"ts is {ts - now:+.0f} s from now, allowed -24 h to +5 min")


def _check_block(name: str, block: Block, data: bytes, instances: int) -> None:
    if len(data) != block.row_size * instances:
        raise BadRecord(
            "column_length", f"{name} holds {len(data)} bytes, not {instances} x {block.row_size}"
        )
