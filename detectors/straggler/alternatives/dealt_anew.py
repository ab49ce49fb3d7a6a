"""Work that is dealt out anew: in one step some machines come to take longer, and others less than before.

Machines break one by one, and none becomes quicker by it. Where each replica reads files of its own, long
documents or short ones for some tens of steps, all of them change when the next files are begun.

Of each machine the median log seconds of eight steps are compared with those of the eight steps before, as
they are and beside the middle machine, near the onset, which may be dated some steps late. Work was dealt out
anew where the rank's machine rose by a third of what the rank is slow by, or more (that is beside what is
usual of it, and it may have had less work for long), or is beside the others all the time since then; and a
third of the machines moved by a quarter of that or more, and by 5 standard errors, two of them at least
downwards by both.
"""

import math

import numpy as np
import numpy.typing as npt

from detectors.peers.peers import group_median
from detectors.peers.ratios import Ratios
from detectors.robust import nan_median, spread
from detectors.straggler.candidate import Candidate

Floats = npt.NDArray[np.float64]

# Steps on either side that are compared, and the fewest since then. Chosen: a median of eight passes over
# three pauses.
_STEPS, _LEAST_STEPS = 8, 3

# Steps from the onset that are looked at: a slowdown that is uneven may be dated to some steps later.
_NEAR = range(-15, 5, 3)

# Chosen: of what the rank is slow by, what must have come at once.
_AT_ONCE = 1 / 3

# Chosen: of 1,000 machines one falls so far by chance once in 3,000 looks.
_SIGMAS = 5.0

# Chosen, of what the rank is slow by: less does not belong to it. One may fall as its own fault ends; of few
# machines two may have something of their own.
_BELONGS, _FALL, _MOVE = 1 / 4, 2, 1 / 3


def is_dealt_anew(ratios: Ratios, found: Candidate) -> bool:
    """Return whether other machines became quicker when that of the rank became slow."""
    machines, own = ratios.nodes, int(ratios.nodes.index[found.rank])
    if machines.sizes.size <= _FALL:
        return False
    held = ratios.history.last("v", found.steps - _NEAR[0] + _STEPS)
    onset = len(held) - found.steps
    levels = group_median(held[: onset + _NEAR[-1] + _STEPS], machines)
    noise = spread(np.diff(levels, axis=0)) / math.sqrt(2.0)
    cuts = (onset + step for step in _NEAR)
    return any(
        _moves_others(shift := _shift(levels, cut), found.size, _SIGMAS * noise * _error(len(levels) - cut))
        and (found.lasting or shift[own] - nan_median(shift) >= _AT_ONCE * found.size)
        for cut in cuts
        if _STEPS <= cut <= len(levels) - _LEAST_STEPS
    )


def _error(since: int) -> float:
    """Return the standard error of a shift to a median of so many steps, of the noise of one step."""
    return 1.25 * math.sqrt(1.0 / _STEPS + 1.0 / min(since, _STEPS))


def _shift(levels: Floats, cut: int) -> Floats:
    """Return by how much ``levels`` [steps, machines] are longer from the step ``cut`` on, [machines]."""
    return nan_median(levels[cut : cut + _STEPS]) - nan_median(levels[cut - _STEPS : cut])


def _moves_others(shift: Floats, size: float, clear: Floats) -> bool:
    """Return whether enough machines moved by a part of ``size``; ``clear`` [machines]: beyond noise."""
    beside, least = shift - nan_median(shift), np.maximum(_BELONGS * size, clear)
    fell, moved = np.maximum(shift, beside) <= -least, np.abs(beside) >= least
    return bool(np.count_nonzero(fell) >= _FALL and np.mean(moved) >= _MOVE)
