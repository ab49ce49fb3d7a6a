"""What the ranks at one position of a layer share: their part of its work.

Tensor, context and expert parallelism cut a layer's work into parts that are not always even: a causal mask,
a popular expert or an embedding gives one position more to do than the others, on all nodes alike. That is
due to the cut and to no machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detectors.peers.peers import MIN_PEERS, PeerGroups, group_median
from detectors.robust import nan_median

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

DIMENSIONS = ("tp", "cp", "ep")

# Least distance of a position from the others of its role, as a share of what one rank is slow by (chosen).
_APART = 0.5

# Most that a rank differs from its position, as a share of that distance (chosen).
_ALIKE = 0.5

# Of the ranks at a position that must be alike. Chosen: one of four may be slow besides.
_SHARE = 0.75

# Least distance between parts of a sequence that are uneven from the start, in logs, and the most that ranks
# differ from others at their part, as a share of it. Chosen: healthy ranks and machines differ by one per
# cent for good.
_UNEVEN, _NEAR = 0.03, 0.25

# Whole machines that must be alike to be taken for a position. Chosen: two may both be slow.
_MACHINES = 3


@dataclass(frozen=True, slots=True)
class Shards:
    """``parts`` number the positions per dimension, each [ranks]; ``node`` [ranks] the machines. ``cuts`` are
    those of them whose work does not change with the batch, as an expert's does; ``sequence`` has which part
    of it each rank has, [ranks], None where it is not divided."""

    parts: tuple[Ints, ...]
    node: Ints
    cuts: tuple[Ints, ...] = ()
    sequence: Ints | None = None

    @classmethod
    def from_coords(cls, coords: Mapping[str, Ints], node: Ints) -> "Shards":
        """Build from the positions of each rank, -1 = unknown."""
        known = {name: coords[name] for name in DIMENSIONS if name in coords and coords[name].min() >= 0}
        return cls(
            tuple(known.values()),
            node,
            tuple(at for name, at in known.items() if name != "ep" and np.ptp(at)),
            known["cp"] if "cp" in known and np.ptp(known["cp"]) else None,
        )

    def explain(self, effect: Floats, rank: int, role: Bools) -> bool:
        """Whether ``rank`` is as slow as those at its position are, and unlike the others.

        ``effect`` [ranks] are log ratios to peers, ``role`` [ranks] marks who does the same work as it.
        """
        return any(self._is_shared(part, effect, rank, role) for part in self.parts)

    def uneven(self, usual: Floats, roles: PeerGroups) -> Ints | None:
        """Return the parts of a sequence, [ranks], if these divide the work of ``roles`` unevenly from the
        start, as under a causal mask; None where ranks differ otherwise, or have too few peers.

        ``usual`` [ranks] are the ranks' usual log ratios to their role.
        """
        if self.sequence is None:
            return None
        at = PeerGroups.of(self.sequence)
        levels = group_median(usual, at)
        apart = float(np.ptp(levels))
        if not apart >= _UNEVEN or roles.divided(at.index).narrowest <= MIN_PEERS:
            return None
        # Negated: of a rank that was not read nothing is known.
        misfits = ~(np.abs(usual - at.spread_out(levels)) <= _NEAR * apart)
        if (np.bincount(at.index, weights=misfits) > (1.0 - _SHARE) * at.sizes).any():
            return None
        one = int(np.abs(levels - np.median(levels)).argmax())
        alone = np.ptp(np.delete(levels, one)) <= _NEAR * apart
        return None if alone and self._may_be_machines(at.index == one) else self.sequence

    def stands_with(self, levels: Floats, rank: int, role: Bools, *, size: float) -> bool:
        """Whether ``rank``, slower by ``size`` than it was, takes as long now as the others at its position,
        which take longer than those at others; ``levels`` [ranks] are log ratios to the role.

        Of an expert that grew in two steps, what is usual of its ranks may not have been learnt alike.
        """
        parts = (role & (part == part[rank]) for part in self.parts)
        return any(self._is_level(same, levels, rank, role & ~same, size) for same in parts)

    def _is_level(self, same: Bools, levels: Floats, rank: int, others: Bools, size: float) -> bool:
        mates = same & (np.arange(same.size) != rank)
        if not mates.any() or not others.any() or self._may_be_machines(same):
            return False
        usual = float(nan_median(levels[mates]))
        apart = usual - float(nan_median(levels[others]))
        return bool(apart >= _APART * size and levels[rank] - usual <= _ALIKE * size)

    def _is_shared(self, part: Ints, effect: Floats, rank: int, role: Bools) -> bool:
        same = role & (part == part[rank])
        others = role & ~same
        if same.sum() < 2 or not others.any() or self._may_be_machines(same):
            return False
        read = same & np.isfinite(effect)
        if read.sum() < 2:
            # Whether the others of its expert, which may be popular, are as slow is not known.
            return not any(part is cut for cut in self.cuts)
        usual = float(nan_median(effect[read]))
        apart = usual - float(nan_median(effect[others]))
        alike = np.abs(effect[read] - usual) <= _ALIKE * apart
        return bool(apart >= _APART * effect[rank] and np.mean(alike) >= _SHARE)

    def _may_be_machines(self, same: Bools) -> bool:
        """Whether few machines have all of their ranks among the ``same``."""
        machines = np.unique(self.node[same])
        if machines.size >= _MACHINES:
            return False
        ranks = (self.node == machine for machine in machines)
        return any(on.sum() > 1 and same[on].all() for on in ranks)
