"""Processor time and memory of process trees, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Fields of proc(5) stat, counted from the state letter.
_PARENT, _USER, _RESIDENT = 1, 11, 21


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor seconds since the start of the processes, ended children included; resident bytes now."""

    seconds: float
    bytes: int


def usage(pid: int) -> Usage:
    """Return what a process and all of its descendants use; nothing when it has ended."""
    stats = {int(entry.name): _stat(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    stats = {member: stat for member, stat in stats.items() if stat}
    tree = _descendants(pid, {child: int(stat[_PARENT]) for child, stat in stats.items()})
    found = [stats[member] for member in tree if member in stats]
    # User and system time of the process and of the children that it has waited for.
    ticks = sum(int(field) for stat in found for field in stat[_USER : _USER + 4])
    return Usage(ticks / _TICKS, _PAGE * sum(int(stat[_RESIDENT]) for stat in found))


def _descendants(pid: int, parents: dict[int, int]) -> Iterable[int]:
    found, fresh = {pid}, {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def _stat(process: Path) -> list[str]:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
