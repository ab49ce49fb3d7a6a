"""Loss and gradient norm of one job: values that are no numbers, leaps, and a loss that keeps rising.

After an all-reduce every rank carries the same number, good or bad: nothing here can name a machine. One
series per watch, in logs, against the median u and robust sd n (1.4826 MAD, at least 0.05) of its last 50
values:

* ``not_finite``: a loss that is infinite or no number; a gradient norm that is so three times in a row,
  because dynamic loss scaling skips single overflows on purpose;
* ``leap``: ln(value) - u >= max(ln 5, 6 n), after the first 100 steps (five times: ByteRobust, SOSP'25);
* ``divergence``, of a loss only: the median of the last 20 values above that of the 50 before by at least
  max(0.2, 3 n), and each of the 20 by a third of the rise.

A leap is not learnt; after 200 steps it is the new normal. An anomaly ends after 20 calm steps. Limits other
than ByteRobust's are chosen.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

import numpy as np

from detectors.robust import Floats, nan_median, spread

Series = Literal["loss", "grad_norm"]
Shape = Literal["divergence", "leap", "not_finite"]

_GRAVITY: tuple[Shape, ...] = ("divergence", "leap", "not_finite")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """``leap`` times the median of the last ``steps`` (ByteRobust, SOSP'25), not in the ``first`` steps.

    A leap must also stand ``sigmas`` above the scatter of logs, which is never taken below ``floor``.
    ``streak``: bad gradient norms in a row. ``rise`` (log) and ``lasting`` steps make a divergence.
    """

    steps: int = 50
    first: int = 100
    leap: float = 5.0
    sigmas: float = 6.0
    floor: float = 0.05
    streak: int = 3
    rise: float = 0.2
    lasting: int = 20
    relearn: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class LossAnomaly:
    """``value`` of ``series`` at its step against ``median`` and ``scatter`` of the ``steps`` before it.

    ``scatter`` is the median absolute deviation; what is not known is NaN.
    """

    series: Series
    shape: Shape
    onset: float
    value: float
    median: float = math.nan
    scatter: float = math.nan
    steps: int = 0

    @property
    def ratio(self) -> float:
        """How many times the median."""
        return self.value / self.median


class LossWatch:
    """One series of one job, step by step; NaN = not read, infinity = read and not a number.

    What is far off is not learnt; when it has lasted for ``relearn`` steps it is the new normal.

    >>> watch = LossWatch("loss")
    >>> for step in range(200):
    ...     quiet = watch.update(float(step), 2.0)
    >>> watch.update(200.0, 11.0).ratio
    5.5
    """

    def __init__(self, series: Series, config: LossConfig | None = None) -> None:
        self.series: Series = series
        self.config = config or LossConfig()
        self.standing: LossAnomaly | None = None
        self._logs: deque[float] = deque(maxlen=self.config.steps + self.config.lasting)
        self._times: deque[float] = deque(maxlen=self.config.lasting)
        self._seen = self._calm = self._lasted = self._not_finite = 0

    def update(self, ts: float, value: float) -> LossAnomaly | None:
        """Take the value of the next step at event time ``ts``; return the anomaly that stands, if any."""
        if math.isnan(value):
            return self.standing
        self._seen += 1
        self._not_finite = self._not_finite + 1 if math.isinf(value) else 0
        found = self._judge(ts, value)
        # A divergence is seen in the window of the last steps, which has to move on for it to end.
        if found is None or found.shape == "divergence":
            self._learn(ts, value)
        if found is None:
            return self._recover()
        self._calm, self._lasted = 0, self._lasted + 1
        if self._lasted >= self.config.relearn:
            self._logs.clear()
        if self.standing is None or _GRAVITY.index(found.shape) > _GRAVITY.index(self.standing.shape):
            self.standing = found
        return self.standing

    def _judge(self, ts: float, value: float) -> LossAnomaly | None:
        config = self.config
        if math.isinf(value):
            # Dynamic loss scaling skips single steps whose gradients overflow, on purpose.
            enough = self.series == "loss" or self._not_finite >= config.streak
            return (
                LossAnomaly(series=self.series, shape="not_finite", onset=ts, value=value) if enough else None
            )
        if self._seen <= config.first or len(self._logs) < config.steps or value <= 0:
            return None
        logs = np.fromiter(self._logs, np.float64, len(self._logs))
        found = self._leap(ts, value, logs[-config.steps :]) if self._leaps(value, logs) else None
        return found or self._divergence(value, logs)

    def _leaps(self, value: float, logs: Floats) -> bool:
        """Whether it can be a leap: a median is no lower than the least, and costly to find."""
        return math.log(value) - float(logs.min()) >= math.log(self.config.leap)

    def _leap(self, ts: float, value: float, logs: Floats) -> LossAnomaly | None:
        usual, noise = _usual(logs)
        least = max(math.log(self.config.leap), self.config.sigmas * max(noise, self.config.floor))
        return self._above("leap", ts, value, logs) if math.log(value) - usual >= least else None

    def _divergence(self, value: float, logs: Floats) -> LossAnomaly | None:
        """Compare the last steps with those before them: all of them must stand well above."""
        lasting = self.config.lasting
        if self.series != "loss" or len(logs) < self.config.steps + lasting:
            return None
        before, recent = logs[:-lasting], logs[-lasting:]
        if recent.max() - before.min() < self.config.rise:
            return None
        usual, noise = _usual(before)
        risen = _usual(recent)[0] - usual
        least = max(self.config.rise, self.config.sigmas / 2 * max(noise, self.config.floor))
        if risen < least or recent.min() < usual + risen / 3:
            return None
        return self._above("divergence", self._times[-lasting], value, before)

    def _above(self, shape: Shape, onset: float, value: float, logs: Floats) -> LossAnomaly:
        usual, noise = _usual(logs)
        median = math.exp(usual)
        return LossAnomaly(
            series=self.series,
            shape=shape,
            onset=onset,
            value=value,
            median=median,
            scatter=median * noise / 1.4826,
            steps=len(logs),
        )

    def _learn(self, ts: float, value: float) -> None:
        if math.isinf(value):
            return
        if value > 0:
            self._logs.append(math.log(value))
            self._times.append(ts)
        else:
            # Where a loss may be zero or negative, as a reward is, there are no ratios.
            self._logs.clear()

    def _recover(self) -> LossAnomaly | None:
        self._lasted, self._calm = 0, self._calm + 1
        if self._calm >= self.config.lasting:
            self.standing = None
        return self.standing


def _usual(logs: Floats) -> tuple[float, float]:
    """Return median and robust standard deviation of logs."""
    return float(nan_median(logs)), float(spread(logs))
