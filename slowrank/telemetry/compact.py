"""Version 2 of samples and step rows on the wire: arrays without field names, lists of names as one text.

Columns are three quarters of what a sample takes in the log; field names, sixteen ids and labels were most of
the rest. Version 1, maps with the fields of ``records``, is read as well. What a text cannot hold exactly is
sent as the list or map that it is.
"""

import functools
import re

import msgspec

from slowrank.telemetry.records import VERSION, JobSteps, NodeSample, OpenStep

# Version on the wire of records without field names; with them they are of ``records.VERSION``.
COMPACT_VERSION = 2

_NUMBER = re.compile(r"0|[1-9]\d{0,2}", re.ASCII)

# As in ``mlx5_[0-7]/1``. Three digits: more than ``checks.MAX_INSTANCES`` are refused afterwards.
_RANGE = re.compile(rf"([^\[\],]*)\[({_NUMBER.pattern})-({_NUMBER.pattern})\]([^\[\],]*)", re.ASCII)

# Longest text that may be a range, and whose parts are kept for the next record: room for 16 names and the
# labels of a node. A range makes a thousand names of one: with longer ones it could fill the memory.
KEPT = 256

Ids = tuple[str, ...]
# First bytes of msgpack's arrays, by which a message of this form is known; those of version 1 are maps.
ARRAYS = frozenset(bytes([first]) for first in (*range(0x90, 0xA0), 0xDC, 0xDD))


class CompactSample(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The fields of a ``NodeSample``, in an order that may only grow at the end."""

    v: int
    schema: int
    cluster: str
    node: str
    boot_id: str
    seq: int
    ts: float
    rx_hint: float | None
    job_id: str | None
    labels: str | dict[str, str]
    gpu_ids: str | Ids
    nic_ids: str | Ids
    row_bytes: tuple[int, int, int] | None
    gpu: bytes
    nic: bytes
    host: bytes

    def record(self) -> NodeSample:
        """Return the record that this is."""
        return NodeSample(
            v=VERSION,
            schema=self.schema,
            cluster=self.cluster,
            node=self.node,
            boot_id=self.boot_id,
            seq=self.seq,
            ts=self.ts,
            rx_hint=self.rx_hint,
            job_id=self.job_id,
            labels=_labels(self.labels),
            gpu_ids=_ids(self.gpu_ids),
            nic_ids=_ids(self.nic_ids),
            row_bytes=self.row_bytes,
            gpu=self.gpu,
            nic=self.nic,
            host=self.host,
        )


class CompactSteps(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The fields of a ``JobSteps``, in an order that may only grow at the end."""

    v: int
    schema: int
    cluster: str
    job_id: str
    attempt: int
    node: str
    boot_id: str
    seq: int
    ts: float
    world_size: int
    labels: str | dict[str, str]
    row_bytes: int | None
    rows: bytes
    open: tuple[OpenStep, ...]

    def record(self) -> JobSteps:
        """Return the record that this is."""
        return JobSteps(
            v=VERSION,
            schema=self.schema,
            cluster=self.cluster,
            job_id=self.job_id,
            attempt=self.attempt,
            node=self.node,
            boot_id=self.boot_id,
            seq=self.seq,
            ts=self.ts,
            world_size=self.world_size,
            labels=_labels(self.labels),
            row_bytes=self.row_bytes,
            rows=self.rows,
            open=self.open,
        )


def compact(record: NodeSample | JobSteps) -> CompactSample | CompactSteps:
    """Return ``record`` as it is sent."""
    if isinstance(record, JobSteps):
        return CompactSteps(
            COMPACT_VERSION,
            record.schema,
            record.cluster,
            record.job_id,
            record.attempt,
            record.node,
            record.boot_id,
            record.seq,
            record.ts,
            record.world_size,
            _label_text(record.labels),
            record.row_bytes,
            record.rows,
            record.open,
        )
    return CompactSample(
        COMPACT_VERSION,
        record.schema,
        record.cluster,
        record.node,
        record.boot_id,
        record.seq,
        record.ts,
        record.rx_hint,
        record.job_id,
        _label_text(record.labels),
        _id_text(record.gpu_ids),
        _id_text(record.nic_ids),
        record.row_bytes,
        record.gpu,
        record.nic,
        record.host,
    )


def _id_text(ids: Ids) -> str | Ids:
    name = ids[0] if len(ids) > 1 else ""
    for number in _NUMBER.finditer(name):
        last = int(number[0]) + len(ids) - 1
        text = f"{name[: number.start()]}[{number[0]}-{last}]{name[number.end() :]}"
        if _ids_in(text) == ids:
            return text
    text = ",".join(ids)
    return text if _ids_in(text) == ids else ids


def _ids(text: str | Ids) -> Ids:
    return text if not isinstance(text, str) else _split_ids(text) if len(text) <= KEPT else _ids_in(text)


def _ids_in(text: str) -> Ids:
    if len(text) <= KEPT and (found := _RANGE.fullmatch(text)) is not None:
        head, first, last, tail = found.groups()
        return tuple(f"{head}{number}{tail}" for number in range(int(first), int(last) + 1))
    return tuple(text.split(",")) if text else ()


def _label_text(labels: dict[str, str]) -> str | dict[str, str]:
    text = ",".join(f"{name}={value}" for name, value in labels.items())
    return text if _pairs_in(text) == labels else labels


def _labels(text: str | dict[str, str]) -> dict[str, str]:
    if not isinstance(text, str):
        return text
    return _split_pairs(text).copy() if len(text) <= KEPT else _pairs_in(text)


def _pairs_in(text: str) -> dict[str, str]:
    parts = (part.partition("=") for part in text.split(",")) if text else ()
    return {name: value for name, _, value in parts}


# A node sends the same names every second, and nodes of a kind the same ids. Names have not been checked yet:
# the limits bound the memory that a sender of nonsense can take to some 120 MB (measured).
_split_ids = functools.lru_cache(maxsize=128)(_ids_in)
_split_pairs = functools.lru_cache(maxsize=16_384)(_pairs_in)
