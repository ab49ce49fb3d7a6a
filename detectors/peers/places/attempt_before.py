"""What one attempt of a job has shown of its ranks, for the next one on the same nodes.

Without coordinates, who does the same work is learnt from times. A node that slows as a job begins anew would
pass for a stage of other work then, but ranks that were as quick as others before have the same work still.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detectors.peers.node_effects import MOST_OF_MACHINE
from detectors.peers.peers import PeerGroups
from detectors.robust import nan_median

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

# Steps that an attempt must have seen for its levels to hold in the next. Chosen: as many as a rank's usual
# ratio is the median of (``ratios``).
STEPS = 50

# Chosen: ranks that take 5 % longer or shorter than before do other work, or as much in another layout.
_SAME_WORK = float(np.log(1.05))

# Chosen, of a slowdown: ranks that were slow by half as much before are no news (``candidate.HALF``).
_HALF = 0.5


@dataclass(frozen=True, slots=True)
class AttemptBefore:
    """``roles`` [ranks] number who did the same work, ``levels`` [ranks] are usual log seconds and ``ratios``
    [ranks] log ratios to the role; those of ranks that stand on another node now are NaN."""

    roles: Ints
    levels: Floats
    ratios: Floats

    def of_those(self, stayed: Sequence[bool]) -> "AttemptBefore":
        """Return the same with levels of those alone who ``stayed`` [ranks] on their nodes."""
        levels, ratios = (np.where(stayed, a, np.nan) for a in (self.levels, self.ratios))
        return AttemptBefore(self.roles, levels, ratios)

    def is_same_work(self, levels: Floats) -> bool:
        """Return whether the ranks mostly take as long as before, by their log seconds ``levels`` [ranks]."""
        moved = levels - self.levels
        return bool(np.isfinite(moved).any() and abs(float(nan_median(moved))) <= _SAME_WORK)

    def slowed_since(self, slow: Bools, nodes: PeerGroups, *, size: float) -> bool:
        """Return whether ``slow`` [ranks] are those of one node, and were not slow by half of ``size`` (log)
        before, against their role and against all: a stage would have been."""
        if not _is_one_node(slow, nodes):
            return False
        were = np.maximum(self.ratios, self.levels - nan_median(self.levels))
        return bool((were[slow] < _HALF * size).all())

    def unless_one_node(self, roles: Ints, nodes: PeerGroups) -> Ints:
        """Return the roles of before where ``roles`` [ranks], which times show now, differ from them by one
        node at most that was level with its role; else these."""
        apart = np.zeros(roles.size, dtype=np.bool_)
        for role in np.unique(self.roles):
            own = self.roles == role
            apart |= own & (roles != np.bincount(roles[own]).argmax())
        known = bool(np.isfinite(self.ratios[apart]).all())
        return self.roles if known and (not apart.any() or _is_one_node(apart, nodes)) else roles


def _is_one_node(ranks: Bools, nodes: PeerGroups) -> bool:
    on = np.unique(nodes.index[ranks])
    if on.size != 1:
        return False
    return bool(np.count_nonzero(ranks) >= MOST_OF_MACHINE * max(int(nodes.sizes[on[0]]), 2))
