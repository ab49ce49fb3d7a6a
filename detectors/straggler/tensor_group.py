"""How slow the mates of a slow rank are: of its tensor-parallel group, who may wait for it as they compute.

Measured over the rank's own slow steps and for all of them at once: they are found slow one by one, each from
other steps.
"""

import math

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


def mates(ratios: Ratios, channel: TimingChannel, slow: SlowRank, group: Ints) -> Mates:
    """Return how slow the others of ``group`` [members] were since the slow rank became so."""
    others = group[group != slow.rank]
    if not others.size:
        return ""
    sigma = noise_of(ratios, channel, slow.rank)
    x = deviations(ratios, channel, "compute", max(slow.steps, 1), lasting=slow.lasting)
    if slow.excursions:
        x = x[x[:, slow.rank] > SLOW_SIGMAS * sigma]
    effect, uncertain = nan_median(x), SURE_SIGMAS * sigma / math.sqrt(max(len(x), 1))
    own, least, most = float(effect[slow.rank]), float(effect[others].min()), float(effect[others].max())
    # What was not read is neither.
    if own - most >= max((1 - 1 / _CLEAR) * own, _LEAST, math.sqrt(2) * uncertain):
        return "less_slow" if least >= max(_FOLLOWS * own, uncertain) else ""
    return "as_slow" if least >= _ALIKE * own else ""
