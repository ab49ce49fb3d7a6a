"""The hypotheses: families of sets of ranks that one cause would slow alike.

A family partitions (part of) the ranks of a job into atoms: its single ranks, its nodes, its tensor-parallel
groups and so on. Each atom is followed as the mean over its members, and compared with the atoms of its own
family alone. A new hypothesis is a row of ``RULES``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

Unit = Literal["rank", "node", "tensor", "replica", "expert", "ring", "stage", "block"]

MACHINES: frozenset[Unit] = frozenset(("rank", "node", "tensor", "replica"))
"""Units whose slowness is laid to hardware; the others are the nature of the job's work or its network."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the ranks of a job stand: ``nodes`` [ranks] (below zero: alone or unknown), ``coords`` the
    parallel coordinates by name, each [ranks] (-1: unknown), empty where they are not known; ``models``
    [ranks] number the GPU models."""

    ranks: int
    nodes: Ints | None = None
    coords: Mapping[str, Ints] = field(default_factory=dict)
    models: Ints | None = None

    def stage(self) -> Ints:
        """Return the pipeline stage of each rank, 0 where there is none."""
        return np.maximum(self.coords.get("pp", np.zeros(self.ranks, dtype=np.intp)), 0)


@dataclass(frozen=True, slots=True)
class Rule:
    """How the sets of one ``unit`` are found (a label per rank, below zero: in none), and the prior in nats
    against it: for what began while the job was watched, and for what was so from its start.

    The priors are those with which the method was measured (156 generated jobs, 115 cases of recordings).
    """

    unit: Unit
    label: Callable[[Layout], Ints | None]
    prior: float
    prior_at_start: float


@dataclass(frozen=True, slots=True)
class Family:
    """Atoms ``members`` of one unit; ``columns`` is their place among the atoms of all families."""

    rule: Rule
    members: tuple[Ints, ...]
    columns: slice

    def __len__(self) -> int:
        return len(self.members)


class Families:
    """All families of the ranks ``present``, and the means over their atoms.

    The first family is that of single ranks; an atom of one rank belongs to it alone. A family of a single
    atom has nothing to be compared with and is left out.
    """

    def __init__(self, layout: Layout, present: Bools, *, small: Bools) -> None:
        self.ranks = np.flatnonzero(present)
        kept: list[Family] = []
        begin = 0
        for rule in RULES:
            members = _sets(rule, layout, present, small)
            if len(members) >= 2 or rule.unit == "rank":
                kept.append(Family(rule, members, slice(begin, begin + len(members))))
                begin += len(members)
        self.all: tuple[Family, ...] = tuple(kept)
        self.atoms = begin
        sets = [m for family in kept[1:] for m in family.members]
        self._sizes = np.array([len(m) for m in sets], dtype=np.float64)
        self._order = np.concatenate(sets) if sets else np.array([], dtype=np.intp)
        self._starts = np.cumsum([0, *(len(m) for m in sets[:-1])]) if sets else np.array([], dtype=np.intp)

    def means(self, x: Floats) -> Floats:
        """Return the mean over the members of each atom, [..., atoms], of values [..., ranks of the job]."""
        single = x[..., self.ranks]
        if not self._sizes.size:
            return single
        sums = np.add.reduceat(x[..., self._order], self._starts, axis=-1)
        return np.concatenate([single, sums / self._sizes], axis=-1)

    def atom(self, column: int) -> tuple[Family, Ints]:
        """Return the family and the members of the atom in a column."""
        family = next(f for f in self.all if column < f.columns.stop)
        return family, family.members[column - family.columns.start]


def _sets(rule: Rule, layout: Layout, present: Bools, small: Bools) -> tuple[Ints, ...]:
    if rule.unit == "rank":
        return tuple(np.array([rank]) for rank in np.flatnonzero(present))
    labels = rule.label(layout)
    if labels is None:
        return ()
    # Within a role a stage has nobody to be compared with; small roles are compared with the whole job.
    chosen = present & (labels >= 0) & (small if rule.unit == "stage" else True)
    found = [np.flatnonzero(chosen & (labels == label)) for label in np.unique(labels[chosen])]
    return tuple(members for members in found if len(members) >= 2)


def _number(layout: Layout, *names: str) -> Ints | None:
    """Number the sets of ranks that agree in some coordinates; None where these are not known."""
    if not names or any(name not in layout.coords for name in names):
        return None
    rows = np.stack([layout.coords[name] for name in names], axis=1)
    labels: Ints = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
    return np.where((rows < 0).any(axis=1), -1, labels)


def _known(layout: Layout, *names: str) -> tuple[str, ...]:
    return tuple(n for n in names if n in layout.coords and (layout.coords[n] >= 0).all())


def _tensor(layout: Layout) -> Ints | None:
    return _number(layout, *_known(layout, "dp", "pp", "cp")) if _known(layout, "tp") else None


def _expert(layout: Layout) -> Ints | None:
    return _number(layout, *_known(layout, "pp"), "ep") if _known(layout, "ep") else None


def _ring(layout: Layout) -> Ints | None:
    return _number(layout, *_known(layout, "pp", "tp", "cp")) if _known(layout, "dp", "tp") else None


def _blocks(parts: int) -> Callable[[Layout], Ints | None]:
    def label(layout: Layout) -> Ints | None:
        if layout.coords or layout.ranks < 2 * parts:
            return None
        return np.arange(layout.ranks) * parts // layout.ranks

    return label


RULES = (
    Rule("rank", lambda layout: None, 0.0, 0.0),
    Rule("node", lambda layout: layout.nodes, 1.0, 1.0),
    Rule("tensor", _tensor, 1.0, 1.5),
    Rule("replica", lambda layout: _number(layout, "dp"), 1.0, 1.0),
    Rule("expert", _expert, 0.0, 0.0),
    Rule("ring", _ring, 0.0, 0.0),
    Rule("stage", lambda layout: _number(layout, "pp"), 0.0, 0.0),
    *(Rule("block", _blocks(parts), 5.0, -2.0) for parts in (2, 4, 8)),
)
