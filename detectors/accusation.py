"""From evidence to an accusation: since when, how slow, and what else could explain it."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from detectors.channel import Channel
from detectors.dating import Dated, date_onset
from detectors.evidence import Onset, locate_onset
from detectors.excursions import CERTAIN, SUSPECT
from detectors.ratios import Ratios
from detectors.robust import nan_max, nan_median
from detectors.roles import looks_like_stage

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

Channels = Literal["compute", "data", "rest"]
"""Timings that are compared; ``rest`` is what is left of a step beside all that its rank names."""

CHANNELS: tuple[Channels, ...] = get_args(Channels)

LOOK_BEFORE = 30
"""Steps before the evidence began that the dating of an onset, and a rank's own past, look at."""

_MIN_BEFORE = 10
"""Steps seen before the onset, for the job's speed at that time to be known."""

REST_STEPS, REST_SECONDS = 20, 20.0
"""How long a rank must do more besides what it names: the seconds asked of a wait that all ranks share, and
twice its steps."""

FEW = 8
"""Ranks below which one or two are a good part of all, and nothing is told from how many are alike."""

_MANY = 1 / 3
"""Share of a role from which the usual ones may be the others."""

SURE_SIGMAS = 4.0
"""Effects below this many standard errors are not told from a badly known baseline."""

UNLIKE_PEERS = 5.0
"""Who differs for good by fewer times what its peers differ among themselves is as it is, not slow."""

ASYNCHRONOUS_SIGMAS = 3.0
"""Without a shared wall clock nothing holds ranks together: a change must stand out by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accusation:
    """One rank is slow: since when (event time and number of steps), by how much, and how surely.

    ``ratio`` is its time over that of its peers, ``waits_least`` whether its waits confirm it (None = no
    waits known), ``peers`` how many ranks it was compared with. ``excursions`` counts the times it was slow,
    where it is slow on and off.
    """

    rank: int
    channel: Channels
    lasting: bool
    onset: float
    onset_lo: float
    onset_hi: float
    steps: int
    score: float
    alone: bool
    ratio: float
    job_ratio: float
    peers: int
    waits_least: bool | None
    excursions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """A suspected slowdown under examination: ``x`` [steps, ranks] since its onset, ``effect`` its median.

    ``effect`` is [ranks], ``sigma`` the noise of the rank's ratio, ``baseline`` the steps its usual ratio was
    learnt from (0: compared with no baseline).
    """

    name: Channels
    rank: int
    lasting: bool
    onset: Dated
    x: Floats
    effect: Floats
    sigma: float
    baseline: int

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
        return float(np.expm1(self.size)) if self.name == "compute" else self.size

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
        """Tell whether the rank was on the slow side in most of its steps, not far off in a few."""
        read = self.x[:, self.rank][np.isfinite(self.x[:, self.rank])]
        # Of noise alone half lies above zero; a slowdown worth naming lifts nearly all.
        return len(read) >= 3 and float(np.mean(read > 0)) >= 0.65


def series_of(name: Channels, *, lasting: bool = False) -> str:
    """Name a channel's ratios; of compute what always was so is sought against the role alone."""
    if name != "compute":
        return f"{name}_x"
    return "role" if lasting else "x"


def charge(ratios: Ratios, channel: Channel, name: Channels, rank: int) -> Charge:
    """Date the slowdown of ``rank`` and measure it since then."""
    lasting, noise = channel.is_lasting(rank), channel.noise
    series = series_of(name, lasting=lasting)
    sigma = max(ratios.kind.dispersion, ratios.config.floor) if noise is None else float(noise.sigma[rank])
    bank = channel.lasting if lasting else channel.change
    look_back = min(bank.age_of(rank) + LOOK_BEFORE, ratios.settled)
    x = ratios.history.last(series, look_back) - (0.0 if lasting or noise is None else noise.center)
    onset = locate_onset(x[:, rank], sigma)
    dated = date_onset(ratios, rank, onset, steps=look_back)
    # Slow in every step judged: perhaps in the warm-up too, since the first step seen.
    if lasting and onset.index == 0 and len(x) == ratios.settled:
        dated = replace(dated, lo=min(ratios.started, dated.lo), at=ratios.first_ts)
    return Charge(
        name=name,
        rank=rank,
        lasting=lasting,
        onset=dated,
        x=x[onset.index :],
        effect=nan_median(x[onset.index :]),
        sigma=sigma,
        baseline=noise.samples if noise is not None and not lasting else 0,
    )


def job_pace_before(ratios: Ratios, case: Charge) -> float:
    """Return the seconds a step took per second of the peers' compute before the onset; NaN if not seen.

    Kept from when the rank is accused: in a long slowdown the healthy time leaves the history.
    """
    end = len(ratios.history.last("step", ratios.settled)) - case.steps
    if case.lasting or end < _MIN_BEFORE:
        return float("nan")
    return _job_pace(ratios, case.rank, slice(max(end - LOOK_BEFORE, 0), end))


def is_guilty(ratios: Ratios, case: Charge, over: Bools) -> bool:
    """Check what else could have made the rank look slow: everybody, its stage, waiting, a changed mix.

    ``over`` [ranks] marks all ranks over the threshold at this time.
    """
    if not case.size >= np.log1p(_least_effect(ratios, case)):
        return False
    # The median belongs to the majority: with half of the ranks slow, "slow" and "usual" change places.
    if over.sum() > ratios.ranks / 2 or not case.is_persistent:
        return False
    if case.name == "data":
        return True
    if case.name == "rest":
        return _stalls_by_itself(ratios, case)
    return not (
        _is_shared_by_role(ratios, case)
        or waits_least(ratios, case) is False
        or ((ratios.asynchronous or _is_one_of_many(ratios, case)) and not _changed_itself(ratios, case))
    )


def accusation(ratios: Ratios, channel: Channel, case: Charge, over: Bools) -> Accusation:
    """Write the charge with its figures."""
    return Accusation(
        rank=case.rank,
        channel=case.name,
        lasting=case.lasting,
        onset=case.onset.at,
        onset_lo=case.onset.lo,
        onset_hi=case.onset.hi,
        steps=case.steps,
        score=float(channel.scores()[case.rank]),
        alone=channel.alone(case.rank),
        ratio=1.0 + case.excess,
        job_ratio=_job_ratio(ratios, case, over, job_pace=float(channel.job_pace[case.rank])),
        peers=int(ratios.groups.peers[case.rank]),
        waits_least=waits_least(ratios, case),
    )


def intermittent(ratios: Ratios, channel: Channel, rank: int) -> Accusation | None:
    """Accuse a rank that was clearly slow several times but did not stay so; None if it was by little, or if
    its role was with it.
    """
    found = channel.excursions.of(rank)
    steps = min(found.age + 1, ratios.history.capacity, ratios.settled)
    if channel.noise is None or not steps:
        return None
    x = ratios.history.last("x", steps) - channel.noise.center
    slow = x[:, rank] > 3 * channel.noise.sigma[rank]
    effect = nan_median(x[slow])
    if not effect[rank] >= np.log1p(ratios.config.min_effect_uneven):
        return None
    if ratios.roles_known and _goes_with_role(ratios, rank, effect):
        return None
    ratio = float(np.exp(effect[rank]))
    dated = date_onset(ratios, rank, Onset(0, 0, min(3, steps - 1)), steps=steps)
    return Accusation(
        rank=rank,
        channel="compute",
        lasting=False,
        onset=dated.at,
        onset_lo=dated.lo,
        onset_hi=dated.hi,
        steps=steps,
        score=found.count / SUSPECT,
        alone=found.count >= CERTAIN,
        ratio=ratio,
        # The job waits for it in the slow steps only.
        job_ratio=1.0 + found.share * (ratio - 1.0),
        peers=int(ratios.groups.peers[rank]),
        waits_least=None,
        excursions=found.count,
    )


def waits_least(ratios: Ratios, case: Charge) -> bool | None:
    """Whether the rank waits less than its role mates, as a culprit does; False if it waits clearly more.

    Where nobody tells its waits, collectives are where ranks wait for what is outside of their compute.
    """
    waits = ratios.history.last("wait", case.steps)
    if case.name == "rest" and not np.isfinite(waits).any():
        waits = ratios.history.last("comm", case.steps)
    seconds = ratios.history.last("compute", case.steps)
    mates = ratios.mates(case.rank)
    if case.name == "rest" and not mates.any():
        mates = np.arange(ratios.ranks) != case.rank
    if not np.isfinite(waits[:, case.rank]).any() or not np.isfinite(waits[:, mates]).any():
        return None
    more = float(nan_median(waits[:, case.rank]) - nan_median(waits[:, mates].ravel()))
    excess = case.excess * float(nan_median(seconds[:, mates].ravel()))
    # The others wait for the culprit as long as it takes longer; it waits for nobody. Between the two limits
    # waiting says nothing: collectives and a pipeline's bubbles are in it too.
    if more > 0.5 * excess:
        return False
    return True if more < -0.3 * excess else None


def _least_effect(ratios: Ratios, case: Charge) -> float:
    config, fixed = ratios.config, ratios.kind.kind == "fixed"
    least = config.min_effect if fixed else config.min_effect_uneven
    if ratios.asynchronous:
        least = least if fixed else config.min_effect_asynchronous
        least = max(least, ASYNCHRONOUS_SIGMAS * case.sigma)
    if case.lasting:
        unlike = float(np.expm1(UNLIKE_PEERS * ratios.lasting_spread()))
        least = max(least, config.min_effect_lasting, unlike)
    return max(least, SURE_SIGMAS * case.uncertainty)


def _is_shared_by_role(ratios: Ratios, case: Charge) -> bool:
    """Tell whether a role that is known, or looks like one, slowed as a whole."""
    if not ratios.roles_known:
        return case.lasting and not _stands_alone(ratios, case)
    return _goes_with_role(ratios, case.rank, case.effect)


def _goes_with_role(ratios: Ratios, rank: int, effect: Floats) -> bool:
    """Tell whether all mates of a small role or of one position slowed alike, by ``effect`` [ranks]."""
    mates = ratios.mates(rank)
    alike = effect[mates] >= 0.5 * effect[rank]
    if ratios.small_role[rank] and mates.any() and alike.all():
        return True
    role = ratios.groups.index == ratios.groups.index[rank]
    return ratios.shards is not None and ratios.shards.explain(effect, rank, role)


def _stands_alone(ratios: Ratios, case: Charge) -> bool:
    """Tell slow ranks from a stage where there are no coordinates.

    Ranks slow from the start may be a stage: until roles are learnt, only one alone can be called slow, and
    later none that form a pattern.
    """
    similar = case.effect >= 0.5 * case.size
    return not looks_like_stage(case.effect, similar) if ratios.roles_settled else bool(similar.sum() == 1)


def _stalls_by_itself(ratios: Ratios, case: Charge) -> bool:
    """Tell whether a rank does more than it did besides what it names, for good, and waits for nobody.

    What is not told may be many things. Saving takes some steps, waiting in a pipeline makes nobody wait.
    """
    lasts = float(np.nanmax(ratios.history.last("ts", 1))) - case.onset.at
    if case.steps < REST_STEPS or lasts < REST_SECONDS or case.recent < 0.5 * case.size:
        return False
    before, since = _before_and_since(ratios, "rest", case)
    work = float(nan_median(ratios.history.last("compute", case.steps).ravel()))
    rose = float(nan_median(since) - nan_median(before)) >= 0.5 * case.size * work
    return rose and waits_least(ratios, case) is True


def _before_and_since(ratios: Ratios, series: str, case: Charge) -> tuple[Floats, Floats]:
    """Return a series of the rank in the steps before its onset and since then."""
    values = ratios.history.last(series, case.steps + LOOK_BEFORE)[:, case.rank]
    return values[: -case.steps], values[-case.steps :]


def _is_one_of_many(ratios: Ratios, case: Charge) -> bool:
    """Tell whether a good part of its role looks as slow: they may be slower or the others faster, which only
    their own past tells.
    """
    role = ratios.groups.index == ratios.groups.index[case.rank]
    alike = case.effect[role] >= 0.5 * case.size
    return not case.lasting and alike.size >= FEW and bool(np.mean(alike) >= _MANY)


def _changed_itself(ratios: Ratios, case: Charge) -> bool:
    before, since = _before_and_since(ratios, "v", case)
    if np.isfinite(before).sum() < 10:
        return False
    return bool(nan_median(since) - nan_median(before) >= 0.5 * case.size)


def _job_ratio(ratios: Ratios, case: Charge, over: Bools, *, job_pace: float) -> float:
    """What the job takes over what it would take without the rank's excess.

    Where its ``job_pace`` before the onset is known, no more than the job has slowed down against that.
    """
    if ratios.asynchronous:
        # Nobody waits for anybody: the pace of the job is the sum of the ranks' own.
        rates = np.exp(case.effect[over])
        return float(ratios.ranks / (ratios.ranks - over.sum() + np.sum(1 / np.maximum(rates, 1.0))))
    steps = case.steps
    step = nan_median(ratios.history.last("step", steps), axis=1)
    seconds = ratios.history.last(case.name, steps)
    mates = ratios.mates(case.rank) & ~over
    others = mates if mates.any() and not case.lasting else ~over
    # Without this rank the step would end with the slowest of the others.
    lost = np.maximum(seconds[:, case.rank] - nan_max(np.where(others, seconds, np.nan), axis=1), 0.0)
    # A rank whose excess is nearly the whole step leaves nothing to divide by.
    ratio = float(nan_median(step / np.maximum(step - lost, 0.1 * step)))
    if np.isnan(ratio):
        return 1.0
    slowed = _job_pace(ratios, case.rank, slice(-steps, None)) / job_pace
    return ratio if np.isnan(slowed) else float(np.clip(slowed, 1.0, ratio))


def _job_pace(ratios: Ratios, rank: int, when: slice) -> float:
    """Step seconds per second of the peers' compute: the job's speed, whatever the work is at the time."""
    peers = ratios.mates(rank)
    if not peers.any():
        peers = np.arange(ratios.ranks) != rank
    step, compute = (ratios.history.last(s, ratios.settled)[when] for s in ("step", "compute"))
    seconds = float(nan_median(nan_median(step, axis=1)))
    work = float(nan_median(nan_median(compute[:, peers], axis=1)))
    return seconds / work if seconds > 0 and work > 0 else float("nan")
