"""Ranks of one parallel group that became slow as one: one cause, one finding.

When a rank is found slow, its effect e_r since its onset is known for all ranks. A group G of it explains the
slowness better than single ranks and machines do where

* the median m of e over G is at least half of the rank's own effect,
* three quarters of G have at least m / 2, and as many were read, of those that report: half of G at least,
* on each machine with two or more ranks of G, half of these have at least half of the rank's own effect,
* of all other ranks at most a tenth have as much (one rank at least is allowed), apart from those found slow
  at another time and those in groups of the same family that are as slow,
* the rank's machine, if three quarters of it are as slow, has fewer such ranks than G.

Of several such groups the one with the most slow ranks is taken. Ranks found later join it if they began
within 10 steps of it, or within half the steps that either took to be found, or were found when it was. It
ends when fewer than half of its ranks are slow for 40 steps. This is the choice among families of hypotheses
by what each leaves unexplained (greedy set cover), on the effects of ``candidate``; the shares are ours.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from detectors.peers.batches import Batches
from detectors.robust import nan_median
from detectors.straggler.candidate import Candidate

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

# Groups whose ranks differ in that coordinate alone, and those that work on one batch. Of two that are the
# same ranks the first is taken.
FAMILIES = ("tp", "cp", "ep", "replica", "pp")

# Families whose ranks wait for each other within what they measure as compute.
WAITING = frozenset(("tp", "cp", "ep"))

# Chosen, as for machines and positions (``alternatives``, ``shards``): what counts as slow as others, and
# how many of a set must be.
_ALIKE, _SHARE = 0.5, 0.75

# Chosen: ranks of some stages may report no compute, and of fewer than half of a group little is known.
_HALF = 0.5

# Chosen: more slow ranks than these outside of such groups show that something else is slow.
_OTHERS = 0.1

# Chosen: steps in which the members must still be slow, for a group is not made of ranks that were.
_LATELY = 20

# Chosen: steps between two onsets of one cause, at least, and as a share of the steps that showed them.
_TOGETHER, _VAGUE = 10, 0.5

# Chosen: steps between two that were found for one cause, however far apart they are dated: ranks that were
# slow shortly before may be dated to that time.
_AT_ONCE = 3

# Chosen: steps for which most are well again, while the others may be about to be: twice the quiet steps of a
# rank that recovers (``timing_channel.QUIET_STEPS``).
_OVER = 40


@dataclass(frozen=True, slots=True)
class GroupFamilies:
    """``labels`` [ranks] number the groups of each family (none: -1); ``places`` [ranks] are the positions in
    them; ``node`` [ranks] numbers the machines."""

    labels: Mapping[str, Ints]
    places: Mapping[str, Ints]
    node: Ints

    @classmethod
    def from_coords(cls, coords: Mapping[str, Ints], node: Ints) -> "GroupFamilies":
        """Build from the positions of each rank (-1: unknown); a dimension not known of all ranks is left
        out."""
        known = {name: at for name, at in coords.items() if at.size and at.min() >= 0}
        labels: dict[str, Ints] = {}
        for name in FAMILIES:
            if name == "replica" and "dp" in known:
                labels[name] = known["dp"]
            elif name in known and len(known) > 1:
                others = [_outside(name, other, known) for other in known if other != name]
                labels[name] = np.unique(np.stack(others), axis=1, return_inverse=True)[1].reshape(-1)
        return cls(labels, known, node)

    @classmethod
    def from_batches(cls, batches: Batches) -> "GroupFamilies":
        """Build from who works on one batch, where amounts of work show it and no coordinates tell more."""
        return cls({"replica": batches.replica}, {}, batches.node)

    def of(self, rank: int) -> Iterator[tuple[str, Ints]]:
        """Yield the groups of ``rank`` that are half of the job at most, and no machine by themselves.

        Ranks of one machine that wait for each other within their compute are none here: they are gathered
        when all of them are found (``straggler.mates``).
        """
        machine, waiting = self.node == self.node[rank], np.zeros(self.node.size, dtype=np.bool_)
        for family, labels in self.labels.items():
            group = labels == labels[rank]
            waiting |= group if family in WAITING else False
            members = np.flatnonzero(group)
            if not 2 <= members.size <= labels.size / 2:
                continue
            if machine[members].all() and (group[machine].all() or waiting[members].all()):
                continue
            # More than coordinates distinguish them.
            if family in self.places and np.unique(self.places[family][members]).size < members.size:
                continue
            yield family, members


# Compared by identity: == of arrays has no single truth value.
@dataclass(slots=True, eq=False)
class RankGroup:
    """A group that is slow as one: its ``family`` and ``members`` (places); ``slow`` ones were found so.

    Ranks in ``was`` may have recovered, and are part of it again when they relapse. It ``began`` at a step,
    took ``shown`` steps to show; ``lasting``: slow since the first step seen. ``leader`` is the one that the
    others wait for, -1 where none is clearly slower.
    """

    family: str
    members: Ints
    began: int
    shown: int
    lasting: bool
    slow: set[int] = field(default_factory=set)
    was: set[int] = field(default_factory=set)
    leader: int = -1
    most: int = 0
    few_since: int | None = None

    @property
    def may_wait(self) -> bool:
        """Whether its ranks wait for the slowest within what they measure as compute."""
        return self.family in WAITING


class SlowGroups:
    """The groups of one job that are slow as one. Times are steps judged so far (``now``)."""

    def __init__(self, families: GroupFamilies | None) -> None:
        self._families = families
        self._of: dict[int, RankGroup] = {}
        self._began: dict[int, tuple[int, int]] = {}
        self.open: list[RankGroup] = []

    def of(self, rank: int) -> RankGroup | None:
        """Return the group with which ``rank`` is slow, if it is not by itself."""
        return self._of.get(rank)

    def find(self, family: str, members: Ints) -> RankGroup | None:
        """Return the open group with these members."""
        same = (g for g in self.open if g.family == family and np.array_equal(g.members, members))
        return next(same, None)

    def learn(self, families: GroupFamilies) -> None:
        """Take which groups there are, where that was not known before."""
        self._families = families

    def take(self, found: Candidate, now: int) -> RankGroup | None:
        """Take that a rank was found slow; return the group that explains it, found now or before."""
        if self._families is None:
            return None
        began, rank = (now - found.steps, found.steps), found.rank
        group = next((g for g in self.open if rank in g.was or _together(rank, began, g)), None)
        if group is None and (best := self._explaining(self._families, found, began)) is not None:
            group = RankGroup(*best, *began, found.lasting)
            self.open.append(group)
            free = [r for r in group.members.tolist() if r in self._began and r not in self._of]
            for other in (r for r in free if _together(r, self._began[r], group)):
                self._join(group, other)
        self._began[rank] = began
        if group is not None:
            self._join(group, rank)
        return group

    def holds(self, rank: int) -> bool:
        """Whether ``rank`` is in a group that is slow as one, itself slow or not."""
        return any(rank in group.members for group in self.open)

    def release(self, rank: int) -> None:
        """Take that a rank is slow by itself, whatever its group is."""
        group = self._of.pop(rank, None)
        if group is not None:
            group.slow.discard(rank)
            group.was.discard(rank)

    def settle(self, raised: Bools, now: int) -> list[int]:
        """Follow who has recovered; return the ranks that are slow still when their group is no more."""
        if not self._began:
            return []
        for rank in [r for r in self._began if not raised[r]]:
            del self._began[rank]
            if rank in self._of:
                self._of.pop(rank).slow.discard(rank)
        left: list[int] = []
        for group in list(self.open):
            few = 2 * len(group.slow) < group.most
            group.few_since = (now if group.few_since is None else group.few_since) if few else None
            over = group.few_since is not None and now - group.few_since >= _OVER
            if over or not group.slow:
                left += sorted(group.slow)
                self.open.remove(group)
        for rank in left:
            self.release(rank)
        return left

    def resume(self, ranks: Ints) -> None:
        """Take groups as slow of which nearly all ranks have been found so before, and more of them than of a
        machine that is slow as a whole."""
        if self._families is None:
            return
        slow = set(ranks.tolist())
        for rank in sorted(slow):
            self._began[rank] = (0, 0)
            if rank in self._of:
                continue
            node = np.isin(np.flatnonzero(self._families.node == self._families.node[rank]), ranks)
            most = int(node.sum()) if node.mean() >= _SHARE else 1
            sets = [(f, m) for f, m in self._families.of(rank) if np.isin(m, ranks).mean() >= _SHARE]
            larger = [(f, m) for f, m in sets if np.isin(m, ranks).sum() > most]
            if larger:
                group = RankGroup(*max(larger, key=lambda found: found[1].size), 0, 0, lasting=False)
                self.open.append(group)
                for other in sorted(slow.intersection(group.members.tolist()) - self._of.keys()):
                    self._join(group, other)

    def _join(self, group: RankGroup, rank: int) -> None:
        self._of[rank] = group
        group.slow.add(rank)
        group.was.add(rank)
        group.most = max(group.most, len(group.slow))

    def _explaining(
        self, families: GroupFamilies, found: Candidate, began: tuple[int, int]
    ) -> tuple[str, Ints] | None:
        effect = np.fmin(found.effect, nan_median(found.x[-_LATELY:]))
        reports = np.isfinite(effect)
        apart = [r for r, other in self._began.items() if not near(began, other)]
        effect[apart] = np.nan
        best: tuple[str, Ints] | None = None
        node = families.node == families.node[found.rank]
        as_slow = effect >= _ALIKE * found.size
        most = int(as_slow[node].sum()) if as_slow[node].mean() >= _SHARE else 1
        for family, members in families.of(found.rank):
            middle = float(nan_median(effect[members]))
            alike, read = effect >= _ALIKE * middle, members[np.isfinite(effect[members])]
            reporting = np.count_nonzero(reports[members])
            if (
                middle >= _ALIKE * found.size
                and int(alike[read].sum()) > most
                and read.size >= _SHARE * reporting >= _SHARE * _HALF * members.size
                and alike[read].mean() >= _SHARE
                and _least_share(as_slow[read], families.node[read]) >= _ALIKE
                and _left_over(alike, families.labels[family]) <= max(1, _OTHERS * (~alike).sum())
            ):
                best, most = (family, members), int(alike[read].sum())
        return best


def likelihood(effects: Floats, error: float) -> Floats:
    """Return for each of some ranks how likely it is the one that the others wait for: nobody is slower, so
    that any difference to the largest of ``effects`` [ranks] is the ``error`` of both."""
    apart = (np.nanmax(effects) - effects) / (np.sqrt(2.0) * error)
    weight = np.nan_to_num(np.exp(-0.5 * apart**2))
    shares: Floats = weight / weight.sum()
    return shares


def _share(alike: Bools, label: Ints) -> Floats:
    """Return the share of ``alike`` ranks under each label, [labels]."""
    number = np.unique(label, return_inverse=True)[1].reshape(-1)
    share: Floats = np.bincount(number, weights=alike) / np.bincount(number)
    return share


def _least_share(alike: Bools, node: Ints) -> float:
    """Return the least share of ``alike`` ranks on the machines with two or more; 1 if none has: of single
    ones, some may not show it yet."""
    several = np.unique(node, return_counts=True)[1] >= 2
    return float(_share(alike, node)[several].min(initial=1.0))


def _left_over(alike: Bools, labels: Ints) -> int:
    """Return how many ``alike`` ranks are in none of the groups that are slow nearly as a whole."""
    number = np.unique(labels, return_inverse=True)[1].reshape(-1)
    whole = _share(alike, labels) >= _SHARE
    return int(np.count_nonzero(alike & ~whole[number]))


def _together(rank: int, began: tuple[int, int], group: RankGroup) -> bool:
    return rank in group.members and near(began, (group.began, group.shown))


def near(one: tuple[int, int], two: tuple[int, int]) -> bool:
    """Return whether two ranks became slow at once: of each the step, and how many it took to be found."""
    began_near = abs(one[0] - two[0]) <= max(_TOGETHER, _VAGUE * max(one[1], two[1]))
    return began_near or abs(sum(one) - sum(two)) <= _AT_ONCE


def _outside(name: str, other: str, known: Mapping[str, Ints]) -> Ints:
    """Return a coordinate of the ranks that differ in ``name`` alone: experts divide data-parallel ranks."""
    at = known[other]
    if name == "ep" and other == "dp":
        experts = int(known["ep"].max()) + 1
        if np.array_equal(at % experts, known["ep"]):
            return np.asarray(at // experts, dtype=np.intp)
    return at
