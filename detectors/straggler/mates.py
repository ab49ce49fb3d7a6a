"""Who is slow with a slow rank: its machine, and its tensor-parallel group, whose ranks wait for it.

Measured over the rank's own slow steps and for all of them at once: they are found slow one by one, each from
other steps.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from detectors.peers.node_effects import MOST_OF_MACHINE, ONE_CLASS
from detectors.peers.ratios import Ratios
from detectors.robust import Floats, nan_median
from detectors.straggler.candidate import SLOW_SIGMAS, Candidate, candidate, deviations, noise_of
from detectors.straggler.core import Ints, Mates, SlowRank
from detectors.straggler.gates import SURE_SIGMAS
from detectors.straggler.timing_channel import TimingChannel

# Chosen, of a rank's own slowdown: mates who show less do not wait for all of it.
_ALIKE = 0.5

# Chosen, of a rank's own slowdown: least that mates show of it who wait for a part of it.
_FOLLOWS = 0.1

# Chosen: the slowest is so many times as slow as the next, and by so much slower (``min_effect``), or the
# slowest cannot be named.
_CLEAR, _LEAST = 1.5, 0.02

# Standard errors that each mate's slowness is over, where that of all of them is over ``SURE_SIGMAS``: one in
# 44 healthy ones is.
_EACH_SIGMAS = 2.0

# Steps after which mates are looked at again, if they were as slow in so many. Chosen: dating an onset takes
# as long as a step.
_AGAIN = 5

# Sizes of tensor-parallel groups within a node: powers of two, ranks in a row (Megatron-LM's order).
_SIZES = (2, 4, 8)

# Steps before an onset from which the usual ratio is taken. Chosen: their median tolerates an onset that is a
# few steps off.
_BEFORE = 10


class TensorGroup(NamedTuple):
    """The ranks of a tensor-parallel group [members]; ``known`` by coordinates, or only likely."""

    members: Ints
    known: bool


def likely_group(ratios: Ratios, channel: TimingChannel, slow: SlowRank) -> TensorGroup:
    """Return the ranks that look like the tensor-parallel group of a slow rank without coordinates.

    They are in a row on its node and alone there in having become slower, each by half as much as the rank or
    more, in both halves of its slow steps (where it is slow on and off, of those alone): ranks that became so
    one after the other are slow for their own reasons. Empty where there is no such group.
    """
    own, steps = np.flatnonzero(ratios.nodes.index == ratios.nodes.index[slow.rank]), max(slow.steps, 1)
    x = deviations(ratios, channel, "compute", steps + _BEFORE, lasting=slow.lasting)
    before, x, half = x[:-steps], x[-steps:], _ALIKE * math.log(max(slow.ratio, 1.0))
    # One that is slow on and off may have been so shortly before this onset, too. Before a lasting
    # one roles may not have been known.
    if not slow.lasting and len(before) == _BEFORE and (usual := nan_median(before))[slow.rank] < half:
        x = x - usual
    x = x[x[:, slow.rank] >= half]
    effect = np.minimum(nan_median(x[: (len(x) + 1) // 2]), nan_median(x[len(x) // 2 :]))
    # Where its onset is dated wrong, the rank may not be slow since: then no other is slow as it is.
    if not effect[slow.rank] > 0:
        return TensorGroup(own[:0], known=False)
    alike, place = effect[own] >= _ALIKE * effect[slow.rank], int(np.searchsorted(own, slow.rank))
    for size in _SIZES:
        group = slice(place // size * size, place // size * size + size)
        if size < len(own) and alike[group].all() and np.count_nonzero(alike) == size == len(own[group]):
            return TensorGroup(own[group], known=False)
    return TensorGroup(own[:0], known=False)


def mates(ratios: Ratios, channel: TimingChannel, slow: SlowRank, group: TensorGroup) -> Mates:
    """Return how slow the others of ``group`` were since the slow rank became so.

    Where the group is only likely, its ranks are as slow unless one of them is slower than the next by more
    than noise explains: two faults of one size at one moment are one.
    """
    others = group.members[group.members != slow.rank]
    if not others.size:
        return ""
    sigma = noise_of(ratios, channel, slow.rank)
    x = deviations(ratios, channel, "compute", max(slow.steps, 1), lasting=slow.lasting)
    if slow.excursions:
        x = x[x[:, slow.rank] > SLOW_SIGMAS * sigma]
    effect, uncertain = nan_median(x), SURE_SIGMAS * sigma / math.sqrt(max(len(x), 1))
    own, least, most = float(effect[slow.rank]), float(effect[others].min()), float(effect[others].max())
    clear = max((1 - 1 / _CLEAR) * own if group.known else 0.0, _LEAST, math.sqrt(2) * uncertain)
    # What was not read is neither.
    if own - most >= clear:
        return "less_slow" if least >= max(_FOLLOWS * own, uncertain) else ""
    slowest, next_one = np.sort(effect[group.members])[:-3:-1].tolist()
    if not group.known and slowest - next_one >= clear:
        return ""
    return "as_slow" if least >= _ALIKE * own else ""


def slow_with(
    ratios: Ratios, channel: TimingChannel, confirmed: Iterable[Candidate], groups: Ints | None
) -> list[Candidate]:
    """Return the ranks that are slow in compute with ``confirmed`` ones, or with some found before, and take
    them as slow: most of its machine, and the others of its tensor-parallel group, of which nobody is clearly
    slower. ``groups`` [ranks] number these (-1: none); None: unknown.

    Where all of a set are slow, the noise of each decides who crosses the threshold first: one by one they
    would pass for faults of their own.
    """
    fresh, over, mates = {found.rank: found for found in confirmed}, channel.raised.copy(), list[Candidate]()
    over[list(fresh)] = True
    due = list(fresh)
    if ratios.settled % _AGAIN == 0:
        due += np.flatnonzero(channel.raised & (channel.scores() >= 1.0)).tolist()
    # What needs a second kind of evidence is none against others.
    for rank in (r for r in due if channel.alone(r)):
        for one in _sets_of(ratios, groups, rank, lasting=channel.is_lasting(rank)):
            found, others = fresh.get(rank), one.members[~over[one.members]]
            if not others.size or (found is None and not _looks_alike(ratios, channel, rank, one)):
                continue
            found = found or candidate(ratios, channel, "compute", rank)
            alike = _as_slow(ratios, channel, found, others, least=one.alike)
            if len(alike) + len(one.members) - len(others) < one.share * len(one.members):
                continue
            if one.wait and stands_out(found.x[:, one.members], found.sigma) is not None:
                continue
            for mate in alike:
                bank = channel.lasting if mate.lasting else channel.change
                bank.take(mate.rank, size=mate.size, steps=mate.steps)
            over[[mate.rank for mate in alike]] = True
            mates += alike
    return mates


class _Together(NamedTuple):
    """Ranks who may be slow with one of them if so large a ``share`` is, each by the share ``alike`` of its
    slowdown; ``wait``: for each other, within their compute."""

    members: Ints
    share: float
    alike: float
    wait: bool


def _sets_of(ratios: Ratios, groups: Ints | None, rank: int, *, lasting: bool) -> list[_Together]:
    sets = []
    machine = ratios.nodes.index == ratios.nodes.index[rank]
    if not machine.all():
        # Machines differ for good, by some of what a slow rank of one is slow by.
        alike = 1.0 - ONE_CLASS if lasting else _ALIKE
        sets.append(_Together(np.flatnonzero(machine), MOST_OF_MACHINE, alike, wait=False))
    if groups is not None and groups[rank] >= 0:
        sets.append(_Together(np.flatnonzero(groups == groups[rank]), 1.0, _ALIKE, wait=True))
    return sets


def _looks_alike(ratios: Ratios, channel: TimingChannel, rank: int, one: _Together) -> bool:
    """Return whether enough ranks were as slow as ``rank`` lately; if not, its onset need not be dated."""
    x = deviations(ratios, channel, "compute", _AGAIN, lasting=channel.is_lasting(rank))
    least = one.alike * float(nan_median(x[:, rank]))
    return bool(np.mean(nan_median(x[:, one.members]) >= least) >= one.share)


def _as_slow(
    ratios: Ratios, channel: TimingChannel, found: Candidate, others: Ints, *, least: float
) -> list[Candidate]:
    """Return those of ``others`` as candidates who are as slow as ``found`` since then, by the share
    ``least`` of it; none unless they clearly are, taken together."""
    mates = [replace(found, rank=int(r), sigma=noise_of(ratios, channel, int(r))) for r in others]
    alike = [m for m in mates if m.size >= max(least * found.size, _EACH_SIGMAS * m.uncertainty)]
    if not alike:
        return []
    together = math.fsum(m.size for m in alike) / math.hypot(*(m.uncertainty for m in alike))
    return alike if together >= SURE_SIGMAS else []


def stands_out(x: Floats, sigma: float) -> int | None:
    """Return the column of ``x`` [steps, ranks] that is clearly slower than all others, noise ``sigma``
    apart."""
    if x.shape[1] < 2:
        return None
    effect = np.nan_to_num(nan_median(x), nan=-np.inf)
    next_one, worst = np.argsort(effect)[-2:].tolist()
    uncertain = math.sqrt(2) * SURE_SIGMAS * sigma / math.sqrt(len(x))
    clear = max((1 - 1 / _CLEAR) * effect[worst], _LEAST, uncertain)
    return int(worst) if effect[worst] - effect[next_one] >= clear else None
