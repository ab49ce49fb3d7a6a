"""The field and metric names of twin rows, and the known name that is nearest to an unknown one."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache
from itertools import takewhile
from typing import Any

from slowrank.telemetry.records import NodeEvent
from slowrank.telemetry.schema import (
    CURRENT_SAMPLE_SCHEMA,
    CURRENT_STEP_SCHEMA,
    SAMPLE_SCHEMAS,
    STEP_SCHEMAS,
)

COORDS = ("dp", "pp", "tp", "cp", "ep")

_SAMPLE = SAMPLE_SCHEMAS[CURRENT_SAMPLE_SCHEMA]
METRICS = (*_SAMPLE.gpu.names, *_SAMPLE.nic.names, *_SAMPLE.host.names)
"""What the ``metric`` of a sample row may be."""

_HEAD = ("kind", "ts", "cluster", "node", "boot_id", "seq", "job_id", "labels")
_FIELDS: dict[str, tuple[str, ...]] = {
    "sample": (*_HEAD, "metric", "instance", "value"),
    "step": (*_HEAD, "attempt", "world_size", "coords", *STEP_SCHEMAS[CURRENT_STEP_SCHEMA].rows.names),
    "event": ("kind", *NodeEvent.__struct_fields__),
}
# Comparing two names costs the product of their lengths, and names come from outside.
_COMPARED = 64
# More known names than these make a message nobody reads.
_LISTED = 32


@dataclass(frozen=True, slots=True)
class Unknown:
    """A name that is not known: where in the row it stands, what it is a name of, and what is known."""

    field: str
    what: str
    name: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return f"there is no {self.what} {self.name[:_COMPARED]!r}{hint(self.name, self.known)}"


def kind_of(row: Mapping[str, Any]) -> str:
    """Return the kind of a twin row: what it says, else what its fields suggest."""
    kind = row.get("kind")
    if kind:
        return str(kind)
    if "metric" in row:
        return "sample"
    return "step" if "step" in row else "event"


def first_unknown(row: Mapping[str, Any]) -> Unknown | None:
    """Return the first name in a twin row that nothing would read, or None.

    A row of an unknown kind has no names to hold it against; whoever reads the row refuses it.
    """
    kind = kind_of(row)
    known = _FIELDS.get(kind)
    if known is None:
        return None
    coords = row.get("coords")
    if strange := _strange(row, known):
        return Unknown(strange, f"field of {kind} rows", strange, known)
    if kind == "step" and isinstance(coords, Mapping) and (strange := _strange(coords, COORDS)):
        return Unknown(f"coords/{strange}", "coordinate", strange, COORDS)
    return unknown_metric(row["metric"]) if kind == "sample" and row.get("metric") else None


def unknown_metric(name: object) -> Unknown | None:
    """Return what is wrong with the name of a metric, or None."""
    return None if name in METRICS else Unknown("metric", "metric", str(name), METRICS)


def hint(name: str, known: Collection[str]) -> str:
    """Return the end of an error message: the known name nearest to ``name``, or where they are listed."""
    if like := _nearest(name[:_COMPARED], tuple(known)):
        return f" (is it {like!r}?)"
    return f"; known are {', '.join(known)}" if len(known) <= _LISTED else "; docs/records.md names them"


@lru_cache(maxsize=1024)
def _nearest(name: str, known: tuple[str, ...]) -> str:
    lower, name = {one.lower(): one for one in known}, name.lower()

    def likeness(one: str) -> tuple[float, int]:
        # rx_ and tx_ are as like by their letters alone: of those, the one with the longer common end.
        same_end = takewhile(lambda pair: pair[0] == pair[1], zip(one[::-1], name[::-1], strict=False))
        return SequenceMatcher(None, one, name).ratio(), sum(1 for _ in same_end)

    # difflib's own cutoff (0.6): a name that lacks its prefix is closer than that.
    found = get_close_matches(name, lower, n=3)
    return lower[max(found, key=likeness)] if found else ""


def _strange(row: Mapping[str, Any], known: tuple[str, ...]) -> str:
    return next((str(name) for name in row if name not in known), "")
