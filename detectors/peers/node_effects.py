"""What the ranks of a machine show together: a host, its power and its links slow all of them at once.

Pure: numbers per rank in, who and how much out. Racks, switches and rails are
``detectors.node.fault_domains``.
"""

import numpy as np
import numpy.typing as npt

from detectors.peers.peers import MIN_PEERS, PeerGroups, group_median
from detectors.robust import nan_median, spread

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

# Steps before this one that show where a rank stood. Chosen: the fewest of which a median passes over two
# spikes.
LATELY = 5

# Chosen: suspected machines that are less of a role hardly move its median, by a tenth of the spread.
_SHARE = 1 / 16

# Share of a machine's ranks from which it is the machine that stalls. Chosen: of eight, two may show it late.
MOST_OF_MACHINE = 0.75

# Steps before the last ones that show what is usual of a machine with most of a role. Chosen: their median
# absolute deviation is known to a third.
_LEAST_PAST = 15

# By how much and by how many sigmas of a step such a machine falls behind, at least, and the share of it that
# must be its own rise. Chosen: it is suspected by that, and what its ranks then show decides.
_LEAST_RISE, _CLEAR_SIGMAS, _ITS_OWN = float(np.log(1.05)), 3.0, 0.5

# Ranks on every machine from which it is distinguished from them. Chosen: a median of fewer follows one rank.
_RANKS = 4


Majority = tuple[Ints, Ints]
"""The ranks that one machine has of a role, more than half of it, and the others of that role."""


def majorities(nodes: PeerGroups, groups: PeerGroups) -> tuple[Majority, ...]:
    """Return the machines with more than half of a role of which enough others are left to compare with."""
    found: list[Majority] = []
    for members in groups.members:
        role = members[members >= 0]
        machine = np.bincount(nodes.index[role]).argmax()
        mine, others = role[nodes.index[role] == machine], role[nodes.index[role] != machine]
        if mine.size > others.size >= MIN_PEERS:
            found.append((mine, others))
    return tuple(found)


def filling(nodes: PeerGroups, groups: PeerGroups) -> Bools:
    """Return the ranks whose role is all that runs on their machine, and no others are of it, [ranks]; nobody
    where few machines are left to compare with."""
    pairs = PeerGroups.of(nodes.index * groups.sizes.size + groups.index)
    same = (pairs.peers == nodes.peers) & (pairs.peers == groups.peers)
    found: Bools = same & (nodes.peers > 0) & (nodes.sizes.size > MIN_PEERS)
    return found


def suspected(
    suspects: Bools, nodes: PeerGroups, groups: PeerGroups, majority: tuple[Majority, ...] = ()
) -> Bools:
    """Return the ranks of machines at least half of whose ranks are ``suspects``, [ranks], of the roles in
    which they are many and enough others are left.

    Of a machine with the ``majority`` of a role it is half of those in its other roles, two at least: in that
    role it is what is usual.
    """
    shown: Bools = np.ones(suspects.size, dtype=np.bool_)
    for mine, _ in majority:
        shown[mine] = False
    on_node, elsewhere, apart = (
        np.bincount(nodes.index, weights=marked) for marked in (suspects, suspects & shown, shown)
    )
    whole = (2 * on_node >= nodes.sizes) | ((elsewhere >= 2) & (2 * elsewhere >= apart))
    found: Bools = (whole & (nodes.sizes >= 2))[nodes.index]
    within = np.bincount(groups.index, weights=found)
    worth = (within >= _SHARE * groups.sizes) & (groups.sizes - within >= MIN_PEERS)
    found &= worth[groups.index]
    return found


def slowed_majority(v: Floats, of: tuple[Majority, ...]) -> Bools:
    """Return the ranks of a machine with more than half of a role that slowed by itself, [ranks].

    ``v`` [steps, ranks] are logs of seconds. Compared with a median that is its own, such a machine stays as
    it is and the others seem to become quicker. It slowed where its ranks fell behind the others of their
    role in each of the last steps, by half of what they usually do by now or more, and take longer than they
    did.
    """
    slowed: Bools = np.zeros(v.shape[1], dtype=np.bool_)
    if len(v) < _LEAST_PAST + LATELY:
        return slowed
    for mine, others in of:
        own, apart = nan_median(v[:, mine], 1), nan_median(v[:, mine], 1) - nan_median(v[:, others], 1)
        usual, noise = float(nan_median(apart[:-LATELY])), float(spread(apart[:-LATELY]))
        behind = float(nan_median(apart[-LATELY:])) - usual
        rose = float(nan_median(own[-LATELY:]) - nan_median(own[:-LATELY])) >= _ITS_OWN * behind
        each = bool((apart[-LATELY:] - usual >= _ITS_OWN * behind).all())
        if behind >= max(_LEAST_RISE, _CLEAR_SIGMAS * noise) and rose and each:
            slowed[mine] = True
    return slowed


def alike(changed: Bools, nodes: PeerGroups, rank: int) -> Bools:
    """Return who is ``changed`` by what changed ``rank``, [ranks]: those of its machine if most of it is and
    the job has others, else the rank alone.
    """
    on_node: Bools = nodes.index == nodes.index[rank]
    if np.mean(changed[on_node]) >= MOST_OF_MACHINE and not on_node.all():
        return changed & on_node
    alone: Bools = np.arange(changed.size) == rank
    return alone


def step_noise(residual: Floats, before: Floats, nodes: PeerGroups, *, usual: float) -> float:
    """Return the noise of one step over all ranks: a step in which all scatter is evidence against none.

    Unless whole machines moved and stay where they are: then the noise is what remains within machines.
    ``residual`` [ranks] is how far each rank is from its baseline, ``before`` [steps, ranks] how far it was
    in the steps before; up to the ``usual`` noise there is nothing to explain.
    """
    noise = scatter(residual)
    if nodes.sizes.size <= 1 or nodes.narrowest < _RANKS or noise <= usual:
        return noise
    moved = residual - nan_median(before)
    if not np.isfinite(moved).any():
        return noise
    within = residual - nodes.spread_out(group_median(residual, nodes))
    staying = max(scatter(moved), scatter(within))
    return staying if staying < 0.5 * noise else noise


def scatter(residual: Floats) -> float:
    """Return the robust sd about 0 of what was read, 0 where that is too little."""
    read = np.sort(np.abs(residual[np.isfinite(residual)]))
    return 1.4826 * float(read[(len(read) - 1) // 2]) if len(read) >= 4 else 0.0
