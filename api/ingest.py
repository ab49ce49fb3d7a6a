"""The JSON twin over HTTP: a body of rows in, records for the pipeline and a count of refusals out. Pure."""

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

import msgspec

from slowrank.telemetry.checks import BadRecord, check_event, check_sample, check_steps
from slowrank.telemetry.records import JobSteps, NodeSample, Record
from slowrank.telemetry.twin import Assembler

# Bytes on the wire, bytes inflated and the ratio of the two: small bodies must not fill the memory.
MAX_BODY = 5 * 2**20
MAX_INFLATED = 20 * 2**20
MAX_RATIO = 100
MAX_LINE = 64 * 1024

Row = Mapping[str, Any]


class SinkUnavailable(Exception):
    """The sink takes nothing now; the sender should keep its rows and come again."""


class Sink(Protocol):
    """Where ingested records go; called from a worker thread, and durable when it returns."""

    def accept(self, records: Sequence[Record]) -> Mapping[int, BadRecord]:
        """Take ``records``; return by their index those it refuses, and why.

        May block. Raises ``SinkUnavailable``, and has then promised nothing.
        """


@dataclass(slots=True)
class Batch:
    """What a body held: whole records, how many rows made each, and the refused rows by reason."""

    records: list[Record] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    accepted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def refuse(self, reason: str, detail: str, rows: int = 1) -> None:
        """Count ``rows`` refused rows and keep the first few explanations."""
        self.rejected[reason] += rows
        if len(self.examples) < 5:
            self.examples.append(f"{reason}: {detail}"[:300])

    def take_back(self, refused: Mapping[int, BadRecord]) -> None:
        """Count the rows of records that the sink refused, by their index, as refused."""
        for index, bad in sorted(refused.items()):
            self.accepted -= self.rows[index]
            self.refuse(bad.reason, bad.detail, self.rows[index])


def inflate(data: bytes) -> bytes:
    """Return gunzipped ``data``. Raises ``ValueError`` past 20 MiB, past 100:1, or when it is damaged."""
    allowed = min(MAX_INFLATED, MAX_RATIO * max(len(data), 1))
    # 31: with gzip's header and check sum.
    unzip = zlib.decompressobj(wbits=31)
    try:
        # One byte more than allowed shows that there is more.
        plain = unzip.decompress(data, allowed + 1)
    except zlib.error as error:
        raise ValueError(f"the body is not gzip: {error}") from error
    if len(plain) > allowed:
        raise ValueError(f"the body inflates to more than {allowed} bytes")
    if not unzip.eof:
        raise ValueError("the gzip body is cut off")
    return plain


def read(data: bytes, *, now: float, clusters: Sequence[str] = ()) -> Batch:
    """Return the records in NDJSON ``data``; ``now`` (Unix s) bounds their times, ``clusters`` (if any) them.

    A line that cannot be read is counted, and the lines around it are taken all the same.
    """
    batch = Batch()
    numbered = enumerate(_rows(data, batch))
    for _, group in groupby(numbered, key=lambda pair: _group_key(*pair)):
        rows = [row for _, row in group]
        try:
            records = [_checked(record, now, clusters) for record in _assembled(rows)]
        except BadRecord as bad:
            batch.refuse(bad.reason, bad.detail, len(rows))
        else:
            batch.records.extend(records)
            # A row that makes two records is the first one's.
            batch.rows.extend([len(rows), *[0] * (len(records) - 1)][: len(records)])
            batch.accepted += len(rows)
    return batch


def _rows(data: bytes, batch: Batch) -> Iterator[Row]:
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        if len(line) > MAX_LINE:
            batch.refuse("oversize", f"line {number} is longer than {MAX_LINE} bytes")
            continue
        try:
            yield msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            batch.refuse("undecodable", f"line {number}: {error}")


def _group_key(number: int, row: Row) -> tuple[Any, ...]:
    if row.get("kind") == "sample" or ("kind" not in row and "metric" in row):
        return "sample", row.get("cluster"), row.get("node"), row.get("ts"), row.get("seq")
    return (number,)


def _assembled(rows: Sequence[Row]) -> Iterator[Record]:
    assembler = Assembler()
    for row in rows:
        yield from assembler.add(row)
    yield from assembler.flush()


def _checked(record: Record, now: float, clusters: Sequence[str]) -> Record:
    if clusters and record.cluster not in clusters:
        raise BadRecord("forbidden_cluster", f"this key may not write for cluster {record.cluster!r}")
    if isinstance(record, NodeSample):
        return check_sample(record, now=now)
    if isinstance(record, JobSteps):
        return check_steps(record, now=now)
    return check_event(record, now=now)
