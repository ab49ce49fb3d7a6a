"""How much of their time the workers of a role are busy, and when that will not be enough. Pure."""

import statistics
from collections import deque
from dataclasses import dataclass, field

# The load now is the median of so many seconds. Chosen: a rebuild or a slow checkpoint of the database lasts
# a minute, and is no lack of capacity.
NOW_SECONDS = 300.0

# Longest and shortest time over which growth is measured. Chosen: new nodes come within minutes; over less
# than ten minutes jitter is taken for growth.
TREND_SECONDS = 1800.0
LEAST_TREND_SECONDS = 600.0

# Share of the time at which a role is nearly out of capacity. Chosen: bursts after a broker outage need the
# rest; a queue's wait doubles between 0.85 and 0.92 of its capacity.
FULL = 0.85

# From that share on, growth that leads to a lack within half an hour is reported, if the load has risen by so
# much already. Chosen: time to start another worker; less is within the jitter.
RISING = 0.6
SOON_SECONDS = 1800.0
LEAST_RISE = 0.05


@dataclass(frozen=True, slots=True)
class Forecast:
    """The share of the time that a role is busy, and the seconds until that is all (None: no growth)."""

    load: float
    behind_in: float | None = None

    @property
    def short(self) -> bool:
        """Whether someone must act."""
        soon = self.load >= RISING and self.behind_in is not None and self.behind_in <= SOON_SECONDS
        return self.load >= FULL or soon


@dataclass(slots=True)
class CapacityTrend:
    """The load of one role over time."""

    _loads: deque[tuple[float, float]] = field(default_factory=deque)

    def note(self, at: float, load: float) -> None:
        """Add the load measured at a time (Unix seconds); one that is not newer is known."""
        if self._loads and at <= self._loads[-1][0]:
            return
        self._loads.append((at, load))
        while self._loads[0][0] < at - TREND_SECONDS:
            self._loads.popleft()

    def forecast(self, now: float) -> Forecast | None:
        """Return the forecast, None before there are five minutes of loads and after they have ended."""
        recent = [load for at, load in self._loads if at > now - NOW_SECONDS]
        if not recent or self._loads[0][0] > now - NOW_SECONDS:
            return None
        load, slope = statistics.median(recent), self._slope()
        if slope is None or slope * (self._loads[-1][0] - self._loads[0][0]) < LEAST_RISE:
            return Forecast(load)
        return Forecast(load, max(0.0, (1.0 - load) / slope))

    def _slope(self) -> float | None:
        """Return by how much the load grows a second, None before that can be measured."""
        if self._loads[-1][0] - self._loads[0][0] < LEAST_TREND_SECONDS:
            return None
        times, loads = zip(*self._loads, strict=True)
        return statistics.linear_regression(times, loads).slope
