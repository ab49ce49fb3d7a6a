"""How slow the mates of a slow rank are: of its tensor-parallel group, who may wait for it as they compute.

Measured over the rank's own slow steps and for all of them at once: they are found slow one by one, each from
other steps.
"""

import math
from collections.abc import Sequence

from detectors.accusation import SURE_SIGMAS, Accusation, series_of
from detectors.robust import nan_median
from detectors.straggler import StragglerDetector
from slowrank.telemetry.records import Mates

_ALIKE = 0.5
"""Of a rank's own slowdown: mates who show less do not wait for all of it."""

_FOLLOWS = 0.1
"""Of a rank's own slowdown: least that mates show of it who wait for a part of it."""

_SLOW_SIGMAS = 3.0
"""From here on a step counts as slow, of a rank that is slow on and off."""

_CLEAR, _LEAST = 1.5, 0.02
"""The slowest is so many times as slow as the next, and by so much slower, or nobody can tell."""


def mates(detector: StragglerDetector, a: Accusation, group: Sequence[int]) -> Mates:
    """Say how slow the others of ``group`` (places of ranks) were since the accused rank became slow."""
    others = [i for i in group if i != a.rank]
    if not others:
        return ""
    noise = detector.channels["compute"].noise
    sigma = max(detector.kind.dispersion, detector.ratios.config.floor)
    sigma = sigma if noise is None else float(noise.sigma[a.rank])
    x = detector.ratios.history.last(series_of("compute", lasting=a.lasting), max(a.steps, 1))
    if noise is not None and not a.lasting:
        x = x - noise.center
    if a.excursions:
        x = x[x[:, a.rank] > _SLOW_SIGMAS * sigma]
    effect, uncertain = nan_median(x), SURE_SIGMAS * sigma / math.sqrt(max(len(x), 1))
    own, least, most = float(effect[a.rank]), float(effect[others].min()), float(effect[others].max())
    # What was not read is neither.
    if own - most >= max((1 - 1 / _CLEAR) * own, _LEAST, math.sqrt(2) * uncertain):
        return "less_slow" if least >= max(_FOLLOWS * own, uncertain) else ""
    return "as_slow" if least >= _ALIKE * own else ""
