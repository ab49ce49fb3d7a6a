"""Work that is dealt out anew: in one step some machines come to take longer, and others less than before.

Machines break one by one, and none becomes quicker by it. Where each replica reads files of its own, long
documents or short ones for some tens of steps, all of them change when the next files are begun.

Near the onset (``machine_shifts``), machines are compared with what they took before, as they are and beside
the middle one. Work was dealt out anew where the rank's machine rose by a third of what the rank is slow by
(that is beside what is usual of it, and it may have had less work for long), or is beside the others all the
time since then; and a third of the machines moved by a quarter of that, and by 5 standard errors, two of them
at least downwards by both.
"""

import numpy as np
import numpy.typing as npt

from detectors.peers.ratios import Ratios
from detectors.robust import nan_median
from detectors.straggler.candidate import Candidate

Floats = npt.NDArray[np.float64]

# Chosen: of what the rank is slow by, what must have come at once.
_AT_ONCE = 1 / 3

# Chosen: of 1,000 machines one falls so far by chance once in 3,000 looks.
_SIGMAS = 5.0

# Chosen, of what the rank is slow by: less does not belong to it. One may fall as its own fault ends; of few
# machines two may have something of their own.
_BELONGS, _FALL, _MOVE = 1 / 4, 2, 1 / 3


def is_dealt_anew(ratios: Ratios, found: Candidate) -> bool:
    """Return whether other machines became quicker when that of the rank became slow."""
    own = int(ratios.nodes.index[found.rank])
    if ratios.nodes.sizes.size <= _FALL:
        return False
    return any(
        (found.lasting or shift[own] - nan_median(shift) >= _AT_ONCE * found.size)
        and _moves_others(shift, found.size, _SIGMAS * error)
        for shift, error in ratios.machine_shifts.near(ratios.history, found.steps, settled=ratios.settled)
    )


def _moves_others(shift: Floats, size: float, clear: Floats) -> bool:
    """Return whether enough machines moved by a part of ``size``; ``clear`` [machines]: beyond noise."""
    beside, least = shift - nan_median(shift), np.maximum(_BELONGS * size, clear)
    fell, moved = np.maximum(shift, beside) <= -least, np.abs(beside) >= least
    return bool(np.count_nonzero(fell) >= _FALL and np.mean(moved) >= _MOVE)
