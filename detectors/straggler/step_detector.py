"""Finds slow ranks of one job from whole steps, and tells them from slow stages, uneven work and
job-wide change.

Pure: arrays per step in, verdicts out. ``detectors.ratios`` compares, ``detectors.channel`` weighs,
``detectors.accusation`` examines; this composes them.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from detectors.accusation import (
    CHANNELS,
    FEW,
    UNLIKE_PEERS,
    Accusation,
    Channels,
    Charge,
    accusation,
    charge,
    intermittent,
    is_guilty,
    job_pace_before,
    series_of,
)
from detectors.channel import Channel, Noise, fit_noise
from detectors.excursions import SUSPECT
from detectors.job_kind import VARIABLE_DISPERSION, JobKind
from detectors.job_wide import JobWide, JobWideWatch
from detectors.machines import LATELY, alike, scatter, step_noise
from detectors.peers import MIN_PEERS, PeerGroups
from detectors.ratios import Ratios, StepTimes
from detectors.replicas import Replicas
from detectors.shards import Shards
from detectors.slow_network import NetworkWatch, SlowNetwork
from detectors.spells import Spells
from detectors.straggler_config import StragglerConfig

__all__ = ["Accusation", "StepTimes", "StragglerConfig", "StragglerDetector", "Verdict"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

_SOON = (3, 10, 20, 30)
_EVERY = 20
"""Steps settled at which roles and baselines are learnt anew: often while there is little to go by."""

_RECENT = 10
"""The last steps are left out of a baseline: a fault that began in them is not usual."""

_COARSE_EFFECT = 0.10
_LASTING_EFFECT = 0.05
_UNKNOWN_ROLE_EFFECT = 0.25
"""Smallest slowdowns looked for where the work varies, without a change to see, and while roles are unknown:
each of them is within what healthy ranks show for good in that case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one step gave rise to: ranks newly ``accused``, ranks slow on and off (``intermittent``,
    repeated while so), accusations ``cleared``, what is unequal in the job as a whole, and whether its
    ``network`` became slow or well again."""

    accused: tuple[Accusation, ...] = ()
    intermittent: tuple[Accusation, ...] = ()
    cleared: tuple[tuple[Channels, int], ...] = ()
    job_wide: JobWide = field(default_factory=JobWide)
    network: SlowNetwork | None = None
    network_well: bool = False


class StragglerDetector:
    """Judges the steps of one job with a fixed set of ranks.

    ``roles`` [ranks] number who does the same work, ``replicas`` who works on the same batch, ``shards`` who
    has the same part of a layer, ``nodes`` [ranks] who shares a machine; None: unknown.

    ``spread`` is how much its ranks differ from their peers for good (robust sd of log ratios, on the safe
    side).
    """

    def __init__(
        self,
        ranks: int,
        roles: Ints | None,
        config: StragglerConfig | None = None,
        *,
        replicas: Replicas | None = None,
        shards: Shards | None = None,
        nodes: Ints | None = None,
    ) -> None:
        self.ratios = Ratios(ranks, roles, config or StragglerConfig(), replicas, shards, nodes)
        self.channels: dict[Channels, Channel] = {name: Channel(ranks) for name in CHANNELS}
        self._job_wide = JobWideWatch(self.ratios.config.history)
        self._network = NetworkWatch()
        self._spells = Spells()
        self.spread = 0.0

    @property
    def kind(self) -> JobKind:
        """What kind of work the job does, as far as seen."""
        return self.ratios.kind

    @property
    def stages(self) -> PeerGroups:
        """The roles that are compared with each other for stage imbalance."""
        return self.ratios.groups

    def update(self, times: StepTimes) -> Verdict:
        """Take the next step; return what is new."""
        ratios = self.ratios
        if ratios.observe(times):
            self.channels = {name: Channel(ratios.ranks) for name in self.channels}
            self._network, self._spells = NetworkWatch(), Spells()
        if not ratios.settled:
            return Verdict()
        if ratios.settled in _SOON or ratios.settled % _EVERY == 0:
            ratios.learn()
            self._refit()
        # All ranks of a synchronous job take the slowest one's step: without compute times nobody stands out.
        if ratios.common_clock:
            return Verdict()
        accused = [a for name in CHANNELS for a in self._judge(name)]
        cleared = [(name, rank) for name, ch in self.channels.items() for rank in ch.settle()]
        network = self._network.update(ratios)
        return Verdict(
            accused=tuple(accused),
            intermittent=self._intermittent(),
            cleared=tuple(cleared),
            job_wide=self._job_wide.look(ratios, self.channels["compute"].raised),
            network=network,
            network_well=self._network.gone,
        )

    def is_alone(self, name: Channels, rank: int) -> bool:
        """Tell whether the evidence against an accused rank suffices without a second kind."""
        return self.channels[name].alone(rank)

    def describe(self, name: Channels, rank: int) -> Accusation | None:
        """Return the accusation of an accused rank with today's figures; None while it is not slow, or was
        not in most steps since its evidence began.
        """
        channel = self.channels[name]
        if channel.scores()[rank] < 1.0:
            return None
        case = charge(self.ratios, channel, name, rank)
        half = 0.5 * float(channel.size[rank])
        # Around the least effect the figure wavers, and a rank to be believed at last would have to wait.
        if case.recent < half or case.size < min(half, math.log1p(self.ratios.config.min_effect)):
            return None
        return accusation(self.ratios, channel, case, channel.raised)

    def excursions(self, rank: int) -> int:
        """Return how often ``rank`` was slow for a moment lately."""
        return int(self.channels["compute"].excursions.count[rank])

    def inherit(self, old: "StragglerDetector", places: list[int]) -> None:
        """Keep ranks accused that were so before the set of ranks changed (``places``: old index or -1)."""
        known = np.array(places) >= 0
        for name, channel in self.channels.items():
            before = old.channels[name]
            channel.raised = known & before.raised[places]
            channel.size = np.where(known, before.size[places], 0.0)
            channel.job_pace = np.where(known, before.job_pace[places], np.nan)

    def _refit(self) -> None:
        ratios = self.ratios
        if ratios.settled < _RECENT:
            return
        # A spread seen on few ranks may be far too small: by twice its standard error.
        self.spread = ratios.lasting_spread() * (1.0 + 2.0 / math.sqrt(ratios.ranks))
        config = ratios.config
        n = min(ratios.settled, config.baseline)
        # While little has been seen, the baseline needs all of it.
        skip = _RECENT if ratios.settled > 4 * _RECENT else 0
        small = bool(ratios.small_role.any())
        prior = max(config.spread, 0.2 * np.nan_to_num(ratios.kind.dispersion))
        # A prior of 1.0 leaves centres where they are seen: how far apart healthy ones lie is unknown there.
        fits: tuple[tuple[Channels, PeerGroups, float], ...] = (
            (
                "compute",
                ratios.everyone if small else ratios.groups,
                1.0 if small or ratios.asynchronous else prior,
            ),
            ("data", ratios.everyone, 1.0),
            ("rest", ratios.everyone, 1.0),
        )
        for name, groups, spread in fits:
            window = ratios.history.last(series_of(name), n + skip)
            window = window[: len(window) - skip]
            if np.isfinite(window).any():
                noise = fit_noise(window, groups, floor=config.floor, prior=spread)
                settled = ratios.settled > config.baseline
                self.channels[name].refit(noise, largest_move=config.floor / 2 if settled else None)

    def _judge(self, name: Channels) -> list[Accusation]:
        channel, history = self.channels[name], self.ratios.history
        change = history.last(series_of(name), 1)[0]
        lasting = history.last(series_of(name, lasting=True), 1)[0]
        if name == "rest":
            # One rank logs and saves for all, from the start: that is its part.
            lasting = np.full_like(lasting, np.nan)
        if not (np.isfinite(change) | np.isfinite(lasting)).any():
            return []
        # Next to nothing most of the time, on all ranks.
        if name != "compute" and channel.is_idle(change, lasting):
            return []
        self._weigh(name, change, lasting)
        # Only ranks newly over the threshold are charged; those accused before count when they are examined.
        over = (channel.scores() >= 1.0) & ~channel.raised
        if name == "compute":
            # What always was so is no machine's change: a stage may fill a node.
            self.ratios.leave_out(channel.raised | (over & channel.changed))
        cases = [charge(self.ratios, channel, name, int(rank)) for rank in np.flatnonzero(over)]
        over |= channel.raised
        guilty = [case for case in cases if is_guilty(self.ratios, case, over)]
        if name == "compute":
            guilty = self._beyond_spells(guilty)
        elif name == "rest":
            guilty = [case for case in guilty if self._nobody_else_stalls(case.rank)]
        for case in guilty:
            # Another one may have held the job up before already: the pace is that before all of them.
            paces = np.append(channel.job_pace[self._broken(channel)], job_pace_before(self.ratios, case))
            channel.job_pace[case.rank] = np.nan if case.lasting else np.fmin.reduce(paces)
            channel.size[case.rank] = case.size
            channel.raised[case.rank] = True
        return [accusation(self.ratios, channel, case, over) for case in guilty]

    def _beyond_spells(self, guilty: list[Charge]) -> list[Charge]:
        """Return those who are slow for longer than a spell that goes from rank to rank."""
        now, channel = self.ratios.settled, self.channels["compute"]
        self._spells.update(now, slow=(channel.change.best > 0) | (channel.lasting.best > 0))
        if self.ratios.ranks < FEW:
            return guilty
        for case in guilty:
            self._spells.begin(case.rank, step=now - case.steps)
        return [case for case in guilty if case.steps > self._spells.patience(case.rank)]

    def _broken(self, channel: Channel) -> Bools:
        """Return who is accused of more than a spell, [ranks]."""
        broken: Bools = channel.raised.copy()
        for rank in np.flatnonzero(broken).tolist():
            broken[rank] = self._spells.outlasts(rank, step=self.ratios.settled)
        return broken

    def _nobody_else_stalls(self, rank: int) -> bool:
        """Tell whether only ``rank``, or its whole machine alike, does more than it did or is about to, and
        nobody is slow in what ranks name.

        Ranks of a pipeline or a tensor-parallel group wait for the slow one within what they do not tell.
        """
        rest = self.channels["rest"]
        others = rest.rising & ~alike(rest.changed, self.ratios.nodes, rank)
        return not (others.any() or any(c.rising.any() for c in self.channels.values() if c is not rest))

    def _intermittent(self) -> tuple[Accusation, ...]:
        channel = self.channels["compute"]
        often = (channel.excursions.count >= SUSPECT) & ~channel.believed
        # What comes and goes on many ranks at once comes from outside of them.
        if not often.any() or often.sum() > self.ratios.ranks / 3:
            return ()
        single = [int(rank) for rank in np.flatnonzero(often) if not self._spells.patience(int(rank))]
        found = (intermittent(self.ratios, channel, rank) for rank in single)
        return tuple(a for a in found if a is not None)

    def _weigh(self, name: Channels, change: Floats, lasting: Floats) -> None:
        ratios, channel = self.ratios, self.channels[name]
        fixed, learn = ratios.kind.kind == "fixed", ratios.config.learn
        known = not math.isnan(ratios.kind.dispersion)
        dispersion = max(ratios.kind.dispersion if known else 1.0, ratios.config.floor)
        # Loaders and workers without a shared clock stall for some steps at a time.
        steady = fixed and name == "compute" and not ratios.asynchronous
        if channel.noise is None:
            if name != "compute":
                # The spread of the work is not that of loading, which may be told from mid-job on.
                return
            sigma = np.full(ratios.ranks, dispersion)
        else:
            residual = change - channel.noise.center
            sigma = np.maximum(channel.noise.sigma, self._step_noise(channel.noise, residual, name))
            # The centre itself is known badly from few steps, and would pass for a slowdown of 3 %.
            smallest = 0.05 if ratios.settled < 30 else 0.0
            if dispersion > VARIABLE_DISPERSION and name == "compute":
                smallest = _COARSE_EFFECT
            if fixed or ratios.settled >= learn + (10 if ratios.asynchronous else 0):
                channel.weigh(residual, sigma=sigma, smallest=smallest, steady=steady)
        if (
            ratios.source == "compute"
            and not ratios.asynchronous
            and ratios.settled >= (3 if fixed else learn)
        ):
            channel.weigh_lasting(
                np.where(ratios.groups.peers > 0, lasting, np.nan),
                sigma=sigma,
                smallest=self._lasting_effects(),
                steady=steady,
            )

    def _step_noise(self, noise: Noise, residual: Floats, name: Channels) -> float:
        """Return the noise of this very step over all ranks."""
        if name != "compute":
            return scatter(residual)
        before = self.ratios.history.last("x", 1 + LATELY)[:-1] - noise.center
        return step_noise(residual, before, self.ratios.nodes, usual=float(noise.sigma.min()))

    def _lasting_effects(self) -> Floats:
        """Smallest lasting slowdown to look for, per rank: coarser the less is known about who its peers
        are.
        """
        ratios = self.ratios
        coarse = (ratios.groups.peers < MIN_PEERS) | (ratios.kind.kind != "fixed")
        smallest = np.where(coarse, _COARSE_EFFECT, _LASTING_EFFECT)
        smallest = np.maximum(smallest, np.expm1(UNLIKE_PEERS * self.spread))
        return smallest if ratios.roles_settled else np.maximum(smallest, _UNKNOWN_ROLE_EFFECT)
