"""A rank that takes longer than the others of its tensor-parallel group, where work varies between groups.

All ranks of a group work on the same batch, and what they have in common cancels out: where batches differ by
a sixth, a rank differs from its mates by some thousandths. They wait for a slow one within what they measure
as compute, most of its slowdown shows on them too, and what is left between them is small. It is the sharp
one of two kinds of evidence, and dates the other:

* the rank's log ratio to the median of its mates, less what is usual of it, has evidence of a change that
  suffices alone (``TimingChannel``), and
* by that ratio it is slow by as much as is reported of uneven work, or else by its ratio to all of its role
  since then, by 2.5 standard errors at least.

Batches differ by none of what distinguishes ranks of one group: this is blocking, with the group as block
(Fisher 1935).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from detectors.changepoint.llr_cusum import locate_onset
from detectors.peers.node_effects import scatter
from detectors.peers.peers import PeerGroups, peer_median
from detectors.peers.ratios import Ratios
from detectors.robust import nan_median
from detectors.straggler.candidate import LOOK_BEFORE, Candidate, deviations
from detectors.straggler.gates import block_length, is_as_usual
from detectors.straggler.onset_time import date_onset
from detectors.straggler.slow_sets import Gates
from detectors.straggler.timing_channel import TimingChannel, fit_noise

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

# Standard errors of how slow its group is. Chosen: of ranks that changed beside their mates, at each look one
# in 160 is of a group that is so by chance.
_SLOW_SIGMAS = 2.5

# Steps after which a rank that did not pass is looked at again. Chosen: its slowdown against all of its role
# is known a little better by then.
_AGAIN = 10

# Chosen, as for healthy ranks that wander (``gates``): a step of 8,192 ranks stays cheap.
_MOST_OTHERS = 256


class TensorMates:
    """Evidence of ranks beside their mates; ``groups`` [ranks] number the tensor-parallel groups (-1: none;
    None: unknown)."""

    def __init__(self, ranks: int, groups: Ints | None) -> None:
        labels = np.full(ranks, -1, dtype=np.intp) if groups is None else groups
        self._groups = PeerGroups.of(np.where(labels < 0, labels.max() + 1 + np.arange(ranks), labels))
        self._mates = self._groups.peers > 0
        self.channel = TimingChannel(ranks)
        self._not_before = np.zeros(ranks, dtype=np.intp)

    def refit(self, ratios: Ratios, steps: int, skip: int, *, largest_move: float | None) -> None:
        """Learn what is usual of ranks beside their mates from the last ``steps`` less the last ``skip``."""
        if not self._is_sought(ratios):
            return
        x = self._ratios(ratios, steps + skip)
        noise = fit_noise(x[: len(x) - skip], ratios.everyone, floor=ratios.config.floor, prior=1.0)
        self.channel.refit(noise, largest_move=largest_move)

    def found(
        self, ratios: Ratios, channel: TimingChannel, confirmed: Sequence[Candidate], gates: Gates
    ) -> list[Candidate]:
        """Take the last step; return the ranks newly found slow, as taken by ``channel``, that of compute,
        without those known to be slow, as ``confirmed`` ones are."""
        noise = self.channel.noise
        if noise is None or not self._is_sought(ratios):
            return []
        residual = self._ratios(ratios, 1)[0] - noise.center
        self.channel.weigh(residual, sigma=np.maximum(noise.sigma, scatter(residual)), smallest=0.0)
        self.channel.settle()
        slow = channel.raised.copy()
        slow[[found.rank for found in confirmed]] = True
        due = self.channel.sure & ~self.channel.raised & ~slow & (self._not_before <= ratios.settled)
        fresh: list[Candidate] = []
        for rank in np.flatnonzero(due).tolist():
            self._not_before[rank] = ratios.settled + _AGAIN
            found = self._slow(ratios, channel, rank)
            over = slow.copy()
            over[rank] = True
            if found is None or not gates([found], over):
                continue
            self.channel.find(rank, size=found.size)
            channel.take(rank, size=found.size, steps=found.steps, lasting=False)
            slow[rank] = True
            fresh.append(found)
        return fresh

    def _slow(self, ratios: Ratios, channel: TimingChannel, rank: int) -> Candidate | None:
        """Date and measure the slowdown of ``rank``; None where healthy ranks are often as far off."""
        own, usual = self.channel.noise, channel.noise
        if own is None or usual is None:
            return None
        look_back = min(self.channel.change.age_of(rank) + LOOK_BEFORE, ratios.settled)
        x, sigma = self._ratios(ratios, look_back) - own.center, float(own.sigma[rank])
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
            baseline=own.samples,
        )
        if self._wanders(ratios, found):
            return None
        if found.size >= np.log1p(ratios.config.min_effect_uneven):
            return found
        # Of what its group has in common, the batches of all steps at once.
        in_common = deviations(ratios, channel, "compute", found.steps) - since
        error = float(usual.sigma[rank]) * np.sqrt(1.0 / found.steps + 1.0 / usual.samples)
        with_it = since + nan_median(in_common)
        slow = replace(found, x=with_it, effect=nan_median(with_it))
        return slow if slow.size >= _SLOW_SIGMAS * error else None

    def _wanders(self, ratios: Ratios, found: Candidate) -> bool:
        """Return whether healthy ranks are often as far from their mates for as many steps (``gates``)."""
        held = min(ratios.settled, ratios.history.capacity)
        others = np.flatnonzero(self._mates & (self._groups.index != self._groups.index[found.rank]))
        some = others[:: max(-(-others.size // _MOST_OTHERS), 1)]
        return not some.size or is_as_usual(
            found.size, block_length(found), self._ratios(ratios, held)[:, some]
        )

    def _is_sought(self, ratios: Ratios) -> bool:
        varies = ratios.kind.kind != "fixed" and ratios.source == "compute" and not ratios.asynchronous
        return varies and bool(self._mates.any())

    def _ratios(self, ratios: Ratios, steps: int) -> Floats:
        """Return log ratios to the median of the mates in the last steps, [<= steps, ranks]."""
        v = ratios.history.last("v", steps)
        return v - peer_median(v, self._groups)
