"""Change points of many series on one clock: standardise, clip, BOCPD and CUSUM, accept, judge the effect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from detectors.bocpd import BocpdConfig, Onset, onset_of
from detectors.bocpd_bank import Backend, BocpdBank
from detectors.clip import Winsoriser
from detectors.contrast import Contrast, contrast
from detectors.cusum import CusumBank
from detectors.robust import nan_median
from detectors.standardise import Floats, History, Scale, Transformer, baseline, median_error

Source = Literal["bocpd", "cusum", "gap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeConfig:
    """Thresholds of acceptance and effect.

    warmup, baseline: samples skipped, then samples that set level and sigma, at the start of a series.
    history: rows of readings kept for levels and onsets.
    alarm, min_age: mass of new runs that raises, and the least samples the likeliest one must have.
    refractory: samples between two accepted changes.
    min_relative, min_floors, min_sigmas: a change smaller than any of these is recorded, not significant.
    clip, clip_run: sigmas to winsorise to, and how many samples in a row.
    cusum_slack, cusum_clip, cusum_threshold: drift companion, in sigmas. The slack grows by two standard
        errors of the level; the tighter clip keeps heavy tails from adding up.
    max_missing, max_gap_seconds: a longer gap (in rows, or in event time) starts a new baseline.
    """

    warmup: int = 20
    baseline: int = 60
    history: int = 128
    alarm: float = 0.9
    min_age: int = 3
    refractory: int = 10
    min_relative: float = 0.03
    min_floors: float = 3.0
    min_sigmas: float = 0.75
    clip: float = 4.0
    clip_run: int = 3
    cusum_slack: float = 0.5
    cusum_clip: float = 2.0
    cusum_threshold: float = 10.0
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
    is in baseline sigmas. Not `significant`: below the minimum effect, for the record only.
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


class ChangeDetectorBank:
    """Online change detection for the series of one record: `update` per record, changes out.

    Level and sigma are frozen per regime: an estimate that follows every sample would swallow the ramp one
    wants to see. After an accepted change the level is the median since the onset; sigma follows once the
    new regime has a baseline's worth of samples. Effects are measured against the last level that was
    significant, so that many small steps add up. Deterministic; not thread safe.

    >>> bank = ChangeDetectorBank([Scale("log", 0.005)], backend="numpy")
    >>> wobble = [0.01, -0.02, 0.0, 0.02, -0.01]
    >>> seconds = [2.0 + wobble[t % 5] for t in range(100)] + [2.4 + wobble[t % 5] for t in range(10)]
    >>> changes = [c for t, x in enumerate(seconds) for c in bank.update(float(t), [x])]
    >>> [(c.onset, c.sign, round(c.effect, 2), c.significant) for c in changes]
    [(100.0, 1, 0.2, True)]
    """

    def __init__(
        self, scales: Sequence[Scale], *, config: ChangeConfig | None = None, backend: Backend = "auto"
    ) -> None:
        config = config or ChangeConfig()
        series = len(scales)
        self._scales, self._config = tuple(scales), config
        self._transform = Transformer(scales)
        self._history = History(config.history, series)
        self._clip = Winsoriser(series, limit=config.clip, run=config.clip_run)
        self._bocpd = BocpdBank(series, config=config.bocpd, backend=backend)
        slack = config.cusum_slack + 2.0 * median_error(config.baseline)
        self._cusum = CusumBank(series, slack=slack, threshold=config.cusum_threshold)
        self._log_prior_odds = math.log(config.bocpd.hazard) + 0.5 * math.log(config.bocpd.kappa0)
        self._last_t = np.full(1, -np.inf)
        self._level, self._sigma, self._anchor, self._previous = np.full((4, series), np.nan)
        self._last_seen, self._gap_start, self._gap_end = np.full((3, series), np.nan)
        self._seen, self._missing, self._since_change = np.zeros((3, series), np.int64)
        self._provisional, self._anchored = np.zeros((2, series), np.bool_)

    @property
    def probability(self) -> NDArray[np.floating]:
        """Probability that each series has changed since its accepted regime start, [series]."""
        return self._bocpd.probability

    @property
    def level(self) -> Floats:
        """Accepted level of each series in its own unit, [series]; NaN while learning."""
        levels = zip(self._scales, self._level.tolist(), strict=True)
        return np.array([scale.raw(y) if y == y else math.nan for scale, y in levels])

    @property
    def learning(self) -> NDArray[np.bool_]:
        """Which series have no baseline yet, [series]."""
        return np.asarray(np.isnan(self._level))

    @property
    def clipped(self) -> NDArray[np.int64]:
        """Winsorised samples per series since the start, [series]; a rising rate means intermittent
        trouble."""
        return self._clip.counts.copy()

    def update(self, t: float, x: ArrayLike) -> list[Change]:
        """Feed the readings x [series] (NaN: not read) of event time t; return the changes accepted now.

        A row that is not newer than the last one (late, or a duplicate) is ignored. ValueError for a time
        that is not finite and for a wrong shape.
        """
        readings = np.asarray(x, np.float64)
        if readings.shape != self._level.shape:
            raise ValueError(f"expected {len(self._level)} readings, got shape {readings.shape}")
        if not math.isfinite(t):
            raise ValueError(f"event time must be finite, got {t}")
        if t <= self._last_t[0]:
            return []
        self._last_t[0] = t
        y = self._transform(readings)
        read = y == y
        self._note_gaps(t, read)
        self._history.append(t, y)
        z = self._clip((y - self._level) / self._sigma)
        probability = self._bocpd.update(z)
        # The level of a regime that has only begun is too rough to measure a drift against.
        settled = np.where(self._provisional, np.nan, z)
        drifting = self._cusum.update(np.clip(settled, -self._config.cusum_clip, self._config.cusum_clip))
        self._since_change += read
        raised = (probability > self._config.alarm) | drifting
        raised &= read & (self._since_change >= self._config.refractory)
        changes = [self._accept(int(i), t) for i in np.flatnonzero(raised)]
        learned = [self._finish_baseline(int(i), t) for i in self._due(read)]
        self._settle()
        return [change for change in (*changes, *learned) if change is not None]

    def contrast(self, series: int, siblings: Sequence[int], onset: float) -> Contrast | None:
        """How one series moved at event time `onset` against the median of its siblings.

        In transformed units. None while there is too little on either side of the onset.
        """
        times, values = self._history.rows((series, *siblings))
        apart = values[:, 0] - nan_median(values[:, 1:], axis=1)
        floor = self._scales[series].floor
        return contrast(apart[times < onset], apart[times >= onset], floor=floor)

    def reset(self, series: ArrayLike | None = None) -> None:
        """A planned change: start the warm-up and baseline of these series over (mask or indices; None:
        all)."""
        everything = np.arange(len(self._level))
        for i in everything if series is None else everything[np.asarray(series)]:
            self._restart(int(i))
            self._previous[i] = np.nan

    def snapshot(self) -> dict[str, NDArray[np.generic]]:
        """The whole state as numeric arrays, copied."""
        parts = {"": self._own(), "history.": self._history.snapshot(), "clip.": self._clip.snapshot()}
        parts |= {"bocpd.": self._bocpd.snapshot(), "cusum.": self._cusum.snapshot()}
        return {prefix + name: array.copy() for prefix, part in parts.items() for name, array in part.items()}

    def restore(self, snapshot: Mapping[str, NDArray[np.generic]]) -> None:
        """Continue from a snapshot of a bank built alike. ValueError when it does not fit."""
        for name, array in self.snapshot().items():
            if name not in snapshot or snapshot[name].shape != array.shape:
                raise ValueError(f"snapshot does not fit this bank: {name} should have shape {array.shape}")
        for part, prefix in (
            (self._bocpd, "bocpd."),
            (self._history, "history."),
            (self._clip, "clip."),
            (self._cusum, "cusum."),
        ):
            part.restore({k.removeprefix(prefix): v for k, v in snapshot.items() if k.startswith(prefix)})
        for name, array in self._own().items():
            array[...] = snapshot[name]

    def _own(self) -> dict[str, NDArray[np.generic]]:
        names = "last_t level sigma anchor previous last_seen gap_start gap_end seen missing since_change"
        return {name: getattr(self, f"_{name}") for name in f"{names} provisional anchored".split()}

    def _note_gaps(self, t: float, read: NDArray[np.bool_]) -> None:
        gap = read & (
            (self._missing > self._config.max_missing) | (t - self._last_seen > self._config.max_gap_seconds)
        )
        for i in np.flatnonzero(gap):
            before = self._anchor[i] if self._anchor[i] == self._anchor[i] else self._previous[i]
            self._gap_start[i], self._gap_end[i] = self._last_seen[i], t
            self._restart(int(i))
            self._previous[i] = before
        self._missing = np.where(read, 0, self._missing + 1)
        self._last_seen[read] = t
        self._seen += read

    def _restart(self, i: int) -> None:
        self._level[i] = self._sigma[i] = self._anchor[i] = np.nan
        self._seen[i] = self._since_change[i] = 0
        self._provisional[i] = self._anchored[i] = False
        self._bocpd.reset(i)
        self._cusum.reset(i)
        self._clip.reset(i)

    def _due(self, read: NDArray[np.bool_]) -> NDArray[np.intp]:
        learned = self._seen >= self._config.warmup + self._config.baseline
        return np.flatnonzero(learned & read & np.isnan(self._level))

    def _finish_baseline(self, i: int, t: float) -> Change | None:
        """Freeze the first level and sigma; after a gap compare them with the regime before it."""
        _, values = self._history.last(i, self._config.baseline)
        if len(values) < self._config.baseline // 2:
            return None
        self._level[i], self._sigma[i] = baseline(values, self._scales[i].floor)
        self._anchor[i], previous = self._level[i], self._previous[i]
        self._previous[i] = np.nan
        limit = self._config.clip
        self._bocpd.seed(i, np.clip((values - self._level[i]) / self._sigma[i], -limit, limit).tolist())
        if np.isnan(previous):
            return None
        sigmas = float(self._level[i] - previous) / float(self._sigma[i])
        if abs(sigmas) < limit:
            return None
        certainty = math.erf(abs(sigmas) / (2.0 * median_error(len(values))))
        times = float(self._gap_end[i]), float(self._gap_start[i]), float(self._gap_end[i])
        return self._describe(i, t, times, (certainty, float(previous), float(self._level[i]), "gap"))

    def _accept(self, i: int, t: float) -> Change | None:
        """Move one series to its new regime, unless the likeliest new run is too young to tell."""
        probability = float(self._bocpd.probability[i])
        source: Source = "bocpd" if probability > self._config.alarm else "cusum"
        if source == "bocpd":
            onset = self._bocpd.onset(i)
        else:
            onset, probability = self._drift_onset(i)
        if onset.age < self._config.min_age:
            return None
        _, values = self._history.last(i, onset.age)
        level, sigma = float(np.median(values)), float(self._sigma[i])
        if len(values) >= self._config.baseline:
            level, sigma = baseline(values, self._scales[i].floor)
        span = self._onset_times(i, onset, math.copysign(1.0, level - self._level[i]))
        change = self._describe(i, t, span, (probability, float(self._anchor[i]), level, source))
        self._move(i, level, sigma)
        limit = self._config.clip
        self._bocpd.accept(i, len(values), np.clip((values - level) / sigma, -limit, limit).tolist())
        self._since_change[i] = 0
        self._provisional[i] = len(values) < self._config.baseline
        self._anchored[i] = change.significant
        if change.significant:
            self._anchor[i] = level
        return change

    def _move(self, i: int, level: float, sigma: float) -> None:
        """Make this the accepted level and sigma of one series, and express its runs in the new unit."""
        old_level, old_sigma = float(self._level[i]), float(self._sigma[i])
        self._bocpd.rescale(i, (level - old_level) / old_sigma, sigma / old_sigma)
        self._level[i], self._sigma[i] = level, sigma
        self._cusum.reset(i)
        self._clip.reset(i)

    def _settle(self) -> None:
        """Refresh level and sigma of regimes that have gathered a baseline's worth of samples since their
        onset."""
        if not self._provisional.any():
            return
        for i in np.flatnonzero(self._provisional & (self._bocpd.regime_age >= self._config.baseline)):
            _, values = self._history.last(int(i), self._config.baseline)
            self._move(int(i), *baseline(values, self._scales[i].floor))
            self._provisional[i] = False
            if self._anchored[i]:
                self._anchor[i] = self._level[i]

    def _drift_onset(self, i: int) -> tuple[Onset, float]:
        """Onset and probability of a CUSUM alarm: one shift of unknown size at each of the last samples.

        The prior is BOCPD's: its hazard, and its spread of new levels.
        """
        _, values = self._history.last(i, 2 * self._cusum.age(i))
        z = (values[::-1] - self._level[i]) / self._sigma[i]
        ages = np.arange(1, len(z) + 1)
        log_likelihood = np.cumsum(z) ** 2 / (2 * ages) - 0.5 * np.log(ages)
        weights = np.exp(log_likelihood - log_likelihood.max())
        log_odds = float(np.logaddexp.reduce(log_likelihood)) + self._log_prior_odds
        onset = onset_of(dict(zip(ages.tolist(), weights.tolist(), strict=True)))
        return onset, 1.0 / (1.0 + math.exp(-min(log_odds, 700.0)))

    def _onset_times(self, i: int, onset: Onset, sign: float) -> tuple[float, float, float]:
        """Event times of onset, earliest and latest; walked back over samples clipped in the same
        direction."""
        times, values = self._history.last(i, self._config.history)
        outside = sign * (values - self._level[i]) / self._sigma[i] > self._config.clip
        first = max(len(values) - onset.age, 0)
        earliest = max(len(values) - onset.oldest, 0)
        while first > 0 and outside[first - 1]:
            first -= 1
        latest = max(len(values) - onset.newest, first)
        return float(times[first]), float(times[min(first, earliest)]), float(times[latest])

    def _describe(
        self,
        i: int,
        t: float,
        onset: tuple[float, float, float],
        evidence: tuple[float, float, float, Source],
    ) -> Change:
        """Change from its times (onset, earliest, latest) and (probability, level before, level after,
        source)."""
        probability, before, after, source = evidence
        scale, config = self._scales[i], self._config
        raw_before, raw_after = scale.raw(before), scale.raw(after)
        effect = (raw_after - raw_before) / max(abs(raw_before), scale.floor)
        least = max(config.min_floors * scale.floor, config.min_sigmas * float(self._sigma[i]))
        return Change(
            series=i,
            detected_at=t,
            onset=onset[0],
            onset_lo=onset[1],
            onset_hi=onset[2],
            probability=probability,
            level_before=raw_before,
            level_after=raw_after,
            effect=effect,
            sign=1 if after >= before else -1,
            sigmas=(after - before) / float(self._sigma[i]),
            significant=abs(after - before) >= least and abs(effect) >= config.min_relative,
            source=source,
        )
