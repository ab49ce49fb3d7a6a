"""Votes of parallel groups: where a delay is common to ranks that exchange data, and which ranks share it.

A slow link delays every rank of the group that transfers over it, so no rank stands out and a group does.
Each dimension of the job (data, tensor, pipeline, context, expert) divides the ranks into groups.

Per round, ``seconds`` [ranks] are the ranks' usual transfer times. A group's level is the log of its quickest
member, because one slow rank is not a slow group; it votes slow when it exceeds the median of its peer groups
(same dimension and stage, itself left out) by ln 1.15 and by six robust sigmas of these differences. A group
with four slow votes of the last five rounds is slow, unless more than a quarter of its dimension is.

The culprit is in all slow groups: a rank's log-odds are +3 for each slow group it is in and -3 for each
dimension with slow groups in which its own is not, normalised over ranks (softmax) to a probability. Ranks
with at least half of the largest are suspects; with slow groups of two dimensions one rank may remain.

ByteRobust (SOSP'25) aggregates over parallel groups in five rounds; the other limits are chosen, on simulated
links (benchmarks/results/simulator.md).
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detectors.peers.peers import MIN_PEERS, PeerGroups, peer_median
from detectors.robust import spread

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteConfig:
    """A group votes slow in a round when it exceeds its peer groups by ``effect`` (log) and ``sigmas``.

    It is slow when it did so in ``needed`` of the last ``rounds``. Where more than ``most`` of a dimension's
    groups are slow, the delay is not theirs. ``odds`` are what a slow group of its adds to a rank's log-odds,
    and a group that is not takes away.
    """

    effect: float = math.log(1.15)
    sigmas: float = 6.0
    floor: float = 0.02
    # ByteRobust's number of rounds; the other limits are ours.
    rounds: int = 5
    needed: int = 4
    most: float = 0.25
    odds: float = 3.0


@dataclass(frozen=True, slots=True)
class SlowTransfers:
    """Ranks that differ in ``dimension`` only and are slow together, by ``ratio`` to the other groups."""

    dimension: str
    members: Ints
    ratio: float


@dataclass(frozen=True, slots=True)
class VoteCount:
    """The slow groups, and per rank [ranks] the probability that it is the culprit behind them."""

    groups: tuple[SlowTransfers, ...]
    probability: Floats

    def suspects(self) -> Ints:
        """Return the ranks that are as likely as any, in ascending order; none without a slow group."""
        if not self.groups:
            return np.array([], dtype=np.intp)
        return np.flatnonzero(self.probability >= 0.5 * self.probability.max())


class GroupVotes:
    """Counts the votes of one job; ``coords`` maps a dimension to every rank's position, -1 = unknown."""

    def __init__(self, coords: Mapping[str, Ints], config: VoteConfig | None = None) -> None:
        self.config = config or VoteConfig()
        known = {name: at for name, at in coords.items() if at.size and at.min() >= 0 and np.ptp(at) > 0}
        self._ranks = max((at.size for at in coords.values()), default=0)
        self._groups: dict[str, PeerGroups] = {}
        self._peers: dict[str, PeerGroups] = {}
        self._votes: dict[str, deque[Bools]] = {}
        self._ratio: dict[str, Floats] = {}
        for name in known:
            groups = PeerGroups.of(
                _numbered([at for other, at in known.items() if other != name], self._ranks)
            )
            # Stages transfer different amounts: a group's peers are those of its own stage.
            stage = known.get("pp") if name != "pp" else None
            role = np.zeros(len(groups.members)) if stage is None else stage[groups.members[:, 0]]
            peers = PeerGroups.of(role)
            if groups.narrowest >= 2 and peers.narrowest > MIN_PEERS:
                self._groups[name], self._peers[name] = groups, peers
                self._votes[name] = deque(maxlen=self.config.rounds)

    @property
    def able(self) -> bool:
        """Whether the job has enough groups in any dimension to compare."""
        return bool(self._groups)

    def holds(self, members: Ints) -> bool:
        """Return whether the ranks ``members`` are one of the groups that are compared."""
        own = (groups.index[members] for groups in self._groups.values())
        sizes = (groups.sizes for groups in self._groups.values())
        return any(
            bool((index == index[0]).all()) and int(size[index[0]]) == members.size
            for index, size in zip(own, sizes, strict=True)
        )

    def round(self, seconds: Floats) -> VoteCount:
        """Take what each rank's transfers usually took in this round, [ranks], NaN = not read."""
        for name, groups in self._groups.items():
            rows = groups.gather(seconds)
            # As slow as its quickest member: one slow rank is not a slow group.
            quickest = np.where(np.isfinite(rows), rows, np.inf).min(axis=1)
            level = np.log(np.where(np.isfinite(quickest) & (quickest > 0), quickest, np.nan))
            beyond = level - peer_median(level, self._peers[name])
            noise = max(self.config.floor, float(np.nan_to_num(spread(beyond[:, None])[0])))
            self._votes[name].append(beyond >= max(self.config.effect, self.config.sigmas * noise))
            self._ratio[name] = np.exp(beyond)
        return self._count()

    def _count(self) -> VoteCount:
        config, slow = self.config, []
        odds = np.zeros(self._ranks)
        for name, groups in self._groups.items():
            often = np.sum(self._votes[name], axis=0) >= config.needed
            if not often.any() or often.sum() > max(1.0, config.most * often.size):
                continue
            odds += np.where(often[groups.index], config.odds, -config.odds)
            for g in np.flatnonzero(often):
                members = groups.members[g][groups.members[g] >= 0]
                slow.append(SlowTransfers(name, members, float(self._ratio[name][g])))
        weight = np.exp(odds - odds.max()) if odds.size else odds
        return VoteCount(tuple(slow), weight / weight.sum() if odds.size else weight)


def _numbered(positions: list[Ints], ranks: int) -> Ints:
    """Number the combinations of positions, [ranks]."""
    if not positions:
        return np.zeros(ranks, dtype=np.intp)
    _, number = np.unique(np.stack(positions), axis=1, return_inverse=True)
    return np.asarray(number, dtype=np.intp).reshape(-1)
