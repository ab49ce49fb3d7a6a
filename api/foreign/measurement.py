"""One value of another system's telemetry as it was sent, and what of a request could not be read."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

# Series, points and labels of a request, those of a resource once more with each of its points. Chosen: four
# times a batch of the Collector's default size, 8,192 points, with 30 labels each. In protobuf one may have
# two bytes: without the limit a body of 1 MB filled gigabytes.
MAX_PARTS = 1_000_000


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
    parts: int = 0

    def count(self, parts: int) -> None:
        """Count parts of the request before they are read. Raises ``BadBody`` beyond ``MAX_PARTS``."""
        self.parts += parts
        if self.parts > MAX_PARTS:
            raise BadBody(f"the body has more than {MAX_PARTS:,} series, points and labels; send it in parts")


class BadBody(ValueError):
    """A body is not in the format that its headers state, or inflates to too much."""
