"""Finds slow ranks of one job from whole steps, and tells them from slow stages, uneven work and job-wide change.

Pure: arrays per step in, accusations out. Works on logs of seconds, so that 5 % is 5 % at any step length.
The reference of a rank is the median of its role without itself; where the role has fewer than three others,
every rank is first divided by its own usual time and then compared with all ranks of the job.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from detectors.channel import Channel, Noise, fit_noise
from detectors.evidence import locate_onset
from detectors.history import History
from detectors.imbalance import StageImbalance, stage_imbalance, workload_imbalance
from detectors.job_kind import JobKind, classify
from detectors.peers import MIN_PEERS, PeerGroups, peer_median
from detectors.robust import nan_max, nan_mean, nan_median, spread
from detectors.roles import is_regular, split_by_gap
from detectors.workload import TokenModel, fit_tokens

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

Channels = Literal["compute", "data"]
Source = Literal["compute", "step", "none"]

_LOOK_BEFORE = 30
"""Steps before the evidence began that the dating of an onset, and a rank's own past, look at."""

_ASYNCHRONOUS = 0.003
"""Coefficient of variation of step times over ranks above which the ranks do not share a wall clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerConfig:
    """``floor``: smallest credible noise of a ratio; ``spread``: healthy lasting spread between ranks of a role.

    ``warmup_steps``: step numbers below it are not judged when the job is seen from its start. ``learn``: steps
    before a job's kind, roles and baselines count as known. ``baseline``: steps a baseline looks back.
    ``min_effect``: slowdowns below it are not reported.
    """

    floor: float = 0.005
    spread: float = 0.006
    warmup_steps: int = 20
    learn: int = 20
    baseline: int = 100
    history: int = 256
    min_effect: float = 0.02
    min_effect_uneven: float = 0.05
    min_effect_asynchronous: float = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """One step: event times ``ts`` and seconds, each [ranks]; NaN = not read."""

    number: int
    ts: Floats
    step: Floats
    compute: Floats
    wait: Floats
    data: Floats
    comm: Floats
    checkpoint: Floats
    tokens: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Accusation:
    """One rank is slow: since when (index into the last steps and event time), by how much, and how surely.

    ``ratio`` is its time over that of its peers, ``waits_least`` whether its waits confirm it (None = no waits
    known), ``peers`` how many ranks it was compared with.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one step gave rise to: ``accused`` ranks newly over the threshold, ``cleared`` ones (channel, rank)."""

    accused: tuple[Accusation, ...] = ()
    cleared: tuple[tuple[Channels, int], ...] = ()
    stage: StageImbalance | None = None
    workload: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """A suspected slowdown under examination: ``x`` [steps, ranks] since the onset, ``effect`` [ranks] its median.

    ``onset`` is (earliest, most likely, latest) in event time.
    """

    name: Channels
    rank: int
    lasting: bool
    onset: tuple[float, float, float]
    x: Floats
    effect: Floats

    @property
    def steps(self) -> int:
        """Steps since the onset."""
        return len(self.x)

    @property
    def is_persistent(self) -> bool:
        """Tell whether the rank was on the slow side in most of its steps, not far off in a few."""
        read = self.x[:, self.rank][np.isfinite(self.x[:, self.rank])]
        return len(read) >= 3 and float(np.mean(read > 0)) >= 0.65


class StragglerDetector:
    """Judges the steps of one job with a fixed set of ranks; ``roles`` [ranks] or None when unknown."""

    def __init__(self, ranks: int, roles: Ints | None, config: StragglerConfig | None = None) -> None:
        self.config = config or StragglerConfig()
        self.ranks = ranks
        self.roles_known = roles is not None
        self.everyone = PeerGroups.of(np.zeros(ranks, dtype=np.intp))
        self.groups = PeerGroups.of(roles) if roles is not None else self.everyone
        self.stages = self.groups
        self.history = History(
            self.config.history,
            ranks,
            ("v", "x", "role", "data_x", "ts", "step", "compute", "wait", "data", "comm", "tokens"),
        )
        self.channels: dict[Channels, Channel] = {"compute": Channel(ranks), "data": Channel(ranks)}
        self.kind = JobKind("between", float("nan"), float("nan"))
        self.source: Source = "none"
        self.asynchronous = False
        self.tokens: TokenModel | None = None
        self.settled = 0
        self.first_number: int | None = None
        self.first_ts = float("nan")
        self._level: Floats | None = None

    def update(self, times: StepTimes) -> Verdict:
        """Take the next step; return what is new."""
        self._observe(times)
        if not self._is_settled(times.number):
            return Verdict()
        self.settled += 1
        if self.settled in (3, 10, 20, 30) or self.settled % 20 == 0:
            self._refit()
        if self.source == "none":
            return Verdict()
        accused = [*self._judge("compute", "x", "role"), *self._judge("data", "data_x", "data_x")]
        cleared = [(name, rank) for name, ch in self.channels.items() for rank in ch.settle()]
        stage, workload = self._imbalance()
        return Verdict(accused=tuple(accused), cleared=tuple(cleared), stage=stage, workload=workload)

    def _observe(self, t: StepTimes) -> None:
        if self.first_number is None:
            self.first_number, self.first_ts = t.number, float(np.min(t.ts[np.isfinite(t.ts)]))
        seconds = self._seconds(t)
        log_seconds = np.log(np.where(seconds > 0, seconds, np.nan))
        v = log_seconds if self.tokens is None else log_seconds - self.tokens.log_expected(t.tokens)
        role = v - peer_median(v, self.groups)
        x = self._change_ratio(v, role)
        usual = nan_median(seconds) if np.isfinite(seconds).any() else np.nan
        data_x = (t.data - peer_median(t.data, self.everyone)) / usual
        ts = np.where(np.isfinite(t.ts), t.ts, nan_max(t.ts))
        self.history.push(
            v=v, x=x, role=role, data_x=data_x, ts=ts, step=t.step, compute=seconds, wait=t.wait,
            data=t.data, comm=t.comm, tokens=t.tokens,
        )  # fmt: skip

    def _seconds(self, t: StepTimes) -> Floats:
        """Choose what is compared: compute, else the step without its waits, else the step itself."""
        read = np.isfinite(t.step)
        if np.isfinite(t.compute).sum() * 2 >= read.sum():
            self._use("compute")
            return t.compute
        if np.isfinite(t.wait).sum() * 2 >= read.sum():
            self._use("compute")
            return t.step - t.wait - np.nan_to_num(t.data) - np.nan_to_num(t.checkpoint)
        self._use("step")
        return t.step

    def _use(self, source: Source) -> None:
        if source != self.source and self.source != "none":
            self.channels = {name: Channel(self.ranks) for name in self.channels}
            self.settled, self._level, self.tokens = 0, None, None
        self.source = source

    def _change_ratio(self, v: Floats, role: Floats) -> Floats:
        if self._level is None:
            return np.where(self._small_role, np.nan, role)
        usual = v - self._level
        return np.where(self._small_role, usual - peer_median(usual, self.everyone), role)

    @property
    def _small_role(self) -> Bools:
        small: Bools = (self.groups.peers < MIN_PEERS) | (not self.roles_known)
        return small

    def _is_settled(self, number: int) -> bool:
        """Tell whether warm-up is over: late enough in the job, and the job's level has stopped moving."""
        if self.settled:
            return True
        first = self.first_number or 0
        if first < self.config.warmup_steps and number < self.config.warmup_steps:
            return False
        recent = self.history.last("v", 4)
        if len(recent) < 3:
            return False
        levels = nan_median(recent, axis=1)
        return bool(np.ptp(levels) < 0.15 or self.history.count >= 2 * self.config.warmup_steps)

    def _refit(self) -> None:
        cfg, n = self.config, min(self.settled, self.config.baseline)
        if self._level is None and self.settled >= 10:
            self._level = nan_median(self.history.last("v", 10), axis=0)
        if self.settled == cfg.learn:
            self._learn_asynchrony()
            self._learn_tokens()
            self._learn_roles()
        self.kind = classify(self.history.last("role", min(n, 50)))
        if self.settled < 10:
            return
        skip = 10 if self.settled > 40 else 0
        window = self.history.last("x", n + skip)[: n if skip else None]
        data = self.history.last("data_x", n + skip)[: n if skip else None]
        prior = 1.0 if self.asynchronous else max(cfg.spread, 0.2 * np.nan_to_num(self.kind.dispersion))
        move = cfg.floor / 2 if self.settled > cfg.baseline else None
        groups = self.everyone if bool(self._small_role.any()) else self.groups
        if np.isfinite(window).any():
            self._refit_channel("compute", fit_noise(window, groups, floor=cfg.floor, prior=prior), move)
        if np.isfinite(data).any():
            self._refit_channel("data", fit_noise(data, self.everyone, floor=cfg.floor, prior=1.0), move)

    def _refit_channel(self, name: Channels, noise: Noise, move: float | None) -> None:
        self.channels[name].refit(noise, largest_move=move)

    def _learn_asynchrony(self) -> None:
        if self.source != "step":
            self.asynchronous = False
            return
        steps = self.history.last("step", self.config.learn)
        mean = nan_mean(steps, axis=1)
        deviation = np.sqrt(nan_mean((steps - mean[:, None]) ** 2, axis=1))
        self.asynchronous = bool(nan_median(deviation / mean) >= _ASYNCHRONOUS)
        if not self.asynchronous:
            self.source = "none"

    def _learn_tokens(self) -> None:
        model = fit_tokens(self.history.last("compute", 200), self.history.last("tokens", 200))
        if model is None:
            return
        n = self.settled
        seconds, tokens = self.history.last("compute", n), self.history.last("tokens", n)
        log_seconds = np.log(np.where(seconds > 0, seconds, np.nan))
        v = log_seconds - model.log_expected(tokens)
        role = np.stack([row - peer_median(row, self.groups) for row in v])
        if classify(role).dispersion > 0.7 * classify(self.history.last("role", n)).dispersion:
            return
        self.tokens = model
        self._level = nan_median(v[-10:], axis=0)
        self._rewrite(v, role)

    def _rewrite(self, v: Floats, role: Floats) -> None:
        n = len(v)
        self.history.last("v", n)[:] = v
        self.history.last("role", n)[:] = role
        self.history.last("x", n)[:] = np.stack(
            [self._change_ratio(a, b) for a, b in zip(v, role, strict=True)]
        )

    def _learn_roles(self) -> None:
        """Without coordinates: ranks whose usual times fall into classes laid out like a dimension are roles."""
        if self.roles_known or self.asynchronous:
            return
        v = self.history.last("v", self.config.learn)
        level = nan_median(v, axis=0)
        noise = float(nan_median(spread(v - nan_median(v, axis=1)[:, None])))
        gap = max(5 * self.config.floor, 5 * noise / np.sqrt(len(v)))
        classes = split_by_gap(level, gap=gap)
        roles = np.zeros(self.ranks, dtype=np.intp)
        for c in range(1, int(classes.max()) + 1):
            slower, member = classes >= c, classes == c
            if is_regular(slower):
                roles[slower] = c
            elif is_regular(member) or member.sum() >= max(4, 0.2 * self.ranks):
                roles[member] = c
        self.stages = self.groups = PeerGroups.of(roles)
        role = np.stack([row - peer_median(row, self.groups) for row in v])
        self.history.last("role", len(v))[:] = role

    def _judge(self, name: Channels, change: str, lasting: str) -> list[Accusation]:
        channel = self.channels[name]
        x, role = self.history.last(change, 1)[0], self.history.last(lasting, 1)[0]
        if not np.isfinite(role).any():
            return []
        self._accumulate(channel, x, role)
        over = (channel.scores() >= 1.0) & ~channel.raised
        accused = []
        for rank in np.flatnonzero(over):
            found = self._accuse(name, int(rank), over | channel.raised)
            if found is not None:
                channel.raised[rank] = True
                accused.append(found)
        return accused

    def _accumulate(self, channel: Channel, x: Floats, role: Floats) -> None:
        cfg, fixed = self.config, self.kind.kind == "fixed"
        dispersion = max(np.nan_to_num(self.kind.dispersion, nan=1.0), cfg.floor)
        if channel.noise is not None:
            residual = x - channel.noise.center
            sigma = np.maximum(channel.noise.sigma, self._step_noise(residual))
            young = 0.05 if self.settled < 30 else 0.0
            if fixed or self.settled >= cfg.learn + (10 if self.asynchronous else 0):
                channel.change.update(residual, sigma=sigma, smallest=young)
            lasting_sigma = sigma
        else:
            lasting_sigma = np.full(self.ranks, dispersion)
        if self.asynchronous or self.source != "compute" or self.settled < 3:
            return
        if not fixed and self.settled < cfg.learn:
            return
        smallest = np.where((self.groups.peers < MIN_PEERS) | (not fixed), 0.10, 0.05)
        if not self.roles_known and self.settled <= cfg.learn:
            smallest = np.maximum(smallest, 0.25)
        lasting = np.where(self.groups.peers > 0, role, np.nan)
        channel.lasting.update(lasting, sigma=lasting_sigma, smallest=smallest)

    def _step_noise(self, residual: Floats) -> float:
        """Noise of this very step over all ranks: a step in which everybody scatters accuses nobody."""
        read = np.sort(np.abs(residual[np.isfinite(residual)]))
        return 1.4826 * float(read[(len(read) - 1) // 2]) if len(read) >= 4 else 0.0

    def is_alone(self, name: Channels, rank: int) -> bool:
        """Tell whether the evidence against an accused rank suffices without a second kind."""
        return self.channels[name].alone(rank)

    def describe(self, name: Channels, rank: int) -> Accusation | None:
        """Return the accusation of an accused rank with today's figures; None when too little is left of it."""
        channel = self.channels[name]
        if channel.scores()[rank] <= 0.0:
            return None
        return self._accusation(self._charge(name, rank), channel.raised)

    def inherit(self, old: "StragglerDetector", index: list[int]) -> None:
        """Keep ranks accused that were accused before the set of ranks changed (``index``: old place or -1)."""
        for name, channel in self.channels.items():
            before = old.channels[name]
            for new, was in enumerate(index):
                if was >= 0 and before.raised[was]:
                    channel.raised[new] = True

    def _accuse(self, name: Channels, rank: int, over: Bools) -> Accusation | None:
        charge = self._charge(name, rank)
        return self._accusation(charge, over) if self._is_guilty(charge, over) else None

    def _charge(self, name: Channels, rank: int) -> Charge:
        """Date the slowdown and measure it since then."""
        channel = self.channels[name]
        lasting, noise = channel.is_lasting(rank), channel.noise
        series = self._series(name, lasting=lasting)
        sigma = (
            float(noise.sigma[rank]) if noise is not None else max(self.kind.dispersion, self.config.floor)
        )
        bank = channel.lasting if lasting else channel.change
        look_back = min(bank.age_of(rank) + _LOOK_BEFORE, self.settled, len(series))
        x = series[-look_back:] - (0.0 if lasting or noise is None else noise.center)
        onset = locate_onset(x[:, rank], sigma)
        ts = self.history.last("ts", look_back)[:, rank]
        from_start = lasting and onset.index == 0 and look_back == self.settled
        at = self.first_ts if from_start else float(ts[onset.index])
        return Charge(
            name=name,
            rank=rank,
            lasting=lasting,
            onset=(min(at, float(ts[onset.low])), at, float(ts[onset.high])),
            x=x[onset.index :],
            effect=nan_median(x[onset.index :]),
        )

    def _accusation(self, charge: Charge, over: Bools) -> Accusation:
        channel, effect = self.channels[charge.name], float(charge.effect[charge.rank])
        onset_lo, onset, onset_hi = charge.onset
        return Accusation(
            rank=charge.rank,
            channel=charge.name,
            lasting=charge.lasting,
            onset=onset,
            onset_lo=onset_lo,
            onset_hi=onset_hi,
            steps=charge.steps,
            score=float(channel.scores()[charge.rank]),
            alone=channel.alone(charge.rank),
            ratio=float(np.exp(effect)) if charge.name == "compute" else 1.0 + effect,
            job_ratio=self._job_ratio(charge, over),
            peers=int(self.groups.peers[charge.rank]),
            waits_least=self._waits_least(charge),
        )

    def _series(self, name: Channels, *, lasting: bool) -> Floats:
        if name == "data":
            return self.history.last("data_x", self.config.history)
        return self.history.last("role" if lasting else "x", self.config.history)

    def _is_guilty(self, charge: Charge, over: Bools) -> bool:
        """Check what else could have made the rank look slow: everybody, its stage, waiting, a changed mix."""
        cfg, mine = self.config, float(charge.effect[charge.rank])
        least = cfg.min_effect if self.kind.kind == "fixed" else cfg.min_effect_uneven
        if self.asynchronous:
            least = cfg.min_effect_asynchronous
        if not mine >= np.log1p(least) or over.sum() > self.ranks / 2 or not charge.is_persistent:
            return False
        if charge.name == "data":
            return True
        mates = self._mates(charge.rank)
        if self.roles_known and self._small_role[charge.rank] and mates.any():
            if bool((charge.effect[mates] >= 0.5 * mine).all()):
                return False
        elif not self.roles_known and charge.lasting and not self._stands_alone(charge):
            return False
        if self._waits_least(charge) is False:
            return False
        return not self.asynchronous or self._changed_itself(charge)

    def _stands_alone(self, charge: Charge) -> bool:
        """Without coordinates, ranks slow from the start may be a stage: until roles are learnt, only one alone
        can be called slow, and later none that form a pattern."""
        similar = charge.effect >= 0.5 * charge.effect[charge.rank]
        if self.settled <= self.config.learn:
            return bool(similar.sum() == 1)
        return not is_regular(similar)

    def _mates(self, rank: int) -> Bools:
        mates: Bools = (self.groups.index == self.groups.index[rank]) & (np.arange(self.ranks) != rank)
        return mates

    def _changed_itself(self, charge: Charge) -> bool:
        v = self.history.last("v", charge.steps + _LOOK_BEFORE)[:, charge.rank]
        before, since = v[: -charge.steps], v[-charge.steps :]
        if np.isfinite(before).sum() < 10:
            return False
        return bool(nan_median(since) - nan_median(before) >= 0.5 * charge.effect[charge.rank])

    def _waits_least(self, charge: Charge) -> bool | None:
        """Whether the rank waits less than its role mates, as a culprit does; False if it waits clearly more."""
        waits = self.history.last("wait", charge.steps)
        seconds = self.history.last("compute", charge.steps)
        mates = self._mates(charge.rank)
        if not np.isfinite(waits[:, charge.rank]).any() or not np.isfinite(waits[:, mates]).any():
            return None
        more = float(nan_median(waits[:, charge.rank]) - nan_median(waits[:, mates].ravel()))
        excess = float(np.expm1(charge.effect[charge.rank]) * nan_median(seconds[:, mates].ravel()))
        if more > 0.5 * excess:
            return False
        return True if more < -0.3 * excess else None

    def _job_ratio(self, charge: Charge, over: Bools) -> float:
        """What the job takes over what it would take without the accused ranks' excess."""
        if self.asynchronous:
            rates = np.exp(charge.effect[over])
            return float(self.ranks / (self.ranks - over.sum() + np.sum(1 / np.maximum(rates, 1.0))))
        steps = charge.steps
        step = nan_median(self.history.last("step", steps), axis=1)
        seconds = self.history.last("data" if charge.name == "data" else "compute", steps)
        mates = self._mates(charge.rank) & ~over
        rest = mates if mates.any() and not charge.lasting else ~over
        lost = np.maximum(seconds[:, charge.rank] - nan_max(np.where(rest, seconds, np.nan), axis=1), 0.0)
        ratios = step / np.maximum(step - lost, 0.1 * step)
        ratio = float(nan_median(ratios)) if np.isfinite(ratios).any() else 1.0
        before = nan_median(self.history.last("step", steps + _LOOK_BEFORE)[:-steps], axis=1)
        if charge.lasting or len(before) < 10:
            return ratio
        observed = float(nan_median(step) / nan_median(before))
        return float(np.clip(observed, 1.0, ratio))

    def _imbalance(self) -> tuple[StageImbalance | None, float | None]:
        if self.settled < 20 or self.settled % 5 or self.source != "compute":
            return None, None
        n = min(self.settled, 50)
        seconds = self.history.last("compute", n)
        step = nan_median(self.history.last("step", n), axis=1)
        accused = self.channels["compute"].raised
        clean = np.where(accused, np.nan, seconds)
        stage = stage_imbalance(step[-20:], clean[-20:], self.stages, dispersion=self.kind.dispersion)
        workload = None
        if self._uneven() and not accused.any() and n >= 30:
            workload = workload_imbalance(step, seconds, self._raw_role(n))
        return stage, workload

    def _raw_role(self, n: int) -> Floats:
        seconds = self.history.last("compute", n)
        logs = np.log(np.where(seconds > 0, seconds, np.nan))
        return np.stack([row - peer_median(row, self.groups) for row in logs])

    def _uneven(self) -> bool:
        kind = self.kind if self.tokens is None else classify(self._raw_role(min(self.settled, 50)))
        return kind.kind == "variable"
