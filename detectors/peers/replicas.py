"""What the ranks that work on one batch share: the batch.

In a job with packed sequences every data-parallel replica gets another amount of work in every step, and all
its stages and shards get the same. What the rest of a replica deviates by is due to the batch, not the rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from detectors.peers.node_effects import MOST_OF_MACHINE
from detectors.peers.peers import PeerGroups, group_median, peer_median

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

# Replicas of a job of which one may be slow since the start. Chosen: of a class of machines a job has more
# than an eighth, and the neighbours of one rack may be one replica of few. Of six whose machines stand apart,
# two slow machines are one replica by chance once in eleven times.
MANY_REPLICAS, _SEVERAL_REPLICAS = 8, 6


@dataclass(frozen=True)
class Replicas:
    """Ranks by replica and node (``parts``), and the parts by replica.

    A part is compared with the parts on other nodes: a slow node must not pass for a large batch. In a job on
    one node every rank is a part.
    """

    parts: PeerGroups
    replicas: PeerGroups

    @classmethod
    def of(cls, replica: Ints, node: Ints) -> "Replicas | None":
        """Build from the replica and node number of each rank; None when a replica has no second node."""
        node = np.arange(node.size) if (node == node[0]).all() else node
        pairs, part = np.unique(np.stack([replica, node]), axis=1, return_inverse=True)
        replicas = PeerGroups.of(pairs[0])
        return cls(PeerGroups.of(part.reshape(-1)), replicas) if replicas.narrowest >= 2 else None

    @classmethod
    def from_coords(cls, coords: Mapping[str, Ints], node: Ints) -> "Replicas | None":
        """Build from the positions of each rank; None also when data-parallel ones are not known."""
        # Ranks that differ in cp have a part of each sequence.
        return None if (coords["dp"] < 0).any() else cls.of(coords["dp"], node)

    @cached_property
    def ranks(self) -> PeerGroups:
        """The ranks by replica."""
        return PeerGroups.of(self.replicas.index[self.parts.index])

    def whole(self, slow: Bools) -> Bools:
        """Return the ranks of replicas that are ``slow`` nearly as a whole, [ranks]."""
        share = np.bincount(self.ranks.index, weights=slow) / self.ranks.sizes
        whole: Bools = share >= MOST_OF_MACHINE
        return whole[self.ranks.index]

    def is_one(self, ranks: Bools) -> bool:
        """Return whether some ``ranks`` [ranks] are nearly all of one replica of many, or of several whose
        machines are no neighbours."""
        where = np.flatnonzero(ranks)
        if not where.size or np.unique(self.ranks.index[where]).size > 1:
            return False
        members = self.ranks.members_with(int(where[0]))
        apart = members[-1] - members[0] >= members.size
        least = _SEVERAL_REPLICAS if apart else MANY_REPLICAS
        return self.ranks.sizes.size >= least and bool(self.whole(ranks)[where].all())

    def batch(self, ratio: Floats) -> Floats:
        """Return what the rest of each rank's replica deviates by; ``ratio``: log to peers, [..., ranks]."""
        rest = peer_median(group_median(ratio, self.parts), self.replicas)
        # Where no other part was read, the batch is taken to be as usual.
        return np.nan_to_num(rest)[..., self.parts.index]
