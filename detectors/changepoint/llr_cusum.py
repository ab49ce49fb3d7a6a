"""Sequential evidence that a rank is slower than it should be: one-sided CUSUMs of log-likelihood ratios.

For a rank's log ratio to its peers x, less its baseline, with noise sigma, and an assumed slowdown e with
delta = ln(1 + e), the log-likelihood ratio of a normal x with mean delta against mean 0 is

    s = delta / sigma^2 * (min(x, delta + 3 sigma) - delta / 2),  clipped to +-h/3,

and the evidence is Page's sum S <- min(max(S + s, 0), 1.5 h). One accumulator per e in 3, 5, 10, 25, 100 %:
strong faults cross in three steps, weak ones take the steps they need. A rank is suspected from
h = ln(ranks * effects / p) on, which keeps the false alarms of a whole job to about p a step (Wald's
bound exp(-h) on each sum, added over ranks and effects).

Sees what the two other CUSUMs cannot: that one rank is slower than its peers by an amount that matters,
within steps. ``changepoint.cusum`` is two-sided over standard scores with a slack, for shifts of unknown
sign and size of any metric, and ``fleet.chronic`` sums days, with effects that no single job shows. They
share Page's recursion and nothing else. ``detectors.job.waits.slow_network`` runs this bank over one series.

``LlrCusumBank`` runs all ranks of a job, arrays [effects, ranks]; its test holds it against a scalar
definition.

E. S. Page (1954), Continuous inspection schemes, Biometrika 41; the limits on single steps are ours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# From an effect δ of so many sigmas on, one healthy step takes the evidence back: it counts -δ²/(2σ²) = -8
# and less, and a spike no more than h/3, which is 7.4 in a job of 1,000 ranks.
_SHARP_SIGMAS = 4.0


# Steps in which a slowdown may develop: recorded faults come at once or along a ramp.
RAMPS = (1, 2, 4, 8, 16, 32)

# Steps whose median is the size of a slowdown to begin with. Chosen: it passes over three pauses.
_LATEST = 8

# Windows that are worth an array of their own (measured: two of them take as long as one by one).
_SEVERAL = 3

# The share of the slowdown in each step of a ramp.
_SHAPES = [np.arange(1, ramp + 1) / ramp for ramp in RAMPS]

# Slowdowns from here on stand out of the noise in a single step, 11 sigmas at the 2 % of fixed work: spikes
# alone limit the evidence.
LARGE = 0.25

# Slowdowns tested for, from what is barely reported on. Chosen: twice to four times apart, for a test for one
# size finds its neighbours nearly as soon.
EFFECTS = (0.03, 0.05, 0.10, 0.25, 1.00)


@dataclass(frozen=True, slots=True, kw_only=True)
class CusumConfig:
    """``effects`` are slowdowns to test; the rest limits what one step may contribute.

    ``limit_sigmas``: a value counts at most as δ + that many σ. ``clip_share``: one step moves the evidence
    by at most that share of the threshold, so three steps is the fastest alarm; for a ``LARGE`` effect
    ``update`` may be given more (``most``), so that three such steps reach what stands alone.
    ``min_effect_sigmas``: an effect below that many σ is not distinguished from noise and is not tested.
    ``cap``: evidence stops growing at that multiple of the threshold, so that recovery shows quickly.
    """

    effects: tuple[float, ...] = EFFECTS
    # At 4 % noise with 1 % spikes: 0.001 false alarms per 1,000 rank-steps; without a limit 0.05 (measured).
    limit_sigmas: float = 3.0
    clip_share: float = 1.0 / 3.0
    min_effect_sigmas: float = 0.5
    cap: float = 1.5


def threshold(ranks: int, effects: int, p_step: float) -> float:
    """Return h = ln(ranks * effects / p_step): about ``p_step`` false alarms per step over the whole job.

    >>> round(threshold(1000, 5, 1e-6), 1)
    22.3
    """
    return math.log(max(ranks, 1) * max(effects, 1) / p_step)


class LlrCusumBank:
    """Evidence of all ranks of a job; ``levels`` is [effects, ranks], ``age`` the steps since each left 0.

    ``best`` [ranks] is the largest evidence over the effects.

    >>> bank = LlrCusumBank(1, h=20.0)
    >>> [bank.update(np.array([0.10]), sigma=np.array([0.01])).round(1).tolist() for _ in range(3)]
    [[6.7], [13.3], [20.0]]
    """

    def __init__(self, ranks: int, h: float, config: CusumConfig | None = None) -> None:
        self.h = h
        self.config = config or CusumConfig()
        self._delta = np.log1p(np.array(self.config.effects))[:, None]
        self._large = self._delta >= math.log1p(LARGE)
        self.levels = np.zeros((len(self.config.effects), ranks))
        self.age = np.zeros((len(self.config.effects), ranks), dtype=np.int64)
        self.best: Floats = np.zeros(ranks)

    def update(
        self,
        x: Floats,
        *,
        sigma: Floats,
        smallest: Floats | float = 0.0,
        most: float = 0.0,
        ceiling: Floats | float = math.inf,
    ) -> Floats:
        """Take one step: ``x`` and ``sigma`` are [ranks], NaN in ``x`` changes nothing; return ``best``.

        Effects below ``smallest`` (a slowdown, per rank or one for all) are not tested. ``most`` is what one
        step may move the evidence for a ``LARGE`` effect by, where that is more than the usual share;
        ``ceiling`` (per rank or one for all) is what one may add to any.
        """
        cfg, delta = self.config, self._delta
        share = self.h * cfg.clip_share
        bound = np.where(self._large, most, share) if most > share else share
        # Heavy tails: a sample far above the effect is no more evidence of it than one somewhat above. The
        # clip after it keeps any single step to a third of the threshold, for ``LARGE`` effects to ``most``.
        value = np.minimum(x, delta + cfg.limit_sigmas * sigma)
        gain = delta / sigma**2 * (value - delta / 2)
        level = self.levels + np.minimum(np.maximum(gain, -bound), np.minimum(bound, ceiling))
        level = np.minimum(np.maximum(level, 0.0), cfg.cap * self.h)
        # Less a rounding error: an effect of just `smallest` is tested.
        least = np.maximum(cfg.min_effect_sigmas * sigma, np.log1p(smallest) - 1e-12)
        level = np.where(delta >= least, level, 0.0)
        # A step that was not read is no evidence either way.
        self.levels = np.where(np.isnan(x), self.levels, level)
        self.age = np.where(self.levels > 0, self.age + 1, 0)
        self.best = self.levels.max(axis=0)
        return self.best

    def take(self, rank: int, *, size: float, steps: int) -> None:
        """Take a rank as slow by ``size`` (log ratio) for ``steps`` steps: evidence found in another way."""
        self.levels[self._delta[:, 0] <= size, rank] = self.config.cap * self.h
        self.age[:, rank] = steps
        self.best = self.levels.max(axis=0)

    def drop(self, ranks: npt.NDArray[np.bool_]) -> None:
        """Forget the evidence against some ``ranks`` [ranks]."""
        self.levels[:, ranks], self.age[:, ranks] = 0.0, 0
        self.best = self.levels.max(axis=0)

    def sharp(self, sigma: Floats) -> Floats:
        """The largest evidence [ranks] over effects far above the noise: one healthy step takes it back."""
        return self.of_effects(_SHARP_SIGMAS * sigma)

    def of_effects(self, least: Floats) -> Floats:
        """The largest evidence [ranks] over effects of at least ``least`` (log ratios, [ranks])."""
        largest: Floats = np.where(self._delta >= least, self.levels, 0.0).max(axis=0)
        return largest

    def age_of(self, rank: int) -> int:
        """Steps since the strongest accumulator of ``rank`` left zero; of those at the cap, the oldest."""
        return int(self.age[self.levels[:, rank] >= self.best[rank], rank].max())


@dataclass(frozen=True, slots=True)
class Onset:
    """Index of the first affected step in the window given, and the 90 % interval of its posterior."""

    index: int
    low: int
    high: int


def locate_onset(x: Floats, sigma: float) -> Onset:
    """Find where ``x`` [steps] (ending now, known to be high at its end) began to rise.

    The posterior over the first slow step, under flat priors over it and over ``RAMPS``, the steps the
    slowdown may take to develop; its size is the likeliest one for each of them.
    """
    read = np.isfinite(x)
    finite = np.where(read, x, 0.0)
    size = _usual(finite[-_LATEST:])
    energy = _from_each(read.astype(np.float64), [shape**2 for shape in _SHAPES])
    # Once with the size of the latest steps, then with that of all since the onset found.
    for _ in range(2):
        # One spike must not date the change: a step counts as at most so much more than it usually is.
        clipped = np.clip(finite, -3 * sigma, size + 3 * sigma) / sigma
        evidence = _rise(np.where(read, clipped, 0.0), energy)
        start = int(np.argmax(evidence))
        size = _usual(finite[start:])
    return _interval(evidence, start)


def locate_onsets(windows: Sequence[Floats], sigma: Sequence[float]) -> list[Onset]:
    """Return ``locate_onset`` of each of many windows [steps] with its ``sigma``, at a fraction of the cost.

    All end now: they are the rows of one array, filled up with nothing before and after, that is weighted by
    each shape as one series.
    """
    if len(windows) < _SEVERAL:
        return [locate_onset(x, noise) for x, noise in zip(windows, sigma, strict=True)]
    steps = max(map(len, windows))
    held, begins = np.full((len(windows), steps), np.nan), [steps - len(x) for x in windows]
    for row, first, x in zip(held, begins, windows, strict=True):
        row[first:] = x
    read, noise = np.isfinite(held), np.array(sigma)[:, None]
    finite, inside = np.where(read, held, 0.0), np.arange(steps) >= np.array(begins)[:, None]
    # Of windows that were read as a whole it is that of the longest one, from their first step on.
    weights = read.astype(np.float64) if (read != inside).any() else np.ones((1, steps))
    energy = np.maximum(2.0 * _from_each_of(weights, [shape**2 for shape in _SHAPES]), 1e-9)
    size = [_usual(x[max(first, steps - _LATEST) :]) for x, first in zip(finite, begins, strict=True)]
    for _ in range(2):
        most = np.array(size)[:, None] + 3 * noise
        z = np.where(read, np.clip(finite, -3 * noise, most) / noise, 0.0)
        gain = np.maximum(_from_each_of(z, _SHAPES), 0.0) ** 2 / energy
        gain[:, ~inside] = -np.inf
        gain -= gain.max(axis=(0, 2))[:, None]
        evidence = np.exp(np.maximum(gain, -60.0, out=gain), out=gain).sum(axis=0)
        evidence[~inside] = 0.0
        starts = evidence.argmax(axis=1).tolist()
        size = [_usual(x[start:]) for x, start in zip(finite, starts, strict=True)]
    return [
        _interval(likelihood[first:], start - first)
        for likelihood, first, start in zip(evidence, begins, starts, strict=True)
    ]


def _usual(x: Floats) -> float:
    """Return the median of ``x`` [steps], and no less than a slowdown is sought for."""
    ordered = np.sort(x)
    return max(0.5 * float(ordered[(len(x) - 1) // 2] + ordered[len(x) // 2]), 0.01)


def _interval(evidence: Floats, start: int) -> Onset:
    """Return the onset at ``start`` with the 90 % interval of the ``evidence`` [steps] of each first step."""
    mass = np.cumsum(evidence) / evidence.sum()
    low, high = int(np.searchsorted(mass, 0.05)), int(np.searchsorted(mass, 0.95))
    return Onset(start, min(low, start), max(min(high, len(evidence) - 1), start))


def _rise(z: Floats, energy: Floats) -> Floats:
    """Return the likelihood of each first slow step [steps], up to a factor; ``z`` is in units of noise.

    ``energy`` [ramps, steps] is that of the steps read.
    """
    # The likeliest size is cross / energy: it gains cross² / (2·energy) over none. Only slowdowns count.
    gain = np.maximum(_from_each(z, _SHAPES), 0.0) ** 2 / np.maximum(2.0 * energy, 1e-9)
    likelihood: Floats = np.exp(np.maximum(gain - gain.max(), -60.0)).sum(axis=0)
    return likelihood


def _from_each(values: Floats, shapes: Sequence[Floats]) -> Floats:
    """Return, for each step, the sum of what follows from there on, its beginning weighted by each shape."""
    steps = len(values)
    padded = np.concatenate((values, np.zeros(max(map(len, shapes)))))
    after = np.cumsum(padded[::-1])[::-1]
    return np.array(
        [
            np.convolve(padded[: steps + len(shape)], shape[::-1], mode="valid")[:steps]
            + after[len(shape) : len(shape) + steps]
            for shape in shapes
        ]
    )


def _from_each_of(values: Floats, shapes: Sequence[Floats]) -> Floats:
    """Return ``_from_each`` of each row of ``values`` [rows, steps], [shapes, rows, steps]."""
    rows, steps = values.shape
    most = max(map(len, shapes))
    # Between two rows there is nothing for as long as the longest shape, and behind the last one twice that.
    padded = np.zeros((rows + 1, steps + most))
    padded[:-1, :steps] = values
    after = np.cumsum(padded[:-1, ::-1], axis=1)[:, ::-1]
    found, line = np.empty((len(shapes), rows, steps)), padded.ravel()
    for out, shape in zip(found, shapes, strict=True):
        weighted = np.correlate(line, shape, mode="valid")[: rows * (steps + most)].reshape(rows, -1)
        np.add(weighted[:, :steps], after[:, len(shape) : len(shape) + steps], out=out)
    return found
