"""By how much each machine came to take longer near a step: the median of eight steps less that before.

Asked for by every rank that is suspected, mostly for the same few onsets: kept until the next step.
"""

import math

import numpy as np
import numpy.typing as npt

from detectors.peers.history import History
from detectors.peers.peers import PeerGroups, group_median
from detectors.robust import nan_median, spread

Floats = npt.NDArray[np.float64]

# Steps on either side that are compared, and the fewest since then. Chosen: a median of eight passes over
# three pauses.
_STEPS, _LEAST_STEPS = 8, 3

# Steps from an onset that are looked at: a slowdown that is uneven may be dated to some steps later.
_NEAR = range(-15, 5, 3)

Shift = tuple[Floats, Floats]
"""Log seconds by which machines take longer than before, and the standard errors of that, [machines]."""


class MachineShifts:
    """The shifts of the machines of one job; ``nodes`` are the ranks of each."""

    def __init__(self, nodes: PeerGroups) -> None:
        self._nodes = nodes
        self._step = -1
        self._known: dict[int, list[Shift]] = {}

    def near(self, history: History, steps: int, *, settled: int) -> list[Shift]:
        """Return the shifts at the steps near the one that was ``steps`` ago, by the log seconds "v" held of
        the last ``settled`` steps: what comes before is warm-up."""
        if self._step != history.count:
            self._step, self._known = history.count, {}
        if steps not in self._known:
            held = min(steps - _NEAR[0] + _STEPS, settled)
            self._known[steps] = self._shifts(history.last("v", held), steps)
        return self._known[steps]

    def _shifts(self, held: Floats, steps: int) -> list[Shift]:
        onset = len(held) - steps
        levels = group_median(held[: max(onset + _NEAR[-1] + _STEPS, 0)], self._nodes)
        usual, cuts = _noise(levels), (onset + near for near in _NEAR)
        return [
            (_shift(levels, cut), np.maximum(usual, _noise_before(levels, cut)) * _error(len(levels) - cut))
            for cut in cuts
            if _STEPS <= cut <= len(levels) - _LEAST_STEPS
        ]


def _shift(levels: Floats, cut: int) -> Floats:
    """Return by how much ``levels`` [steps, machines] are longer from the step ``cut`` on, [machines]."""
    return nan_median(levels[cut : cut + _STEPS]) - nan_median(levels[cut - _STEPS : cut])


def _noise(levels: Floats) -> Floats:
    """Return the noise of one of the ``levels`` [steps, machines] of each machine."""
    noise: Floats = spread(np.diff(levels, axis=0)) / math.sqrt(2.0)
    return noise


def _noise_before(levels: Floats, cut: int) -> Floats:
    """Return the noise just before the step ``cut``: the end of a burst of long steps is no shift."""
    return _noise(levels[cut - _STEPS : cut])


def _error(since: int) -> float:
    """Return the standard error of a shift to a median of so many steps, of the noise of one step."""
    return 1.25 * math.sqrt(1.0 / _STEPS + 1.0 / min(since, _STEPS))
