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

# Quantiles of a rank's steps that are its well and its slow ones, where some of both were seen.
_WELL, _SLOW = 0.1, 0.9

# Chosen, of the rank's own rise: by how much less or more the others may have risen, by three slow steps.
_LEAST, _MOST = 2 / 3, 3 / 2

# Chosen: share of the steps in which others are slow if the rank is, and well if it is.
_SAME_STEPS = 0.9

# Chosen, of the ranks of its machine or another one that did so: how many must have done so on both.
_ALIKE = 0.75


def risen_together(v: Floats, rank: int, nodes: PeerGroups) -> Bools:
    """Return who rose and fell as ``rank`` did in the log seconds ``v`` [steps, ranks], itself among them,
    [ranks]: those that did so at one place of several machines; else nobody."""
    # What was not read is as usual.
    x = np.nan_to_num(v - nan_median(v, axis=1)[:, None])
    well, high = np.quantile(x, (_WELL, _SLOW), axis=0)
    rise, slow = high - well, x > (well + high) / 2
    same = np.mean(slow == slow[:, [rank]], axis=0) >= _SAME_STEPS
    found: Bools = same & (rise >= _LEAST * rise[rank]) & (rise <= _MOST * rise[rank])
    on = nodes.gather(found.astype(np.float64)) > 0
    own = on[nodes.index[rank]]
    # Noise hides it from some ranks of a machine, and shows it on some of others.
    alike = (on & own).sum(axis=1) >= _ALIKE * (on | own).sum(axis=1)
    together = np.zeros_like(found)
    together[nodes.members[alike[:, None] & own & (nodes.members >= 0)]] = alike.sum() > 1
    return together
