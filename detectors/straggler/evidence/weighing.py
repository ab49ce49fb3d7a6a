"""Each step weighed as evidence against each rank, by what is usual of it and how it scatters."""

import math

import numpy as np
import numpy.typing as npt

from detectors.peers.job_kind import VARIABLE_DISPERSION
from detectors.peers.node_effects import LATELY, scatter, step_noise
from detectors.peers.peers import MIN_PEERS, PeerGroups
from detectors.peers.places.place_mates import PlaceMates
from detectors.peers.ratios import Ratios
from detectors.robust import nan_median
from detectors.straggler.alternatives.confirmation import UNLIKE_PEERS
from detectors.straggler.alternatives.loading_part import loads_for_others
from detectors.straggler.candidate import series_of
from detectors.straggler.core import TIMINGS, Timing
from detectors.straggler.evidence.timing_channel import Fit, Noise, TimingChannel, fit_noise
from detectors.straggler.slow_sets import COARSE_EFFECT

Floats = npt.NDArray[np.float64]

# The last steps are left out of a baseline. Chosen: a fault that began in them must not have become usual
# before it is suspected.
_RECENT = 10

# Smallest slowdowns looked for without a change to see, and while roles are unknown. Chosen: each of them is
# within what healthy ranks show for good in that case.
_LASTING_EFFECT = 0.05
_UNKNOWN_ROLE_EFFECT = 0.25


class Evidence:
    """The evidence of each timing (``TimingChannel``), with the baselines and noise it is weighed by.

    ``pace_spread`` is how much ranks differ from their peers for good, by twice its standard error
    1/sqrt(ranks) on the safe side.
    """

    def __init__(self, ratios: Ratios) -> None:
        self.ratios = ratios
        self.pace_spread = 0.0
        self._least_loading = np.full(ratios.ranks, math.inf)
        self.channels: dict[Timing, TimingChannel] = {}
        self.begin()

    def begin(self) -> None:
        """Begin to gather evidence, of which there is none."""
        self.channels = {name: TimingChannel(self.ratios.ranks) for name in TIMINGS}

    def refit(self, places: PlaceMates) -> Fit | None:
        """Learn baselines and noise anew; return what those of compute rest on, None where nothing does."""
        ratios = self.ratios
        if ratios.settled < _RECENT:
            return None
        self.learn_spread()
        config = ratios.config
        n = min(ratios.settled, config.baseline)
        # While little has been seen, the baseline needs all of it.
        skip = _RECENT if ratios.settled > 4 * _RECENT else 0
        small = bool(ratios.comparison.small_role.any())
        prior = max(config.spread, 0.2 * np.nan_to_num(ratios.kind.dispersion))
        # A prior of 1.0 leaves centres where they are seen: how far apart healthy ones lie is unknown there.
        fits: tuple[tuple[Timing, PeerGroups, float], ...] = (
            (
                "compute",
                ratios.comparison.everyone if small else ratios.comparison.groups,
                1.0 if small or ratios.asynchronous else prior,
            ),
            ("data", self._loading_groups(places, n, skip), 1.0),
            ("rest", ratios.comparison.everyone, 1.0),
        )
        largest_move = config.floor / 2 if ratios.settled > config.baseline else None
        fitted: set[Timing] = set()
        for name, groups, spread in fits:
            window = ratios.history.last(series_of(name), n + skip)
            window = window[: len(window) - skip]
            if np.isfinite(window).any():
                # Those that load more vary by more.
                noise = fit_noise(window, groups, floor=config.floor, prior=spread, alike=name != "data")
                self.channels[name].refit(noise, largest_move=largest_move)
                fitted.add(name)
        return Fit(n, skip, prior, largest_move) if "compute" in fitted else None

    def learn_spread(self) -> None:
        """Learn how much ranks differ from those they are compared with for good."""
        # A spread seen on few ranks may be far too small: by twice its standard error.
        self.pace_spread = self.ratios.lasting_spread() * (1.0 + 2.0 / math.sqrt(self.ratios.ranks))

    def weigh(self, timing: Timing) -> bool:
        """Take the last step as evidence about one timing; return whether it may show anything."""
        channel = self.channels[timing]
        change, lasting = self._latest(timing)
        if not (np.isfinite(change) | np.isfinite(lasting)).any():
            return False
        # Next to nothing most of the time, on all ranks.
        if timing != "compute" and channel.is_idle(change, lasting):
            return False
        self._weigh(timing, change, lasting)
        return True

    def lasting_effects(self) -> Floats:
        """Smallest lasting slowdown to look for, per rank: coarser the less is known about who its peers
        are.
        """
        ratios = self.ratios
        coarse = (ratios.comparison.groups.peers < MIN_PEERS) | (ratios.kind.kind != "fixed")
        smallest = np.where(coarse, COARSE_EFFECT, _LASTING_EFFECT)
        smallest = np.maximum(smallest, np.expm1(UNLIKE_PEERS * self.pace_spread))
        # Transfers without the waiting may be shorter on some ranks for good.
        known = ratios.comparison.roles_settled and ratios.source == "compute"
        return smallest if known else np.maximum(smallest, _UNKNOWN_ROLE_EFFECT)

    def _loading_groups(self, places: PlaceMates, n: int, skip: int) -> PeerGroups:
        """Learn from ``n`` steps how much longer a rank may load for good, and who loads data for others;
        return these and the others as groups."""
        ratios, channel = self.ratios, self.channels["data"]
        window = ratios.history.last(series_of("data"), n + skip)
        usual = nan_median(window[: len(window) - skip])
        if not np.isfinite(usual).any():
            return ratios.comparison.everyone
        # Beyond what ranks differ by for good, by twice the standard error of that.
        apart = scatter(usual) * (1.0 + 2.0 / math.sqrt(ratios.ranks))
        least = max(_LASTING_EFFECT, UNLIKE_PEERS * apart)
        self._least_loading = np.full(ratios.ranks, least)
        for_others = np.zeros(ratios.ranks, dtype=np.bool_)
        for rank in np.flatnonzero((usual >= least / 2) & ~channel.exempted).tolist():
            for_others[rank] = loads_for_others(ratios, rank, usual, places)
        channel.exempt(for_others)
        return PeerGroups.of(channel.exempted.astype(np.intp))

    def _latest(self, timing: Timing) -> tuple[Floats, Floats]:
        """Return the ratios of the last step in which a change shows, and those in which what lasts does."""
        history = self.ratios.history
        change = history.last(series_of(timing), 1)[0]
        lasting = history.last(series_of(timing, lasting=True), 1)[0]
        if timing == "rest":
            # One rank logs and saves for all, from the start: that is its part.
            lasting = np.full_like(lasting, np.nan)
        elif timing == "data":
            # Of more loaders on one host each may take longer from the start.
            lasting = lasting.copy()
            for mine, _ in self.ratios.most_of_job:
                lasting[mine] = np.nan
        return change, lasting

    def _weigh(self, name: Timing, change: Floats, lasting: Floats) -> None:
        ratios, channel = self.ratios, self.channels[name]
        fixed, learn = ratios.kind.kind == "fixed", ratios.config.learn
        known = not math.isnan(ratios.kind.dispersion)
        dispersion = max(ratios.kind.dispersion if known else 1.0, ratios.config.floor)
        # Loaders and workers without a shared clock stall for some steps at a time.
        steady = fixed and name == "compute" and not ratios.asynchronous
        if channel.noise is None:
            if name != "compute":
                # The spread of the work is not that of loading, which may be reported from mid-job on.
                return
            sigma = np.full(ratios.ranks, dispersion)
        else:
            residual = change - channel.noise.center
            sigma = np.maximum(channel.noise.sigma, self._step_noise(channel.noise, residual, name))
            # The centre itself is known badly from few steps, and would pass for a slowdown of 3 %.
            smallest = 0.05 if ratios.settled < 30 else 0.0
            if dispersion > VARIABLE_DISPERSION and name == "compute":
                smallest = COARSE_EFFECT
            if fixed or ratios.settled >= learn + (10 if ratios.asynchronous else 0):
                channel.weigh(residual, sigma=sigma, smallest=smallest, steady=steady)
        shared_clock = ratios.source != "step" and not ratios.asynchronous
        if shared_clock and ratios.settled >= (3 if fixed else learn):
            channel.weigh_lasting(
                np.where(ratios.comparison.groups.peers > 0, lasting, np.nan),
                sigma=sigma,
                smallest=self._least_loading if name == "data" else self.lasting_effects(),
            )

    def _step_noise(self, noise: Noise, residual: Floats, name: Timing) -> float:
        """Return the noise of this very step over all ranks."""
        if name != "compute":
            for mine, _ in self.ratios.most_of_job if name == "data" else ():
                # What the ranks of that machine have in common is looked for and no noise.
                residual = residual.copy()
                residual[mine] -= nan_median(residual[mine])
            return scatter(residual)
        # Suspected machines are compared with the others: what they show is no noise of these.
        residual = np.where(self.ratios.comparison.left_out, np.nan, residual)
        before = self.ratios.history.last("x", 1 + LATELY)[:-1] - noise.center
        return step_noise(residual, before, self.ratios.nodes, usual=float(noise.sigma.min()))
