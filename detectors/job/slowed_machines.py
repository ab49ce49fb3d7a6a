"""Most machines of a job that became slow at one moment, beside some that did not.

Compared with each other the few others seem to be quicker, so that no machine is found slow; the past shows
which of both moved. Arrays are [steps, machines], logs of the median compute of a machine's ranks.

With d the median of the last 20 steps less that of the up to 100 steps before them, the machines in order of
d are cut where two are furthest apart, g. Those above have become slow if they have at least half of the
ranks and no rank is slow by itself, the others are two machines and more, g is 5 % at least and
6 sigmas of the difference of the two means from step to step, half of g is their own rise, the others moved
by no more than that, and on each side all lie within g / 2. The shares are ours.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from detectors.peers.peers import MIN_PEERS, PeerGroups, group_median
from detectors.peers.places.roles import is_regular
from detectors.robust import nan_mean, nan_median, spread

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

# Steps that show it, the fewest before them, and all that are looked at. Chosen: as for other slowness of a
# job as a whole.
LATELY, _LEAST_PAST = 20, 20
STEPS = LATELY + 100

# Chosen: by how much, in log seconds and sigmas, the two kinds of machines must be apart.
_LEAST, _SIGMAS = math.log(1.05), 6.0

# Chosen: of how far they are apart.
_HALF = 0.5

# Machines that must not have moved. Chosen: one is quicker than the others for a reason of its own.
_FEWEST = 2

# Ranks of which the middle one tells whether a job has become slower at all (chosen: it costs little).
_SOME = 256


@dataclass(frozen=True, slots=True)
class SlowedMachines:
    """``ranks`` [ranks] are on machines that became slow, by ``effect`` (log ratio) beside the others, from
    which they were ``usual`` (log ratio) apart before."""

    ranks: Bools
    effect: float
    usual: float

    def now(self, v: Floats, nodes: PeerGroups) -> "SlowedMachines":
        """Return them with the effect that the last steps show."""
        apart = _apart(group_median(v[-LATELY // 2 :], nodes), nodes.index[self.ranks])
        return replace(self, effect=float(nan_median(apart)) - self.usual)

    def high(self, v: Floats, nodes: PeerGroups) -> Bools:
        """Return the steps in which they are as slow, [steps], by the logs ``v`` [steps, ranks]."""
        apart = _apart(group_median(v, nodes), nodes.index[self.ranks])
        return apart - self.usual >= _HALF * self.effect


class SlowedMachinesWatch:
    """Finds them once, and holds them for as long as most of the last steps show them."""

    def __init__(self) -> None:
        self._found: SlowedMachines | None = None

    def look(self, v: Floats, nodes: PeerGroups, slow: Bools, *, roles: Ints | None) -> SlowedMachines | None:
        """Return the machines that are slow in the last steps since one moment.

        ``v`` [STEPS at most, ranks] are logs of the ranks' own seconds; ranks that are ``slow`` [ranks] are
        so by themselves. ``roles`` [ranks] number who does the same work: if those of a role are all slow
        or all not, its work has changed. None: unknown; then ranks that stand as those of a stage may be one.
        """
        if self._found is not None and 2 * self._found.high(v[-LATELY:], nodes).sum() < LATELY:
            self._found = None
        if self._found is None and not slow.any():
            found = slowed_machines(v, nodes)
            self._found = None if found is None or _is_work(found.ranks, roles) else found
        return None if self._found is None else self._found.now(v, nodes)


def slowed_machines(v: Floats, nodes: PeerGroups) -> SlowedMachines | None:
    """Return the machines that became slow together in the last steps, None where they are not most."""
    if len(v) < LATELY + _LEAST_PAST or nodes.sizes.size < MIN_PEERS or not _has_risen(v):
        return None
    levels = group_median(v, nodes)
    d = nan_median(levels[-LATELY:]) - nan_median(levels[:-LATELY])
    if not np.isfinite(d).all():
        return None
    order = np.argsort(d)
    cut = int(np.diff(d[order]).argmax()) + 1
    others, moved = order[:cut], order[cut:]
    gap, rise = float(d[moved].min() - d[others].max()), float(nan_median(d[moved]))
    ranks = np.isin(nodes.index, moved)
    if others.size < _FEWEST or 2 * np.count_nonzero(ranks) < ranks.size or rise < _HALF * gap:
        return None
    apart = _apart(levels, moved)
    noise = float(spread(np.diff(apart))) / math.sqrt(2.0)
    within = max(float(np.ptp(d[moved])), float(np.ptp(d[others])))
    still = abs(float(nan_median(d[others]))) <= _HALF * gap
    if not still or gap < max(_LEAST, _SIGMAS * noise) or within > _HALF * gap:
        return None
    return SlowedMachines(ranks, gap, float(nan_median(apart[:-LATELY]))).now(v, nodes)


def _is_work(ranks: Bools, roles: Ints | None) -> bool:
    """Return whether more work of some roles explains which ``ranks`` are slow."""
    if roles is None:
        return is_regular(ranks) or is_regular(~ranks)
    share = np.bincount(roles, weights=ranks) / np.maximum(np.bincount(roles), 1)
    return bool(np.isin(share, (0.0, 1.0)).all())


def _has_risen(v: Floats) -> bool:
    """Return whether the middle rank takes longer than before at all; by some of many, which costs little."""
    middle = nan_median(v[:, :: max(1, v.shape[1] // _SOME)], axis=1)
    return bool(nan_median(middle[-LATELY:]) - nan_median(middle[:-LATELY]) >= _HALF * _LEAST)


def _apart(levels: Floats, moved: Ints) -> Floats:
    """Return by how much machines that ``moved`` are above the others, [steps], by ``levels`` [steps,
    machines]."""
    others = np.delete(levels, moved, axis=1)
    return nan_mean(levels[:, np.unique(moved)], axis=1) - nan_mean(others, axis=1)
