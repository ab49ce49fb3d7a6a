"""A fault: kind, place, onset, duration, magnitude and shape."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from difflib import get_close_matches

import msgspec

from simulator.faults.catalogue import CATALOGUE
from simulator.faults.condition import Dose
from simulator.faults.kinds import FaultKind, Shape

# Chosen: steps in which a ladder reaches the size of the fault.
LADDER_RUNGS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, from ``onset`` (seconds since the start) for ``duration`` seconds.

    The meaning of ``magnitude`` depends on the kind, most often a factor of compute time. ``shape`` is its
    course: at once, a ramp of ``period`` seconds, four rungs of ``period`` seconds each, or on for a ``duty``
    share of every period. Without ``gpu`` a fault of a GPU affects all GPUs of the node.
    """

    kind: str
    node: int
    gpu: int | None = None
    onset: float
    duration: float = math.inf
    magnitude: float = 1.3
    shape: Shape = "step"
    period: float = 30.0
    duty: float = 0.5

    def __post_init__(self) -> None:
        if self.kind not in CATALOGUE:
            raise ValueError(_unknown(self.kind))
        for name in ("onset", "magnitude"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name):g}: must be a number, at least 0")
        if not self.duration > 0:
            raise ValueError(f"duration={self.duration:g}: must be more than 0 seconds")
        if not 0 < self.period < math.inf or not 0 < self.duty <= 1:
            raise ValueError(f"period={self.period:g}, duty={self.duty:g}: must be over 0, duty at most 1")

    @property
    def row(self) -> FaultKind:
        """The row of the catalogue."""
        return CATALOGUE[self.kind]

    @property
    def end(self) -> float:
        """Its end, seconds since the start."""
        return self.onset + self.duration

    def severity(self, t: float) -> float:
        """Return how far the fault is developed at ``t``, 0 to 1."""
        since = t - self.onset
        if not 0 <= since < self.duration:
            return 0.0
        if self.shape == "ramp":
            return min(1.0, since / self.period)
        if self.shape == "ladder":
            return min(1.0, (1 + since // self.period) / LADDER_RUNGS)
        if self.shape == "square":
            return 1.0 if since % self.period < self.duty * self.period else 0.0
        return 1.0

    def remaining(self, t: float) -> float:
        """Return the seconds from ``t`` until the fault, which is on at ``t``, is off again."""
        ends = self.duration - (t - self.onset)
        if self.shape == "square":
            return min(ends, self.duty * self.period - (t - self.onset) % self.period)
        return ends

    def dose(self, t: float) -> Dose:
        """Return its state at ``t``."""
        return Dose(self.severity(t), self.magnitude, t - self.onset, self.remaining(t))

    def spells(self, until: float) -> Iterator[tuple[float, float]]:
        """Yield (on, off) of every stretch that begins before ``until``."""
        if self.shape != "square":
            if self.onset < until:
                yield self.onset, self.end
            return
        on = self.onset
        while on < min(until, self.end):
            yield on, min(on + self.duty * self.period, self.end)
            on += self.period


def parse_fault(text: str) -> Fault:
    """Return the fault written as ``kind:field=value,…`` (``clock_lock:node=3,gpu=1,onset=60``).

    Fields that are not given have the middle of the kind's range in the catalogue. Raises ``ValueError`` with
    the reason for a text that is not valid.
    """
    kind, _, rest = text.partition(":")
    if kind not in CATALOGUE:
        raise ValueError(f"--fault {text}: {_unknown(kind)}")
    given = dict(part.partition("=")[::2] for part in rest.split(",") if part)
    if unknown := given.keys() - {field.name for field in fields(Fault)}:
        valid = ", ".join(field.name for field in fields(Fault) if field.name != "kind")
        raise ValueError(f"--fault {text}: unknown field {', '.join(sorted(unknown))}; valid are {valid}")
    try:
        return msgspec.convert({"kind": kind, **_usual(CATALOGUE[kind]), **given}, Fault, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"--fault {text}: {error}") from error


def _unknown(kind: str) -> str:
    like = f" (is it {near[0]!r}?)" if (near := get_close_matches(kind, CATALOGUE, n=1)) else ""
    return f"unknown fault {kind!r}{like}; there are: {', '.join(sorted(CATALOGUE))}"


def _usual(row: FaultKind) -> dict[str, str | float]:
    return {
        "magnitude": math.sqrt(row.size[0] * row.size[1]),
        "shape": row.shapes[0],
        "period": math.sqrt(row.period[0] * row.period[1]),
        "duty": (row.duty[0] + row.duty[1]) / 2,
    }
