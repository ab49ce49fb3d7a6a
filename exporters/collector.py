"""The collector protocol, and its output: values by instance and column name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from slowrank.telemetry import OpenStep
from slowrank.telemetry.columns import Value

Columns = Mapping[str, Value]
# The columns of a device that was not read.
NOTHING: Columns = {}

Severity = Literal["info", "warning", "error", "critical"]


@dataclass(frozen=True, slots=True)
class Instant:
    """One moment on both clocks: ``wall`` (Unix seconds) dates, ``monotonic`` measures intervals."""

    wall: float
    monotonic: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One occurrence on the node; the exporter adds the node, the boot and the sequence number."""

    ts: float
    source: str
    code: str
    severity: Severity
    subject: Mapping[str, str | int] = field(default_factory=dict)
    message: str = ""
    raw: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """Step rows of the local ranks of one job attempt, by the column names of the step schema.

    ``open``: the steps that ranks report because they do not end. Without either, the job is there.
    """

    job_id: str
    attempt: int
    world_size: int
    labels: Mapping[str, str]
    rows: tuple[Columns, ...]
    open: tuple[OpenStep, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The output of one collector in one tick; a value that was not read is None, never 0."""

    gpu: Mapping[str, Columns] = field(default_factory=dict)
    nic: Mapping[str, Columns] = field(default_factory=dict)
    host: Columns = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    steps: tuple[StepRows, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the sample for this tick, besides those of the node."""


class Collector(Protocol):
    """One source of values on the node: one file, and one line in ``registry``."""

    name: str

    @property
    def columns(self) -> Mapping[str, str]:
        """Every column that this collector can fill, with the hardware or software it requires, as text."""
        ...

    def collect(self, now: Instant) -> Reading:
        """Read the source; called once a tick, always from the same thread.

        Returns within half a second. What cannot be read is None or absent; a source that is not there at
        all gives an empty reading. Does not raise for anything the source does.
        """
        ...

    def metrics(self) -> Mapping[str, float]:
        """Return the collector's own counters by metric name without prefix, for ``/metrics``."""
        ...

    def close(self) -> None:
        """Release open files and sockets; no ``collect`` follows."""
        ...
