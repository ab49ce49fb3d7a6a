"""Which ranks likely share a node where no row names one: launchers number the ranks of a node in a row."""

import math
from collections.abc import Mapping

from streams.job.step_rows import Identity

# GPUs of most training nodes (DGX and HGX A100, H100, H200, B200); other jobs have a divisor of it to a node.
_MOST_GPUS = 8

# Below, two ranks in a row would be a machine as often as two faults at once.
_LEAST_GPUS = 4


def likely_node_size(rank: int, ranks: Mapping[int, Identity], world: int) -> int:
    """Return how many of ``ranks`` likely share the node of ``rank``, in a row from a multiple of it on.

    Local ranks tell how many where rows have them, else it is the greatest divisor of ``world`` and of 8.
    0 where that leaves one node, the row lacks ranks, or a tensor-parallel group goes beyond it: those share
    a node.
    """
    local = {r: at.local_rank for r, at in ranks.items() if at.local_rank is not None}
    size = max(local.values()) + 1 if local else math.gcd(world, _MOST_GPUS)
    if not _LEAST_GPUS <= size <= _MOST_GPUS or world <= size:
        return 0
    first = rank // size * size
    row = range(first, first + size)
    whole = all(r in ranks and local.get(r, r - first) == r - first for r in row)
    groups = {_shared(ranks[r]) for r in row if r in ranks} - {None}
    beyond = any(r not in row and _shared(at) in groups for r, at in ranks.items())
    return size if whole and not beyond else 0


def _shared(at: Identity) -> tuple[tuple[str, int], ...] | None:
    """Return the coordinates that a rank has in common with its tensor-parallel group, if it is in one."""
    rest = tuple(one for one in at.coords if one[0] != "tp")
    return rest if len(rest) < len(at.coords) else None
