"""Ranks of several machines that load slowly since the same moment: what they share is slow, a store or its
network, and none of their machines.

Ranks began together as those of a group do (``slow_groups.near``); three machines of which ranks did are more
than fail by chance at one moment. Ranks found later join them. It ends with the last of them.

Noise decides when each is found. So when one is, the others count as found where since its onset they load
for half as long or more, and still do: on a machine at least half the share of ranks that does on its own,
with a mean over ``SURE_SIGMAS`` standard errors of what scatters them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from detectors.peers.peers import PeerGroups
from detectors.robust import nan_median, spread
from detectors.straggler.alternatives.confirmation import SURE_SIGMAS
from detectors.straggler.candidate import HALF, Candidate
from detectors.straggler.slow_groups import near

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

# Chosen: two may begin at one moment by chance, or be the two that a job was moved to.
_MACHINES = 3

# Steps for which one machine is alone in it before it is taken for itself. Chosen, as for ``slow_groups``: it
# may be about to be well.
_OVER = 40

Began = tuple[int, int]
"""The step in which a rank became slow, and how many it took to be found."""

# Steps in which the others must still be slow (chosen, as for the ranks of a machine).
_LATELY = 5


class LoadingTogether:
    """The ranks of a job that load slowly since one moment; ``node`` [ranks] numbers their machines."""

    def __init__(self, node: Ints) -> None:
        self._node = node
        self._began: dict[int, Began] = {}
        self._members: set[int] = set()
        self._one_left: int | None = None

    @property
    def members(self) -> Ints:
        """The places of those that are slow together now, ascending; none where no three machines are."""
        return np.array(sorted(self._members), dtype=np.intp)

    def holds(self, rank: int) -> bool:
        """Whether ``rank`` is slow together with others."""
        return rank in self._members

    def update(self, found: Mapping[int, Began], raised: Bools, now: int) -> list[int]:
        """Take the ranks ``found`` in this step (``now`` judged so far), and which ``raised`` ones still load
        slowly; return those of a machine that is alone in it by now."""
        if not (found or self._began):
            return []
        self._began = {rank: began for rank, began in self._began.items() if raised[rank]} | dict(found)
        self._members &= self._began.keys()
        for began in set(found.values()):
            with_it = {other for other, its in self._began.items() if near(began, its)}
            if not with_it.isdisjoint(self._members) or self._machines(with_it) >= _MACHINES:
                self._members |= with_it
        alone = bool(self._members) and self._machines(self._members) == 1
        self._one_left = (now if self._one_left is None else self._one_left) if alone else None
        if self._one_left is None or now - self._one_left < _OVER:
            return []
        left, self._members = sorted(self._members), set()
        return left

    def resume(self, ranks: Iterable[int]) -> None:
        """Take ``ranks`` as slow together that were so before; when they began is not known."""
        self._began = dict.fromkeys(ranks, (0, 0))
        self._members = set(self._began)

    def _machines(self, ranks: set[int]) -> int:
        return len(set(self._node[list(ranks)].tolist()))


def as_slow_elsewhere(found: Candidate, nodes: PeerGroups) -> list[Candidate]:
    """Return the ranks of all machines that load slowly with ``found``, itself among them, as candidates;
    none where they are not three machines. ``nodes`` are the ranks of each machine."""
    alike = np.fmin(found.effect, nan_median(found.x[-_LATELY:])) >= HALF * found.size
    alike[found.rank] = True
    count = np.bincount(nodes.index, weights=alike)
    share = count / nodes.sizes
    mean = np.bincount(nodes.index, weights=np.where(alike, found.effect, 0.0)) / np.maximum(count, 1.0)
    apart = (found.x - found.effect)[:, alike].ravel()
    error = float(spread(apart[np.isfinite(apart)])) / np.sqrt(np.maximum(count, 1.0) * len(found.x))
    own = nodes.index[found.rank]
    slow = (share >= HALF * share[own]) & (mean >= SURE_SIGMAS * error)
    slow[own] = True
    if np.count_nonzero(slow) < _MACHINES:
        return []
    ranks = np.flatnonzero(alike & slow[nodes.index]).tolist()
    return [replace(found, rank=rank) for rank in ranks]
