"""Sets of ranks that are slow together where single ranks do not show it: machines, and replicas.

A slow host slows all of its ranks. Where each of them draws batches of other lengths, their mean varies less
than any: of eight, by a factor of sqrt(8), so that the same slowdown shows in an eighth of the steps. What
they share, as the batch of a tensor-parallel group, stays in the mean, whose noise is learnt as it is. The
ranks of a replica work on one batch; where batches are uneven, what the replica deviates by is taken out of
its ranks' ratios (``Ratios``), and the slowness of all of it with it. Batches change from step to step, a
slow replica stays slow.

With x_r the ratio of rank r to its peers less what is usual of it, set m has

    y_m = mean of x_r over r in m - median over the other sets of their means

and evidence as a rank has (``TimingChannel``), which has to suffice alone. Three quarters of its ranks must
show half of the slowdown or more, for one that is very slow moves the mean too; then the gates of ranks are
asked, with the set's y in place of the ranks' own. This is the mean of a random-effects model of ranks
within sets (Searle, Casella and McCulloch 1992); the shares are ours.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from detectors.changepoint.llr_cusum import locate_onset
from detectors.peers.job_kind import VARIABLE_DISPERSION
from detectors.peers.node_effects import MOST_OF_MACHINE, scatter
from detectors.peers.peers import MIN_PEERS, PeerGroups, peer_median
from detectors.peers.ratios import Ratios
from detectors.robust import nan_mean, nan_median
from detectors.straggler.alternatives.confirmation import UNLIKE_PEERS
from detectors.straggler.alternatives.usual_noise import block_length, is_as_usual
from detectors.straggler.candidate import LOOK_BEFORE, Candidate, series_of
from detectors.straggler.evidence.timing_channel import Fit, Noise, TimingChannel, fit_noise
from detectors.straggler.onset_time import date_onset

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

# Smallest slowdown looked for where the work varies. Chosen: within what healthy ranks show for good then.
COARSE_EFFECT = 0.10

# Chosen, of the set's own slowdown: what its ranks must show to be slow with it (``alternatives``).
_HALF = 0.5

# Chosen, times the steps of a slowdown that must have been seen before: as many blocks of healthy steps as
# show how ranks wander (``usual_noise``), and half of them of replicas, which are many. Of 240 drawn ones
# whose batches stay 5 % apart for 40 steps, 4 were named without it and none with it.
_PAST, _PAST_OF_BATCHES = 4, 2

# Chosen: machines that are looked at beside the others alone, slowest first; others may be as slow by then.
_STAND_OUT = 3

# Chosen: steps of the longest slowdown, to which noise is extrapolated: two doublings of blocks of 25.
_LONGEST = 100

# Steps by which sets are compared at once. Chosen: those that are slow together ask for nearly as many, and a
# single one for a quarter of what is held.
_ROWS = 64

# Steps after which a replica is looked at again. Chosen: the ratios of all steps held are made anew for it.
_AGAIN = 5

Gates = Callable[[Sequence[Candidate], Bools], list[Candidate]]
"""Returns those of some ranks whom nothing else explains, given who is slow [ranks]."""


@dataclass(frozen=True, slots=True)
class SlowSet:
    """The ranks of a slow set as candidates, each with the ``x`` and the figures of the set."""

    number: int
    ranks: tuple[Candidate, ...]


class SlowSets:
    """Evidence of sets of the ranks of one job; ``sets`` number who is in one.

    ``with_batch``: they are compared by ratios in which the batch of their replica still is.
    """

    def __init__(self, sets: PeerGroups, *, with_batch: bool = False) -> None:
        self._sets = sets
        self.with_batch = with_batch
        self.channel = TimingChannel(sets.sizes.size)
        self._not_before = np.zeros(sets.sizes.size, dtype=np.intp)
        # How much the ranks of the others differ for good.
        self._spread = np.full(sets.sizes.size, np.inf)

    @property
    def comparable(self) -> bool:
        """Whether there are enough sets, each of two ranks or more, to compare one with the others."""
        return self._sets.sizes.size >= MIN_PEERS and self._sets.narrowest >= 2

    def forget(self) -> None:
        """Drop all evidence: ranks are compared with others now."""
        self.channel.forget()

    def noise_of_ranks(self) -> Noise | None:
        """Return what is usual of each rank's set, and its noise, [ranks]; None while it is not known."""
        noise = self.channel.noise
        if noise is None:
            return None
        center, sigma = self._sets.spread_out(noise.center), self._sets.spread_out(noise.sigma)
        return Noise(center, sigma, noise.samples)

    def refit(self, ratios: Ratios, fit: Fit) -> None:
        """Learn what is usual of sets, as of their ranks."""
        x = self._ratios(ratios, fit.steps + fit.skip)
        means = _over_others(self._means(x[: len(x) - fit.skip]))
        noise = fit_noise(means, _everyone(means.shape[1]), floor=ratios.config.floor, prior=fit.prior)
        self.channel.refit(noise, largest_move=fit.largest_move)
        self._spread[:] = np.inf
        if not self.with_batch:
            lasting = _over_others(self._means(nan_median(self._ratios(ratios, fit.steps, lasting=True))))
            for number in np.argsort(-np.nan_to_num(lasting))[:_STAND_OUT].tolist():
                self._spread[number] = ratios.spread_without(self._sets.index == number)

    def weigh(self, ratios: Ratios, *, smallest: float, smallest_lasting: Floats) -> None:
        """Take the last step; effects below the smallest are not sought."""
        noise = self.channel.noise
        if noise is None:
            return
        # By ratios with the batch in them both questions are asked of the same number.
        now = self._of_last(ratios)
        residual = now - noise.center
        sigma = np.maximum(noise.sigma, scatter(residual))
        self.channel.weigh(residual, sigma=sigma, smallest=smallest)
        self.channel.weigh_lasting(
            now if self.with_batch else self._of_last(ratios, lasting=True),
            sigma=sigma,
            smallest=np.minimum(
                nan_median(self._sets.gather(smallest_lasting), 1),
                np.maximum(smallest, np.expm1(UNLIKE_PEERS * self._spread)),
            ),
        )
        self.channel.settle()

    def found(self, ratios: Ratios, ranks: TimingChannel) -> list[SlowSet]:
        """Return the sets whose evidence suffices alone, not found before; ``ranks`` is their ranks'
        evidence."""
        over = (self.channel.scores() >= 1.0) & ~self.channel.raised & (self._not_before <= ratios.settled)
        due = [m for m in np.flatnonzero(over).tolist() if self.channel.alone(m)]
        if self.with_batch:
            self._not_before[due] = ratios.settled + _AGAIN
        slow = (self._slow(ratios, ranks, m) for m in due)
        return [one for one in slow if one is not None]

    def take(self, slow: SlowSet) -> None:
        """Take a set as slow until it recovers."""
        self.channel.find(slow.number, size=slow.ranks[0].size)

    def wanders(self, ratios: Ratios, slow: SlowSet) -> bool:
        """Return whether means of healthy sets may be as far off for as long (``usual_noise.wanders``), as
        where the ranks of one read a shard. They may until several times as many steps have been seen before.

        Of a few machines, whose work changes now and then, blocks as long as the slowdown mix what comes
        before and after; halves of it do less, and show how noise falls with the length of blocks.
        """
        held, found = min(ratios.settled, ratios.history.capacity), slow.ranks[0]
        length = block_length(found)
        past, size = _PAST_OF_BATCHES if self.with_batch else _PAST, found.size
        if self.with_batch and held < (past + 1) * length:
            # Where replicas are much more alike, half of that shows how they wander.
            past, size = past // 2, _HALF * found.size
        if held < (past + 1) * length:
            return True
        # Against sets of which one is slow, the others would seem to have become quicker.
        means = np.delete(self._means(self._ratios(ratios, held)), slow.number, axis=1)
        steps = min(found.steps, _LONGEST)
        usual = is_as_usual(size, steps, _over_others(means), block_steps=max(length // 2, 1))
        if usual and self.with_batch:
            self._not_before[slow.number] = ratios.settled + max(length // 4, _AGAIN)
        return usual

    def _slow(self, ratios: Ratios, ranks: TimingChannel, number: int) -> SlowSet | None:
        """Date and measure a set's slowdown; None unless most of its ranks show it.

        Baselines are drawn to what is usual of all, and what is left of a lasting one looks like a change.
        """
        change = None if self.channel.is_lasting(number) else self._measured(ratios, ranks, number)
        if self.channel.lasting.best[number] < self.channel.lasting.h:
            return change
        lasting = self._measured(ratios, ranks, number, lasting=True)
        if change is None or lasting is None:
            return change or lasting
        return lasting if change.ranks[0].size < _HALF * lasting.ranks[0].size else change

    def _measured(
        self, ratios: Ratios, ranks: TimingChannel, number: int, *, lasting: bool = False
    ) -> SlowSet | None:
        channel, noise = self.channel, self.channel.noise
        if noise is None:
            return None
        bank = channel.lasting if lasting else channel.change
        steps = min(bank.age_of(number) + LOOK_BEFORE, ratios.settled)
        # Many sets ask for nearly as many steps, and each step is compared by itself.
        most = math.ceil(steps / _ROWS) * _ROWS
        means = ratios.history.once(
            ("sets", self.with_batch, lasting, most),
            lambda: _over_others(self._means(self._ratios(ratios, most, lasting=lasting))),
        )[-steps:]
        means = means if lasting else means - noise.center
        sigma = float(noise.sigma[number])
        onset = locate_onset(means[:, number], sigma)
        since = means[onset.index :]
        members = self._sets.members[number]
        members = members[members >= 0]
        usual = 0.0 if lasting or ranks.noise is None else ranks.noise.center[members]
        if self.with_batch and not lasting:
            # Of those apart it is in what is usual of them.
            usual = usual + np.where(ratios.comparison.apart[members], 0.0, noise.center[number])
        own = self._ratios(ratios, len(since), lasting=lasting, ranks=members) - usual
        if np.mean(nan_median(own) >= _HALF * nan_median(since[:, number])) < MOST_OF_MACHINE:
            return None
        x, effect = self._sets.spread_out(since), self._sets.spread_out(nan_median(since))
        baseline = 0 if lasting else noise.samples
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
                spread=float(self._spread[number]),
            )
            for rank in members.tolist()
        )
        return SlowSet(number, tuple(slow))

    def _ratios(
        self, ratios: Ratios, steps: int, *, lasting: bool = False, ranks: Ints | slice = slice(None)
    ) -> Floats:
        """Return the ratios that sets are compared by in the last steps, [<= steps, ranks]."""
        if self.with_batch:
            return ratios.with_batch(steps)[:, ranks]
        return ratios.history.columns(series_of("compute", lasting=lasting), steps, ranks)

    def _of_last(self, ratios: Ratios, *, lasting: bool = False) -> Floats:
        """Return by how much each set is over the others in the last step, [sets]."""
        return _over_others(self._means(self._ratios(ratios, 1, lasting=lasting)[0]))

    def _means(self, x: Floats) -> Floats:
        """Return the mean of each set, [..., sets] of ``x`` [..., ranks]."""
        return nan_mean(self._sets.gather(x), axis=-1)


class WholeSets:
    """The machines of one job, tested where its work varies, and its replicas, where batches are uneven."""

    def __init__(self, ratios: Ratios) -> None:
        replicas = ratios.comparison.replicas
        of_batches = PeerGroups.of(np.zeros(ratios.ranks)) if replicas is None else replicas.ranks
        self._machines, self._of_batches = SlowSets(ratios.nodes), SlowSets(of_batches, with_batch=True)

    def forget(self) -> None:
        """Drop all evidence: ranks are compared with others now."""
        self._machines.forget()
        self._of_batches.forget()

    def refit(self, ratios: Ratios, fit: Fit) -> None:
        """Learn what is usual of sets, as of their ranks."""
        for sets in (self._machines, self._of_batches):
            if sets.comparable and (ratios.comparison.shares_batches or not sets.with_batch):
                sets.refit(ratios, fit)

    def found(
        self,
        ratios: Ratios,
        channel: TimingChannel,
        confirmed: Sequence[Candidate],
        gates: Gates,
        *,
        smallest_lasting: Floats,
    ) -> list[Candidate]:
        """Return the ranks of sets newly found slow as one, without ranks known to be slow, as ``confirmed``
        ones are; lasting effects below the smallest [ranks] are not sought."""
        slow = channel.raised.copy()
        slow[[found.rank for found in confirmed]] = True
        whole: list[Candidate] = []
        for sets in (self._machines, self._of_batches):
            if not sets.comparable or not _is_sought(ratios, with_batch=sets.with_batch):
                continue
            sets.weigh(ratios, smallest=COARSE_EFFECT, smallest_lasting=smallest_lasting)
            for one in sets.found(ratios, channel):
                fresh = self._confirmed(ratios, channel, sets, one, slow, gates)
                slow[[found.rank for found in fresh]] = True
                whole += fresh
        return whole

    def keep_apart(self, ratios: Ratios, channel: TimingChannel, slow: Bools) -> None:
        """Take no batch out of the ratios of replicas that are ``slow`` [ranks] as a whole."""
        before, noise = ratios.comparison.apart, self._of_batches.noise_of_ranks()
        if noise is None or not ratios.keep_apart(slow):
            return
        channel.narrow(before & ~ratios.comparison.apart)
        channel.widen(ratios.comparison.apart & ~before, noise)

    def _confirmed(
        self, ratios: Ratios, channel: TimingChannel, sets: SlowSets, one: SlowSet, slow: Bools, gates: Gates
    ) -> list[Candidate]:
        """Take a set as slow whose ranks pass the gates; return those that are not ``slow`` [ranks] yet."""
        if sets.wanders(ratios, one):
            return []
        over = slow.copy()
        over[[found.rank for found in one.ranks]] = True
        if sets.with_batch:
            # The gates ask what its ranks show, of which it is out while it passes for a batch.
            self.keep_apart(ratios, channel, over)
        if len(gates(one.ranks, over)) < MOST_OF_MACHINE * len(one.ranks):
            if sets.with_batch:
                self.keep_apart(ratios, channel, slow)
            return []
        sets.take(one)
        fresh = [found for found in one.ranks if not slow[found.rank]]
        for found in fresh:
            channel.take(found.rank, size=found.size, steps=found.steps, lasting=found.lasting)
        return fresh


def _is_sought(ratios: Ratios, *, with_batch: bool) -> bool:
    if ratios.asynchronous:
        return False
    if with_batch:
        return ratios.comparison.shares_batches and not ratios.comparison.small_role.any()
    dispersion = ratios.kind.dispersion
    return ratios.source == "compute" and not math.isnan(dispersion) and dispersion > VARIABLE_DISPERSION


def _over_others(means: Floats) -> Floats:
    """Return ``means`` [..., sets] less the median of the others."""
    over: Floats = means - peer_median(means, _everyone(means.shape[-1]))
    return over


@cache
def _everyone(sets: int) -> PeerGroups:
    return PeerGroups.of(np.zeros(sets, dtype=np.intp))
