"""Sequential evidence that a rank is slower than it should be: one-sided CUSUMs of log-likelihood ratios.

One accumulator per assumed slowdown (3, 5, 10, 25, 100 %): strong faults cross in three steps, weak ones take
the steps they need. ``Evidence`` is the definition for one rank; ``EvidenceBank`` runs all ranks of a job.
Page (1954), Continuous inspection schemes; the limits on single steps are ours.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_SHARP_SIGMAS = 4.0

EFFECTS = (0.03, 0.05, 0.10, 0.25, 1.00)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceConfig:
    """``effects`` are slowdowns to test; the rest limits what one step may contribute.

    ``limit_sigmas``: a value counts at most as δ + that many σ. ``clip_share``: one step moves the
    evidence by
    at most that share of the threshold, so three steps is the fastest alarm. ``min_effect_sigmas``: an effect
    below that many σ cannot be told from noise and is not tested. ``cap``: evidence stops growing at that
    multiple of the threshold, so that recovery shows quickly.
    """

    effects: tuple[float, ...] = EFFECTS
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


class Evidence:
    """The scalar definition for one rank, and the oracle of ``EvidenceBank``.

    >>> e = Evidence(h=20.0)
    >>> [round(max(e.update(0.10, sigma=0.01)), 1) for _ in range(3)]
    [6.7, 13.3, 20.0]
    """

    def __init__(self, h: float, config: EvidenceConfig | None = None) -> None:
        self.h = h
        self.config = config or EvidenceConfig()
        self.levels = [0.0] * len(self.config.effects)

    def update(self, x: float, *, sigma: float) -> list[float]:
        """Take the log ratio to peers minus its baseline; return the evidence per effect. NaN changes
        nothing.
        """
        if math.isnan(x):
            return list(self.levels)
        cfg = self.config
        bound = self.h * cfg.clip_share
        for k, effect in enumerate(cfg.effects):
            delta = math.log1p(effect)
            if delta < cfg.min_effect_sigmas * sigma:
                self.levels[k] = 0.0
                continue
            value = min(x, delta + cfg.limit_sigmas * sigma)
            step = delta / sigma**2 * (value - delta / 2)
            level = self.levels[k] + min(max(step, -bound), bound)
            self.levels[k] = min(max(level, 0.0), cfg.cap * self.h)
        return list(self.levels)


class EvidenceBank:
    """Evidence of all ranks of a job; ``levels`` is [effects, ranks], ``age`` the steps since each left
    zero.
    """

    def __init__(self, ranks: int, h: float, config: EvidenceConfig | None = None) -> None:
        self.h = h
        self.config = config or EvidenceConfig()
        self._delta = np.log1p(np.array(self.config.effects))[:, None]
        self.levels = np.zeros((len(self.config.effects), ranks))
        self.age = np.zeros((len(self.config.effects), ranks), dtype=np.int64)

    def update(self, x: Floats, *, sigma: Floats, smallest: Floats | float = 0.0) -> Floats:
        """Take one step: ``x`` and ``sigma`` are [ranks], NaN in ``x`` changes nothing; return ``best``.

        Effects below ``smallest`` (a slowdown, per rank or one for all) are not tested.
        """
        cfg, delta = self.config, self._delta
        bound = self.h * cfg.clip_share
        value = np.minimum(x, delta + cfg.limit_sigmas * sigma)
        gain = np.clip(delta / sigma**2 * (value - delta / 2), -bound, bound)
        level = np.clip(self.levels + gain, 0.0, cfg.cap * self.h)
        tested = (delta >= cfg.min_effect_sigmas * sigma) & (delta >= np.log1p(smallest) - 1e-12)
        level = np.where(tested, level, 0.0)
        self.levels = np.where(np.isnan(x), self.levels, level)
        self.age = np.where(self.levels > 0, self.age + 1, 0)
        return self.best

    @property
    def best(self) -> Floats:
        """The largest evidence over the effects, [ranks]."""
        best: Floats = self.levels.max(axis=0)
        return best

    def sharp(self, sigma: Floats) -> Floats:
        """The largest evidence over effects far above the noise, which one healthy step takes back,
        [ranks].
        """
        sharp: Floats = np.where(self._delta >= _SHARP_SIGMAS * sigma, self.levels, 0.0).max(axis=0)
        return sharp

    def age_of(self, rank: int) -> int:
        """Steps since the strongest accumulator of ``rank`` left zero."""
        return int(self.age[int(self.levels[:, rank].argmax()), rank])

    def clear(self, ranks: npt.NDArray[np.bool_] | int) -> None:
        """Set the evidence of some ranks back to nothing."""
        self.levels[:, ranks] = 0.0
        self.age[:, ranks] = 0


@dataclass(frozen=True, slots=True)
class Onset:
    """Index of the first affected step in the window given, with the 90 % interval of its posterior."""

    index: int
    low: int
    high: int


def locate_onset(x: Floats, sigma: float) -> Onset:
    """Find where ``x`` [steps] (ending now, known to be high at its end) rose, by maximum likelihood.

    The posterior over the start index under a flat prior is proportional to the likelihood ratio of "slow
    from there on" against "healthy"; the size of the slowdown is read off the last steps.
    """
    finite = np.nan_to_num(x, nan=0.0)
    tail = finite[-min(len(finite), 8) :]
    delta = max(float(np.median(tail)), 0.01)
    for _ in range(2):
        value = np.clip(finite, -3 * sigma, delta + 3 * sigma)
        gain = np.where(np.isnan(x), 0.0, delta / sigma**2 * (value - delta / 2))
        evidence = np.cumsum(gain[::-1])[::-1]
        start = int(np.argmax(evidence))
        delta = max(float(np.median(finite[start:])), 0.01)
    weight = np.exp(np.clip(evidence - evidence[start], -60.0, 0.0))
    mass = np.cumsum(weight) / weight.sum()
    low, high = int(np.searchsorted(mass, 0.05)), int(np.searchsorted(mass, 0.95))
    return Onset(start, min(low, start), max(min(high, len(x) - 1), start))
