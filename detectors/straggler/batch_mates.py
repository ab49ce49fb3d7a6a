"""A rank that takes longer than the others that work on its batch, where batches vary.

What they have in common cancels out: where batches differ by a sixth, a rank differs from its mates by some
thousandths. Those of a tensor-parallel group wait for a slow one within what they measure as compute: most of
its slowdown shows on them too, and what is left between them is small. A rank is slow where two questions
have the same answer:

* does it take longer beside its mates than it did? Its log ratio to their median, less what is usual of it,
  has evidence of a change that suffices alone (``TimingChannel``), which dates the slowdown;
* is it slow? By that ratio it is so by as much as is reported of uneven work, and its group is not quicker;
  or its group is slower than the others since then, by what its mates show.

Of two, one may as well have become quicker: only groups with three mates for each rank are used. This is
blocking, with the group as block (Fisher 1935).
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from detectors.changepoint.llr_cusum import locate_onset
from detectors.peers.node_effects import scatter
from detectors.peers.peers import MIN_PEERS, PeerGroups, peer_median
from detectors.peers.ratios import Ratios
from detectors.robust import nan_median
from detectors.straggler.alternatives.usual_noise import block_length, is_as_usual
from detectors.straggler.candidate import LOOK_BEFORE, Candidate, deviations
from detectors.straggler.evidence.timing_channel import Fit, TimingChannel, fit_noise
from detectors.straggler.onset_time import date_onset
from detectors.straggler.slow_sets import Gates

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

# Standard errors of how slow its group is. Chosen: of ranks that changed beside their mates, at each look one
# in 700 is of a group that is so by chance.
_SLOW_SIGMAS = 3.0

# The standard error of a median is that of a mean times sqrt(pi / 2).
_OF_MEDIAN = float(np.sqrt(np.pi / 2))

# Chosen, of what a rank is slower by than its mates: less of it is left of all if these became quicker.
_HALF = 0.5

# Steps after which a rank that did not pass is looked at again. Chosen: how slow its group is is known a
# little better by then.
_AGAIN = 10

# Ranks examined in one step, those with the most evidence. Chosen: of 8,192 each takes as long as ten steps.
_AT_ONCE = 4

# Groups whose ranks show how healthy ones wander. Chosen, as in ``alternatives``: some hundred ranks.
_MOST_OTHERS = 64


class BatchMates:
    """Evidence of ranks beside their mates; ``groups`` [ranks] number those of one batch (-1: none; None:
    unknown). ``recovered`` are the ranks found so that are well since a step, and their mates, until
    it is emptied."""

    def __init__(self, ranks: int, groups: Ints | None) -> None:
        labels = np.full(ranks, -1, dtype=np.intp) if groups is None else groups
        self._groups = PeerGroups.of(np.where(labels < 0, labels.max() + 1 + np.arange(ranks), labels))
        self._has_mates = self._groups.peers >= MIN_PEERS
        self._alike = PeerGroups.of(self._has_mates)
        self._channel: TimingChannel | None = None
        self._not_before = np.zeros(ranks, dtype=np.intp)
        self.recovered: list[int] = []

    def refit(self, ratios: Ratios, fit: Fit) -> None:
        """Learn what is usual of ranks beside their mates."""
        if not self._is_sought(ratios):
            return
        if self._channel is None:
            self._channel = TimingChannel(ratios.ranks)
        x = self._ratios(ratios, fit.steps + fit.skip)
        noise = fit_noise(x[: len(x) - fit.skip], self._alike, floor=ratios.config.floor, prior=1.0)
        self._channel.refit(noise, largest_move=fit.largest_move)

    def found(
        self, ratios: Ratios, channel: TimingChannel, confirmed: Sequence[Candidate], gates: Gates
    ) -> list[Candidate]:
        """Take the last step; return the ranks newly found slow, as taken by ``channel``, that of compute,
        without those known to be slow, as ``confirmed`` ones are."""
        own = self._channel
        if own is None or own.noise is None:
            return []
        if not self._is_sought(ratios):
            # What is learnt of other batches is of no use when they vary again.
            self._channel = own if own.raised.any() else None
            return []
        residual = self._ratios(ratios, 1)[0] - own.noise.center
        own.weigh(residual, sigma=np.maximum(own.noise.sigma, scatter(residual)), smallest=0.0)
        self._lower(channel, own.settle())
        slow = channel.raised.copy()
        slow[[found.rank for found in confirmed]] = True
        due = np.flatnonzero(own.sure & ~own.raised & ~slow & (self._not_before <= ratios.settled))
        fresh: list[Candidate] = []
        for rank in due[np.argsort(-own.change.best[due], kind="stable")][:_AT_ONCE].tolist():
            self._not_before[rank] = ratios.settled + _AGAIN
            found = self._slow(ratios, channel, own, rank)
            over = slow.copy()
            over[rank] = True
            if found is None or not gates([found], over):
                continue
            own.find(rank, size=found.size)
            channel.take(rank, size=found.size, steps=found.steps, lasting=False)
            slow[rank] = True
            fresh.append(found)
        return fresh

    def _lower(self, channel: TimingChannel, well: Sequence[int]) -> None:
        """Take that the groups of some ranks have recovered: at the noise of batches it would hardly show."""
        for rank in well:
            members = self._groups.members_with(rank)
            self.recovered += members[channel.raised[members]].tolist()
        if self.recovered:
            over = np.isin(np.arange(channel.raised.size), self.recovered)
            channel.change.drop(over)
            channel.lower(self.recovered)

    def _slow(
        self, ratios: Ratios, channel: TimingChannel, own: TimingChannel, rank: int
    ) -> Candidate | None:
        """Date and measure the slowdown of ``rank``; None where healthy ranks are often as far off, or it is
        not slow."""
        if own.noise is None or channel.noise is None:
            return None
        look_back = min(own.change.age_of(rank) + LOOK_BEFORE, ratios.settled)
        x, sigma = self._ratios(ratios, look_back) - own.noise.center, float(own.noise.sigma[rank])
        onset = locate_onset(x[:, rank], sigma)
        since = x[onset.index :]
        found = Candidate(
            timing="compute",
            rank=rank,
            lasting=False,
            onset=date_onset(ratios, rank, onset, steps=len(x)),
            x=since,
            effect=nan_median(since),
            sigma=sigma,
            baseline=own.noise.samples,
        )
        if self._wanders(ratios, found):
            return None
        # Of what its group has in common, the batches of all steps at once.
        in_common = deviations(ratios, channel, "compute", found.steps) - since
        with_it = since + nan_median(in_common)
        slow = replace(found, x=with_it, effect=nan_median(with_it))
        if found.size >= np.log1p(ratios.config.min_effect_uneven):
            return found if slow.size >= _HALF * found.size else None
        batches = float(channel.noise.sigma[rank]) * _OF_MEDIAN
        error = batches * np.sqrt(1.0 / found.steps + 1.0 / channel.noise.samples)
        return slow if float(nan_median(in_common)[rank]) >= _SLOW_SIGMAS * error else None

    def _wanders(self, ratios: Ratios, found: Candidate) -> bool:
        """Return whether healthy ranks are often as far from their mates for as many steps."""
        index = self._groups.index
        others = np.unique(index[self._has_mates & (index != index[found.rank])])
        some = np.flatnonzero(np.isin(index, others[:: max(math.ceil(others.size / _MOST_OTHERS), 1)]))
        if not some.size:
            return True
        v = ratios.history.last("v", min(ratios.settled, ratios.history.capacity))[:, some]
        beside = v - peer_median(v, PeerGroups.of(index[some]))
        return is_as_usual(found.size, block_length(found), beside)

    def _is_sought(self, ratios: Ratios) -> bool:
        varies = ratios.kind.kind != "fixed" and ratios.source == "compute" and not ratios.asynchronous
        return varies and bool(self._has_mates.any())

    def _ratios(self, ratios: Ratios, steps: int) -> Floats:
        """Return log ratios to the median of the mates in the last steps, [<= steps, ranks]; NaN of ranks
        with few."""
        v = ratios.history.last("v", steps)
        return np.where(self._has_mates, v - peer_median(v, self._groups), np.nan)
