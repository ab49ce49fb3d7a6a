"""Machines whose ranks are slow together, where single ranks vary too much to show it soon.

A slow host slows all of its ranks. Where each of them draws batches of other lengths, their mean varies less
than any: of eight, by a factor of sqrt(8), so that the same slowdown shows in an eighth of the steps. What
they share, as the batch of a tensor-parallel group, stays in the mean, whose noise is learnt as it is.

With x_r the ratio of rank r to its peers less what is usual of it, machine m has

    y_m = mean of x_r over r in m - median over the other machines of their means

and evidence as a rank has (``TimingChannel``), which has to suffice alone. Three quarters of its ranks must
show half of the slowdown or more, for one that is very slow moves the mean too; then the gates of ranks are
asked, with the machine's y in place of the ranks' own. This is the mean of a random-effects model of ranks
within machines (Searle, Casella and McCulloch 1992); the shares are ours.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from detectors.changepoint.llr_cusum import locate_onset
from detectors.peers.node_effects import MOST_OF_MACHINE, scatter
from detectors.peers.peers import MIN_PEERS, PeerGroups, peer_median
from detectors.peers.ratios import Ratios
from detectors.robust import nan_mean, nan_median
from detectors.straggler.candidate import LOOK_BEFORE, Candidate, deviations, series_of
from detectors.straggler.gates import block_length, is_as_usual
from detectors.straggler.onset_time import date_onset
from detectors.straggler.timing_channel import TimingChannel, fit_noise

Floats = npt.NDArray[np.float64]

# Chosen, of the machine's own slowdown: what its ranks must show to be slow with it (``gates``).
_HALF = 0.5

# Chosen: as many blocks of healthy steps as show how ranks wander (``gates``).
_PAST = 4

# Chosen: steps of the longest slowdown, to which noise is extrapolated: two doublings of blocks of 25.
_LONGEST = 100


@dataclass(frozen=True, slots=True)
class SlowMachine:
    """The ranks of a slow machine as candidates, each with the ``x`` and the figures of the machine."""

    machine: int
    ranks: tuple[Candidate, ...]


class SlowMachines:
    """Evidence of the machines of one job; ``nodes`` number which ranks share one."""

    def __init__(self, nodes: PeerGroups) -> None:
        self._nodes = nodes
        self.channel = TimingChannel(nodes.sizes.size)

    @property
    def comparable(self) -> bool:
        """Whether there are enough machines, each of two ranks or more, to compare one with the others."""
        return self._nodes.sizes.size >= MIN_PEERS and self._nodes.narrowest >= 2

    def forget(self) -> None:
        """Drop all evidence: ranks are compared with others now."""
        self.channel.forget()

    def refit(self, x: Floats, *, floor: float, prior: float, largest_move: float | None) -> None:
        """Learn what is usual of machines from ``x`` [steps, ranks]."""
        means = _over_others(self._means(x))
        noise = fit_noise(means, _everyone(means.shape[1]), floor=floor, prior=prior)
        self.channel.refit(noise, largest_move=largest_move)

    def weigh(self, change: Floats, lasting: Floats, *, smallest: float, smallest_lasting: Floats) -> None:
        """Take a step: ratios less what is usual (``change``) and as they are (``lasting``), [ranks]; effects
        below the smallest are not sought."""
        noise = self.channel.noise
        if noise is None:
            return
        residual = _over_others(self._means(change)) - noise.center
        sigma = np.maximum(noise.sigma, scatter(residual))
        self.channel.weigh(residual, sigma=sigma, smallest=smallest)
        self.channel.weigh_lasting(
            _over_others(self._means(lasting)),
            sigma=sigma,
            smallest=nan_median(self._nodes.gather(smallest_lasting), 1),
        )
        self.channel.settle()

    def found(self, ratios: Ratios, ranks: TimingChannel) -> list[SlowMachine]:
        """Return the machines whose evidence suffices alone, not found before; ``ranks`` is their ranks'
        evidence."""
        due = np.flatnonzero((self.channel.scores() >= 1.0) & ~self.channel.raised).tolist()
        slow = (self._slow(ratios, ranks, m) for m in due if self.channel.alone(m))
        return [machine for machine in slow if machine is not None]

    def take(self, machine: SlowMachine) -> None:
        """Take a machine as slow until it recovers."""
        self.channel.find(machine.machine, size=machine.ranks[0].size)

    def wanders(self, ratios: Ratios, slow: SlowMachine) -> bool:
        """Return whether means of healthy machines may be as far off for as long (``gates.wanders``), as
        where the ranks of one read a shard. They may until four times as many steps have been seen before.

        Of a few machines, whose work changes now and then, blocks as long as the slowdown mix what comes
        before and after; halves of it do less, and show how noise falls with the length of blocks.
        """
        held, found = min(ratios.settled, ratios.history.capacity), slow.ranks[0]
        length = block_length(found)
        if held < (_PAST + 1) * length:
            return True
        # Against machines of which one is slow, the others would seem to have become quicker.
        means = np.delete(self._means(ratios.history.last("x", held)), slow.machine, axis=1)
        steps = min(found.steps, _LONGEST)
        return is_as_usual(found.size, steps, _over_others(means), block_steps=length // 2)

    def _slow(self, ratios: Ratios, ranks: TimingChannel, machine: int) -> SlowMachine | None:
        """Date and measure a machine's slowdown; None unless most of its ranks show it."""
        channel, noise, lasting = self.channel, self.channel.noise, self.channel.is_lasting(machine)
        if noise is None:
            return None
        bank = channel.lasting if lasting else channel.change
        steps = min(bank.age_of(machine) + LOOK_BEFORE, ratios.settled)
        means = _over_others(self._means(ratios.history.last(series_of("compute", lasting=lasting), steps)))
        means = means if lasting else means - noise.center
        sigma = float(noise.sigma[machine])
        onset = locate_onset(means[:, machine], sigma)
        since = means[onset.index :]
        members = self._nodes.members[machine]
        members = members[members >= 0]
        own = deviations(ratios, ranks, "compute", steps, lasting=lasting)[onset.index :, members]
        if np.mean(nan_median(own) >= _HALF * nan_median(since[:, machine])) < MOST_OF_MACHINE:
            return None
        x = self._nodes.spread_out(since)
        effect, baseline = nan_median(x), 0 if lasting else noise.samples
        slow = (
            Candidate(
                timing="compute",
                rank=rank,
                lasting=lasting,
                onset=date_onset(ratios, rank, onset, steps=len(means)),
                x=x,
                effect=effect,
                sigma=sigma,
                baseline=baseline,
            )
            for rank in members.tolist()
        )
        return SlowMachine(machine, tuple(slow))

    def _means(self, x: Floats) -> Floats:
        """Return the mean of each machine, [..., machines] of ``x`` [..., ranks]."""
        return nan_mean(self._nodes.gather(x), axis=-1)


def _over_others(means: Floats) -> Floats:
    """Return ``means`` [..., machines] less the median of the others."""
    over: Floats = means - peer_median(means, _everyone(means.shape[-1]))
    return over


@cache
def _everyone(machines: int) -> PeerGroups:
    return PeerGroups.of(np.zeros(machines, dtype=np.intp))
