"""The last steps of one channel: values as compared, and running sums of them with lone outliers clipped."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

HELD = 512
"""Steps held: the longest window (256) and as many before it."""

_SLACK = 128
"""Steps appended between two moves of the arrays. Chosen: the copy then costs little of a step."""

PAST = 256
"""Steps that make a baseline, at most."""

CLIP = 4.0
"""Spreads of single steps beyond which a step counts as an outlier. Chosen: white noise reaches it in 1 of
30,000 steps; recorded spikes lie far beyond."""

_SUSTAINED = 3
"""Steps in a row that are no outliers any more: what they all exceed is taken whole. A clip without this
hides shifts of 10 to 100 % behind slow noise, whose spread is much greater than that of single steps."""

_LEARNT = 4
"""Steps before anything is clipped: a spread needs that many."""


def rank_bytes() -> int:
    """Return the bytes that a history takes for each rank."""
    return (HELD + _SLACK) * 4 + (HELD + _SLACK + 1) * 8


class History:
    """Values [steps, ranks] of one channel, oldest first.

    A missing value is filled with the rank's usual one, so that it is no evidence. ``outlier`` marks the
    ranks whose last value lies more than ``CLIP`` spreads above their usual one; ``spread`` is the usual
    robust spread of single steps.
    """

    def __init__(self, ranks: int) -> None:
        self.steps = 0
        self.seen = 0
        self.spread = 0.0
        self.outlier: Bools = np.zeros(ranks, dtype=np.bool_)
        self._x = np.zeros((HELD + _SLACK, ranks), dtype=np.float32)
        self._sums = np.zeros((HELD + _SLACK + 1, ranks))
        self._begin = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the steps held."""
        return self._x.nbytes + self._sums.nbytes

    def append(self, values: Floats, *, present: Bools) -> None:
        """Take the next step; ``present`` [ranks] are those who ever report this channel."""
        if self._begin + self.steps == len(self._x):
            self._x[:HELD] = self._x[-HELD:]
            self._sums[: HELD + 1] = self._sums[-HELD - 1 :]
            self._begin, self.steps = 0, HELD
        end = self._begin + self.steps
        usual = self.mean(0, PAST) if self.steps else np.zeros(len(values))
        filled = np.where(np.isfinite(values), values, usual)
        self._x[end] = filled
        deviation = (values - usual)[present & np.isfinite(values)]
        clipped = self._clipped(end, filled, usual)
        self._sums[end + 1] = self._sums[end] + clipped
        if deviation.size >= 2 and self.steps:
            self._learn_spread(deviation)
        self.steps = min(self.steps + 1, HELD) if self._begin + self.steps + 1 > HELD else self.steps + 1
        self._begin = end + 1 - self.steps
        self.seen += 1

    def last(self, steps: int) -> Floats:
        """Return the last values as compared, [steps, ranks]."""
        end = self._begin + self.steps
        return self._x[end - steps : end].astype(np.float64)

    def mean(self, before: int, steps: int) -> Floats:
        """Return the clipped mean [ranks] of up to ``steps`` steps that end ``before`` the last ones."""
        end = self._begin + self.steps - before
        first = max(self._begin, end - steps)
        mean: Floats = (self._sums[end] - self._sums[first]) / max(1, end - first)
        return mean

    def shift(self, ranks: Ints, amount: Floats | float, *, steps: int) -> None:
        """Add ``amount`` [ranks of ``ranks``] to the last ``steps`` steps: an effect is cut, or put back."""
        end = self._begin + self.steps
        first = max(self._begin, end - steps)
        self._x[first:end, ranks] += np.asarray(amount, dtype=np.float32)
        usual = (self._sums[first, ranks] - self._sums[self._begin, ranks]) / max(1, first - self._begin)
        x, most = self._x[first:end, ranks].astype(np.float64), CLIP * self.spread
        if first - self._begin >= _LEARNT:
            x = np.clip(x, usual - most, usual + most)
        self._sums[first + 1 : end + 1, ranks] = self._sums[first, ranks] + np.cumsum(x, axis=0)

    def _clipped(self, end: int, filled: Floats, usual: Floats) -> Floats:
        if self.steps < _LEARNT or self.spread == 0.0:
            self.outlier = np.zeros(len(filled), dtype=np.bool_)
            return filled
        most = CLIP * self.spread
        self.outlier = filled > usual + most
        lately = self._x[end - _SUSTAINED + 1 : end + 1]
        upper = np.maximum(usual + most, lately.min(axis=0))
        lower = np.minimum(usual - most, lately.max(axis=0))
        clipped: Floats = np.clip(filled, lower, upper)
        return clipped

    def _learn_spread(self, deviation: Floats) -> None:
        low, high = np.quantile(deviation, (0.25, 0.75))
        now = max((high - low) / 1.349, 1e-4)
        # Over some thirty steps; a step in which all scatter must not widen it much.
        weight = max(1.0 / (self.seen + 1), 0.03)
        if self.spread > 0.0:
            now = self.spread + weight * (min(now, 3 * self.spread) - self.spread)
        self.spread = now
