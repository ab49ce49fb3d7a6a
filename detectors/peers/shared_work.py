"""Which ranks get more work together: those at one expert's position, and those of one replica.

Where they become slow together, on one machine or on parts of several, the rows of steps do not show whether
it was their work that grew or their machines that slowed. Rows without coordinates do not tell who these are;
layouts number ranks by nested dimensions, though, so that every k-th rank of a machine may be at one
position, while what slows GPUs of a machine has one, neighbours, or all. Of eight ranks, a pair that became
slow is such a set by chance in one of seven cases.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import numpy.typing as npt

from detectors.peers.peers import PeerGroups

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]


# Steps for which a position of work counts after it was seen last. Chosen: work lingers for some tens to some
# hundreds of steps; of faults weeks apart, two pairs of a machine may well be two.
_REMEMBERED_STEPS = 1000


@dataclass(frozen=True, slots=True)
class SharedWork:
    """``experts`` and ``batches`` number, each [ranks], who gets work together (-1: the rank is in no such
    set), ``strides[i]`` who may: every 2^(i+1)-th rank of a machine; ``node`` numbers the machines."""

    experts: Ints
    batches: Ints
    node: Ints
    strides: tuple[Ints, ...] = ()

    @classmethod
    def from_coords(cls, coords: Mapping[str, Ints], node: Ints) -> "SharedWork":
        """Build from the positions of each rank (-1: unknown) and the numbers of their machines.

        An expert on several machines is none of these sets (``shards`` compares it there), neither is a
        replica that is one whole machine, whose slowness is the machine's, or one without further stages: a
        tensor-parallel group waits for its slowest within its compute.
        """
        none = np.full(node.size, -1, dtype=np.intp)
        at = {name: coords.get(name, none) for name in ("dp", "pp", "ep")}
        known = {name: bool(places.size and places.min() >= 0) for name, places in at.items()}
        experts, batches = none, none
        if known["ep"] and np.ptp(at["ep"]):
            rows = np.stack([at["pp"], at["ep"]])
            experts = np.unique(rows, axis=1, return_inverse=True)[1].reshape(-1).astype(np.intp)
            experts = _kept(experts, [same for same in _sets(experts) if np.unique(node[same]).size == 1])
        if known["dp"] and known["pp"] and np.ptp(at["dp"]) and np.ptp(at["pp"]):
            batches = at["dp"].astype(np.intp)
            batches = _kept(batches, [same for same in _sets(batches) if not _is_machine(same, node)])
        return cls(experts, batches, node)

    @classmethod
    def from_numbers(cls, numbers: Ints, node: Ints) -> "SharedWork":
        """Build from the ranks' numbers in their job, of ranks without coordinates: for the strides 2, 4 and
        so on, up to half of a machine, of machines that they divide into sets of one size."""
        none, nodes = np.full(node.size, -1, dtype=np.intp), PeerGroups.of(node)
        size = nodes.sizes[nodes.index]
        strides: list[Ints] = []
        stride = 2
        while 2 * stride <= size.max(initial=0):
            label = np.asarray(nodes.index * stride + numbers % stride, dtype=np.intp)
            # A machine of as many ranks as the stride has no sets, but single ranks.
            uneven = (np.bincount(label)[label] * stride != size) | (size < 2 * stride)
            strides.append(np.where(np.bincount(nodes.index, uneven)[nodes.index] == 0, label, -1))
            stride *= 2
        return cls(none, none, node, tuple(strides))

    def may_explain(self, rank: int, slow: Bools, *, batch_known: bool) -> bool:
        """Return whether all who get work together with ``rank`` are ``slow`` [ranks].

        ``batch_known``: ranks report the amounts of their batches, which a larger one would show in.
        """
        sets = (self.experts,) if batch_known else (self.experts, self.batches)
        known = any(label[rank] >= 0 and bool(slow[label == label[rank]].all()) for label in sets)
        return known or next(self.strided(rank, slow), None) is not None

    def strided(self, rank: int, slow: Bools) -> Iterator[tuple[int, Ints]]:
        """Yield which of the ``strides`` the ``slow`` ranks of the machine of ``rank`` make whole sets of, at
        most half of its sets, and the numbers of these."""
        on = self.node == self.node[rank]
        for number, label in enumerate(self.strides):
            if label[rank] < 0 or not slow[rank]:
                continue
            sets = np.unique(label[on & slow])
            whole = np.array_equal(on & np.isin(label, sets), on & slow)
            if whole and 2 * sets.size <= np.unique(label[on]).size:
                yield number, sets


@dataclass(slots=True)
class MovingWork:
    """Positions of ``shared`` work that moves, of ranks without coordinates: sets of every k-th rank of a
    machine that were slow in the course of a job.

    Two sets without a common rank are enough: by chance, of pairs of eight ranks, they are seen in one of 49
    cases, and two pairs seldom fail soon one after the other. One that was seen long before is forgotten.
    """

    shared: SharedWork
    _seen: dict[int, dict[tuple[int, ...], int]] = field(default_factory=dict)
    _risen: dict[frozenset[int], int] = field(default_factory=dict)

    def see(self, rank: int, slow: Bools, step: int) -> bool:
        """Take the ranks that are as ``slow`` [ranks] as ``rank`` at ``step``; return whether they may be a
        position."""
        found = False
        for stride, sets in self.shared.strided(rank, slow):
            seen = self._seen.get(stride, {})
            recent = {one: last for one, last in seen.items() if step - last <= _REMEMBERED_STEPS}
            self._seen[stride] = recent | {tuple(sets.tolist()): step}
            found = True
        return found

    def see_risen(self, together: Bools, step: int) -> None:
        """Take that ranks on parts of several machines rose ``together`` [ranks] (``risen_together``)."""
        recent = {one: last for one, last in self._risen.items() if step - last <= _REMEMBERED_STEPS}
        self._risen = recent | {frozenset(np.flatnonzero(together).tolist()): step}

    def has_risen_elsewhere(self, together: Bools) -> bool:
        """Return whether others than those ``together`` [ranks] rose so, too: then it is work that moves."""
        risen = set(np.flatnonzero(together).tolist())
        return bool(risen) and any(risen.isdisjoint(other) for other in self._risen)

    def explains(self, rank: int, slow: Bools) -> bool:
        """Return whether those as slow as ``rank`` are at a position of work that has moved."""
        return any(self._has_moved(stride) for stride, _ in self.shared.strided(rank, slow))

    def _has_moved(self, stride: int) -> bool:
        return any(not set(a) & set(b) for a, b in combinations(self._seen.get(stride, ()), 2))


def _sets(labels: Ints) -> list[Ints]:
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def _kept(labels: Ints, sets: list[Ints]) -> Ints:
    kept = np.full_like(labels, -1)
    for same in sets:
        kept[same] = labels[same]
    return kept


def _is_machine(same: Ints, node: Ints) -> bool:
    """Return whether a set is all of one machine."""
    machine = np.flatnonzero(node == node[same[0]])
    return np.array_equal(same, machine)
