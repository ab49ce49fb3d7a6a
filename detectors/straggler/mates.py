"""Who is slow with a slow rank: its machine, and its tensor-parallel group, whose ranks wait for it.

Measured over the rank's own slow steps and for all of them at once: they are found slow one by one, each from
other steps.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from detectors.peers.node_effects import MOST_OF_MACHINE
from detectors.peers.peers import PeerGroups
from detectors.peers.places.machine_classes import ONE_CLASS
from detectors.peers.ratios import Ratios
from detectors.robust import Floats, nan_median
from detectors.straggler.alternatives.confirmation import SURE_SIGMAS
from detectors.straggler.alternatives.more_work import has_more_work
from detectors.straggler.alternatives.waiting import waits_least
from detectors.straggler.candidate import LOOK_BEFORE, SLOW_SIGMAS, Candidate, candidate, deviations, noise_of
from detectors.straggler.core import Ints, Mates, SlowRank, Timing
from detectors.straggler.evidence.timing_channel import QUIET_STEPS, TimingChannel

Bools = npt.NDArray[np.bool_]

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

# Steps between the onsets of slow ranks from which on they do not have one cause. Chosen: a ramp takes up to
# 32 steps (``llr_cusum.RAMPS``), and may be dated anywhere in it.
_APART = 32


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


def began_apart(ratios: Ratios, channel: TimingChannel, onset: float) -> Bools:
    """Return which slow ranks became so so long before or after an ``onset`` [Unix s] that they have another
    cause, [ranks]."""
    step = float(nan_median(nan_median(ratios.history.last("step", LOOK_BEFORE), axis=1)))
    apart: Bools = channel.raised & (np.abs(channel.onset - onset) > _APART * step)
    return apart


class Together(NamedTuple):
    """Sets of ranks that may be slow together, if so large a ``share`` of one is; ``wait``: for each other,
    within their compute."""

    sets: PeerGroups
    share: float
    wait: bool


def together(nodes: PeerGroups, tensor_groups: Ints | None) -> tuple[Together, ...]:
    """Return the sets that may be slow together: machines, where there are several, and tensor-parallel
    groups, numbered per rank (-1: none; None: unknown)."""
    found = [Together(nodes, MOST_OF_MACHINE, wait=False)] if nodes.sizes.size > 1 else []
    if tensor_groups is not None:
        by_itself = tensor_groups.max() + 1 + np.arange(tensor_groups.size)
        groups = PeerGroups.of(np.where(tensor_groups < 0, by_itself, tensor_groups))
        found.append(Together(groups, 1.0, wait=True))
    return tuple(found)


def slow_with(
    ratios: Ratios,
    channel: TimingChannel,
    confirmed: Iterable[Candidate],
    kinds: Iterable[Together],
    visited: Sequence[int],
    *,
    timing: Timing = "compute",
) -> list[Candidate]:
    """Return the ranks that are slow in ``timing`` with ``confirmed`` ones, or with some found before, and
    take them as slow: most of a machine, and all of a tensor-parallel group of which nobody is clearly
    slower. Those ``visited`` are slow in turn, and not with it.

    Where all of a set are slow, the noise of each decides who crosses the threshold first: one by one they
    would pass for faults of their own.
    """
    fresh, over, mates = {found.rank: found for found in confirmed}, channel.raised.copy(), list[Candidate]()
    over[list(fresh)] = True
    if not over.any():
        return []
    # What needs a second kind of evidence is none against others.
    sure = over & channel.sure
    known = channel.raised & sure & (channel.scores() >= 1.0)
    lately = _lately(ratios, channel, timing) if ratios.settled % _AGAIN == 0 and known.any() else None
    for kind in kinds:
        again = [] if lately is None else _with_others(kind, over, known, channel.size, lately)
        for rank in [*(r for r in fresh if sure[r]), *again]:
            members = kind.sets.members_with(rank)
            others = members[~over[members]]
            if not others.size:
                continue
            found = fresh.get(rank) or candidate(ratios, channel, timing, rank)
            own = others[~np.isin(others, visited)]
            alike = _as_slow(ratios, channel, found, own, wait=kind.wait)
            if len(alike) + len(members) - len(others) < kind.share * len(members):
                continue
            if kind.wait and stands_out(found.x[:, members], found.sigma) is not None:
                continue
            for mate in alike:
                channel.take(mate.rank, size=mate.size, steps=mate.steps, lasting=mate.lasting)
            over[[mate.rank for mate in alike]] = True
            mates += alike
    return mates


def _lately(ratios: Ratios, channel: TimingChannel, timing: Timing) -> Floats:
    """Return by how much ranks were slow in the last steps, [ranks], by either question."""
    change, lasting = (deviations(ratios, channel, timing, _AGAIN, lasting=x) for x in (False, True))
    slow: Floats = np.fmax(nan_median(change), nan_median(lasting))
    return slow


def _with_others(kind: Together, over: Bools, known: Bools, size: Floats, lately: Floats) -> list[int]:
    """Return the ``known`` ranks [ranks] in whose set enough were as slow ``lately``, and some have not been
    found (``over`` [ranks]); ``size`` [ranks] is by how much they were slow when found."""
    sets, least = kind.sets, np.full(kind.sets.sizes.size, np.inf)
    np.minimum.at(least, sets.index[known], _ALIKE * np.fmax(lately, _ALIKE * size)[known])
    slow = over | (lately >= least[sets.index])
    partly = np.bincount(sets.index, weights=over) < sets.sizes
    enough = np.bincount(sets.index, weights=slow) >= kind.share * sets.sizes
    return np.flatnonzero(known & (partly & enough)[sets.index]).tolist()


def _as_slow(
    ratios: Ratios, channel: TimingChannel, found: Candidate, others: Ints, *, wait: bool
) -> list[Candidate]:
    """Return those of ``others`` as candidates who are as slow as ``found`` since then and still are; none
    unless they clearly are, taken together."""
    # Machines differ for good, by some of what a slow rank of one is slow by.
    least = 1.0 - ONE_CLASS if found.lasting and not wait else _ALIKE
    now = nan_median(found.x[-QUIET_STEPS:])
    mates = [replace(found, rank=int(r), sigma=noise_of(ratios, channel, int(r))) for r in others]
    alike = [
        mate
        for mate in mates
        if mate.size >= max(least * found.size, _EACH_SIGMAS * mate.uncertainty)
        and now[mate.rank] >= least * max(now[found.rank], _ALIKE * found.size)
        and (wait or mate.timing != "compute" or not _is_explained(ratios, mate))
    ]
    if not alike:
        return []
    sure = math.fsum(m.size for m in alike) / math.hypot(*(m.uncertainty for m in alike))
    return alike if sure >= SURE_SIGMAS else []


def _is_explained(ratios: Ratios, mate: Candidate) -> bool:
    """Return whether a rank waits more than others, as a victim does, or has more work."""
    return waits_least(ratios, mate) is False or has_more_work(ratios, mate)


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
