"""Roles of ranks: who does the same work and may be compared with whom.

From coordinates where there are any; from behaviour (gaps between the ranks' usual times) where there
are none.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from detectors.peers.batches import Batches

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

# Coordinates that also make work unequal (experts): used where every resulting group keeps enough members.
REFINE = ("ep",)

# Members that leave four peers each. Chosen: a finer role is not worth losing the comparison.
_FULL_GROUP = 5

# Chosen: as many stages as Llama 3 has (Dubey et al. 2024, table 4). Of a deeper pipeline, a stage whose
# ranks stand in a row is taken for machines.
_STAGES = 16

# Most that members of a stage differ among themselves, as a share of their distance to all others (chosen).
_ALIKE = 0.5


def roles_from_coords(coords: Mapping[str, Ints], models: Sequence[str]) -> Ints:
    """Return the role number of each rank: GPU model and pipeline stage, refined by expert position
    where groups
    stay larger than 4. ``coords`` maps a dimension to its position per rank, -1 = unknown."""
    _, role = np.unique(np.asarray(models, dtype=str), return_inverse=True)
    role = _combine(role.reshape(-1), coords.get("pp"))
    for name in REFINE:
        finer = _combine(role, coords.get(name))
        if np.bincount(finer).min() >= _FULL_GROUP:
            role = finer
    return role


def split_by_gap(levels: Floats, *, gap: float) -> Ints:
    """Return class numbers of ``levels`` [ranks] (log seconds), from fastest, by cutting at gaps wider
    than ``gap``.

    A rank that was never read joins class 0.
    """
    order = np.argsort(levels)
    ordered = levels[order]
    jumps = np.nan_to_num(np.diff(ordered), nan=0.0) > gap
    classes = np.concatenate(([0], np.cumsum(jumps)))
    out = np.empty(levels.size, dtype=np.intp)
    out[order] = classes
    out[~np.isfinite(levels)] = 0
    return out


def is_regular(slow: npt.NDArray[np.bool_]) -> bool:
    """Whether the marked ranks look like a parallel dimension: an aligned block, or every k-th rank.

    Layouts number ranks by nested dimensions, so a pipeline stage is an aligned run of equal length or a
    residue class. Broken machines have no reason to fall so. One rank alone is no pattern, and no block is
    less than a sixteenth of the ranks.
    """
    where, total = np.flatnonzero(slow), slow.size
    size = where.size
    if size < 2 or total % size or size == total:
        return False
    strides = np.diff(where)
    if not (strides == strides[0]).all():
        return False
    stride = int(strides[0])
    if stride == 1:
        return bool(where[0] % size == 0) and total <= _STAGES * size
    return stride * size == total


def looks_like_stage(levels: Floats, slow: npt.NDArray[np.bool_], batches: Batches | None = None) -> bool:
    """Whether the marked ranks stand like a parallel dimension, alike in ``levels`` [ranks] (log).

    Two slow machines may happen to stand so; the members of a stage are also equally slow, and of all
    replicas, where ``batches`` show these.
    """
    if not is_regular(slow) or (batches is not None and batches.rule_out_stage(slow)):
        return False
    apart = np.min(levels[slow]) - np.nanmax(levels[~slow])
    return bool(np.ptp(levels[slow]) <= _ALIKE * apart)


def _combine(role: Ints, position: Ints | None) -> Ints:
    if position is None:
        return role
    _, combined = np.unique(np.stack([role, position]), axis=1, return_inverse=True)
    return np.asarray(combined, dtype=np.intp).reshape(-1)
