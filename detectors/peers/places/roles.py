"""Roles of ranks: who does the same work and may be compared with whom.

From coordinates where there are any. Where there are none, from behaviour: the place of each rank in its
replica, where amounts of work show that, or gaps between the ranks' usual times.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from detectors.peers.batches import Batches
from detectors.peers.peers import PeerGroups, group_median
from detectors.peers.replicas import MANY_REPLICAS
from detectors.robust import nan_median, spread

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

# Most that all other machines differ among themselves, as a share of how far one is from them, for it to be
# no stage, and how many they are at least. Chosen: layers rarely divide evenly, and other stages differ then.
_OTHERS_ALIKE, _OTHERS = 0.25, 4

# Equal parts of the ranks are stages if levels within them differ by so much of what all do, and each has so
# many machines. Chosen: of eight machines with no stages, two halves seldom explain as much.
_LEFT, _MACHINES = 0.35, 4

# Chosen: share of the other machines that may be slow, too.
_SLOW_TOO = 1 / 6

# Chosen, of how far ranks are apart: less is next to nothing.
_HALF = 0.5

# Times the least noise by which kinds of work are apart, and stages of several machines each. Chosen: healthy
# machines differ by two of it.
_CLASSES_APART, _STAGES_APART = 5, 3

# First steps by which a role must show, and by how many standard errors of their median what is none changed
# (chosen: as of classes).
_FIRST, _SURE = 5, 5.0

# Places explain how ranks differ if the spread falls to this share (chosen, as for the work: ``ratios``).
_GAIN = 0.7


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


def roles_by_place(v: Floats, batches: Batches) -> Ints | None:
    """Return the place of each rank in its replica as its role, where places differ by more than their ranks
    do otherwise: in log seconds ``v`` [steps, ranks], beside those of one batch. None elsewhere."""
    if batches.replica.max() + 1 < MANY_REPLICAS:
        return None
    replicas, places = PeerGroups.of(batches.replica), PeerGroups.of(batches.places)
    usual = nan_median(v - replicas.spread_out(group_median(v, replicas)))
    beside = usual - places.spread_out(group_median(usual, places))
    return places.index if spread(beside) <= _GAIN * spread(usual) else None


def roles_from_times(v: Floats, nodes: PeerGroups, batches: Batches | None, *, floor: float) -> Ints:
    """Return role numbers from log seconds ``v`` [steps, ranks]; a lone deviant belongs with the rest, and so
    do ranks of few replicas, where ``batches`` show these.

    ``floor`` is the smallest credible noise. Where no usual times are far apart, those of stages of several
    machines each may be less so.
    """
    noise = float(nan_median(spread(v - nan_median(v, axis=1)[:, None])))
    levels = nan_median(v)
    # The median of n steps is known to noise/√n: only a gap far beyond that separates kinds of work.
    least = 5 * noise / float(np.sqrt(len(v)))
    wide, narrow = (max(apart * floor, least) for apart in (_CLASSES_APART, _STAGES_APART))
    roles = _classes(levels, nodes, batches, gap=wide)
    if not roles.any():
        roles = _stages(levels, nodes, batches, gap=narrow, below=wide)
    if not roles.any():
        roles = _blocks(levels, nodes, batches, apart=wide)
    return _unless_changed(v, roles, noise=max(noise, floor))


def _unless_changed(v: Floats, roles: Ints, *, noise: float) -> Ints:
    """Return ``roles`` [ranks] without those whose ranks were level with the fastest ones at first, in ``v``
    [steps, ranks] (log): a stage does its work from the start, and a machine that slows has changed."""
    usual, first = nan_median(v), nan_median(v[:_FIRST])
    error = noise / float(np.sqrt(_FIRST))
    kept = roles.copy()
    for role in range(1, int(roles.max(initial=0)) + 1):
        mine, fastest = roles == role, roles == 0
        apart, was = (float(nan_median(a[mine]) - nan_median(a[fastest])) for a in (usual, first))
        if was < _HALF * apart and apart - was > _SURE * error:
            kept[mine] = 0
    return kept


def _classes(levels: Floats, nodes: PeerGroups, batches: Batches | None, *, gap: float) -> Ints:
    """Return role numbers of ``levels`` [ranks] that are apart by a ``gap``: stages, and large classes."""
    found, roles = split_by_gap(levels, gap=gap), np.zeros(levels.size, dtype=np.intp)
    for c in range(1, int(found.max()) + 1):
        slower, member = found >= c, found == c
        if is_one_machine(levels, member, nodes):
            continue
        if looks_like_stage(levels, slower, batches):
            roles[slower] = c
            continue
        if batches is not None and batches.rule_out_stage(member):
            continue
        large = member.sum() >= max(4, 0.2 * levels.size)
        if is_regular(member) or (large and not _is_whole(member, nodes)):
            roles[member] = c
    return roles


def _stages(levels: Floats, nodes: PeerGroups, batches: Batches | None, *, gap: float, below: float) -> Ints:
    """Return role numbers of ``levels`` [ranks] that are apart by a ``gap`` ``below`` that of classes, and
    laid out like stages of several machines each: one machine may be a little slower for good."""
    found, roles = split_by_gap(levels, gap=gap), np.zeros(levels.size, dtype=np.intp)
    for c in range(1, int(found.max()) + 1):
        slower = found >= c
        if np.min(levels[slower]) - np.nanmax(levels[~slower]) > below:
            continue
        several = all(np.unique(nodes.index[part]).size > 1 for part in (slower, ~slower))
        if is_regular(slower) and several and not (batches is not None and batches.rule_out_stage(slower)):
            roles[slower] = c
    return roles


def _blocks(levels: Floats, nodes: PeerGroups, batches: Batches | None, *, apart: float) -> Ints:
    """Return as role numbers the equal parts of the ranks in order, so far ``apart``, that explain the
    ``levels`` [ranks] of nearly all machines, of which some may be slow; no roles where none do, or parts
    have too few machines."""
    machines, ranks = nodes.sizes.size, levels.size
    roles, least = np.zeros(ranks, dtype=np.intp), _LEFT * float(spread(levels))
    for parts in range(2, min(_STAGES, machines // _MACHINES) + 1):
        if ranks % parts or machines % parts:
            continue
        part = np.arange(ranks) * parts // ranks
        usual = np.array([nan_median(levels[part == p]) for p in range(parts)])
        left = float(spread(levels - usual[part]))
        ruled_out = batches is not None and batches.rule_out_stage(part == 0)
        if left <= least and np.ptp(usual) >= apart and not ruled_out:
            roles, least = np.argsort(np.argsort(usual))[part], _GAIN * left
    return roles


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


def is_one_machine(levels: Floats, slow: npt.NDArray[np.bool_], nodes: PeerGroups) -> bool:
    """Whether the marked ranks, which may stand like a stage, are a machine that differs from all others by
    its ``levels`` [ranks] (log), and these are alike. Of stages the first and the last do other work, those
    between have the same layers.
    """
    if not _is_whole(slow, nodes) or slow[0] or slow[-1] or nodes.sizes.size <= _OTHERS:
        return False
    on, middle = nodes.index[slow.argmax()], group_median(levels, nodes)
    others = np.sort(np.delete(middle, on))
    apart = middle[on] - np.nanmedian(others)
    # What was not read is sorted to the end; of many others a few may be slow as well.
    others = others[: max(np.count_nonzero(np.isfinite(others)) - int(_SLOW_TOO * others.size), 1)]
    return bool(others[-1] - others[0] <= _OTHERS_ALIKE * apart)


def _is_whole(marked: npt.NDArray[np.bool_], nodes: PeerGroups) -> bool:
    """Whether the ``marked`` ranks are those of one machine, all of them."""
    on = np.unique(nodes.index[marked])
    return on.size == 1 and np.count_nonzero(marked) == nodes.sizes[on[0]]


def _combine(role: Ints, position: Ints | None) -> Ints:
    if position is None:
        return role
    _, combined = np.unique(np.stack([role, position]), axis=1, return_inverse=True)
    return np.asarray(combined, dtype=np.intp).reshape(-1)
