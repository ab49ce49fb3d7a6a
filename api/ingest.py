"""Parses telemetry posted as NDJSON into records and refused lines. Pure."""

import math
import zlib
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from slowrank.telemetry.checks import (
    BAD_TIME,
    MAX_STEP_ROWS,
    BadRecord,
    check_event,
    check_sample,
    check_steps,
)
from slowrank.telemetry.names import Unknown, first_unknown, kind_of
from slowrank.telemetry.records import JobSteps, NodeSample, Record
from slowrank.telemetry.rows import sample_rows
from slowrank.telemetry.rows.json_lines import NOT_JSON, decode_line
from slowrank.telemetry.rows.json_rows import Assembler, steps_record, tick_of
from slowrank.telemetry.rows.rounds import labels_of, rounds

# Bytes on the wire, inflated bytes and their ratio, so that a small body cannot fill the memory. Chosen:
# 20 MiB are some 3,000 records of a node with eight GPUs (7 kB each as JSON with named fields).
MAX_BODY = 5 * 2**20
MAX_INFLATED = 20 * 2**20
MAX_RATIO = 100
# Parts of a gzip body, as of joined files; what follows each is copied. Chosen: an hour of minutes.
MAX_MEMBERS = 60
# Chosen: nine times such a record.
MAX_LINE = 64 * 1024
# Chosen: 20 MiB of short step rows. Each line takes microseconds: ten million empty objects took a minute.
MAX_LINES = 400_000
# Refused lines that an answer explains; the others are only counted. Chosen: 6 kB of answer at most.
MAX_ERRORS = 20

# Fields of a step row that a record has once for all of its rows.
_OF_SENDER = ("cluster", "job_id", "attempt", "node", "boot_id", "seq", "world_size")

Row = Mapping[str, Any]


class SinkUnavailable(Exception):
    """The sink accepts nothing now; the client should keep its rows and retry."""


class TooManyLines(ValueError):
    """A body has more than ``MAX_LINES`` lines that are not blank."""


class TooLarge(ValueError):
    """A body inflates to more than is accepted."""


class Sink(Protocol):
    """Destination of ingested records, called from a worker thread."""

    def accept(self, records: Sequence[Record]) -> Mapping[int, BadRecord]:
        """Store ``records`` durably; return the refused ones by index, with the reason.

        May block. Raises ``SinkUnavailable`` when none of them was promised to be stored.
        """


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a line was refused; ``line`` counts from 0, ``field`` is empty if it concerns the whole line."""

    line: int
    field: str
    reason: str
    detail: str

    def as_error(self) -> dict[str, str]:
        """Return it as an entry of a problem's ``errors``."""
        pointer = f"#/body/{self.line}" + (f"/{self.field}" if self.field else "")
        return {"pointer": pointer[:200], "reason": self.reason, "detail": self.detail[:300]}


@dataclass(slots=True)
class Batch:
    """Result of parsing a body: records, the lines of each, and the number of refused lines by reason.

    The first ``MAX_ERRORS`` refused lines are kept with their explanation.
    """

    records: list[Record] = field(default_factory=list)
    lines: list[Sequence[int]] = field(default_factory=list)
    accepted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    errors: list[Refusal] = field(default_factory=list)

    def refuse(self, lines: Sequence[int], bad: BadRecord, place: str = "") -> None:
        """Count ``lines`` as refused, with the explanation at the first of them."""
        self.rejected[bad.reason] += len(lines)
        if len(self.errors) < MAX_ERRORS and lines:
            self.errors.append(Refusal(lines[0], place, bad.reason, bad.detail))

    def refuse_name(self, line: int, unknown: Unknown) -> None:
        """Count a line that uses an unknown name."""
        # Searching the nearest known name takes a millisecond: too much for each of 100,000 lines.
        detail = str(unknown) if len(self.errors) < MAX_ERRORS else ""
        self.refuse([line], BadRecord("unknown_name", detail), unknown.field)

    def take_back(self, refused: Mapping[int, BadRecord]) -> None:
        """Count the lines of records that the sink refused (by index) as refused."""
        for index, bad in sorted(refused.items()):
            self.accepted -= len(self.lines[index])
            self.refuse(self.lines[index], bad)


@dataclass(slots=True)
class _Tick:
    """Sample rows of one node and time, or one other row, with the numbers of their lines."""

    lines: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)


def is_gzip(data: bytes) -> bool:
    """Return whether ``data`` begins as gzip does, which no row can."""
    return data.startswith(b"\x1f\x8b")


def inflate(data: bytes) -> bytes:
    """Return gunzipped ``data``, of all its members.

    Raises ``TooLarge`` past 20 MiB or 100:1, ``ValueError`` if damaged or followed by anything but zeros.
    """
    allowed = min(MAX_INFLATED, MAX_RATIO * max(len(data), 1))
    parts: list[bytes] = []
    size, left = 0, data
    while left or not parts:
        # 31: expect gzip's header and checksum.
        unzip = zlib.decompressobj(wbits=31)
        try:
            # One byte more than allowed shows that the limit is exceeded.
            parts.append(unzip.decompress(left, allowed + 1 - size))
        except zlib.error as error:
            raise ValueError(f"the body is not gzip: {error}") from error
        size += len(parts[-1])
        if size > allowed:
            times = "" if allowed == MAX_INFLATED else f", {MAX_RATIO} times its size"
            raise TooLarge(f"the body inflates to more than {allowed} bytes{times}; send less at once")
        if not unzip.eof:
            raise ValueError("the gzip body is cut off")
        # Some tools fill a file up with zeros.
        left = unzip.unused_data.lstrip(b"\0")
        if left and len(parts) == MAX_MEMBERS:
            raise ValueError(f"the gzip body has more than {MAX_MEMBERS} members; compress it as one")
        if left and not is_gzip(left):
            raise ValueError(f"{len(left)} bytes follow the end of the gzip body: it is damaged")
    return b"".join(parts)


def read(data: bytes, *, now: float, clusters: Sequence[str] = ()) -> Batch:
    """Return the records in NDJSON ``data``.

    ``now`` (Unix s) bounds their times; non-empty ``clusters`` are the only ones accepted. A line that cannot
    be read or uses an unknown name is refused without affecting the lines around it. Raises ``TooManyLines``.
    """
    batch = Batch()
    taken: list[tuple[Record, Sequence[int]]] = []

    def take(ticks: Sequence[_Tick]) -> None:
        lines = [number for tick in ticks for number in tick.lines]
        found = _checked_records(ticks, now, clusters)
        if not isinstance(found, BadRecord):
            taken.extend((record, lines) for record in found)
            batch.accepted += len(lines)
        elif len(ticks) == 1:
            batch.refuse(lines, found)
        else:
            # What is wrong with the rows of one device is not with those of the others.
            right, wrong = list[_Tick](), list[_Tick]()
            for tick in ticks:
                fits = not isinstance(_checked_records([tick], now, clusters), BadRecord)
                (right if fits else wrong).append(tick)
            parts = [[tick] for tick in wrong] if wrong else [[tick] for tick in right]
            for part in parts + ([right] if wrong and right else []):
                take(part)

    for ticks in _groups(_rows(data, batch)):
        take(ticks)
    # In order of time: of a node, the stages drop a sample that is older than the last.
    taken.sort(key=lambda one: (one[0].ts, one[1][0]))
    batch.records, batch.lines = [record for record, _ in taken], [lines for _, lines in taken]
    batch.errors.sort(key=lambda refusal: refusal.line)
    return batch


def _groups(numbered: Iterable[tuple[int, Row]]) -> Iterator[Sequence[_Tick]]:
    """Yield what makes each record, wherever its rows stand: sample rows of one round of a node, by time, and
    step rows of one sender and second, as an exporter sends them.
    """
    nodes: dict[tuple[str, str], dict[str | float, _Tick]] = {}
    senders: dict[Hashable, list[_Tick]] = {}
    for number, row in numbered:
        kind = kind_of(row)
        if kind == "step":
            senders.setdefault(_sender(row), []).append(_Tick([number], [row]))
            continue
        if kind != "sample":
            yield [_Tick([number], [row])]
            continue
        cluster, node, ts = tick_of(row)
        tick = nodes.setdefault((cluster, node), {}).setdefault(ts, _Tick())
        tick.lines.append(number)
        tick.rows.append(row)
    for ticks in nodes.values():
        yield from ([tick] for ts, tick in ticks.items() if isinstance(ts, str))
        times = sorted(ts for ts in ticks if not isinstance(ts, str))
        for together in rounds(times, [ticks[ts].rows for ts in times]):
            yield [ticks[times[k]] for k in together]
    for steps in senders.values():
        for first in range(0, len(steps), MAX_STEP_ROWS):
            yield steps[first : first + MAX_STEP_ROWS]


def _sender(row: Row) -> Hashable:
    """Return what step rows of one record have in common, the second that they end in included."""
    try:
        second = math.floor(float(row["ts"]))
    except (KeyError, OverflowError, TypeError, ValueError):
        # No time: the row is refused, and no other with it.
        return id(row)
    return (second, *(repr(row.get(name)) for name in _OF_SENDER), labels_of(row))


def _rows(data: bytes, batch: Batch) -> Iterator[tuple[int, Row]]:
    count = 0
    for number, line in enumerate(data.splitlines()):
        if not line.strip():
            continue
        count += 1
        if count > MAX_LINES:
            raise TooManyLines(f"the body has more than {MAX_LINES:,} lines; send it in parts")
        if len(line) > MAX_LINE:
            batch.refuse([number], BadRecord("oversize", f"the line is longer than {MAX_LINE} bytes"))
            continue
        try:
            row = decode_line(line)
        except NOT_JSON as error:
            batch.refuse([number], BadRecord("undecodable", f"{error}{_form(line)}"))
            continue
        if not isinstance(row, dict):
            batch.refuse([number], BadRecord("undecodable", f"not a JSON object{_form(line)}"))
        elif unknown := first_unknown(row):
            batch.refuse_name(number, unknown)
        elif found := _fault(row):
            batch.refuse([number], found[1], found[0])
        else:
            yield number, row


def _form(line: bytes) -> str:
    """Return the end of a message about a line that is none of NDJSON."""
    if line.lstrip().startswith(b"["):
        return "; send NDJSON, one object a line without brackets and commas around them"
    return "; an object must stand on one line" if line.strip() == b"{" else ""


def _fault(row: Row) -> tuple[str, BadRecord] | None:
    """Return the field of a row that cannot be right, and why."""
    ts = row.get("ts")
    if isinstance(ts, str):
        try:
            float(ts)
        except ValueError:
            detail = f"ts is {ts[:40]!r}; give Unix seconds as a number, such as 1795160472.25"
            return "ts", BadRecord(BAD_TIME, detail)
    return sample_rows.fault(row) if kind_of(row) == "sample" else None


def _checked_records(ticks: Sequence[_Tick], now: float, clusters: Sequence[str]) -> list[Record] | BadRecord:
    """Return the records of the rows of ``ticks``, or what is wrong with them."""
    try:
        return [_checked(record, now, clusters) for record in _assembled(ticks)]
    except BadRecord as bad:
        return bad


def _assembled(ticks: Sequence[_Tick]) -> Iterator[Record]:
    if kind_of(ticks[0].rows[0]) == "step":
        yield steps_record([row for tick in ticks for row in tick.rows])
        return
    assembler, last = Assembler(), ticks[-1].rows[0].get("ts")
    for tick in ticks:
        for row in tick.rows:
            yield from assembler.add(row if tick is ticks[-1] else {**row, "ts": last})
    yield from assembler.flush()


def _checked(record: Record, now: float, clusters: Sequence[str]) -> Record:
    if clusters and record.cluster not in clusters:
        raise BadRecord("forbidden_cluster", f"this key may not write for cluster {record.cluster!r}")
    if isinstance(record, NodeSample):
        return check_sample(record, now=now)
    if isinstance(record, JobSteps):
        return check_steps(record, now=now)
    return check_event(record, now=now)
