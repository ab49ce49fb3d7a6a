"""Anomaly score of the newest sample of a metric without any knowledge of the metric.

It needs no unit, floor or healthy recording. Four features of the series, each scored by the tail of its own
past (`benchmarks.series.tail`), so that all are probabilities:

* jump: distance to the sample before;
* level: mean of the last ten samples, against the median such mean;
* spread: logarithm of the standard deviation of the last thirty, against its median;
* time of day: distance to the median of this half hour on the days before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from benchmarks.series.daily import DailyProfile
from benchmarks.series.tail import Tail, TailConfig

# Minus log10 of the probability at which the score reaches 1.
SURPRISE_OF_ONE = 10.0

# Floor on the standard deviation of the last samples, as a share of the whole past's.
SPREAD_FLOOR = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesConfig:
    """Windows in samples.

    short, wide: of the level and of the spread. memory, refresh: means kept to take the median of, and how
        often it is taken.
    hold: a score is given once per episode; it must exceed all scores of as many samples before.
    max_gap: times the usual interval after which the windows start over.
    """

    short: int = 10
    wide: int = 30
    memory: int = 4096
    refresh: int = 16
    hold: int = 150
    max_gap: float = 30.0
    tail: TailConfig = field(default_factory=TailConfig)


class SeriesDetector:
    """Anomaly score in [0, 1] of one series, sample by sample, from its past only.

    The score is -log10 p / 10 of the least probable feature: 0.3 is one healthy sample in a thousand, 0.6 one
    in a million, by the estimate from the past. Within an episode only samples that are more anomalous than
    all of the last `hold` samples score, the others 0. NaN, late and repeated samples are ignored.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(50, 2, 600)
    >>> x[500:] += 40
    >>> detector = SeriesDetector()
    >>> scores = [detector.update(60.0 * t, value) for t, value in enumerate(x)]
    >>> max(scores[:500]) < 0.35, [t for t, score in enumerate(scores) if score > 0.5][0]
    (True, 500)
    """

    def __init__(self, config: SeriesConfig | None = None) -> None:
        self._config = config = config or SeriesConfig()
        self._recent = np.full(config.wide, np.nan)
        self._raised = np.zeros(config.hold)
        # Last event time, usual interval; count, mean and squared deviations of all the past (Welford).
        self._past = np.array([-math.inf, math.nan, 0.0, 0.0, 0.0])
        self._level, self._spread = (_Centre(config.memory, config.refresh) for _ in range(2))
        self._daily = DailyProfile()
        self._tails = [Tail(config.tail) for _ in range(4)]

    def update(self, t: float, x: float) -> float:
        """Score the reading x of event time t (seconds), then learn it."""
        if not (math.isfinite(x) and math.isfinite(t)) or t <= self._past[0]:
            return 0.0
        self._tick(t)
        jump = abs(x - float(self._recent[-1]))
        self._recent[:-1] = self._recent[1:]
        self._recent[-1] = x
        views = (jump, self._level_view(), self._spread_view(), self._daily.update(t, x))
        self._learn(x)
        surprise = [tail.update(f) for tail, f in zip(self._tails, views, strict=True) if f == f]
        return self._new_in_episode(min(max(surprise, default=0.0) / SURPRISE_OF_ONE, 1.0))

    def _tick(self, t: float) -> None:
        """Note the time; after a gap the samples before it are no neighbours of those after it."""
        interval = t - float(self._past[0])
        usual = float(self._past[1])
        if interval > self._config.max_gap * usual:
            self._recent[:] = math.nan
        elif math.isfinite(interval):
            # An average over the last fifty intervals or so.
            self._past[1] = interval if usual != usual else usual + 0.02 * (interval - usual)
        self._past[0] = t

    def _level_view(self) -> float:
        return self._level.distance(float(self._recent[-self._config.short :].mean()))

    def _spread_view(self) -> float:
        count, _, squares = self._past[2:].tolist()
        floor = SPREAD_FLOOR * math.sqrt(squares / max(count, 1.0))
        # A series that never moved has a floor of zero, and no logarithm.
        return self._spread.distance(math.log(float(self._recent.std()) + max(floor, 1e-12)))

    def _learn(self, x: float) -> None:
        count, mean, _ = self._past[2:].tolist()
        d = x - mean
        self._past[2:] += 1.0, d / (count + 1.0), d * d * count / (count + 1.0)

    def _new_in_episode(self, score: float) -> float:
        highest = float(self._raised.max())
        self._raised[:-1] = self._raised[1:]
        self._raised[-1] = score
        return score if score > highest else 0.0


class _Centre:
    """Distance to the median of the last `memory` values, taken afresh every `refresh` of them."""

    def __init__(self, memory: int, refresh: int) -> None:
        self._refresh = refresh
        self._values = np.zeros(memory)
        # Values seen; their median when it was last taken.
        self._state = np.array([0.0, math.nan])

    def distance(self, value: float) -> float:
        """Distance of the value to the median before it, then learn it; NaN stays out."""
        if value != value:
            return math.nan
        count, median = int(self._state[0]), float(self._state[1])
        if count and count % self._refresh == 0:
            median = float(np.median(self._values[: min(count, len(self._values))]))
        self._values[count % len(self._values)] = value
        self._state[:] = count + 1, median
        return abs(value - median)
