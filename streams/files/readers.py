"""Telemetry files as rows: NDJSON, CSV (both plain, gzip or zstd) and Parquet, named as JSON rows are.

A line that cannot be read is yielded as its error; a file that cannot be read at all raises ``FileProblem``
with what to do about it.
"""

import codecs
import contextlib
import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

from slowrank.telemetry import BadRecord
from slowrank.telemetry.names import FIELDS, METRICS, likely
from slowrank.telemetry.rows import formats
from slowrank.telemetry.rows.json_lines import NOT_JSON, decode_line

# Chosen: bounds memory, as a line is held as a whole.
MAX_LINE_BYTES = 1 << 20

# Chosen: an array is held as a whole; 64 MiB are 300,000 step rows.
MAX_ARRAY_BYTES = 64 << 20

# What is looked at to tell formats.
_HEAD_BYTES = 64

Row = dict[str, Any]
Line = tuple[int, Row | BadRecord]
"""Line number (row number in Parquet), and the row or its error."""

Kind = Literal["step", "open_step", "sample", "event"]
"""What a row is about."""

REQUIRED: Mapping[Kind, tuple[str, ...]] = {
    "step": ("step", "rank", "ts", "step_seconds"),
    "open_step": ("rank", "step", "ts", "seconds"),
    "sample": ("ts", "node", "metric", "value"),
    "event": ("ts", "node", "source", "code"),
}


class FileProblem(Exception):
    """A file gives no rows; the message has the cause and what to do."""


def read(path: Path) -> Iterator[Line]:
    """Yield the rows of one file in its order. Raises ``FileProblem``."""
    if not path.exists() or path.is_dir():
        what = "a folder" if path.is_dir() else "no such file"
        raise FileProblem(f"{path}: {what}. Give NDJSON, CSV or Parquet files of telemetry rows.")
    suffixes = [s.lower() for s in path.suffixes]
    if ".parquet" in suffixes or ".pq" in suffixes:
        return _parquet(path)
    if ".csv" in suffixes or ".tsv" in suffixes:
        return _csv(path)
    return _ndjson(path)


def kind_of(row: Mapping[str, Any]) -> Kind:
    """Return the kind of a row, from ``kind`` or from its columns. Raises ``BadRecord``."""
    if kind := row.get("kind"):
        for known in REQUIRED:
            if kind == known:
                return known
        raise BadRecord("undecodable", f"kind {str(kind)[:40]!r} is none of {', '.join(REQUIRED)}")
    if row.get("metric") is not None:
        return "sample"
    if row.get("step") is not None or row.get("rank") is not None:
        return "step"
    if row.get("code") is not None:
        return "event"
    raise BadRecord(
        "undecodable",
        f"neither step and rank, nor metric, nor code: not a telemetry row.{one_value_a_row(row)}",
    )


def _ndjson(path: Path) -> Iterator[Line]:
    with _opened(path) as stream:
        try:
            is_array = formats.is_array(stream.peek(_HEAD_BYTES))
        except _BREAKS_OFF as error:
            yield 1, _broken_off(error)
            return
        if is_array:
            yield from enumerate(_array(path, stream), 1)
            return
        for number, line in _lines(stream):
            if isinstance(line, BadRecord):
                yield number, line
                continue
            if not line.strip():
                continue
            try:
                row = decode_line(line)
            except NOT_JSON as error:
                yield number, BadRecord("undecodable", f"not JSON: {str(error)[:100]}")
                continue
            yield number, row if isinstance(row, dict) else BadRecord("undecodable", _NO_OBJECT)


_NO_OBJECT = "not a JSON object"


def _array(path: Path, stream: IO[bytes]) -> Iterator[Row | BadRecord]:
    """Yield the rows of a file that is one array of them."""
    try:
        held = stream.read(MAX_ARRAY_BYTES + 1)
        rows = decode_line(held.removeprefix(codecs.BOM_UTF8)) if len(held) <= MAX_ARRAY_BYTES else None
    except (*_BREAKS_OFF, *NOT_JSON):
        rows = None
    if not isinstance(rows, list):
        raise FileProblem(
            f"{path}: is a JSON array of more than {MAX_ARRAY_BYTES >> 20} MiB, or not a whole one. Write "
            f"one object a line: jq -c '.[]' {path.name} > rows.ndjson"
        )
    for row in rows:
        yield row if isinstance(row, dict) else BadRecord("undecodable", _NO_OBJECT)


def _csv(path: Path) -> Iterator[Line]:
    header: list[str] | None = None
    separator = ","
    with _opened(path) as stream:
        for number, line in _lines(stream):
            if header is None and isinstance(line, bytes):
                separator = formats.separator(line)
            cells = line if isinstance(line, BadRecord) else _cells(line, separator)
            if header is None:
                if isinstance(cells, BadRecord):
                    raise FileProblem(f"{path}: the header line cannot be read ({cells.detail}).")
                header = [name.strip() for name in cells]
                # The index of a data frame has no name.
                _check_columns(path, [name for name in header if name])
            elif isinstance(cells, BadRecord):
                yield number, cells
            elif len(cells) != len(header):
                if cells:
                    what = f"{len(cells)} fields, the header has {len(header)}"
                    yield number, BadRecord("undecodable", what)
            else:
                yield number, {k: v for k, v in zip(header, cells, strict=True) if k and v != ""}


def _parquet(path: Path) -> Iterator[Line]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise FileProblem(f"{path}: reading Parquet needs `pip install ./slowrank '.[all]'`.") from error
    number = 0
    try:
        file = pq.ParquetFile(path)
        _check_columns(path, file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=16384):
            for row in _plain(batch).to_pylist(maps_as_pydicts="lossy"):
                number += 1
                # Data frames have NaN where a value is missing.
                yield number, {k: v for k, v in row.items() if v is not None and v == v}
    except (pa.ArrowException, OSError) as error:
        raise FileProblem(f"{path}: not a readable Parquet file ({str(error)[:200]}).") from error


def _plain(batch: Any) -> Any:
    """Return the batch with nanoseconds, the unit of pandas, as microseconds, the unit of Python."""
    import pyarrow as pa

    for i, column in enumerate(batch.schema):
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            micros = batch.column(i).cast(pa.timestamp("us", column.type.tz), safe=False)
            batch = batch.set_column(i, column.name, micros)
    return batch


def _check_columns(path: Path, names: Sequence[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise FileProblem(f"{path}: more than one column {', '.join(map(repr, repeated))}. Which one counts?")
    if len(names) == 1 and any(mark in names[0] for mark in (*formats.OTHER_MARKS, "\t")):
        raise FileProblem(f"{path}: {formats.not_commas(names[0])}.")
    if "kind" in names:
        return
    found = next((k for k, marks in _MARKS.items() if any(mark in names for mark in marks)), None)
    wanted = REQUIRED[found or "step"]
    missing = [name for name in wanted if name not in names]
    if found is None or missing:
        others = [kind for kind in _MARKS if found is None and kind != "step"]
        needs = [f"A {found or 'step'} row needs {', '.join(wanted)}"]
        needs += [f"{kind} rows need {', '.join(REQUIRED[kind])}" for kind in others]
        raise FileProblem(
            f"{path}: missing column{'s' if len(missing) > 1 else ''} {', '.join(missing)}. "
            f"There are: {_meant(names, found or 'step')}. {'; '.join(needs)}.{one_value_a_row(names)}"
        )


def _meant(names: Sequence[str], kind: Kind) -> str:
    """Return the names of columns, each that is unknown with the one that it may stand for."""
    valid = FIELDS[kind]
    listed = (name if name in valid or name in METRICS else f"{name}{likely(name, valid)}" for name in names)
    return ", ".join(listed) or "none"


def one_value_a_row(names: Iterable[str]) -> str:
    """Return how samples are written where the names of metrics are taken for fields; else nothing."""
    found = next((name for name in names if name in METRICS), None)
    if found is None:
        return ""
    return (
        f" {found} is a metric: samples have one row for each value, with the columns ts, node, metric, "
        "instance (GPU index or UUID, device/port, empty for the host) and value; as JSON "
        f'{{"ts":1795160472.0,"node":"n1","metric":"{found}","instance":"0","value":1.0}}'
    )


# In the order of ``kind_of``.
_MARKS: Mapping[Kind, tuple[str, ...]] = {
    "sample": ("metric",),
    "step": ("step", "rank", "step_seconds"),
    "event": ("code",),
}


def _cells(line: bytes, separator: str) -> list[str] | BadRecord:
    try:
        text = line.decode("utf-8").rstrip("\r\n")
        return next(csv.reader([text], delimiter=separator, strict=True), [])
    except (UnicodeDecodeError, csv.Error) as error:
        return BadRecord("undecodable", f"not CSV: {str(error)[:100]}")


def _lines(stream: IO[bytes]) -> Iterator[tuple[int, bytes | BadRecord]]:
    """Yield numbered lines; a stream that breaks off ends with one bad line."""
    number = 0
    try:
        for number, line in enumerate(_bounded(stream), 1):
            if number == 1 and isinstance(line, bytes):
                # Tools of Windows begin a file with it; it would be a part of the first name.
                line = line.removeprefix(codecs.BOM_UTF8)
            yield number, line
    except _BREAKS_OFF as error:
        yield number + 1, _broken_off(error)


_BREAKS_OFF = (EOFError, OSError, zlib.error)


def _broken_off(error: Exception) -> BadRecord:
    return BadRecord("undecodable", f"the file breaks off here: {str(error)[:100]}")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file, decompressed by what it begins with: names are wrong where browsers unpack or rename."""
    with contextlib.ExitStack() as stack:
        try:
            raw = stack.enter_context(path.open("rb"))
            head = raw.peek(_HEAD_BYTES)
        except OSError as error:
            raise FileProblem(f"{path}: cannot be opened ({error.strerror}).") from error
        yield _decompressed(path, raw, head)


def _bounded(stream: IO[bytes]) -> Iterator[bytes | BadRecord]:
    while line := stream.readline(MAX_LINE_BYTES + 1):
        if len(line) <= MAX_LINE_BYTES:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(MAX_LINE_BYTES)
        yield BadRecord("oversize", f"a line of more than {MAX_LINE_BYTES} bytes")


_GZIP = b"\x1f\x8b"
# A frame, or one to skip, with which some writers begin.
_ZSTD = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")


def _decompressed(path: Path, raw: io.BufferedReader, head: bytes) -> io.BufferedReader:
    if head.startswith(_GZIP):
        return io.BufferedReader(gzip.open(raw))
    if _ZSTD.match(head):
        try:
            from pyarrow import CompressedInputStream
        except ImportError as error:
            raise FileProblem(f"{path}: reading zstd needs `pip install ./slowrank '.[all]'`.") from error
        # Unlike the reader of the zstandard package it raises when a file ends within a frame.
        return io.BufferedReader(CompressedInputStream(raw, "zstd"))
    return raw


def chain(paths: Iterable[Path]) -> Iterator[tuple[Path, int, Row | BadRecord]]:
    """Yield the rows of all files, each with its path and line."""
    for path in paths:
        for number, row in read(path):
            yield path, number, row
