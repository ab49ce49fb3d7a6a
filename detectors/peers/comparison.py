"""Who each rank of a job is compared with at present, and its log ratio to them.

With v = ln(seconds) [..., ranks], the ratio of a rank to its role is v_r - median of v_q over the others of
its role, without those on machines under suspicion (leave-machine-out), and less what the rest of its replica
deviates by where replicas share uneven batches. The ranks of small classes of machines are compared by how
much more or less than usual of their class they take longer.
"""

import numpy as np
import numpy.typing as npt

from detectors.peers.node_effects import Majority, filling, majorities
from detectors.peers.peers import MIN_PEERS, PeerGroups, peer_median
from detectors.peers.places.machine_classes import SmallClasses, no_replica, slow_class
from detectors.peers.replicas import Replicas

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]


class Comparison:
    """The peers of ranks on ``nodes``; ``roles`` [ranks] or None when coordinates are unknown.

    ``groups`` are the roles as they are known by now, ``everyone`` all ranks as one. ``left_out`` are those
    whose machines are suspected: no rank is compared with them. ``replicas`` holds which ranks work on the
    same batch, which is taken out of their ratios where it ``shares_batches``; not of the ratios of those
    ``apart``, for their replica is slow. ``cut`` [ranks] are the parts of a sequence that divide the roles
    given by coordinates, where they are uneven.
    """

    def __init__(self, nodes: PeerGroups, roles: Ints | None, replicas: Replicas | None) -> None:
        self.nodes = nodes
        self.everyone = PeerGroups.of(np.zeros(nodes.index.size, dtype=np.intp))
        self.roles_known = roles is not None
        self._roles = PeerGroups.of(roles) if roles is not None else self.everyone
        self.replicas = replicas
        self._majorities: tuple[PeerGroups, tuple[Majority, ...]] | None = None
        self._filling: tuple[PeerGroups, Bools] | None = None
        self.reset()

    def reset(self) -> None:
        """Forget what has been learnt: compare by the coordinates alone."""
        self.groups = self._roles
        self.roles_settled = self.roles_known
        self.cut: Ints | None = None
        self.shares_batches = False
        self.small_classes: SmallClasses | None = None
        self.left_out: Bools = np.zeros(self.nodes.index.size, dtype=np.bool_)
        self.apart: Bools = np.zeros(self.nodes.index.size, dtype=np.bool_)

    @property
    def stages(self) -> PeerGroups:
        """The roles undivided by parts of a sequence."""
        return self.groups if self.cut is None else self._roles

    def divide(self, cut: Ints) -> None:
        """Compare ranks only with those that have their part of a sequence, ``cut`` [ranks], from now on."""
        self.groups, self.cut = self._roles.divided(cut), cut

    @property
    def small_role(self) -> Bools:
        """Ranks with too few peers in their role, or whose role is not known yet, [ranks]."""
        small: Bools = (self.groups.peers < MIN_PEERS) | (not self.roles_settled)
        return small

    @property
    def fills_machine(self) -> Bools:
        """Ranks of the roles that fill one machine of several, [ranks]: if all of them slow at once, it is
        the machine, for stages keep their layers."""
        if self._filling is None or self._filling[0] is not self.groups:
            self._filling = self.groups, filling(self.nodes, self.groups)
        return self._filling[1]

    @property
    def most_of_roles(self) -> tuple[Majority, ...]:
        """The machines with most of a role, and the others of it."""
        if self._majorities is None or self._majorities[0] is not self.groups:
            self._majorities = self.groups, majorities(self.nodes, self.groups)
        return self._majorities[1]

    def mates(self, rank: int) -> Bools:
        """Return who shares the role of ``rank``, without itself, [ranks]."""
        mates: Bools = self.groups.index == self.groups.index[rank]
        mates[rank] = False
        return mates

    def class_mates(self, rank: int) -> Bools:
        """Return who is on the other machines of its class, [ranks], where that is small and may change as a
        whole beside the other class; else nobody."""
        small = self.small_classes
        if small is None or not small.ranks[rank]:
            return np.zeros(self.nodes.index.size, dtype=np.bool_)
        mates: Bools = small.one_class == small.one_class[rank]
        mates &= self.nodes.index != self.nodes.index[rank]
        return mates

    def slow_class(self, usual: Floats, *, least: float) -> Bools:
        """Return the ranks of machines that are a class of their own (``machine_classes``), [ranks]. Those of
        one replica of many are none: a class is larger than that, and no matter of who works on one batch."""
        return no_replica(slow_class(usual, self.nodes, least=least), self.replicas)

    def reference(self, values: Floats, groups: PeerGroups) -> Floats:
        """Return the median of each rank's peers in ``groups``, [..., ranks]."""
        if not self.left_out.any():
            return peer_median(values, groups)
        return peer_median(np.where(self.left_out, np.nan, values), groups)

    def with_batch(self, v: Floats) -> Floats:
        """Return log ratios to role peers in which the batches of replicas still are."""
        ratio, small = v - self.reference(v, self.groups), self.small_classes
        return ratio if small is None else np.where(small.ranks, small.ratio(v, self.reference), ratio)

    def role_ratio(self, v: Floats) -> Floats:
        """Return log ratios to role peers."""
        return self._without_batch(self.with_batch(v))

    def change_ratio(self, v: Floats, role: Floats, level: Floats | None) -> Floats:
        """Return the log ratios in which changes are sought: those to the role, ``role``, and, of ranks whose
        role is small or fills a machine, to all others by how far each is from its own usual ``level``."""
        small = self.small_role | self.fills_machine
        if not small.any():
            return role
        if level is None:
            return np.where(small, np.nan, role)
        usual = v - level
        return np.where(small, self._without_batch(usual - self.reference(usual, self.everyone)), role)

    def _without_batch(self, ratio: Floats) -> Floats:
        """Take out what the rest of each rank's replica deviates by, where replicas share uneven batches."""
        if self.replicas is None or not self.shares_batches:
            return ratio
        return ratio - np.where(self.apart, 0.0, self.replicas.batch(ratio))
