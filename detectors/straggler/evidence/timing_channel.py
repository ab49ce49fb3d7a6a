"""One compared timing of a job (compute, loading, the rest of a step): its baseline, noise and evidence.

Two questions run side by side: has the rank become slow against its own usual ratio to the peers (change),
and is it slower than its peers whatever it was before (lasting; a rank slow from the first step has no
change).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from detectors.changepoint.llr_cusum import LARGE, CusumConfig, LlrCusumBank, threshold
from detectors.job.spike_rate import SpikeRate
from detectors.peers.intermittence import IntermittenceCounter
from detectors.peers.peers import PeerGroups, group_median
from detectors.robust import nan_median, spread

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# Chance of a false alarm per step and job: to suspect, and to report without other evidence. Chosen: in a job
# of 1,000 GPUs with steps of 1 s that is 0.7 and 0.007 times in 1,000 node-days; ten times less delays a
# small slowdown by a tenth.
P_SUSPICION = 1e-6
P_ALONE = 1e-8

# Chance per step and job that far steps of a healthy rank in a row are enough to suspect it. Chosen: once in
# a job of 100,000 steps; ten times less delays a slow rank by a step where a hundredth of the steps are far.
P_FAR = 1e-5

# Log-odds more for what was always so, a factor of 150. Chosen: there is no change to date, and healthy ranks
# differ for good too.
LASTING_EXTRA = 5.0

# A log ratio from where on the likelihood ratio is in favour of a slowdown of ``LARGE``: half of it, where
# δ·(x - δ/2) changes its sign.
FAR = float(np.log1p(LARGE)) / 2

# Chosen: a step beyond so many sigmas gives about as much evidence of a slow rank as one step may.
_FAR_SIGMAS = 4.0

# Chosen: one normal step in 740 is beyond so many sigmas, of a log-likelihood ratio of 4.5 and more.
_OFF_SIGMAS = 3.0

# Chosen, of the noise of its group: of ranks that vary alike, one that varies more may have a fault.
_MOST_OWN = 2.0

# Chosen, standard errors: healthy centres of a few steps are hardly further from where they belong.
_TRANSLATION = 5.0

# Steps without evidence of its slowness after which a rank has recovered. Chosen: a rank that is slow in
# waves is reported once, and its recovery so many steps late.
QUIET_STEPS = 20

# Chosen, of what a rank was slow by when it was found: from here on it still is (``alternatives``).
_STILL = 0.5


@dataclass(frozen=True, slots=True)
class Noise:
    """Usual value ``center`` and noise ``sigma`` per rank [ranks]; sigma is inflated for autocorrelation.

    ``samples`` is how many steps the fit saw: the centres are known to about sigma / sqrt(samples).
    """

    center: Floats
    sigma: Floats
    samples: int


@dataclass(frozen=True, slots=True)
class Fit:
    """What the baselines of compute were fitted on: the last ``steps`` but ``skip``, against a healthy spread
    of ``prior`` (log ratio); ``largest_move`` bounds how far settled centres follow (None: unbounded)."""

    steps: int
    skip: int
    prior: float
    largest_move: float | None


def fit_noise(x: Floats, groups: PeerGroups, *, floor: float, prior: float, alike: bool = True) -> Noise:
    """Fit centre and noise of ``x`` [steps, ranks] from its limited values.

    Centres are means of values limited to 3 robust sigmas (sums of evidence need means, not medians), drawn
    towards 0 as far as few samples deserve against a healthy spread of ``prior`` between ranks, or against
    the one that the centres themselves show; by five standard errors at most, for what is left of a rank of
    another class would pass for a change (limited translation, Efron and Morris 1972). The noise is the
    group's, or the rank's own where that is larger, up to twice as much where ranks of a group vary
    ``alike``; (1 + rho)/(1 - rho) accounts for the autocorrelation.
    """
    samples = np.maximum(np.isfinite(x).sum(axis=0), 1)
    middle = np.nan_to_num(nan_median(x))
    limit = np.maximum(3 * np.nan_to_num(spread(x)), floor)
    residual = np.clip(x - middle, -limit, limit)
    shift = np.nan_to_num(np.nansum(residual, axis=0) / samples)
    residual = residual - shift
    own = np.sqrt(np.nansum(residual**2, axis=0) / np.maximum(samples - 1, 1))
    pooled = group_median(own, groups)[groups.index]
    own = np.minimum(own, _MOST_OWN * pooled) if alike else own
    sigma = np.maximum(np.maximum(pooled, own), floor)
    rho = _autocorrelation(residual)
    sigma = sigma * np.sqrt((1 + rho) / (1 - rho))
    center, error = middle + shift, sigma**2 / samples
    # Ranks on shared hardware differ by several per cent for good; drawn to 0, that would pass for a change.
    apart = float(spread(center))
    width = max(prior**2, apart**2 - 2.0 * float(np.median(error)))
    most = _TRANSLATION * np.sqrt(error)
    drawn = np.clip(center * error / (width + error), -most, most)
    return Noise(center - drawn, sigma, int(np.median(samples)))


def _autocorrelation(residual: Floats) -> float:
    if len(residual) < 8:
        return 0.0
    filled = np.nan_to_num(residual)
    power = (filled**2).sum(axis=0)
    lagged = (filled[1:] * filled[:-1]).sum(axis=0)
    rho = float(np.median(lagged[power > 0] / power[power > 0])) if (power > 0).any() else 0.0
    # Short stretches understate it by about 1/n; near 1 the noise would grow without bound.
    return min(max(rho + 1.0 / len(residual), 0.0), 0.9)


class TimingChannel:
    """Evidence of all ranks about one timing. Arrays are [ranks].

    ``raised`` ranks are slow, ``believed`` ones without a second kind of evidence; ``size`` is how
    slow they were when raised, ``onset`` since when [Unix s], and ``job_pace`` what a step took per second of
    the peers' work before that (both NaN where not known). ``exempted`` are the ranks that take longer than
    their peers from the start because they work for others too: only a change of theirs is slowness.
    """

    def __init__(self, ranks: int, config: CusumConfig | None = None) -> None:
        self.config = config or CusumConfig()
        effects = len(self.config.effects)
        self.h = threshold(ranks, effects, P_SUSPICION)
        self.h_alone = threshold(ranks, effects, P_ALONE)
        self.change = LlrCusumBank(ranks, self.h, self.config)
        self.lasting = LlrCusumBank(ranks, self.h + LASTING_EXTRA, self.config)
        self._negligible = math.log1p(min(self.config.effects)) / 2
        self.intermittence = IntermittenceCounter(ranks)
        self._spikes = SpikeRate(ranks)
        self._off = SpikeRate(ranks)
        self._off_lasting = SpikeRate(ranks)
        self.noise: Noise | None = None
        self._besides = Noise(np.zeros(ranks), np.zeros(ranks), 0)
        self.raised: Bools = np.zeros(ranks, dtype=bool)
        self.exempted: Bools = np.zeros(ranks, dtype=bool)
        self.believed: Bools = np.zeros(ranks, dtype=bool)
        self._quiet = np.zeros(ranks, dtype=np.int64)
        self.size = np.zeros(ranks)
        self.onset = np.full(ranks, np.nan)
        self.job_pace = np.full(ranks, np.nan)

    def find(
        self, rank: int, *, size: float = 0.0, onset: float = math.nan, job_pace: float = math.nan
    ) -> None:
        """Take a rank as slow from now on, by ``size`` since its ``onset``, until ``settle`` returns it."""
        self.raised[rank], self.size[rank] = True, size
        self.onset[rank], self.job_pace[rank] = onset, job_pace

    def take(self, rank: int, *, size: float, steps: int, lasting: bool) -> None:
        """Take evidence found in another way that a rank is slow by ``size`` (log ratio) for ``steps`` steps;
        ``lasting``: as it always was."""
        bank = self.lasting if lasting else self.change
        bank.take(rank, size=size, steps=steps)

    def exempt(self, more: Bools) -> None:
        """Take that ``more`` ranks [ranks] take longer for good, but none that changes now."""
        self.exempted |= more & ~self.rising
        self.lasting.drop(self.exempted)

    def forget(self) -> None:
        """Drop baselines and the evidence of ranks that are not slow: they are compared with others now."""
        self.noise, self._besides = None, Noise(np.zeros(self.raised.size), np.zeros(self.raised.size), 0)
        self.change.drop(~self.raised)
        self.lasting.drop(~self.raised)
        ranks = self.raised.size
        self.intermittence = IntermittenceCounter(ranks)
        self._spikes, self._off, self._off_lasting = SpikeRate(ranks), SpikeRate(ranks), SpikeRate(ranks)

    @property
    def free(self) -> Bools:
        """Ranks without notable evidence, whose baseline may follow what they do."""
        # A baseline that follows a rank under suspicion would learn the fault as its usual state.
        free: Bools = ~self.rising & (self.lasting.best < self.h / 4)
        return free

    @property
    def rising(self) -> Bools:
        """Ranks that are slow, or may soon be found so by a change of their own, [ranks]."""
        rising: Bools = self.raised | (self.change.best >= self.h / 4)
        return rising

    def refit(self, noise: Noise, *, largest_move: float | None) -> None:
        """Adopt a new fit for free ranks; ``largest_move`` bounds how far a settled centre may follow."""
        if self.noise is None:
            # A rank found slow before this set of ranks came together keeps showing its lasting deviation.
            self.noise = Noise(np.where(self.raised, 0.0, noise.center), noise.sigma, noise.samples)
            return
        move = noise.center - self.noise.center
        if largest_move is not None:
            move = np.clip(move, -largest_move, largest_move)
        free = self.free
        self.noise = Noise(
            np.where(free, self.noise.center + move, self.noise.center),
            np.where(free, np.hypot(noise.sigma, self._besides.sigma), self.noise.sigma),
            noise.samples,
        )

    def move(self, usual: Floats) -> None:
        """Take that the ranks are compared with others, against which their ``usual`` [ranks] ratios are so
        much larger.
        """
        if self.noise is not None:
            self.noise = replace(self.noise, center=self.noise.center + usual)

    def widen(self, ranks: Bools, by: Noise) -> None:
        """Take that ``ranks`` [ranks] vary by other noise besides their own, until ``narrow``; ``by`` [ranks]
        is that noise and what is usual of it."""
        if self.noise is not None:
            self._besides = Noise(
                np.where(ranks, by.center, self._besides.center),
                np.where(ranks, by.sigma, self._besides.sigma),
                by.samples,
            )
            center = self.noise.center + np.where(ranks, by.center, 0.0)
            sigma = np.hypot(self.noise.sigma, np.where(ranks, by.sigma, 0.0))
            self.noise = replace(self.noise, center=center, sigma=sigma)

    def narrow(self, ranks: Bools) -> None:
        """Take that ``ranks`` [ranks] vary by their own noise alone again."""
        if self.noise is not None:
            besides, none = self._besides, np.zeros_like(self._besides.center)
            # Learnt anew meanwhile, their noise may be less than what is taken off.
            own = np.maximum(self.noise.sigma**2 - besides.sigma**2, self.noise.sigma.min() ** 2)
            self.noise = replace(
                self.noise,
                center=self.noise.center - np.where(ranks, besides.center, 0.0),
                sigma=np.where(ranks, np.sqrt(own), self.noise.sigma),
            )
            self._besides = Noise(
                np.where(ranks, none, besides.center), np.where(ranks, none, besides.sigma), besides.samples
            )

    def is_idle(self, change: Floats, lasting: Floats) -> bool:
        """Whether a step can neither begin evidence nor move any: there is none, and no rank is over half of
        the smallest effect, from where on its likelihood ratio is positive.
        """
        if self.raised.any() or self.change.best.any() or self.lasting.best.any():
            return False
        moved = change if self.noise is None else change - self.noise.center
        return not np.fmax(np.fmax.reduce(moved), np.fmax.reduce(lasting)) > self._negligible

    def weigh(self, residual: Floats, *, sigma: Floats, smallest: float, steady: bool = False) -> None:
        """Take one step of ratios without their baselines as evidence of change.

        Where the work is ``steady``, three steps far off stand alone if so many in a row, at one rank by
        chance, are rare enough in this job; elsewhere it takes four.
        """
        share, read = self.config.clip_share, np.isfinite(residual)
        # The share is a third: three such steps in a row are as rare as what stands alone has to be.
        rare = self._spikes.surprise >= share * threshold(len(self.raised), 1, P_ALONE)
        most = share * self.h_alone if steady and rare else 0.0
        ceiling = self._ceiling(residual, sigma, self._off)
        self.change.update(residual, sigma=sigma, smallest=smallest, most=most, ceiling=ceiling)
        self._spikes.update(residual > FAR, read=read, slow=self.raised)
        far_off = residual > _FAR_SIGMAS * sigma
        self._off.update(residual > _OFF_SIGMAS * sigma, read=read, slow=self.raised)
        # By the usual noise: by that of each step, an effect would be sharp in one and not in the next.
        sharp = self.change.sharp(sigma if self.noise is None else self.noise.sigma)
        # What is known to be slow is nearer to far off in each step: that it still is, is no other rise.
        new = ~self.believed
        self.intermittence.update(new & (sharp >= self.h / 2), new & far_off, read=read, gone=sharp <= 0)

    def weigh_lasting(self, ratio: Floats, *, sigma: Floats, smallest: Floats) -> None:
        """Take one step of ratios as they are as evidence of a rank that always was slow."""
        ratio = np.where(self.exempted, np.nan, ratio)
        ceiling = self._ceiling(ratio, sigma, self._off_lasting)
        self.lasting.update(ratio, sigma=sigma, smallest=smallest, ceiling=ceiling)
        self._off_lasting.update(ratio > _OFF_SIGMAS * sigma, read=np.isfinite(ratio), slow=self.raised)

    def _ceiling(self, x: Floats, sigma: Floats, off: SpikeRate) -> Floats | float:
        """Return the most evidence of one step of ratios ``x`` [ranks], once healthy ones were far off.

        A slow rank is far off in every step. A step as far ``off`` as healthy ranks are with chance q is
        worth its surprise -ln q, in units of which the threshold is -ln(P_FAR / ranks).
        """
        if not off.any:
            return math.inf
        unit = self.h / math.log(self.raised.size / P_FAR)
        spikes = np.where((x > FAR) & (x > _OFF_SIGMAS * sigma), self._spikes.surprise, 0.0)
        ceiling: Floats = unit * np.maximum(off.surprise, spikes)
        return ceiling

    def scores(self) -> Floats:
        """Evidence over threshold, 1.0 = suspicious; the larger of change and lasting."""
        return np.maximum(self.change.best / self.h, self.lasting.best / self.lasting.h)

    @property
    def changed(self) -> Bools:
        """Ranks over the threshold by a change of their own, [ranks]."""
        changed: Bools = self.change.best >= self.h
        return changed

    def is_lasting(self, rank: int) -> bool:
        """Whether the lasting evidence, not change, is over its threshold for ``rank``."""
        return bool(self.change.best[rank] < self.h)

    def alone(self, rank: int) -> bool:
        """Whether the evidence suffices without a second kind."""
        return bool(self.sure[rank])

    @property
    def sure(self) -> Bools:
        """Ranks whose evidence suffices without a second kind, [ranks]."""
        # As far above its own threshold as change is above its.
        lasting = self.lasting.h + self.h_alone - self.h
        enough: Bools = (self.change.best >= self.h_alone) | (self.lasting.best >= lasting)
        return enough

    def settle(self) -> list[int]:
        """Count quiet steps of raised ranks; return and lower those that were quiet for 20 steps.

        A step is quiet without evidence of half of what the rank was slow by, and with less than makes a
        suspicion of any: that of small effects hardly ever goes altogether where the noise is as large.
        Of ranks with other noise besides (``widen``) a quarter of the threshold is none.
        """
        if not self.raised.any():
            self._quiet[:] = 0
            return []
        least = np.minimum(_STILL * self.size, math.log1p(LARGE))
        shown = np.maximum(self.change.of_effects(least), self.lasting.of_effects(least))
        # Where other noise is in the ratios, some evidence comes and goes in most steps.
        wide = self._besides.sigma > 0
        nothing = np.where(wide, shown < self.h / 4, (shown <= 0) & (self.scores() < 1.0))
        self._quiet = np.where(self.raised & nothing, self._quiet + 1, 0)
        self.believed |= self.raised & self.sure
        done = [int(i) for i in np.flatnonzero(self._quiet >= QUIET_STEPS)]
        over = (self._quiet >= QUIET_STEPS) & wide
        if over.any():
            # What is left is evidence of ratios that are not compared any more.
            self.change.drop(over)
            self.lasting.drop(over)
        self.lower(done)
        return done

    def lower(self, ranks: Sequence[int]) -> None:
        """Take that some ranks are not slow any more."""
        places = list(ranks)
        self.raised[places] = self.believed[places] = False
        self._quiet[places] = 0
