"""Comparison of ranks with their peers: leave-one-out ratios of one timing, and a robust distance of
many metrics.

Leave-one-out ratio: for rank r with peers G(r), x_r = ln t_r - median of ln t_q over q in G(r) without r. A
rank's own slowness does not enter its reference, so that small groups are compared without bias. One sort per
group serves all its ranks: without a member up to the middle of the sorted row, the next one is in the
middle. Above 64 members one rank moves the median by less than a hundredth of the spread, and the median of
all serves.

Which ranks are peers is decided elsewhere (``detectors.peers.places.roles``); how much deviation is too much
is decided by sequential evidence over steps (``detectors.changepoint.llr_cusum``). The median has a breakdown
point of one half: more slow members than that exchange "slow" and "usual".
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Real = npt.NDArray[np.floating]
Ints = npt.NDArray[np.intp]

# Below this a median of the others does not show who is slow: of two, either may be it. Such a rank is
# compared with its own history.
MIN_PEERS = 3

# Members up to which ``peer_median`` leaves one out: above, that moves it by less than a hundredth of the
# spread.
_EXACT = 64

# Ranks from which ``peer_scores`` goes by a sample, and the ranks in that. Chosen: its error is given there.
# Ranks in a block, which stays in the cache.
_LARGE, _SAMPLE, _BLOCK = 1000, 512, 8192

# Sigmas that z is limited to. Chosen: one wild metric does not hide the others.
_CLIP = 12.0


@dataclass(frozen=True)
class PeerGroups:
    """A partition of the ranks; ``index`` [ranks] is the group of each, ``members`` [groups, widest]
    pads with -1.
    """

    index: Ints
    members: Ints

    @classmethod
    def of(cls, index: npt.ArrayLike) -> "PeerGroups":
        """Build from group numbers per rank (any integers)."""
        _, group = np.unique(np.asarray(index), return_inverse=True)
        group = group.reshape(-1)
        sizes = np.bincount(group)
        members = np.full((sizes.size, sizes.max(initial=0)), -1, dtype=np.intp)
        for g in range(sizes.size):
            members[g, : sizes[g]] = np.flatnonzero(group == g)
        return cls(group, members)

    def divided(self, index: Ints) -> "PeerGroups":
        """Return the groups of ranks that share a group and an ``index`` (from 0 on, [ranks])."""
        return PeerGroups.of(self.index * (int(index.max(initial=0)) + 1) + index)

    @cached_property
    def narrowest(self) -> int:
        """Members of the smallest group."""
        return int(self.sizes.min()) if self.sizes.size else 0

    @cached_property
    def sizes(self) -> Ints:
        """Members per group [groups]."""
        sizes: Ints = (self.members >= 0).sum(axis=1)
        return sizes

    @cached_property
    def peers(self) -> Ints:
        """Number of peers each rank has [ranks]."""
        return self.sizes[self.index] - 1

    def members_with(self, rank: int) -> Ints:
        """Return the members of the group of ``rank``, itself among them, ascending."""
        members: Ints = self.members[self.index[rank]]
        return members[members >= 0]

    def gather(self, values: Floats) -> Floats:
        """Return [..., groups, widest] of ``values`` [..., ranks], padded with NaN."""
        gathered: Floats = values.take(self.members, axis=-1)
        return gathered if self._even else np.where(self.members >= 0, gathered, np.nan)

    def spread_out(self, per_group: Floats) -> Floats:
        """Return [..., ranks] of ``per_group`` [..., groups]: for each rank what its group has."""
        spread: Floats = per_group.take(self.index, axis=-1)
        return spread

    @cached_property
    def _even(self) -> bool:
        return bool(self.narrowest == self.members.shape[1])

    def count(self, ordered: Floats) -> Ints:
        """Return how many of each sorted row of ``gather`` were read, [..., groups]; one number if all."""
        # What was not read is sorted to the end: where the last is finite, so is all of it.
        if self._even and np.isfinite(ordered[..., -1]).all():
            return np.asarray(ordered.shape[-1])
        read: Ints = np.isfinite(ordered).sum(axis=-1)
        return read


def peer_median(values: Floats, groups: PeerGroups) -> Floats:
    """Return for each rank the median of its group without itself; NaN where no other was read.

    ``values`` and what is returned are [..., ranks]. Exact leave-one-out up to 64 members: without a member
    up to the middle of a sorted row, the next one is in the middle. Above that one member moves the median by
    less than a hundredth of the spread, and the group's median serves.
    """
    if groups.narrowest > _EXACT:
        return groups.spread_out(group_median(values, groups))
    ordered = np.sort(groups.gather(values), axis=-1)
    count = groups.count(ordered)
    others = np.maximum(count - 1, 0)
    low, high = np.maximum(others - 1, 0) // 2, others // 2
    without = 0.5 * (
        _without_each(values, ordered, low, groups) + _without_each(values, ordered, high, groups)
    )
    if count.ndim == 0:
        return without if others else np.full(values.shape, np.nan)
    without = np.where(others[..., groups.index] > 0, without, np.nan)
    return np.where(np.isfinite(values), without, groups.spread_out(_middle(ordered, count)))


def group_median(values: Floats, groups: PeerGroups) -> Floats:
    """Return the median of each group over its read members, [..., groups] of ``values`` [..., ranks]; NaN
    for an empty one.
    """
    ordered = np.sort(groups.gather(values), axis=-1)
    return _middle(ordered, groups.count(ordered))


def group_quantile(values: Floats, groups: PeerGroups, share: float) -> Floats:
    """Return the quantile below which ``share`` of each group's read members lie, interpolated between two,
    [..., groups] of ``values`` [..., ranks]; NaN for an empty group."""
    ordered = np.sort(groups.gather(values), axis=-1)
    last = np.maximum(np.isfinite(ordered).sum(axis=-1) - 1, 0)
    low = np.floor(share * last).astype(np.intp)
    high = np.minimum(low + 1, last)
    lower, upper = (np.take_along_axis(ordered, at[..., None], axis=-1)[..., 0] for at in (low, high))
    quantile: Floats = lower + (share * last - low) * (upper - lower)
    return quantile


def _middle(ordered: Floats, count: Ints) -> Floats:
    """Return the median of the first ``count`` of each sorted row."""
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, ordered.shape[-1] - 1)
    middle = 0.5 * (_pick(ordered, low) + _pick(ordered, high))
    return middle if count.ndim == 0 else np.where(count > 0, middle, np.nan)


def _without_each(values: Floats, ordered: Floats, place: Ints, groups: PeerGroups) -> Floats:
    """Return what stands at ``place`` of each rank's sorted row once the rank is taken out, [..., ranks]."""
    here = groups.spread_out(_pick(ordered, place))
    after = groups.spread_out(_pick(ordered, np.minimum(place + 1, ordered.shape[-1] - 1)))
    return np.where(values <= here, after, here)


def _pick(ordered: Floats, place: Ints) -> Floats:
    """Return the element at ``place``, [..., groups] or the same for all, of each row, [..., groups]."""
    if place.ndim == 0:
        return ordered[..., place]
    width = ordered.shape[-1]
    rows = np.arange(0, ordered.size, width).reshape(ordered.shape[:-1])
    picked: Floats = ordered.reshape(-1).take(rows + place)
    return picked


@dataclass(frozen=True, slots=True)
class PeerScores:
    """``score`` [ranks] is the distance to the coordinate-wise median in robust sigmas; ``median`` and
    ``scale`` [metrics] are what it was measured by.
    """

    score: Real
    median: Real
    scale: Real

    def z(self, values: Real) -> Real:
        """Return the signed robust z of ``values`` [metrics, ranks], those scored or some of their columns:
        the explanation of a score.
        """
        deviations: Real = (values - self.median[:, None]) / self.scale[:, None]
        return deviations


def peer_scores(values: Real, *, floors: Real) -> PeerScores:
    """Score one group at one tick by its distance to the coordinate-wise median in MAD units.

    ``values`` is [metrics, ranks] (NaN = not read), ``floors`` the smallest credible sigma per metric: the
    MAD of a small group at one tick may be next to nothing. z is limited to 12 in the score, so that one wild
    metric does not hide the others. Above 1,000 ranks 512 of them stand for all in median and MAD: that moves
    the centre by 0.06 sigma and the scale by 5 % (standard errors), and leaves three passes over the values.

    >>> tick = np.tile([1.0, 2.0, 3.0, 2.0], (2, 3))
    >>> tick[0, 7] = 9.0
    >>> peer_scores(tick, floors=np.array([1.0, 1.0])).score.round(1).tolist()
    [1.2, 0.0, 1.2, 0.0, 1.2, 0.0, 1.2, 4.7, 1.2, 0.0, 1.2, 0.0]
    """
    ranks = values.shape[1]
    judged = values if ranks < _LARGE else np.take(values, _spread_out(ranks), axis=1)
    median = _row_median(judged)
    scale = np.maximum(1.4826 * _row_median(np.abs(judged - median[:, None])), floors.astype(values.dtype))
    every, score = np.ones(len(values), values.dtype), np.empty(ranks, values.dtype)
    found = PeerScores(score, median, scale)
    # Blocks that stay in the cache: at 100,000 ranks the memory for three more matrices costs more than
    # the arithmetic.
    for start in range(0, ranks, _BLOCK):
        block = slice(start, start + _BLOCK)
        squares = np.clip(found.z(values[:, block]), -_CLIP, _CLIP)
        squares *= squares
        score[block] = every @ squares
        # One NaN makes a rank's sum NaN; what was not read counts as usual.
        unread = np.isnan(score[block])
        if unread.any():
            score[block][unread] = every @ np.nan_to_num(squares[:, unread])
    np.sqrt(score, out=score)
    return found


def _spread_out(ranks: int) -> Ints:
    """Numbers of 512 ranks all over the group by a golden-ratio sequence: no even stride, which would see
    the same slot of every node.
    """
    share = (np.arange(_SAMPLE) * 0.6180339887498949) % 1.0
    return (share * ranks).astype(np.intp)


def _row_median(values: Real) -> Real:
    missing = np.isnan(values)
    if missing.any():
        medians = [
            np.median(row[~gap]) if not gap.all() else np.nan
            for row, gap in zip(values, missing, strict=True)
        ]
        return np.array(medians, values.dtype)
    n = values.shape[1]
    # One place is put in order: of an even number, the lower middle is the largest before it.
    part = np.partition(values, n // 2, axis=1)
    high: Real = part[:, n // 2]
    return high if n % 2 else 0.5 * (high + part[:, : n // 2].max(axis=1))
