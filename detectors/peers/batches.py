"""Who works on one batch, where no coordinates tell it: ranks that report the same amounts step after step.

All ranks of a data-parallel replica work on its batch, and another replica has another one, of another length
where lengths vary. A pipeline stage, or a part of a layer, has ranks in every replica, and an expert in
several: what makes ranks of few replicas slow, on one machine or in one replica, is neither of them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detectors.peers.peers import PeerGroups

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

# Amounts read of two ranks that must all be the same. Chosen: two batches of one length are rare, three pairs
# of them in a row are none.
_LEAST = 3

# Chosen: a rank that reported half of its steps has enough in common with another one.
_MOST_STEPS = 10

# Chosen: noise hides some ranks of a stage, but not those of half of the replicas.
_MOST_REPLICAS = 0.5

# Chosen, as for the ranks of a slow machine (``node_effects``): one of four may be slow by chance.
_TOGETHER = 0.75


@dataclass(frozen=True, slots=True)
class Batches:
    """``replica`` and ``node`` number, each [ranks], who works on one batch and who shares a machine."""

    replica: Ints
    node: Ints

    @classmethod
    def from_amounts(cls, node: Ints, *amounts: Floats) -> "Batches | None":
        """Build from ``amounts``, each [steps, ranks], NaN where not read.

        None where they do not show it: they are not reported, alike on all ranks, or each rank's own.

        >>> tokens = np.array([[7.0, 7.0, 9.0, 9.0], [8.0, 8.0, 6.0, 6.0], [5.0, 5.0, 5.0, 5.0]])
        >>> Batches.from_amounts(np.arange(4), tokens).replica.tolist()
        [0, 0, 1, 1]
        >>> Batches.from_amounts(np.arange(4), np.full((3, 4), 7.0)) is None
        True
        """
        x = np.concatenate([each[-_MOST_STEPS:] for each in amounts])
        read = np.isfinite(x)
        x[~read] = np.nan
        # Ranks of one replica follow each other in the order of an amount, but for those that lack it.
        one = x[np.count_nonzero(read, axis=1).argmax()]
        order, known = np.argsort(one), np.count_nonzero(np.isfinite(one))
        ends = np.searchsorted(one[order[:known]], one[order], side="right")
        replica = np.full(node.size, -1, dtype=np.intp)
        number = size = 0
        for place, rank in enumerate(order):
            if replica[rank] >= 0:
                continue
            near = np.concatenate((order[place : ends[place]], order[max(place, known) :]))
            near = near[replica[near] < 0]
            both = read[:, near] & read[:, [rank]]
            alike = (x[:, near] == x[:, [rank]]) | ~both
            same = near[alike.all(axis=0) & (np.count_nonzero(both, axis=0) >= _LEAST)]
            # Replicas have as many ranks each; one by itself may report what is its own.
            size = size or same.size
            if size < 2 or same.size != size:
                return None
            replica[same] = number
            number += 1
        return cls(replica, node) if number > 1 else None

    def rule_out_stage(self, slow: Bools) -> bool:
        """Return whether the ``slow`` ranks [ranks] stand as those of no stage, part of a layer or expert do:
        in fewer than half of the replicas, and nearly all on one machine of several or in one replica."""
        if not slow.any() or not np.ptp(self.node):
            return False
        few = np.unique(self.replica[slow]).size < _MOST_REPLICAS * (int(self.replica.max()) + 1)
        parts = (np.unique(label[slow], return_counts=True)[1].max() for label in (self.node, self.replica))
        return few and bool(max(parts) >= _TOGETHER * np.count_nonzero(slow))

    @property
    def places(self) -> Ints:
        """The place of each rank in its replica, by its number, [ranks]: as replicas are laid out alike,
        those at one place do the same."""
        order = np.argsort(self.replica, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(order.size) % np.count_nonzero(self.replica == self.replica[0])
        return place

    def are_within(self, groups: PeerGroups) -> bool:
        """Return whether no group has ranks of two replicas: those of one take longer in the same steps, as
        its batches do."""
        pairs = np.unique(np.stack([groups.index, self.replica]), axis=1)
        return bool(pairs.shape[1] == groups.sizes.size)
