"""Comparison of ranks with their peers: leave-one-out ratios of one timing, and a robust distance of
many metrics.

Which ranks are peers is decided elsewhere (``detectors.roles``); how much deviation is too much is decided by
sequential evidence over steps (``detectors.evidence``).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

MIN_PEERS = 3
"""Below this a median of the others cannot tell who is slow: abstain, and use the rank's own history."""

_EXACT = 64
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

    def gather(self, values: Floats) -> Floats:
        """Return [groups, widest] of ``values`` [ranks], padded with NaN."""
        return np.where(self.members >= 0, values[self.members], np.nan)


def peer_median(values: Floats, groups: PeerGroups) -> Floats:
    """Return for each rank the median of its group without itself, [ranks]; NaN where nobody else was read.

    Exact leave-one-out up to 64 members (removing one element of a sorted row shifts an index); above that
    one member moves the median by less than a hundredth of the spread, and the group's median serves.
    """
    if groups.narrowest > _EXACT:
        return group_median(values, groups)[groups.index]
    rows = groups.gather(values)
    out = np.full(values.shape, np.nan)
    order = np.argsort(rows, axis=1)
    ordered = np.take_along_axis(rows, order, axis=1)
    count = np.isfinite(ordered).sum(axis=1)[:, None]
    position = np.empty_like(order)
    np.put_along_axis(position, order, np.arange(rows.shape[1])[None, :], axis=1)
    others = np.where(position < count, count - 1, count)
    low, high = np.maximum(others - 1, 0) // 2, others // 2
    low, high = low + (low >= position), high + (high >= position)
    limit = rows.shape[1] - 1
    middle = 0.5 * (
        np.take_along_axis(ordered, np.minimum(low, limit), axis=1)
        + np.take_along_axis(ordered, np.minimum(high, limit), axis=1)
    )
    middle[others + np.zeros_like(position) < 1] = np.nan
    real = groups.members >= 0
    out[groups.members[real]] = middle[real]
    return out


def group_median(values: Floats, groups: PeerGroups) -> Floats:
    """Return the median of each group over its read members, [groups]; NaN for an empty one."""
    ordered = np.sort(groups.gather(values), axis=1)
    count = np.isfinite(ordered).sum(axis=1)
    rows = np.arange(ordered.shape[0])
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, ordered.shape[1] - 1)
    median = 0.5 * (ordered[rows, low] + ordered[rows, high])
    return np.where(count > 0, median, np.nan)


@dataclass(frozen=True, slots=True)
class PeerScores:
    """``score`` [ranks] is the distance to the coordinate-wise median in robust sigmas, ``z`` [metrics,
    ranks] why.
    """

    score: Floats
    z: Floats


def peer_scores(
    values: Floats, *, floors: Floats, pooled: Floats | None = None, weights: Floats | None = None
) -> PeerScores:
    """Score one group at one tick by its distance to the coordinate-wise median in MAD units.

    ``values`` is [metrics, ranks] (NaN = not read), ``floors`` the smallest credible sigma per metric,
    ``pooled`` the group's sigma over the last 20-50 ticks (the MAD of a small group at one tick is unusable
    on its own), ``weights`` one per metric. Two selections per metric, so O(ranks). z is limited to 12 in the
    score, so that one wild metric does not hide the others.
    """
    median = _row_median(values)[:, None]
    mad = 1.4826 * _row_median(np.abs(values - median))
    scale = np.maximum(mad, floors)
    if pooled is not None:
        scale = np.maximum(scale, pooled)
    z = (values - median) / scale[:, None]
    weight = np.ones(values.shape[0]) if weights is None else weights
    limited = np.nan_to_num(np.clip(z, -_CLIP, _CLIP), nan=0.0)
    return PeerScores(np.sqrt(weight @ (limited * limited)), z)


def _row_median(values: Floats) -> Floats:
    missing = np.isnan(values)
    if missing.any():
        return np.array(
            [
                np.median(row[~gap]) if not gap.all() else np.nan
                for row, gap in zip(values, missing, strict=True)
            ]
        )
    n = values.shape[1]
    low, high = (n - 1) // 2, n // 2
    part = np.partition(values, (low, high), axis=1)
    middle: Floats = 0.5 * (part[:, low] + part[:, high])
    return middle
