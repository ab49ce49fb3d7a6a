"""Since the start: machines of another model, under a power limit, or roles that were learnt wrongly."""

import math

import numpy as np
import numpy.typing as npt

from detectors.peers.node_effects import MOST_OF_MACHINE
from detectors.peers.peers import group_quantile
from detectors.peers.places.machine_classes import USUAL
from detectors.peers.places.place_mates import PlaceMates
from detectors.peers.ratios import Ratios
from detectors.robust import nan_median
from detectors.straggler.alternatives.position import MOST, POSITION
from detectors.straggler.candidate import FEW, HALF, LOOK_BEFORE, Candidate

Floats = npt.NDArray[np.float64]

# Chosen, of a slowdown: limits and models slow by the same, and healthy ranks of one differ by some per cent.
_EQUAL = 0.15

# Chosen: of a hundred machines one or two have a fault as a job begins.
_TOO_MANY = 8

# Chosen: steps read before the onset that show that a rank was well.
_LEAST_BEFORE = 5


def is_class(ratios: Ratios, found: Candidate) -> bool:
    """Return whether several whole machines have been as slow since the first step: a class of machines, of
    another model or under a power limit, and no as many faults that began before the job; or whether most of
    its role is as slow, and the others are a class of faster ones."""
    levels = _levels(ratios, found)
    if levels is None:
        return False
    groups, least = ratios.comparison.groups, HALF * float(levels[found.rank])
    role = groups.index == groups.index[found.rank]
    if ratios.comparison.left_out[found.rank]:
        # A machine that is suspected by what it shows in other roles may have most of this one.
        role &= ~ratios.comparison.left_out
    if role.sum() >= FEW and np.mean(levels[role] >= least) > HALF:
        return True
    # Of a role of which half is slow, the median is neither's.
    over_usual = levels - groups.spread_out(group_quantile(levels, groups, USUAL))
    return any(ratios.comparison.slow_class(e, least=least)[found.rank] for e in (levels, over_usual))


def is_one_of_too_many(ratios: Ratios, found: Candidate, places: PlaceMates) -> bool:
    """Return whether those as slow since the first step are on too many machines for faults, and of no one
    group: roles are not as they were learnt."""
    levels = _levels(ratios, found)
    if levels is None:
        return False
    slow = levels >= HALF * float(levels[found.rank])
    of_replica = ratios.batches is not None and ratios.batches.rule_out_stage(slow)
    machines = np.unique(ratios.nodes.index[slow]).size
    return machines >= _TOO_MANY and not (of_replica or places.in_one_group(slow))


def is_one_of_equals(ratios: Ratios, found: Candidate, places: PlaceMates) -> bool:
    """Return whether single ranks of several machines have been slower by the same since the first step: they
    are under one power limit, or of one kind. Faults of several are not of one size, and those of a group are
    its own."""
    levels = _levels(ratios, found)
    if levels is None:
        return False
    size = float(levels[found.rank])
    equal = np.abs(levels - size) <= _EQUAL * size
    slow = levels >= HALF * size
    if not max(POSITION, MOST * np.count_nonzero(slow)) <= np.count_nonzero(equal):
        return False
    on = np.bincount(ratios.nodes.index, weights=equal)
    whole = (on >= MOST_OF_MACHINE * ratios.nodes.sizes) & (ratios.nodes.sizes > 1)
    return bool(np.count_nonzero(on) > 1 and not whole.any() and not places.in_one_group(equal))


def _levels(ratios: Ratios, found: Candidate) -> Floats | None:
    """Return by how much ranks are slower than their roles since the first step, [ranks]; None where the rank
    was well before."""
    if found.lasting:
        return found.effect
    before = ratios.settled - found.steps
    if before >= LOOK_BEFORE:
        return None
    # A baseline is drawn to what is usual of all, and what is left of a difference looks like a change.
    role = ratios.history.last("role", ratios.settled)
    levels = nan_median(role[-found.steps :])
    was = nan_median(role[: -found.steps, found.rank]) if before >= _LEAST_BEFORE else math.inf
    return None if was < HALF * levels[found.rank] else levels
