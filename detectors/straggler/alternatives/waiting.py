"""Waiting: a culprit waits least of all, a victim waits for others."""

import numpy as np

from detectors.peers.ratios import Ratios
from detectors.robust import nan_median
from detectors.straggler.candidate import Candidate

# Chosen, shares of the rank's excess: waiting more than the first is a victim's, less than the second a
# culprit's. Between them waiting decides nothing: collectives and pipeline bubbles are in it too.
_WAITS_MORE, _WAITS_LESS = 0.5, -0.3


def waits_least(ratios: Ratios, found: Candidate) -> bool | None:
    """Whether the rank waits less than its role mates, as a culprit does; False if it waits clearly more.

    Where no waits are reported, collectives are where ranks wait for what is outside of their compute.
    """
    waits = ratios.history.last("wait", found.steps)
    if found.timing == "rest" and not np.isfinite(waits).any():
        waits = ratios.history.last("comm", found.steps)
    seconds = ratios.history.last("compute", found.steps)
    mates = ratios.comparison.mates(found.rank)
    if found.timing == "rest" and not mates.any():
        mates = np.arange(ratios.ranks) != found.rank
    if not np.isfinite(waits[:, found.rank]).any() or not np.isfinite(waits[:, mates]).any():
        return None
    more = float(nan_median(waits[:, found.rank]) - nan_median(waits[:, mates].ravel()))
    excess = found.excess * float(nan_median(seconds[:, mates].ravel()))
    # The others wait for the culprit as long as it takes longer; the culprit waits for no rank.
    if more > _WAITS_MORE * excess:
        return False
    return True if more < _WAITS_LESS * excess else None
