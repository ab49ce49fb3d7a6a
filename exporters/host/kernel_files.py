"""Read the small text files of /proc and /sys, any of which may be missing, malformed or refused."""

import math
from pathlib import Path

# Chosen: far above the files read here, and bounds the memory that an odd one takes.
_MAX_BYTES = 1 << 20
_INT64 = 2**63


def read_text(path: Path) -> str | None:
    """Return the stripped content of ``path``, None when it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode(errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """Return the number ``path`` begins with, None for anything else.

    Files may contain ``N/A (no PMA)`` or ``0x0000000000000004``; a number beyond int64 is a sentinel.
    """
    return parse_int(read_text(path))


def parse_int(text: str | None) -> int | None:
    """Return ``text`` as an int64, None when it is no such number."""
    if not text:
        return None
    try:
        number = int(text.split()[0][:32], 0 if text.startswith("0x") else 10)
    except ValueError:
        return None
    return number if -_INT64 < number < _INT64 else None


def parse_float(text: str) -> float | None:
    """Return ``text`` as a finite number, None when it is none."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def names_in(folder: Path) -> list[str]:
    """Return the sorted names in ``folder``, none when it is not there."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []
