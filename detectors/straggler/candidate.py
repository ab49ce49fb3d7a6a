"""A suspected slowdown of one rank: dated, and measured since then."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from detectors.changepoint.llr_cusum import locate_onset, locate_onsets
from detectors.peers.ratios import Ratios
from detectors.robust import nan_median, nan_middle
from detectors.straggler.core import Timing
from detectors.straggler.evidence.timing_channel import TimingChannel
from detectors.straggler.onset_time import Dated, date_onset

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

# Steps before the evidence began that the dating of an onset, and a rank's own past, look at. Chosen: a ramp
# takes up to 32 steps (``llr_cusum.RAMPS``).
LOOK_BEFORE = 30

# Chosen: steps before the onset from which on a rank's own past counts.
LEAST_OWN_PAST = 10

# Chosen, of the rank's own effect: what others must show to be alike, and a change to be the rank's own.
HALF = 0.5

# Chosen: ranks below which one or two are a good part of all, and how many are alike means nothing.
FEW = 8

# From here on a step counts as slow, of a rank that is slow on and off: one in 740 healthy ones does.
SLOW_SIGMAS = 3.0

# A step whose compute is so many times the usual one does something else besides. Chosen: far beyond the
# noise of a median over ranks, below what compilation adds.
LONG_STEP = 1.5

# Ranks whose median tells how long a step was for all (chosen: each of 8,192 ranks would cost a millisecond).
_SOME = 256

# Chosen, of the steps since the onset: of noise alone half lies above zero, of a slowdown nearly all.
_MOSTLY_SLOW = 0.65


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A slowdown that is suspected and not confirmed: ``x`` [steps, ranks] since its onset.

    ``effect`` [ranks] is the median of ``x`` over its steps, ``sigma`` the noise of the rank's ratio,
    ``baseline`` the steps its usual ratio was learnt from (0: compared with no baseline). ``spread`` is how
    much the others differ for good, where its machine was found (infinite: elsewhere, and not measured).
    """

    timing: Timing
    rank: int
    lasting: bool
    onset: Dated
    x: Floats
    effect: Floats
    sigma: float
    baseline: int
    spread: float = math.inf

    @property
    def steps(self) -> int:
        """Steps since the onset."""
        return len(self.x)

    @property
    def size(self) -> float:
        """The rank's own effect, as a log ratio (compute) or a share of the work (data, rest)."""
        return float(self.effect[self.rank])

    @property
    def excess(self) -> float:
        """How much longer the rank takes than its peers, as a share of their compute."""
        return float(np.expm1(self.size)) if self.timing == "compute" else self.size

    @property
    def recent(self) -> float:
        """The effect over the last five steps alone."""
        return float(nan_median(self.x[-5:, self.rank]))

    @property
    def uncertainty(self) -> float:
        """Standard error of the effect: of its mean since the onset, and of the baseline it is against."""
        inverse = 1.0 / max(self.steps, 1) + (1.0 / self.baseline if self.baseline else 0.0)
        return self.sigma * float(np.sqrt(inverse))

    @property
    def is_persistent(self) -> bool:
        """Whether the rank was on the slow side in most of its steps, not far off in a few."""
        read = self.x[:, self.rank][np.isfinite(self.x[:, self.rank])]
        return len(read) >= 3 and float(np.mean(read > 0)) >= _MOSTLY_SLOW


def series_of(timing: Timing, *, lasting: bool = False) -> str:
    """Name the series of a timing's ratios; lasting slowness in compute is sought against the role alone."""
    if timing != "compute":
        return f"{timing}_x"
    return "role" if lasting else "x"


def deviations(
    ratios: Ratios, channel: TimingChannel, timing: Timing, steps: int, *, lasting: bool = False
) -> Floats:
    """Return the ratios of the last steps less what is usual, [<= steps, ranks]; ``lasting``: as they are,
    beside those of ranks that are exempted."""
    usual = _usual(ratios, channel, lasting=lasting)
    return ratios.history.last(series_of(timing, lasting=lasting), steps) - usual


def _usual(ratios: Ratios, channel: TimingChannel, *, lasting: bool) -> Floats:
    usual = np.zeros(ratios.ranks) if channel.noise is None else channel.noise.center
    return np.where(channel.exempted, usual, 0.0) if lasting else usual


def noise_of(ratios: Ratios, channel: TimingChannel, rank: int) -> float:
    """Return the noise (sd) of the ratio of a rank, or the spread of the work while it is not known."""
    usual = max(ratios.kind.dispersion, ratios.config.floor)
    return usual if channel.noise is None else float(channel.noise.sigma[rank])


def candidate(ratios: Ratios, channel: TimingChannel, timing: Timing, rank: int) -> Candidate:
    """Date the slowdown of ``rank`` and measure it since then."""
    return candidates(ratios, channel, timing, [rank])[0]


def candidates(
    ratios: Ratios, channel: TimingChannel, timing: Timing, ranks: Sequence[int]
) -> list[Candidate]:
    """Date the slowdown of each of the ``ranks`` and measure it since then."""
    found: dict[int, Candidate] = {}
    for lasting in (False, True):
        some = [rank for rank in ranks if channel.is_lasting(rank) == lasting]
        if not some:
            continue
        bank = channel.lasting if lasting else channel.change
        look_back = [min(bank.age_of(rank) + LOOK_BEFORE, ratios.settled) for rank in some]
        x = deviations(ratios, channel, timing, max(look_back), lasting=lasting)
        windows = [x[-steps:] for steps in look_back]
        own = [window[:, rank] for window, rank in zip(windows, some, strict=True)]
        dated = _dated(ratios, channel, timing, some, windows, own, lasting=lasting)
        if lasting:
            pairs = zip(dated, windows, strict=True)
            dated = [_since_first(ratios, one, judged=len(window)) for one, window in pairs]
        found |= {one.rank: one for one in dated}
    return [found[rank] for rank in ranks]


def _since_first(ratios: Ratios, found: Candidate, *, judged: int) -> Candidate:
    """Return a lasting slowdown dated into the warm-up, where it shows in every step ``judged``: perhaps it
    did there too."""
    if not found.steps == judged == ratios.settled:
        return found
    before, since = _onset_in_warm_up(ratios, found.timing, found.rank, found.sigma), found.onset
    started = replace(since, lo=min(ratios.started, since.lo), at=ratios.first_ts)
    return replace(found, onset=before or started)


def _onset_in_warm_up(ratios: Ratios, timing: Timing, rank: int, sigma: float) -> Dated | None:
    """Return when a rank that was slow once warm-up was over became so; None if in the first step seen, for
    all that is known."""
    steps = ratios.history.count
    x = ratios.history.columns(series_of(timing, lasting=True), steps, rank)
    onset = locate_onset(_of_usual_steps(ratios, x), sigma)
    return date_onset(ratios, rank, onset, steps=steps) if onset.low else None


def beyond(ratios: Ratios, channel: TimingChannel, rank: int, others: Ints) -> Candidate:
    """Date and measure from when on ``rank`` is slower in compute than ``others``, who are slow too."""
    x = deviations(ratios, channel, "compute", min(ratios.settled, ratios.history.capacity))
    more = x[:, rank] - nan_median(x[:, others], axis=1)
    return _dated(ratios, channel, "compute", [rank], [x], [more], lasting=False)[0]


def _dated(
    ratios: Ratios,
    channel: TimingChannel,
    timing: Timing,
    ranks: Sequence[int],
    windows: Sequence[Floats],
    own: Sequence[Floats],
    *,
    lasting: bool,
) -> list[Candidate]:
    """Return the slowdowns of ``ranks`` since their ``own`` [steps] rose, by their windows [steps, ranks] of
    deviations."""
    sigmas, noise = [noise_of(ratios, channel, rank) for rank in ranks], channel.noise
    onsets = locate_onsets([_of_usual_steps(ratios, x) for x in own], sigmas)
    return [
        Candidate(
            timing=timing,
            rank=rank,
            lasting=lasting,
            onset=date_onset(ratios, rank, onset, steps=len(x)),
            x=x[onset.index :],
            effect=_effect(ratios, channel, timing, len(x) - onset.index, lasting=lasting),
            sigma=sigma,
            baseline=noise.samples if noise is not None and not lasting else 0,
        )
        for rank, x, sigma, onset in zip(ranks, windows, sigmas, onsets, strict=True)
    ]


def _effect(ratios: Ratios, channel: TimingChannel, timing: Timing, steps: int, *, lasting: bool) -> Floats:
    """Return the median of the ``deviations`` of the last steps, [ranks].

    What is usual of a rank changes none of the order of its steps: ratios are put in order once for all who
    are slow for as long.
    """
    history, series = ratios.history, series_of(timing, lasting=lasting)
    low, high = history.once(
        ("middle", series, steps), lambda: np.array(nan_middle(history.view(series, steps)), dtype=np.float64)
    )
    usual = _usual(ratios, channel, lasting=lasting)
    effect: Floats = 0.5 * ((low - usual) + (high - usual))
    return effect


def _of_usual_steps(ratios: Ratios, x: Floats) -> Floats:
    """Return ratios of the last steps, ``x`` [steps], NaN where all ranks took long: in a step that compiles
    or loads none shows."""
    steps = len(x)
    is_usual = ratios.history.once(("usual steps", steps), lambda: _usual_steps(ratios, steps))
    return np.where(is_usual, x, np.nan)


def _usual_steps(ratios: Ratios, steps: int) -> Bools:
    work = ratios.history.once("work", lambda: _work(ratios))[-steps:]
    usual: Bools = work <= LONG_STEP * nan_median(work)
    return usual


def _work(ratios: Ratios) -> Floats:
    """Return the usual compute of the ranks in all steps held, [steps]."""
    some = slice(None, None, math.ceil(ratios.ranks / _SOME))
    return nan_median(ratios.history.columns("compute", ratios.history.capacity, some), axis=1)


def over_peers(ratios: Ratios, found: Candidate) -> float:
    """Return by how much the rank has been over its peers since the onset, whatever is usual of it."""
    series = series_of(found.timing, lasting=found.lasting)
    return float(nan_median(ratios.history.columns(series, found.steps, found.rank)))
