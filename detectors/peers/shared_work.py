"""Which ranks get more work together: those at one expert's position, and those of one replica.

Where they become slow together, on one machine or on parts of several, the rows of steps do not show whether
it was their work that grew or their machines that slowed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class SharedWork:
    """``experts`` and ``batches`` number, each [ranks], who gets work together (-1: the rank is in no such
    set)."""

    experts: Ints
    batches: Ints

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
        return cls(experts, batches)

    def may_explain(self, rank: int, slow: Bools, *, batch_known: bool) -> bool:
        """Return whether all who get work together with ``rank`` are ``slow`` [ranks].

        ``batch_known``: ranks report the amounts of their batches, which a larger one would show in.
        """
        sets = (self.experts,) if batch_known else (self.experts, self.batches)
        return any(label[rank] >= 0 and bool(slow[label == label[rank]].all()) for label in sets)


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
