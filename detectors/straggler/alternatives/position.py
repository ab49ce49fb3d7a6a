"""Position: what a whole role, or the ranks at one place of many machines, show is theirs, no fault."""

import numpy as np
import numpy.typing as npt

from detectors.peers.node_effects import MOST_OF_MACHINE
from detectors.peers.peers import PeerGroups, group_median
from detectors.peers.places.place_mates import PlaceMates
from detectors.peers.places.roles import is_one_machine, looks_like_stage
from detectors.peers.ratios import Ratios
from detectors.peers.shards import Shards
from detectors.robust import nan_median
from detectors.straggler.candidate import HALF, LEAST_OWN_PAST, LOOK_BEFORE, Candidate

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

# Stages of published jobs (``positions``): a position has as many ranks on as few of the machines.
_STAGES = 16

# Chosen, of the ranks at its place of other machines: two of several may both be slow.
MOST = 2 / 3

# Chosen: ranks that make a pattern; two may both be slow.
POSITION = 3

# Chosen: whole machines that are slow beside a position; one may have been so before.
_ELSEWHERE = 2


def is_shared_by_role(ratios: Ratios, found: Candidate) -> bool:
    """Return whether a role that is known, or looks like one, slowed as a whole."""
    if not ratios.roles_known:
        alike = (
            not _stands_alone(ratios, found)
            if found.lasting
            else is_position(ratios, found.rank, found.effect)
        )
        return alike
    return goes_with_role(ratios, found.rank, found.effect) or _stands_with_position(ratios, found)


def _stands_with_position(ratios: Ratios, found: Candidate) -> bool:
    """Return whether in its slow steps it takes as long as others at its position, unlike the rest.

    A median over a time of which half is slow is high for one of two ranks alike, and low for the other.
    """
    if ratios.shards is None or found.lasting:
        return False
    slow = found.x[:, found.rank] >= HALF * found.size
    levels = nan_median(ratios.history.last("role", found.steps)[slow])
    role = ratios.comparison.groups.index == ratios.comparison.groups.index[found.rank]
    return ratios.shards.stands_with(levels, found.rank, role, size=found.size)


def goes_with_role(ratios: Ratios, rank: int, effect: Floats) -> bool:
    """Return whether all mates of a small role, or all machines of a small class, or all of one position
    slowed alike, by ``effect`` [ranks]."""
    mates = ratios.comparison.mates(rank)
    alike = effect[mates] >= HALF * effect[rank]
    small = ratios.comparison.small_role[rank] and not ratios.comparison.fills_machine[rank]
    if small and mates.any() and alike.all():
        return True
    middle = group_median(np.where(ratios.comparison.class_mates(rank), effect, np.nan), ratios.nodes)
    others = middle[np.isfinite(middle)]
    if others.size and (others >= HALF * effect[rank]).all():
        return True
    role = ratios.comparison.groups.index == ratios.comparison.groups.index[rank]
    return ratios.shards is not None and ratios.shards.explain(effect, rank, role)


def _stands_alone(ratios: Ratios, found: Candidate) -> bool:
    """Distinguish slow ranks from a stage where there are no coordinates.

    Ranks slow from the start may be a stage: until roles are learnt, only one alone can be called slow, or
    those of few replicas (``batches``), and later none that form a pattern; at any time a node that was level
    with others before a restart.
    """
    similar = found.effect >= HALF * found.size
    if ratios.slowed_since_restart(similar, size=found.size):
        return True
    if ratios.comparison.roles_settled:
        stage = looks_like_stage(found.effect, similar, ratios.batches)
        return not stage or is_one_machine(found.effect, similar, ratios.nodes)
    no_stage = ratios.batches is not None and ratios.batches.rule_out_stage(similar)
    return no_stage or bool(similar.sum() == 1)


def is_position(ratios: Ratios, rank: int, effect: Floats) -> bool:
    """Return whether every k-th rank became as slow, by ``effect`` [ranks]: without coordinates, a position
    of the layer, such as an expert that is popular (``shards``). Not where the slow ranks are all of one
    machine or two, among which ranks were dealt out in turn, or of one replica, or where machines at other
    positions became as slow."""
    slow, parts = effect >= HALF * effect[rank], []
    of_replica = ratios.batches is not None and ratios.batches.rule_out_stage(slow)
    whole = _whole_machines(ratios.nodes, slow)
    if of_replica or _fills_few(ratios.nodes, slow, whole):
        return False
    where = np.flatnonzero(slow)
    for each, stage, label in ratios.positions.partitions:
        # Of two groups in a row others than positions make as much, and a slow machine has ranks of each.
        alike = np.count_nonzero(label[where] == label[rank])
        if alike <= HALF * np.count_nonzero(stage[where] == stage[rank]):
            continue
        same = label == label[rank]
        if np.count_nonzero(same) < POSITION * each:
            continue
        elsewhere = np.bincount(ratios.nodes.index, weights=same)[whole] == 0
        if elsewhere.sum() < _ELSEWHERE:
            parts.append(label)
    # Ranks that are never read, as those that generate while others train, tell of no position.
    return Shards(tuple(parts), ratios.nodes.index).explain(effect, rank, np.isfinite(effect))


def _whole_machines(nodes: PeerGroups, slow: Bools) -> Ints:
    """Return the machines most of whose ranks are ``slow`` [ranks]."""
    on = np.bincount(nodes.index, weights=slow)
    return np.flatnonzero((on >= MOST_OF_MACHINE * nodes.sizes) & (nodes.sizes >= 2))


def _fills_few(nodes: PeerGroups, slow: Bools, machines: Ints) -> bool:
    """Return whether most of the ``slow`` ranks [ranks] are on one or two ``machines``."""
    few = 0 < machines.size < POSITION
    return few and bool(slow[np.isin(nodes.index, machines)].sum() >= MOST_OF_MACHINE * slow.sum())


def rose_with_its_place(ratios: Ratios, found: Candidate, places: PlaceMates) -> bool:
    """Return whether ranks at its place on other machines became as slow in the same step (``PlaceMates``).

    What one rank of each machine does for the others, most of them show. Without coordinates there may be too
    few ranks at a position of the layer to see it (``is_position``), and those of one stage are enough.
    """
    if places.seen[found.rank]:
        return True
    if not places.of(found.rank).any():
        return False
    x = ratios.history.view("x", min(found.steps + LOOK_BEFORE, ratios.settled))
    # What began before all that is held has no past to compare with.
    past = len(x) - found.steps
    # Dated back over steps in which it was not slow, the others would seem to be well in most.
    slow = found.x[:, found.rank] >= HALF * found.size
    if past >= LEAST_OWN_PAST:
        once, steps = ratios.history.once, found.steps
        usual = once(("before", steps, past), lambda: nan_median(x[:-steps]))
        # Where work is dealt out anew, thousands of ranks are slow in the same steps.
        rise = once(("since", steps, slow.tobytes()), lambda: nan_median(x[-steps:][slow])) - usual
    else:
        rise = nan_median(found.x[slow])
    least = MOST if ratios.roles_known else 1 / _STAGES
    return _is_of_its_place(ratios, found.rank, rise, int(slow.sum()), places, least=least)


def comes_with_its_place(ratios: Ratios, rank: int, x: Floats, slow: Bools, places: PlaceMates) -> bool:
    """Return whether most ranks at its place on other machines are slow in the same steps, again and again:
    those of ``x`` [steps, ranks] in which it is ``slow`` [steps], against the others."""
    if places.seen[rank]:
        return True
    if not places.of(rank).any() or slow.all():
        return False
    rise = nan_median(x[slow]) - nan_median(x[~slow])
    return _is_of_its_place(ratios, rank, rise, int(slow.sum()), places, least=MOST)


def _is_of_its_place(
    ratios: Ratios, rank: int, rise: Floats, steps: int, places: PlaceMates, *, least: float
) -> bool:
    size = float(rise[rank])
    rose = places.rose(rank, rise, size=size, least=least)
    # A slow replica has a rank at this place of many machines where their number suits.
    if not rose.any() or (ratios.batches is not None and ratios.batches.rule_out_stage(rose)):
        return False
    held = ratios.history.last("x", min(ratios.settled, ratios.history.capacity))
    if places.by_chance(rank, held, steps, size=size, rose=int(rose.sum())):
        return False
    # Those who are slower by more than their place are asked for themselves.
    places.seen |= rose & (rise <= size / HALF)
    return True
