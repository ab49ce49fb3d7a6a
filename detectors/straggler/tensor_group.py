"""How slow the mates of a slow rank are: of its tensor-parallel group, who may wait for it as they compute.

Measured over the rank's own slow steps and for all of them at once: they are found slow one by one, each from
other steps.
"""

import math

import numpy as np

from detectors.peers.ratios import Ratios
from detectors.robust import nan_median
from detectors.straggler.candidate import SLOW_SIGMAS, deviations, noise_of
from detectors.straggler.core import Ints, Mates, SlowRank
from detectors.straggler.gates import SURE_SIGMAS
from detectors.straggler.timing_channel import TimingChannel

_ALIKE = 0.5
"""Chosen, of a rank's own slowdown: mates who show less do not wait for all of it."""

_FOLLOWS = 0.1
"""Chosen, of a rank's own slowdown: least that mates show of it who wait for a part of it."""

_CLEAR, _LEAST = 1.5, 0.02
"""Chosen: the slowest is so many times as slow as the next, and by so much slower (``min_effect``), or the
slowest cannot be named."""


_SIZES = (2, 4, 8)
"""Sizes of tensor-parallel groups within a node: powers of two, ranks in a row (Megatron-LM's order)."""

_BEFORE = 10
"""Steps before an onset that say how slow ranks were. Chosen: their median bears an onset dated some off."""


def likely_group(ratios: Ratios, channel: TimingChannel, slow: SlowRank) -> Ints:
    """Return the ranks [members] that look like the tensor-parallel group of a slow rank without coordinates.

    They are in a row on its node and alone there in having become slower, each by half as much as the rank or
    more, in both halves of its slow steps: ranks that became so one after the other are slow for their own
    reasons. Empty where there is no such group.
    """
    own, steps = np.flatnonzero(ratios.nodes.index == ratios.nodes.index[slow.rank]), max(slow.steps, 1)
    x = deviations(ratios, channel, "compute", steps + _BEFORE, lasting=slow.lasting)
    before, x = x[:-steps], x[-steps:]
    if len(before) == _BEFORE:
        x = x - nan_median(before)
    effect = np.minimum(nan_median(x[: (len(x) + 1) // 2]), nan_median(x[len(x) // 2 :]))
    alike, place = effect[own] >= _ALIKE * effect[slow.rank], int(np.searchsorted(own, slow.rank))
    for size in _SIZES:
        group = slice(place // size * size, place // size * size + size)
        if size < len(own) and alike[group].all() and np.count_nonzero(alike) == size == len(own[group]):
            return own[group]
    return own[:0]


def mates(ratios: Ratios, channel: TimingChannel, slow: SlowRank, group: Ints) -> Mates:
    """Return how slow the others of ``group`` [members] were since the slow rank became so.

    Where the group is only likely (``likely_group``), its slowest rank stands for it as soon as noise does
    not explain the difference: ranks that look as slow stay apart.
    """
    others = group[group != slow.rank]
    if not others.size:
        return ""
    sigma = noise_of(ratios, channel, slow.rank)
    x = deviations(ratios, channel, "compute", max(slow.steps, 1), lasting=slow.lasting)
    if slow.excursions:
        x = x[x[:, slow.rank] > SLOW_SIGMAS * sigma]
    effect, uncertain = nan_median(x), SURE_SIGMAS * sigma / math.sqrt(max(len(x), 1))
    own, least, most = float(effect[slow.rank]), float(effect[others].min()), float(effect[others].max())
    clear = max((1 - 1 / _CLEAR) * own, _LEAST) if ratios.roles_known else 0.0
    # What was not read is neither.
    if own - most >= max(clear, math.sqrt(2) * uncertain):
        return "less_slow" if least >= max(_FOLLOWS * own, uncertain) else ""
    return "as_slow" if ratios.roles_known and least >= _ALIKE * own else ""
