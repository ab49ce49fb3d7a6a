"""The field and metric names of JSON rows, and the valid name that is nearest to an unknown one."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache
from itertools import takewhile
from typing import Any

from slowrank.telemetry.records import NodeEvent, OpenStep
from slowrank.telemetry.schema import (
    CURRENT_SAMPLE_SCHEMA,
    CURRENT_STEP_SCHEMA,
    SAMPLE_SCHEMAS,
    STEP_SCHEMAS,
)

COORDS = ("dp", "pp", "tp", "cp", "ep")

_SAMPLE = SAMPLE_SCHEMAS[CURRENT_SAMPLE_SCHEMA]

# Valid values of ``metric`` in a sample row.
METRICS = (*_SAMPLE.gpu.names, *_SAMPLE.nic.names, *_SAMPLE.host.names)

_HEAD = ("kind", "ts", "cluster", "node", "boot_id", "seq", "job_id", "labels")
# Valid fields by kind of row.
FIELDS: dict[str, tuple[str, ...]] = {
    "sample": (*_HEAD, "metric", "instance", "value"),
    "step": (*_HEAD, "attempt", "world_size", "coords", *STEP_SCHEMAS[CURRENT_STEP_SCHEMA].rows.names),
    "open_step": (*_HEAD, "attempt", "world_size", *OpenStep.__struct_fields__),
    "event": ("kind", *NodeEvent.__struct_fields__),
}
STEP_FIELDS, OPEN_STEP_FIELDS = FIELDS["step"], FIELDS["open_step"]
SAMPLE_FIELDS, EVENT_FIELDS = FIELDS["sample"], FIELDS["event"]

# Of the subject of an event: what slowrank reads, and what its exporter and the receiver of alerts write.
SUBJECT_NUMBERS = (
    *("gpu_index", "rank", "attempt", "gpus", "milliseconds", "delay_ns", "expected_ns", "started_ms"),
    *("booted", "records", "xid", "sxid", "pid"),
)
SUBJECT_TEXTS = (
    *("gpu_uuid", "nic", "port", "job_id", "peer", "via", "alert", "kind"),
    *("pci", "pci_bus_id", "process"),
)
SUBJECT_FIELDS = (*SUBJECT_NUMBERS, *SUBJECT_TEXTS)

# What other tools call a field that is named unlike it.
_CALLED = {
    **dict.fromkeys(("gpu", "gpu_id"), ("instance", "gpu_index")),
    **dict.fromkeys(("gpu_index", "gpu_uuid", "nic", "port"), ("instance",)),
    "device": ("instance", "nic"),
    **dict.fromkeys(("time", "timestamp"), ("ts",)),
    **dict.fromkeys(("host", "hostname"), ("node",)),
    **dict.fromkeys(("iteration", "iter", "global_step"), ("step",)),
    **dict.fromkeys(("global_rank", "world_rank"), ("rank",)),
    **dict.fromkeys(("step_time", "step_duration", "iteration_time", "iter_time"), ("step_seconds",)),
    **dict.fromkeys(("fwd_bwd_time", "compute_time", "forward_backward_time"), ("compute_seconds",)),
    **dict.fromkeys(("job", "run", "run_id"), ("job_id",)),
    **dict.fromkeys(("gpu.temperature", "temperature.gpu", "temperature"), ("gpu.temp_celsius",)),
}
# How names of metrics begin in dcgm-exporter, node_exporter and OpenTelemetry's hardware conventions.
_FOREIGN = ("DCGM_", "node_", "hw.", "hw_")
# Comparing two names costs the product of their lengths, and names come from outside.
_COMPARED = 64
_ELSEWHERE = (
    "; those of other exporters are taken by remote write and OTLP, and by `slowrank exporter run --scrape` "
    "(docs/existing-telemetry.md)"
)
# A message lists at most so many valid names.
_LISTED = 32


@dataclass(frozen=True, slots=True)
class Unknown:
    """An unknown name: its field in the row, what it is a name of, and the valid names."""

    field: str
    what: str
    name: str
    valid: tuple[str, ...]

    def __str__(self) -> str:
        known = _ELSEWHERE if self._foreign else hint(self.name, self.valid)
        return f"there is no {self.what} {self.name[:_COMPARED]!r}{known}"

    @property
    def _foreign(self) -> bool:
        return self.what == "metric" and self.name.startswith(_FOREIGN)


def kind_of(row: Mapping[str, Any]) -> str:
    """Return the kind of a JSON row: that in its field ``kind``, else by its other fields."""
    kind = row.get("kind")
    if kind:
        return str(kind)
    if "metric" in row:
        return "sample"
    return "step" if "step" in row else "event"


def first_unknown(row: Mapping[str, Any]) -> Unknown | None:
    """Return the first unknown name in a JSON row, or None.

    A row of an unknown kind has no valid names; it is refused where it is read.
    """
    kind = kind_of(row)
    valid = FIELDS.get(kind)
    if valid is None:
        return None
    coords = row.get("coords")
    if unknown := _first_not_in(row, valid):
        return Unknown(unknown, f"field of {kind} rows", unknown, valid)
    if kind == "step" and isinstance(coords, Mapping) and (unknown := _first_not_in(coords, COORDS)):
        return Unknown(f"coords/{unknown}", "coordinate", unknown, COORDS)
    return unknown_metric(row["metric"]) if kind == "sample" and row.get("metric") else None


def unknown_metric(name: object) -> Unknown | None:
    """Return the error about the name of a metric, or None if it is valid."""
    return None if name in METRICS else Unknown("metric", "metric", str(name), METRICS)


def hint(name: str, valid: Collection[str]) -> str:
    """Return the end of an error message: the valid name nearest to ``name``, or where they are listed."""
    if like := likely(name, valid):
        return like
    return f"; valid are {', '.join(valid)}" if len(valid) <= _LISTED else "; docs/records.md lists them"


def likely(name: str, valid: Collection[str]) -> str:
    """Return the valid name nearest to ``name`` as the end of a message; empty where none is near."""
    like = _nearest(name[:_COMPARED], tuple(valid))
    return f" (is it {like!r}?)" if like else ""


@lru_cache(maxsize=1024)
def _nearest(name: str, valid: tuple[str, ...]) -> str:
    lower = {one.lower(): one for one in valid}
    # Trackers of experiments put a section or an underscore before a name (perf/step_time, _timestamp).
    name = name.lower().rpartition("/")[2].strip("_")
    for meant in _CALLED.get(name, ()):
        if meant in lower:
            return meant

    def likeness(one: str) -> tuple[float, int]:
        # Names with rx_ and tx_ may be equally similar: of those, the one with the longer common suffix.
        same_end = takewhile(lambda pair: pair[0] == pair[1], zip(one[::-1], name[::-1], strict=False))
        return SequenceMatcher(None, one, name).ratio(), sum(1 for _ in same_end)

    # Chosen: two of three letters are alike; at difflib's own cutoff (0.6) `comment` is like `comm_seconds`.
    found = get_close_matches(name, lower, n=3, cutoff=0.65)
    return lower[max(found, key=likeness)] if found else ""


def _first_not_in(row: Mapping[str, Any], valid: tuple[str, ...]) -> str:
    return next((str(name) for name in row if name not in valid), "")
