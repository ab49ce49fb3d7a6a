"""Tells the format of telemetry rows by their first bytes."""

import codecs

# Chosen: the header of a table with all fields of steps has 300 bytes.
_HEADER_BYTES = 4096


def is_csv(rows: bytes) -> bool:
    """Return whether rows are a table with commas or tabs whose header has the column ``ts``.

    >>> is_csv(b"ts,rank,step,step_seconds"), is_csv(b'{"ts": 1}')
    (True, False)
    """
    head = rows[:_HEADER_BYTES].removeprefix(codecs.BOM_UTF8).lstrip().partition(b"\n")[0]
    return b"ts" in {name.strip().strip(b'"') for name in head.split(separator(head).encode())}


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
