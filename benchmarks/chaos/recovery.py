"""How far behind the workers were, and from when on they were not any more. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# Before a disturbance, in which is looked what is usual.
USUAL_SECONDS = 20.0
# Above the most that was seen then. Chosen: offsets are committed once a second.
MARGIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Look:
    """``behind``: age in seconds of the oldest record that is due and not processed, at second ``at``."""

    at: float
    behind: float


def behind(dues: npt.NDArray[np.float64], processed: int, at: float) -> float:
    """Return the age at second ``at`` of the first record after those processed, 0 if it is not due yet.

    >>> behind(np.array([1.0, 2.0, 9.0]), 1, 6.5)
    4.5
    >>> behind(np.array([1.0, 2.0, 9.0]), 2, 6.5)
    0.0
    """
    return max(0.0, at - float(dues[processed])) if processed < len(dues) else 0.0


def worst(looks: Sequence[Look], began: float) -> float:
    """Return by how many seconds a group was behind at most since second ``began``."""
    return max((look.behind for look in looks if look.at >= began), default=0.0)


def recovered_after(looks: Sequence[Look], began: float) -> float:
    """Return for how many seconds from ``began`` on a group was further behind than usual, to the last look.

    >>> looks = [Look(0, 1), Look(9, 2), Look(12, 4), Look(15, 2), Look(18, 9), Look(21, 3)]
    >>> recovered_after(looks, 10.0)
    11.0
    """
    usual = max((look.behind for look in looks if began - USUAL_SECONDS <= look.at < began), default=0.0)
    late = [n for n, look in enumerate(looks) if look.at >= began and look.behind > usual + MARGIN_SECONDS]
    # Until the look after the last one at which it was late.
    return looks[min(late[-1] + 1, len(looks) - 1)].at - began if late else 0.0
