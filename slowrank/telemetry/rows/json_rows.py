"""The JSON rows of the records: one object per measurement, with names, for people and other languages.

``rows`` writes a record as JSON rows; ``Assembler`` gathers JSON rows back into records. How the rows were
batched before does not matter to the stages, which work row by row.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from slowrank.telemetry.checks import BadRecord, check_event, check_sample, check_steps
from slowrank.telemetry.columns import Value, pack, step_schema_of, unpack
from slowrank.telemetry.names import COORDS, kind_of
from slowrank.telemetry.records import (
    UNKNOWN_NODE,
    JobSteps,
    NodeEvent,
    NodeSample,
    OpenStep,
    Record,
)
from slowrank.telemetry.schema import (
    CURRENT_SAMPLE_SCHEMA,
    CURRENT_STEP_SCHEMA,
    MISSING,
    NOT_FINITE,
    SAMPLE_SCHEMAS,
    STEP_SCHEMAS,
    Block,
)

Row = dict[str, Any]


def rows(record: Record) -> Iterator[Row]:
    """Yield the JSON rows of one record; values that were not read are left out."""
    if isinstance(record, NodeEvent):
        yield {"kind": "event", **_event_fields(record)}
    elif isinstance(record, JobSteps):
        yield from _step_rows(record)
    else:
        yield from _sample_rows(record)


def _event_fields(event: NodeEvent) -> Row:
    fields: Row = msgspec.to_builtins(event)
    fields.pop("v", None)
    return fields


def _step_rows(record: JobSteps) -> Iterator[Row]:
    head: Row = {
        "kind": "step",
        "cluster": record.cluster,
        "job_id": record.job_id,
        "attempt": record.attempt,
        "node": record.node,
    }
    if record.world_size:
        head["world_size"] = record.world_size
    if record.labels:
        head["labels"] = record.labels
    for values in unpack(STEP_SCHEMAS[record.schema].rows, record.rows):
        present = {k: NOT_FINITE if v == math.inf else v for k, v in values.items() if v is not None}
        coords = {c: int(present.pop(c)) for c in COORDS if c in present}
        yield head | present | ({"coords": coords} if coords else {})
    for step in record.open:
        yield head | {"kind": "open_step", "ts": record.ts} | msgspec.structs.asdict(step)


def _sample_rows(record: NodeSample) -> Iterator[Row]:
    schema = SAMPLE_SCHEMAS[record.schema]
    head: Row = {
        "kind": "sample",
        "ts": record.ts,
        "cluster": record.cluster,
        "node": record.node,
        "boot_id": record.boot_id,
        "seq": record.seq,
    }
    if record.job_id is not None:
        head["job_id"] = record.job_id
    if record.labels:
        head["labels"] = record.labels
    blocks = (
        (schema.gpu, record.gpu, record.gpu_ids),
        (schema.nic, record.nic, record.nic_ids),
        (schema.host, record.host, ("",)),
    )
    for block, data, ids in blocks:
        # Not strict: a sample without readings of the host has no row for the host's one id.
        for instance, values in zip(ids, unpack(block, data), strict=False):
            for metric, value in values.items():
                if value is not None:
                    yield head | {"metric": metric, "instance": instance, "value": value}


class Assembler:
    """Gathers JSON rows into records, in the order they come.

    ``add`` returns the records that became whole: consecutive rows of one ``tick_of`` make one
    ``NodeSample``, closed by the first row of another; each step row and each event is a record of its own.
    ``flush`` closes what is open. Rows in any order must be grouped before: the stages take one sample of a
    node and time. Raises ``BadRecord`` for a row that cannot be read, naming the field.
    """

    def __init__(self) -> None:
        self._sample: list[Row] = []

    def add(self, row: Mapping[str, Any]) -> list[Record]:
        """Take one row; return the records it completes."""
        kind = kind_of(row)
        if kind == "sample":
            return self._add_sample(dict(row))
        closed: list[Record] = list(self.flush())
        if kind == "step":
            closed.append(steps_record([row]))
        elif kind == "open_step":
            closed.append(open_step_record(row))
        elif kind == "event":
            closed.append(_event_record(row))
        else:
            raise BadRecord("undecodable", f"kind {kind!r} is none of step, open_step, sample, event")
        return closed

    def flush(self) -> Iterable[Record]:
        """Close the sample under construction, if there is one."""
        if not self._sample:
            return ()
        held, self._sample = self._sample, []
        return (_sample_record(held),)

    def _add_sample(self, row: Row) -> list[Record]:
        closed: list[Record] = []
        if self._sample and tick_of(self._sample[0]) != tick_of(row):
            closed.extend(self.flush())
        self._sample.append(row)
        return closed


def steps_record(step_rows: Sequence[Mapping[str, Any]]) -> JobSteps:
    """Return one record of step rows that share cluster, job, attempt and node. Raises ``BadRecord``."""
    first = step_rows[0]
    values = [_step_values(row) for row in step_rows]
    schema = step_schema_of(values)
    packed = _pack(schema.rows, values)
    record = JobSteps(
        schema=schema.id,
        cluster=_text(first, "cluster", "default"),
        job_id=_text(first, "job_id", "job"),
        attempt=int(_number(first, "attempt", 0.0)),
        node=_text(first, "node", UNKNOWN_NODE),
        boot_id=_text(first, "boot_id", "file"),
        seq=int(_number(first, "seq", _identity(packed))),
        ts=max(_number(r, "ts") for r in step_rows),
        world_size=int(_number(first, "world_size", 0.0)),
        labels=_labels(first),
        row_bytes=schema.row_bytes,
        rows=packed,
    )
    return check_steps(record)


def open_step_record(row: Mapping[str, Any]) -> JobSteps:
    """Return the record of a step that a rank has not ended. Raises ``BadRecord``."""
    for required in ("rank", "step", "ts", "seconds"):
        _number(row, required)
    step = OpenStep(
        rank=int(_number(row, "rank")),
        step=int(_number(row, "step")),
        phase=_text(row, "phase", ""),
        seconds=_number(row, "seconds"),
        at=_text(row, "at", ""),
    )
    schema = step_schema_of(())
    record = JobSteps(
        schema=schema.id,
        cluster=_text(row, "cluster", "default"),
        job_id=_text(row, "job_id", "job"),
        attempt=int(_number(row, "attempt", 0.0)),
        node=_text(row, "node", UNKNOWN_NODE),
        boot_id=_text(row, "boot_id", "file"),
        seq=int(_number(row, "seq", _identity(repr(step).encode()))),
        ts=_number(row, "ts"),
        world_size=int(_number(row, "world_size", 0.0)),
        labels=_labels(row),
        row_bytes=schema.row_bytes,
        open=(step,),
    )
    return check_steps(record)


def _identity(content: bytes) -> int:
    """Return a sequence number for rows that came without one: sent again, they are the same record."""
    # 63 bits, as seq is a signed 64-bit number.
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") >> 1


def _step_values(row: Mapping[str, Any]) -> dict[str, Value]:
    for required in ("step", "rank", "ts", "step_seconds"):
        _number(row, required)
    coords = row.get("coords") or {}
    if not isinstance(coords, Mapping):
        raise BadRecord("undecodable", "coords must be an object such as {'dp': 0, 'pp': 1}")
    block = STEP_SCHEMAS[CURRENT_STEP_SCHEMA].rows
    merged = {**row, **coords}
    values = {name: _optional(merged, name) for name in block.names}
    for column in block.columns:
        value = values[column.name]
        if column.dtype in MISSING and isinstance(value, float) and not value.is_integer():
            raise BadRecord("bad_number", f"field {column.name!r} is {value}, not a whole number")
    return values


def _sample_record(held: list[Row]) -> NodeSample:
    schema = SAMPLE_SCHEMAS[CURRENT_SAMPLE_SCHEMA]
    first = held[0]
    gpus: dict[str, dict[str, Value]] = {}
    nics: dict[str, dict[str, Value]] = {}
    host: dict[str, Value] = {}
    for row in held:
        metric, instance = _text(row, "metric"), str(row.get("instance", ""))
        value = _optional(row, "value")
        if metric.startswith("gpu."):
            gpus.setdefault(instance, {})[metric] = value
        elif metric.startswith("nic."):
            nics.setdefault(instance, {})[metric] = value
        else:
            host[metric] = value
    ts = _number(first, "ts")
    gpu, nic = _pack(schema.gpu, list(gpus.values())), _pack(schema.nic, list(nics.values()))
    packed_host = _pack(schema.host, [host]) if host else b""
    content = b"".join((repr((ts, tuple(gpus), tuple(nics))).encode(), gpu, nic, packed_host))
    job = _with(held, "job_id")
    record = NodeSample(
        schema=schema.id,
        cluster=_text(first, "cluster", "default"),
        node=_text(first, "node"),
        boot_id=_text(_with(held, "boot_id"), "boot_id", "file"),
        seq=int(_number(_with(held, "seq"), "seq", _identity(content))),
        ts=ts,
        job_id=_text(job, "job_id") if job.get("job_id") is not None else None,
        labels=_labels(_with(held, "labels")),
        gpu_ids=tuple(gpus),
        nic_ids=tuple(nics),
        row_bytes=schema.row_bytes,
        gpu=gpu,
        nic=nic,
        host=packed_host,
    )
    return check_sample(record)


def _with(held: list[Row], field: str) -> Row:
    """Return the first row that gives ``field``, or the first of all: not every row needs to repeat it."""
    return next((row for row in held if row.get(field) not in (None, "", {})), held[0])


# Amounts in the subject of an event, whose fractions mean nothing; a GPU or rank is not rounded.
AMOUNTS = ("booted", "started_ms", "milliseconds", "delay_ns", "expected_ns")


def whole_numbers(subject: Mapping[str, Any]) -> dict[str, Any]:
    """Return the subject of an event with floats as the whole numbers that they are, amounts rounded."""
    return {name: _whole(name, value) for name, value in subject.items()}


def _whole(name: str, value: Any) -> Any:
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    return round(value) if name in AMOUNTS or value.is_integer() else value


def _event_record(row: Mapping[str, Any]) -> NodeEvent:
    fields = {k: v for k, v in row.items() if k != "kind" and v is not None}
    if isinstance(row.get("subject"), Mapping):
        fields["subject"] = whole_numbers(row["subject"])
    fields.setdefault("cluster", "default")
    fields.setdefault("node", UNKNOWN_NODE)
    try:
        return check_event(msgspec.convert(fields, NodeEvent))
    except msgspec.ValidationError as error:
        raise BadRecord("undecodable", f"event: {error}") from error


def tick_of(row: Mapping[str, Any]) -> tuple[str, str, str | float]:
    """Return what sample rows of one record share: cluster, node and time.

    Neither ``boot_id`` nor ``seq``: of two records with one time the stages would drop the second.

    >>> tick_of({"node": "n1", "ts": "5", "seq": 1})
    ('default', 'n1', 5.0)
    """
    ts = row.get("ts")
    try:
        seconds: str | float = float("nan" if ts is None else ts)
    except (TypeError, ValueError, OverflowError):
        seconds = str(ts)
    # NaN is not equal to itself.
    return str(row.get("cluster") or "default"), str(row.get("node")), seconds if seconds == seconds else ""


def _labels(row: Mapping[str, Any]) -> dict[str, str]:
    try:
        labels = msgspec.convert(row.get("labels") or {}, dict[str, str | None])
    except msgspec.ValidationError as error:
        raise BadRecord("undecodable", f"labels: {error}") from error
    return {name: value for name, value in labels.items() if value}


def _pack(block: Block, values: Sequence[Mapping[str, Value]]) -> bytes:
    try:
        return pack(block, values)
    except OverflowError as error:
        raise BadRecord("bad_number", f"a value does not fit its column: {error}") from error


def _text(row: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = row.get(name)
    if value is None or value == "":
        if default is None:
            raise BadRecord("undecodable", f"field {name!r} is missing")
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)


def _number(row: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = _optional(row, name)
    if value is None:
        if default is None:
            raise BadRecord("undecodable", f"field {name!r} is missing or not a number")
        return default
    return value


def _optional(row: Mapping[str, Any], name: str) -> float | int | None:
    value = row.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        try:
            value = float(value)
        except (TypeError, ValueError) as error:
            raise BadRecord("bad_number", f"field {name!r} is {str(value)[:40]!r}, not a number") from error
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and abs(value) >= 2**63:
        raise BadRecord("bad_number", f"field {name!r} does not fit 64 bits")
    return value
