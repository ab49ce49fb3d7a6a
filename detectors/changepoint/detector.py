"""Online change-point detection for many series: standardise, winsorise, BOCPD and CUSUM, accept, measure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from detectors.changepoint.acceptance import Change, ChangeConfig, Source, Span, drift_onset, onset_times
from detectors.changepoint.bank import Backend, BocpdBank, Groups, Ints
from detectors.changepoint.bocpd import Onset
from detectors.changepoint.cusum import CusumBank
from detectors.changepoint.gaps import Gaps
from detectors.changepoint.sibling_window import Readings
from detectors.changepoint.standardise import Floats, Scale, baseline, baselines, median_error
from detectors.changepoint.winsorise import Winsoriser
from detectors.robust import nan_median


@dataclass(frozen=True, slots=True)
class _NewRun:
    """A change that one of the two detectors proposes for a series."""

    series: int
    onset: Onset
    probability: float
    source: Source


class ChangeDetectorBank:
    """Detect changes of level in many series; `update` takes one row of samples and returns the changes.

    Each row x passes through these steps (defaults of `ChangeConfig`; sigma in units of the baseline):

    1. transform y = f(x), `Scale`, so that noise is additive and alike at every level;
    2. level and sigma: median and 1.4826·MAD of 60 samples after a warm-up of 20 (`baseline`), frozen until
       the next accepted change, since an estimate that follows every sample would absorb a ramp;
    3. z = (y − level) / sigma, winsorised to ±4 for at most 3 samples in a row (`Winsoriser`);
    4. BOCPD (`BocpdBank`) on z for steps, CUSUM (`CusumBank`) on z clipped to ±2 for ramps;
    5. a change is accepted when the mass of new runs exceeds 0.9, or the CUSUM alarms, and at least 10
       samples have passed since the last one and the new run has 3. The new level is the median since the
       onset; sigma follows once the new regime has 60 samples;
    6. the effect is measured against the last significant level, so that many small steps add up, and is
       significant from 3 %, 3 floors and 0.75 sigma on.

    A gap of 60 rows or 600 s starts a new baseline, which is compared with the level before the gap.

    With `groups` there are that many times the series of `scales`, numbered group after group, and each group
    has its own event time: a group is what one node reads, and any set of groups may be fed. `readings` holds
    the latest samples. Deterministic; not thread safe. Sources: see the parts; their combination is chosen.

    >>> bank = ChangeDetectorBank([Scale("log", 0.005)], backend="numpy")
    >>> wobble = [0.01, -0.02, 0.0, 0.02, -0.01]
    >>> seconds = [2.0 + wobble[t % 5] for t in range(100)] + [2.4 + wobble[t % 5] for t in range(10)]
    >>> changes = [c for t, x in enumerate(seconds) for c in bank.update(float(t), [x])]
    >>> [(c.onset, c.sign, round(c.effect, 2), c.significant) for c in changes]
    [(100.0, 1, 0.2, True)]
    """

    def __init__(
        self,
        scales: Sequence[Scale],
        *,
        groups: int = 1,
        config: ChangeConfig | None = None,
        backend: Backend = "auto",
    ) -> None:
        config = config or ChangeConfig()
        series = len(scales) * groups
        self._scales, self._config = tuple(scales), config
        self._index = np.arange(series).reshape(groups, len(scales))
        self._floor = np.tile([scale.floor for scale in scales], groups)
        self.readings = Readings(scales, rows=config.history, groups=groups)
        self._clip = Winsoriser(series, limit=config.clip, run=config.clip_run)
        self._bocpd = BocpdBank(len(scales), groups=groups, config=config.bocpd, backend=backend)
        self._gaps = Gaps(series, rows=config.max_missing, seconds=config.max_gap_seconds)
        slack = config.cusum_slack + 2.0 * median_error(config.baseline)
        self._cusum = CusumBank(series, slack=slack, threshold=config.cusum_threshold)
        # What `drift_onset` leaves out: the hazard, and √kappa0 of the marginal likelihood of a new level.
        self._log_prior_odds = math.log(config.bocpd.hazard) + 0.5 * math.log(config.bocpd.kappa0)
        self._last_t = np.full(groups, -np.inf)
        self._level, self._sigma, self._anchor, self._previous = np.full((4, series), np.nan)
        self._seen, self._since_change = np.zeros((2, series), np.int64)
        self._provisional, self._anchored = np.zeros((2, series), np.bool_)

    @property
    def probability(self) -> NDArray[np.floating]:
        """Probability that each series has changed since its accepted regime start, [series]."""
        return self._bocpd.probability

    @property
    def level(self) -> Floats:
        """Accepted level of each series in its own unit, [series]; NaN while learning."""
        levels = enumerate(self._level.tolist())
        return np.array([self.readings.scale(i).raw(y) if y == y else math.nan for i, y in levels])

    @property
    def learning(self) -> NDArray[np.bool_]:
        """Which series have no baseline yet, [series]."""
        return np.asarray(np.isnan(self._level))

    @property
    def clipped(self) -> NDArray[np.int64]:
        """Number of winsorised samples so far, [series]; it rises faster while a fault is intermittent."""
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
        times = np.full(len(self._last_t), t)
        return self.update_groups(times, readings.reshape(self._index.shape), slice(None))

    def update_groups(self, t: Floats, x: Floats, groups: Groups) -> list[Change]:
        """Do so for some groups: the readings x [groups, series] of event times t [groups].

        Changes come in the order of series. What one group gives rise to is the same, bit for bit,
        whichever others are fed with it.
        """
        late = t <= self._last_t[groups]
        if late.any():
            # The detectors count rows and take no times: a late row would count as a new sample.
            groups, t, x = np.arange(len(self._last_t))[groups][~late], t[~late], x[~late]
        self._last_t[groups] = t
        y = self.readings.append(t, x, groups)
        lanes = self.readings.lanes(groups)
        read = (y == y).reshape(-1)
        self._note_gaps(np.repeat(t, len(self._scales)), read, lanes)
        # Before its baseline a series has no level (NaN), so that z is NaN, "not read", in all later steps.
        z = self._clip((y.reshape(-1) - self._level[lanes]) / self._sigma[lanes], lanes)
        probability = self._bocpd.update_groups(z.reshape(y.shape), groups).reshape(-1)
        # The level of a new regime is too uncertain to measure a drift against.
        z[self._provisional[lanes]] = np.nan
        drifting = self._cusum.update(np.clip(z, -self._config.cusum_clip, self._config.cusum_clip), lanes)
        self._since_change[lanes] += read
        raised = (probability > self._config.alarm) | drifting
        raised &= read & (self._since_change[lanes] >= self._config.refractory)
        index = self._index[groups].reshape(-1)
        changes = self._accept(index[raised])
        changes += self._finish_baselines(index[self._due(read, lanes)])
        self._settle(index[self._provisional[lanes]])
        return sorted(changes, key=lambda change: change.series)

    def reset(self, series: ArrayLike | None = None) -> None:
        """Restart warm-up and baseline of these series (mask or indices; None: all), as after a planned
        change."""
        everything = np.arange(len(self._level))
        which = everything if series is None else everything[np.asarray(series)]
        self._restart(which)
        self._previous[which] = np.nan

    def _note_gaps(self, t: Floats, read: NDArray[np.bool_], lanes: Groups) -> None:
        gap = self._gaps.update(t, read, lanes)
        if gap.any():
            which = np.arange(len(self._level))[lanes][gap]
            learned = ~np.isnan(self._anchor[which])
            # After a second gap before the new level is learned, the comparison stays with the old one.
            before = np.where(learned, self._anchor[which], self._previous[which])
            self._restart(which)
            self._previous[which] = before
        self._seen[lanes] += read

    def _restart(self, which: Ints) -> None:
        self._level[which] = self._sigma[which] = self._anchor[which] = np.nan
        self._seen[which] = self._since_change[which] = 0
        self._provisional[which] = self._anchored[which] = False
        self._bocpd.reset(which)
        self._cusum.reset(which)
        self._clip.reset(which)

    def _due(self, read: NDArray[np.bool_], lanes: Groups) -> NDArray[np.bool_]:
        learned = self._seen[lanes] >= self._config.warmup + self._config.baseline
        return np.asarray(learned & read & np.isnan(self._level[lanes]))

    def _finish_baselines(self, which: Ints) -> list[Change]:
        """Freeze the first level and sigma; after a gap compare them with the regime before it."""
        return [
            change
            for series, values in self._latest(which)
            # With many gaps the history holds fewer samples than were seen; half a baseline is the least.
            if values.shape[1] >= self._config.baseline // 2
            for change in self._learn(series, values)
        ]

    def _latest(self, which: Ints) -> Iterator[tuple[Ints, Floats]]:
        """Yield series with the latest readings of each, [series, n], a baseline's worth where there are
        that many."""
        if not len(which):
            return
        stretches = self.readings.history.stretches(which, self._config.baseline)
        whole = ~np.isnan(stretches).any(axis=1)
        if whole.any():
            yield which[whole], stretches[whole]
        for i in which[~whole].tolist():
            yield np.array([i]), self.readings.history.last(i, self._config.baseline)[1][None]

    def _learn(self, which: Ints, values: Floats) -> Iterator[Change]:
        level, sigma = baselines(values, self._floor[which])
        self._level[which], self._sigma[which], self._anchor[which] = level, sigma, level
        limit = self._config.clip
        z = np.clip((values - level[:, None]) / sigma[:, None], -limit, limit)
        self._bocpd.seed(which, z)
        previous, self._previous[which] = self._previous[which], np.nan
        sigmas = np.abs(level - previous) / sigma
        for k in np.flatnonzero(sigmas >= self._config.clip):
            yield self._after_gap(int(which[k]), float(previous[k]), float(sigmas[k]), values.shape[1])

    def _after_gap(self, i: int, previous: float, sigmas: float, samples: int) -> Change:
        # Medians of two such stretches differ by √2·median_error at random, and erf(d / (√2·error)) is the
        # probability of less than d.
        certainty = math.erf(sigmas / (2.0 * median_error(samples)))
        # The onset lies anywhere within the gap; its end is when the change was first seen.
        times = float(self._gaps.end[i]), float(self._gaps.start[i]), float(self._gaps.end[i])
        return self._describe(i, times, (certainty, previous, float(self._level[i]), "gap"))

    def _accept(self, which: Ints) -> list[Change]:
        """Move series to their new regimes, except where the likeliest run has under `min_age` samples."""
        runs = list(self._new_runs(which))
        if not runs:
            return []
        which = np.array([run.series for run in runs])
        times, rows = self._past(which)
        age = np.array([run.onset.age for run in runs])
        latest = np.arange(rows.shape[1]) >= rows.shape[1] - age[:, None]
        level, sigma, count = self._levels(which, np.where(latest, rows, np.nan))
        moved = level - self._level[which]
        distance = np.copysign(1.0, moved)[:, None] * (rows - self._level[which, None])
        outside = distance / self._sigma[which, None] > self._config.clip
        spans = onset_times(times, outside, [run.onset for run in runs])
        changes = [self._change(*of) for of in zip(runs, spans, level.tolist(), strict=True)]
        self._move(which, level, sigma)
        limit = self._config.clip
        z = np.clip((rows - level[:, None]) / sigma[:, None], -limit, limit)
        # After `_move`, which has put the other runs into the units of the new regime.
        self._bocpd.accept(which, [z[k, -n:].tolist() for k, n in enumerate(count.tolist())])
        significant = np.array([change.significant for change in changes])
        self._since_change[which] = 0
        self._provisional[which] = count < self._config.baseline
        self._anchored[which] = significant
        self._anchor[which[significant]] = level[significant]
        return changes

    def _new_runs(self, which: Ints) -> Iterator[_NewRun]:
        if not len(which):
            return
        mass, least = self._bocpd.probability_of(which), self._config.min_age
        sudden = mass > self._config.alarm
        probability = dict(zip(which[sudden].tolist(), mass[sudden].tolist(), strict=True))
        for i, onset in self._bocpd.onsets(which[sudden], least_age=least):
            yield _NewRun(i, onset, probability[i], "bocpd")
        for i in which[~sudden].tolist():
            onset, certainty = self._drift_onset(i)
            if onset.age >= least:
                yield _NewRun(i, onset, certainty, "cusum")

    def _past(self, which: Ints) -> tuple[Floats, Floats]:
        """Return the times and values of all readings held of some series, [series, history], the latest
        last; NaN before the first."""
        history = self.readings.history
        times, rows = history.times(which), history.stretches(which, self._config.history)
        read = rows == rows
        if not read.all():
            # Missing values first, the others after them in order of time: hence a stable sort.
            times, order = np.where(read, times, np.nan), read.argsort(axis=1, kind="stable")
            times, rows = (np.take_along_axis(past, order, axis=1) for past in (times, rows))
        return times, rows

    def _levels(self, which: Ints, rows: Floats) -> tuple[Floats, Floats, Ints]:
        """Return level and sigma of new regimes, and how many readings [series, history] there are of each;
        until there is a baseline's worth of them, sigma stays."""
        level, sigma, count = nan_median(rows, axis=1), self._sigma[which], (rows == rows).sum(axis=1)
        for k in np.flatnonzero(count >= self._config.baseline).tolist():
            level[k], sigma[k] = baseline(rows[k, -count[k] :], float(self._floor[which[k]]))
        return level, sigma, count

    def _drift_onset(self, i: int) -> tuple[Onset, float]:
        _, values = self.readings.history.last(i, 2 * self._cusum.age(i))
        return drift_onset((values[::-1] - self._level[i]) / self._sigma[i], self._log_prior_odds)

    def _change(self, run: _NewRun, span: Span, level: float) -> Change:
        before = float(self._anchor[run.series])
        return self._describe(run.series, span, (run.probability, before, level, run.source))

    def _move(self, which: Ints, level: Floats, sigma: Floats) -> None:
        """Make these the accepted level and sigma of some series, and express their runs in the new unit."""
        before, unit = self._level[which], self._sigma[which]
        self._bocpd.rescale(which, (level - before) / unit, sigma / unit)
        self._level[which], self._sigma[which] = level, sigma
        self._cusum.reset(which)
        self._clip.reset(which)

    def _settle(self, which: Ints) -> None:
        """Refresh level and sigma of provisional regimes that have a baseline's worth of samples by now."""
        due = which[self._bocpd.regime_age_of(which) >= self._config.baseline]
        for series, values in self._latest(due):
            self._move(series, *baselines(values, self._floor[series]))
            self._provisional[series] = False
            anchored = series[self._anchored[series]]
            self._anchor[anchored] = self._level[anchored]

    def _describe(self, i: int, onset: Span, evidence: tuple[float, float, float, Source]) -> Change:
        """Change from its times and (probability, level before, level after, source)."""
        probability, before, after, source = evidence
        scale, config = self.readings.scale(i), self._config
        raw_before, raw_after = scale.raw(before), scale.raw(after)
        effect = (raw_after - raw_before) / max(abs(raw_before), scale.floor)
        least = max(config.min_floors * scale.floor, config.min_sigmas * float(self._sigma[i]))
        return Change(
            series=i,
            detected_at=float(self._last_t[i // len(self._scales)]),
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
