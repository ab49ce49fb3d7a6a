"""Ranks at one place of several machines that became slow in one step, by as much: they have one cause.

Machines and their GPUs fail one by one. What begins on several in one step is work that came to them
together, as that of a popular expert does, a collective in which one of them holds up the others, or what
they share, as power.
"""

import numpy as np
import numpy.typing as npt

from detectors.peers.peers import PeerGroups
from detectors.robust import nan_median

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

# Quantiles of a rank's steps that are its well and its slow ones, where some of both were seen.
_WELL, _SLOW = 0.1, 0.9

# Chosen, of the rank's own rise: by how much less or more the others may have risen, by three slow steps.
_LEAST, _MOST = 2 / 3, 3 / 2

# Chosen: share of the steps in which others are slow if the rank is, and well if it is.
_SAME_STEPS = 0.9

# Chosen, of the ranks of its machine or another one that did so: how many must have done so on both.
_ALIKE = 0.75


def beside_the_middle(v: Floats) -> Floats:
    """Return log seconds ``v`` [steps, ranks] less those of the middle rank; what was not read is as
    usual."""
    beside: Floats = np.nan_to_num(v - nan_median(v, axis=1)[:, None])
    return beside


def risen_together(x: Floats, rank: int, nodes: PeerGroups) -> Bools:
    """Return who rose and fell as ``rank`` did in the log seconds ``x`` [steps, ranks] beside the middle
    rank's, itself among them, [ranks]: those that did so at one place of several machines; else nobody."""
    together = np.zeros(x.shape[1], dtype=np.bool_)
    own = nodes.members[nodes.index[rank]]
    places = np.flatnonzero((own >= 0) & _has_risen(x, own, like=rank))
    at = nodes.members[:, places]
    # Noise hides it from some ranks of a machine, and shows it on some of others: with fewer than this at
    # the places of its own none can be alike, and these are an eighth of all where one rank rose.
    near = np.flatnonzero(_has_risen(x, at, like=rank).sum(axis=1) >= _ALIKE * places.size)
    if near.size < 2:
        return together
    on, here = _has_risen(x, nodes.members[near], like=rank), np.zeros(nodes.members.shape[1], dtype=np.bool_)
    here[places] = True
    alike = near[(on & here).sum(axis=1) >= _ALIKE * (on | here).sum(axis=1)]
    if alike.size > 1:
        mates = nodes.members[np.ix_(alike, places)]
        together[mates[mates >= 0]] = True
    return together


def _has_risen(x: Floats, ranks: Ints, *, like: int) -> Bools:
    """Return which ``ranks`` [any shape], -1 for none, rose in ``x`` [steps, ranks] as another one did."""
    some = np.append(ranks[ranks >= 0], like)
    seen = x[:, some]
    well, high = np.quantile(seen, (_WELL, _SLOW), axis=0)
    rise, slow = high - well, seen > (well + high) / 2
    same = np.mean(slow == slow[:, -1:], axis=0) >= _SAME_STEPS
    found = same & (rise >= _LEAST * rise[-1]) & (rise <= _MOST * rise[-1])
    has_risen = ranks >= 0
    has_risen[has_risen] = found[:-1]
    return has_risen
