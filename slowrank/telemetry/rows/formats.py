"""Tells the format of telemetry rows by their first bytes."""

import codecs

# Chosen: the header of a table with all fields of steps has 300 bytes.
_HEADER_BYTES = 4096

# What separates columns in tables that are not read.
OTHER_MARKS = ";|"


def is_csv(rows: bytes) -> bool:
    """Return whether rows are a table with commas or tabs whose header has the column ``ts``.

    >>> is_csv(b"ts,rank,step,step_seconds"), is_csv(b'{"ts": 1}')
    (True, False)
    """
    head = _first_line(rows)
    return b"ts" in _names(head, separator(head).encode())


def wrong_separator(rows: bytes) -> str:
    """Return what is wrong with a table whose columns, ``ts`` among them, something else separates; else an
    empty string.

    >>> wrong_separator(b"ts;rank;step;step_seconds")
    "the columns must be separated by commas; the header is 'ts;rank;step;step_seconds'"
    """
    head = _first_line(rows)
    if b"," in head or not any(b"ts" in _names(head, mark.encode()) for mark in OTHER_MARKS):
        return ""
    return not_commas(head.decode(errors="replace").strip())


def not_commas(header: str) -> str:
    """Return that a header has its columns separated by something else."""
    return f"the columns must be separated by commas; the header is {header!r:.200}"


def _first_line(rows: bytes) -> bytes:
    return rows[:_HEADER_BYTES].removeprefix(codecs.BOM_UTF8).lstrip().partition(b"\n")[0]


def _names(head: bytes, mark: bytes) -> set[bytes]:
    return {name.strip().strip(b'"') for name in head.split(mark)}


def separator(header: bytes) -> str:
    """Return what separates the columns of a table: commas, or tabs in a header with no comma."""
    return "\t" if b"\t" in header and b"," not in header else ","


def is_array(rows: bytes) -> bool:
    """Return whether rows begin as one JSON array of objects, not of a log whose lines begin with a time in
    brackets.

    >>> is_array(b' [ {"ts": 1}]'), is_array(b"[1]")
    (True, False)
    """
    head = rows[:_HEADER_BYTES].removeprefix(codecs.BOM_UTF8).lstrip()
    return head.startswith(b"[") and head[1:].lstrip().startswith(b"{")
