"""Slowness at one place of several machines at once: a habit of the job's, and no fault of each machine.

The first rank of every node drains a checkpoint, feeds the others or logs, in the same steps on all nodes.
Machines fail one by one. The mates of a rank are those at its place of the other machines, without any in a
parallel group with it, which may wait for it. Its slowness is that of its place if

1. enough of its mates rose in the same steps, by half as much as it or more. A machine that rose as a whole
   is none of them, nor is a parallel group over several machines and places;
2. mates rose twice as often as the ranks at other places did in these steps;
3. so many do not rise by chance. With q the share of blocks of as many steps, ten at most, in which ranks at
   other places are as far above their usual ratio, (j + 1/2) / (n + 1) for j of n blocks, that is the chance
   of a binomial variable of m mates, each with chance q, to reach what rose. Of small effects a single mate
   has more.
"""

import math

import numpy as np
import numpy.typing as npt

from detectors.chance import at_least
from detectors.peers.node_effects import MOST_OF_MACHINE
from detectors.peers.peers import PeerGroups
from detectors.robust import nan_median
from detectors.straggler.slow_groups import GroupFamilies

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

# Chosen, of the rank's own effect: what others must show to be alike (``alternatives``).
_HALF = 0.5

# Chosen: how many times more often ranks at its place rise than those at others, if the place is why.
_MORE_OFTEN = 2.0

# Chosen: a slow rank beside mates that are well would be excused by them once in 100 times, until more of its
# steps are seen.
_CHANCE = 0.01

# Chosen: medians of shorter blocks scatter no less, and there are enough of them to know a chance of one in a
# thousand among eight ranks.
_LONGEST_BLOCK, _LEAST_BLOCKS = 10, 4

# Chosen, as for healthy ranks that wander (``alternatives``): a step of 8,192 ranks stays cheap.
_MOST_OTHERS = 256


class PlaceMates:
    """Who stands at the same place of other machines, by the order of ranks on each; ``families`` are the
    parallel groups over several machines, None where no coordinates tell them.

    Where machines are only ``likely``, first ranks alone have mates: it is those that save, log and feed.
    """

    def __init__(self, nodes: PeerGroups, families: GroupFamilies | None, *, likely: bool = False) -> None:
        self._nodes, self._families, self._likely = nodes, families, likely
        # Who was seen to be so in the step at hand: of a job of 1,024 ranks 128 may be, all for one reason.
        self.seen: Bools = np.zeros(nodes.index.size, dtype=np.bool_)
        first = np.cumsum(nodes.sizes) - nodes.sizes
        self._place = np.empty(nodes.index.size, dtype=np.intp)
        within = np.arange(nodes.index.size) - np.repeat(first, nodes.sizes)
        self._place[np.argsort(nodes.index, kind="stable")] = within

    def in_one_group(self, ranks: Bools) -> bool:
        """Return whether ``ranks`` [ranks] are of one parallel group over several machines, of half of the
        job at most."""
        if self._families is None:
            return False
        where = np.flatnonzero(ranks)
        groups = self._families.of(int(where[0])) if where.size else ()
        return any(bool(np.isin(where, members).all()) for _, members in groups)

    def of(self, rank: int) -> Bools:
        """Return the mates of ``rank``, [ranks]; none where it has its machine to itself."""
        mates = self._at_place(rank) & self._elsewhere(rank)
        if self._nodes.sizes[self._nodes.index[rank]] < 2 or (self._likely and self._place[rank]):
            mates[:] = False
        for _, members in self._families.of(rank) if self._families is not None else ():
            mates[members] = False
        return mates

    def rose(self, rank: int, rise: Floats, *, size: float, least: float) -> Bools:
        """Return the mates of ``rank`` that rose with it, [ranks]; none unless they are a share of ``least``
        or more and the ranks at other places rose less often.

        ``rise`` [ranks] is what ratios rose by in the steps in which that of ``rank`` did by ``size``.
        """
        mates = self.of(rank)
        number, none = int(mates.sum()), np.zeros(mates.size, dtype=np.bool_)
        rose = rise >= _HALF * size
        if not rose[rank] or not number or np.count_nonzero(rose & mates) < max(1.0, least * number):
            return none
        whole = np.bincount(self._nodes.index, weights=rose) >= MOST_OF_MACHINE * self._nodes.sizes
        rose &= ~(whole[self._nodes.index] | self._in_slow_group(rose))
        others = self._elsewhere(rank) & ~self._at_place(rank)
        usual = float(np.mean(rose[others])) if others.any() else 0.0
        together: Bools = rose & mates
        enough = rose[rank] and together.sum() >= max(1.0, least * number, _MORE_OFTEN * usual * number)
        return together if enough else none

    def by_chance(self, rank: int, x: Floats, steps: int, *, size: float, rose: int) -> bool:
        """Return whether ``rose`` of its mates may have risen by chance for ``steps`` by half of ``size``,
        going by ratios ``x`` [steps, ranks] of those at other places."""
        others = np.flatnonzero(~self._at_place(rank))
        length = min(steps, _LONGEST_BLOCK, len(x) // _LEAST_BLOCKS)
        if not length or not others.size:
            return True
        some = x[:, others[:: math.ceil(others.size / _MOST_OTHERS)]]
        blocks = len(x) // length
        middle = nan_median(some[-blocks * length :].reshape(blocks, length, -1), axis=1)
        above = middle - nan_median(middle)
        q = (np.count_nonzero(above >= _HALF * size) + 0.5) / (np.isfinite(above).sum() + 1.0)
        return at_least(rose, int(self.of(rank).sum()), float(q)) > _CHANCE

    def _in_slow_group(self, rose: Bools) -> Bools:
        """Return who is in a parallel group that rose as a whole, [ranks]: what is at one place of its
        machines alone is none, for a pipeline may stand so."""
        found: Bools = np.zeros(rose.size, dtype=np.bool_)
        for labels in self._families.labels.values() if self._families is not None else ():
            group = labels + 1
            size, up = np.bincount(group), np.bincount(group, weights=rose)
            whole = (up >= MOST_OF_MACHINE * size) & (2 * size <= rose.size)
            whole &= _differ(group, self._place) & _differ(group, self._nodes.index)
            whole[0] = False
            found |= whole[group]
        return found

    def _at_place(self, rank: int) -> Bools:
        at: Bools = self._place == self._place[rank]
        return at

    def _elsewhere(self, rank: int) -> Bools:
        elsewhere: Bools = self._nodes.index != self._nodes.index[rank]
        return elsewhere


def _differ(group: Ints, value: Ints) -> Bools:
    """Return of which groups the members differ in ``value``, [groups]."""
    least, most = np.full(group.max() + 1, value.max()), np.zeros(group.max() + 1, dtype=np.intp)
    np.minimum.at(least, group, value)
    np.maximum.at(most, group, value)
    differ: Bools = most > least
    return differ
