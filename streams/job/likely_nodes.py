"""Which ranks likely share a node where no row names one: launchers number the ranks of a node in a row."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from streams.job.rows.step_rows import Identity

# GPUs of most training nodes (DGX and HGX A100, H100, H200, B200); other jobs have a divisor of it to a node.
MOST_GPUS = 8

# Below, two ranks in a row would be a machine as often as two faults at once.
_LEAST_GPUS = 4


class LikelyNodes(NamedTuple):
    """Nodes of ``size`` ranks in a row, known by their ``first`` ranks; 0 and none where nothing tells."""

    size: int
    first: frozenset[int]

    def first_of(self, rank: int) -> int | None:
        """Return the first rank of the node of ``rank``, None where it has no likely one."""
        first = rank // self.size * self.size if self.size else rank
        return first if first in self.first else None

    def size_of(self, rank: int) -> int:
        """Return how many ranks share the node of ``rank``, 0 where it has no likely one."""
        return 0 if self.first_of(rank) is None else self.size


def likely_nodes(ranks: Mapping[int, Identity], world: int) -> LikelyNodes:
    """Return which of ``ranks``, of ``world`` in all, likely share a node: in a row from a multiple of its
    size on.

    Local ranks tell how many where rows have them, else it is the greatest divisor of ``world`` and of 8.
    None where that leaves one node, and none of those whose row lacks ranks, or beyond which a
    tensor-parallel group goes, whose ranks share a node.
    """
    local = {r: at.local_rank for r, at in ranks.items() if at.local_rank is not None}
    size = max(local.values()) + 1 if local else math.gcd(world, MOST_GPUS)
    if not _LEAST_GPUS <= size <= MOST_GPUS or world <= size:
        return LikelyNodes(0, frozenset())
    rows: dict[int, int] = {}
    groups: dict[tuple[tuple[str, int], ...], set[int]] = {}
    for rank, at in ranks.items():
        first = rank // size * size
        rows[first] = rows.get(first, 0) + (local.get(rank, rank - first) == rank - first)
        if (shared := _shared(at)) is not None:
            groups.setdefault(shared, set()).add(first)
    beyond = {first for on in groups.values() if len(on) > 1 for first in on}
    return LikelyNodes(size, frozenset(f for f, own in rows.items() if own == size and f not in beyond))


def _shared(at: Identity) -> tuple[tuple[str, int], ...] | None:
    """Return the coordinates that a rank has in common with its tensor-parallel group, if it is in one."""
    rest = tuple(one for one in at.coords if one[0] != "tp")
    return rest if len(rest) < len(at.coords) else None
