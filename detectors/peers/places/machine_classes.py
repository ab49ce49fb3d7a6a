"""Classes of machines: of another model, or under a power limit, and so slower or quicker for good.

A class is bought or limited together and faults come one by one, so that whole machines which are slower by
as much are one. Its ranks are a role of their own; where a class has few machines of a role, they are
compared by how much more or less than usual of their class they take longer.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detectors.peers.node_effects import MOST_OF_MACHINE
from detectors.peers.peers import PeerGroups, group_median, group_quantile
from detectors.peers.replicas import Replicas
from detectors.robust import nan_median, spread

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# Chosen: share of its slowness by which machines of one class, and their ranks, differ.
ONE_CLASS = 0.35

# Chosen: by how much of it two machines of one class differ, or as much as healthy ones do; if none are so
# alike, each has a fault.
_EQUAL, _HEALTHY = 0.2, 0.0175

# Chosen: models differ by more. Machines that differ by less are a class where the others differ by little,
# and by three per cent at least: healthy machines differ by one per cent.
LEAST_CLASS = float(np.log(1.1))
LEAST_CLEAR = float(np.log(1.03))

# Chosen: spreads of the other machines from which one is different (``confirmation.UNLIKE_PEERS``).
_CLEARLY = 5.0

# Machines of a class up to which it is compared with other classes too. Chosen: a median of four machines
# hardly follows one of them.
_FEW_MACHINES = 3

# Chosen, of a machine's ranks: if fewer are as slow as a class, that is by chance.
_HALF = 0.5

# The quantile of a role that is usual while up to nearly two thirds of it are slow. Chosen: a lower one is
# noisier.
USUAL = 0.35


def slow_class(usual: Floats, nodes: PeerGroups, *, least: float) -> Bools:
    """Return the ranks of machines that are a class of their own, [ranks]: of another model, or under a power
    limit.

    ``usual`` [ranks] are the ranks' usual log ratios to their role. At least two whole machines have to be
    slower by as much, and by ``least``: a class is bought or limited together, faults come one by one. A rank
    that has its machine to itself may be of it, too.
    """
    middle = np.nan_to_num(group_median(usual, nodes))
    near = np.abs(usual - middle[nodes.index]) <= ONE_CLASS * middle[nodes.index]
    whole = np.bincount(nodes.index, weights=near) >= MOST_OF_MACHINE * nodes.sizes
    slow = whole & (middle >= least) & (nodes.sizes >= 2)
    if slow.any():
        typical = float(np.median(middle[slow]))
        apart = np.abs(middle - typical)
        equal = apart <= max(_EQUAL * typical, min(ONE_CLASS * typical, _HEALTHY))
        # Of a class that is hardly slower than the least, some machines seem to be a little quicker.
        slow = whole & (apart <= ONE_CLASS * typical) & (np.count_nonzero(slow & equal) >= 2)
    found: Bools = slow[nodes.index]
    return found


def is_clear(one_class: Bools, usual: Floats, nodes: PeerGroups) -> bool:
    """Return whether the machines of ``one_class`` [ranks], slower by their ``usual`` log ratios [ranks], are
    alike and apart from all others: by as much as models differ by, or by far more than these differ, and no
    machine lies between.
    """
    middle = np.nan_to_num(group_median(usual, nodes))
    mine = np.bincount(nodes.index, weights=one_class) > 0
    if not mine.any():
        return False
    typical, others = float(np.median(middle[mine])), middle[~mine]
    if spread(middle[mine]) > ONE_CLASS * typical:
        # Of two machines one may be twice as slow as the other: these are two faults.
        return False
    between = (others > ONE_CLASS * typical) & (others < (1.0 - ONE_CLASS) * typical)
    apart = float(spread(others)) if others.size else 0.0
    return typical >= LEAST_CLASS or not (between.any() or typical < max(LEAST_CLEAR, _CLEARLY * apart))


@dataclass(frozen=True, slots=True)
class SmallClasses:
    """Classes that have a few machines of a role, of which a median follows each machine. Their ranks,
    ``ranks`` [ranks], are compared with all of their role, ``roles``, by how much more or less than usual of
    their class they take longer: one machine alone of its class so by its own past.

    ``one_class`` [ranks] are the ranks of one of the two classes, and ``usual`` [ranks] is what is usual of
    each rank's class in its role.
    """

    ranks: Bools
    one_class: Bools
    usual: Floats
    roles: PeerGroups

    @classmethod
    def of(
        cls, usual: Floats, nodes: PeerGroups, *, one_class: Bools, roles: PeerGroups
    ) -> "SmallClasses | None":
        """Build from the ranks' ``usual`` log ratios to their role [ranks]; None where no class is small."""
        classes = PeerGroups.of(2 * roles.index + one_class)
        pairs = np.unique(np.stack([classes.index, nodes.index]), axis=1)
        few = np.bincount(pairs[0])[classes.index] <= _FEW_MACHINES
        within = np.bincount(roles.index, weights=one_class)
        few &= ((within > 0) & (within < roles.sizes))[roles.index]
        of_class = np.nan_to_num(group_quantile(usual, classes, USUAL))
        return cls(few, one_class, classes.spread_out(of_class), roles) if few.any() else None

    def ratio(self, v: Floats, reference: Callable[[Floats, PeerGroups], Floats]) -> Floats:
        """Return log seconds ``v`` over those usual of each rank's class and over the ``reference`` of its
        role, each [..., ranks]."""
        over_class = v - self.usual
        ratio: Floats = over_class - reference(over_class, self.roles)
        return ratio


def class_from_start(usual: Floats, nodes: PeerGroups, roles: PeerGroups, replicas: Replicas | None) -> Bools:
    """Return the ranks of machines that are as much slower than the others of their roles, or quicker, by
    their ``usual`` log ratios to these, each [ranks]; nobody where no class is clear."""
    slower = _clear_class(usual, nodes, roles, replicas)
    if slower.any():
        over = usual - roles.spread_out(group_quantile(usual, roles, USUAL))
        return slower | _partly_slow(over, slower, nodes)
    return _quicker_class(usual, nodes, roles, replicas)


def _partly_slow(over: Floats, one_class: Bools, nodes: PeerGroups) -> Bools:
    """Return the ranks of further machines of a class, [ranks], by the ``over`` log ratios to what is usual
    of roles [ranks]: half of the ranks of each are as slow as the class, all others slower still."""
    typical = float(nan_median(over[one_class]))
    as_slow = np.abs(over - typical) <= ONE_CLASS * typical
    slower = over > (1.0 + ONE_CLASS) * typical
    half, whole = (np.bincount(nodes.index, weights=w) for w in (as_slow, as_slow | slower))
    found: Bools = ((half >= _HALF * nodes.sizes) & (whole == nodes.sizes))[nodes.index]
    return found


def no_replica(slow: Bools, replicas: Replicas | None) -> Bools:
    """Return the ``slow`` ranks, [ranks], none where they are one replica of many: a class is larger than
    that, and no matter of who works on one batch."""
    return np.zeros_like(slow) if replicas is not None and replicas.is_one(slow) else slow


def _clear_class(usual: Floats, nodes: PeerGroups, roles: PeerGroups, replicas: Replicas | None) -> Bools:
    """Return the ranks of machines that clearly are a class of their own from the start, [ranks]."""
    # Of a role of which half is of another class, the median is neither's.
    over = usual - roles.spread_out(group_quantile(usual, roles, USUAL))
    slow = no_replica(slow_class(over, nodes, least=LEAST_CLEAR), replicas)
    return slow & is_clear(slow, over, nodes)


def _quicker_class(usual: Floats, nodes: PeerGroups, roles: PeerGroups, replicas: Replicas | None) -> Bools:
    """Return the ranks of machines that are a quicker class, [ranks], if all others of their roles are of
    one class as well: where most are of the slower one, that is what is usual."""
    quick = _clear_class(-usual, nodes, roles, replicas)
    level = roles.spread_out(group_median(np.where(quick, usual, np.nan), roles))
    beside = ~np.isfinite(usual - level)
    over = np.where(beside, 0.0, usual - level)
    slower = slow_class(over, nodes, least=LEAST_CLEAR)
    one = bool((slower | quick | beside).all()) and is_clear(slower, over, nodes)
    return quick & one
