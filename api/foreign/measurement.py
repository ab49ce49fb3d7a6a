"""One value of another system's telemetry as it was sent, and what of a request could not be read."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Measurement:
    """One value of one series: its name, labels (``slowrank.foreign.series.plain``) and time (Unix s)."""

    name: str
    labels: Mapping[str, str]
    ts: float
    value: float


@dataclass(slots=True)
class Decoded:
    """The measurements of a request, and the count of its values that are of an unusable type, by reason."""

    measurements: list[Measurement] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)


class BadBody(ValueError):
    """A body is not in the format that its headers state, or inflates to too much."""
