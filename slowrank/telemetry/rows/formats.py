"""Tells the format of telemetry rows by their first bytes, where no name of a file does."""

import codecs

# Chosen: the header of a table with all fields of steps has 300 bytes.
_HEADER_BYTES = 4096


def is_csv(rows: bytes) -> bool:
    """Return whether rows are a table with commas or tabs whose header has the column ``ts``.

    >>> is_csv(b"ts,rank,step,step_seconds"), is_csv(b'{"ts": 1}')
    (True, False)
    """
    head = rows[:_HEADER_BYTES].removeprefix(codecs.BOM_UTF8).lstrip().partition(b"\n")[0]
    separator = b"\t" if b"\t" in head and b"," not in head else b","
    return b"ts" in {name.strip().strip(b'"') for name in head.split(separator)}


def is_array(rows: bytes) -> bool:
    """Return whether rows begin as one JSON array of objects.

    >>> is_array(b' [ {"ts": 1}]'), is_array(b"[1]")
    (True, False)
    """
    head = rows[:_HEADER_BYTES].removeprefix(codecs.BOM_UTF8).lstrip()
    return head.startswith(b"[") and head[1:].lstrip().startswith(b"{")
