"""Acceptance of change points: thresholds, the onset of a change, and the least effect that counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from detectors.changepoint.bocpd import BocpdConfig, Onset, onset_of
from detectors.changepoint.standardise import Floats

Source = Literal["bocpd", "cusum", "gap"]
Span = tuple[float, float, float]
"""Event times of an onset, its earliest and its latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeConfig:
    """Thresholds of acceptance and effect.

    warmup, baseline: samples skipped, then samples that set level and sigma, at the start of a series.
    history: rows of samples kept for levels and onsets.
    alarm, min_age: a change is accepted above this mass of new runs, if the likeliest has so many samples.
    refractory: samples between two accepted changes.
    min_relative, min_floors, min_sigmas: a change smaller than any of these is recorded, not significant.
    clip, clip_run: sigmas to winsorise to, and how many samples in a row.
    cusum_slack, cusum_clip, cusum_threshold: drift companion, in sigmas. The slack grows by two standard
        errors of the level; the tighter clip keeps heavy tails from adding up.
    max_missing, max_gap_seconds: a longer gap (in rows, or in event time) starts a new baseline.
    """

    # Chosen: the start of a job takes seconds to settle; longer delays the first possible change.
    warmup: int = 20
    # Chosen: the level is then within 0.16 sigma (`median_error`), which the CUSUM's slack allows for twice.
    baseline: int = 60
    # Chosen: twice the slots of BOCPD, so that an onset beyond its ring can still be dated.
    history: int = 128
    # With the hazard of `BocpdConfig`: no false change in 380,000 samples of noise (measured).
    alarm: float = 0.9
    # Chosen: the median of three is the least that one outlier does not move.
    min_age: int = 3
    # Chosen: a series that changes again sooner is flapping.
    refractory: int = 10
    # Chosen: 3 % is the least slowdown worth a finding; smaller steps add up against the anchored level.
    min_relative: float = 0.03
    # Chosen: three steps of a quantised gauge, and less than a sigma, which is what noise moves a median by.
    min_floors: float = 3.0
    min_sigmas: float = 0.75
    # With 1 % spikes of 8-30 sigma: no false changes instead of 4.6 per 1,000 samples, and +3 sigma found as
    # soon (benchmarks/results/simulator.md, change points).
    clip: float = 4.0
    clip_run: int = 3
    # Half the shift of one sigma that it is tuned for (Page 1954); one alarm in 70,000 samples of noise.
    cusum_slack: float = 0.5
    cusum_clip: float = 2.0
    cusum_threshold: float = 10.0
    # Chosen: as long as a baseline, and longer than a restart of the exporter; 600 s without any row.
    max_missing: int = 60
    max_gap_seconds: float = 600.0
    bocpd: BocpdConfig = field(default_factory=BocpdConfig)

    def __post_init__(self) -> None:
        if not 8 <= self.baseline <= self.history:
            raise ValueError(f"need 8 <= baseline <= history, got {self.baseline} and {self.history}")


@dataclass(frozen=True, slots=True)
class Change:
    """One accepted change of one series. Times in event seconds; levels in the series' own unit.

    The 90 % interval of the onset is [onset_lo, onset_hi]. `effect` is relative to level_before, `sigmas`
    is in baseline sigmas. A change that is not `significant` is below the least effect.
    """

    series: int
    detected_at: float
    onset: float
    onset_lo: float
    onset_hi: float
    probability: float
    level_before: float
    level_after: float
    effect: float
    sign: int
    sigmas: float
    significant: bool
    source: Source


def drift_onset(z: Floats, log_prior_odds: float) -> tuple[Onset, float]:
    """Return onset and probability of a CUSUM alarm from samples ``z`` [n], in sigmas, the latest first.

    For a shift of unknown size that began n samples ago, under a normal prior of variance 1/κ₀ for the new
    level, the log Bayes factor against no shift is, with S_n the sum of the latest n samples and κ₀ ≪ n,

        log B_n = S_n² / (2n) − ½·log n + ½·log κ₀

    The onset is the n of the largest B_n, with the 90 % interval of the posterior over n; the probability is
    that of the odds hazard · Σ B_n. ``log_prior_odds`` is log hazard + ½·log κ₀, as of BOCPD, so that both
    detectors report comparable probabilities. Raises LookupError without samples.
    """
    ages = np.arange(1, len(z) + 1)
    log_likelihood = np.cumsum(z) ** 2 / (2 * ages) - 0.5 * np.log(ages)
    weights = np.exp(log_likelihood - log_likelihood.max())
    log_odds = float(np.logaddexp.reduce(log_likelihood)) + log_prior_odds
    onset = onset_of(ages.tolist(), weights.tolist())
    # exp(710) overflows; long before that the probability is 1 to the last bit.
    return onset, 1.0 / (1.0 + math.exp(-min(log_odds, 700.0)))


def onset_times(times: Floats, outside: NDArray[np.bool_], onsets: Sequence[Onset]) -> list[Span]:
    """Return event times of onsets, moved back over adjacent samples clipped in the direction of the change.

    ``times`` and ``outside`` (beyond the clip on the side of the change) are the held rows of each series
    [series, rows], oldest first; times are NaN where there is no row yet. A clipped sample moves the
    posterior little, so that the first samples of a large change still fit the regime before it.
    """
    rows = np.arange(times.shape[1])
    oldest = (times != times).sum(axis=1)
    age, newest, back = np.array([(o.age, o.newest, o.oldest) for o in onsets]).T
    first = np.maximum(len(rows) - age, oldest)
    # The row after the last one that was not clipped; rows before the first reading are NaN, which is
    # not beyond the clip, so that the walk ends there at the latest.
    inside = (rows < first[:, None]) & ~outside
    first = np.where(inside.any(axis=1), len(rows) - inside[:, ::-1].argmax(axis=1), 0)
    earliest = np.minimum(first, np.maximum(len(rows) - back, oldest))
    latest = np.maximum(len(rows) - newest, first)
    places = np.stack((first, earliest, latest), axis=1)
    return [tuple(span) for span in np.take_along_axis(times, places, axis=1).tolist()]
