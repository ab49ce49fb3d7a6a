"""Waiting: a culprit waits least of all, a victim waits for others."""

import math

import numpy as np

from detectors.peers.ratios import Ratios
from detectors.robust import Pool, nan_median
from detectors.straggler.candidate import Candidate

# Chosen, shares of the rank's excess: waiting more than the first is a victim's, less than the second a
# culprit's. Between them waiting decides nothing: collectives and pipeline bubbles are in it too.
_WAITS_MORE, _WAITS_LESS = 0.5, -0.3


def waits_least(ratios: Ratios, found: Candidate) -> bool | None:
    """Whether the rank waits less than its role mates, as a culprit does; False if it waits clearly more.

    Where no waits are reported, collectives are where ranks wait for what is outside of their compute.
    """
    waits, rest = "wait", found.timing == "rest"
    if rest and not np.isfinite(ratios.history.view("wait", found.steps)).any():
        waits = "comm"
    # In a role of its own, a rank does besides what all do.
    of_all = rest and not ratios.comparison.groups.peers[found.rank]
    own, mates = _own_and_mates(ratios, found, waits, of_all=of_all)
    if math.isnan(own) or math.isnan(mates):
        return None
    more = own - mates
    excess = found.excess * _own_and_mates(ratios, found, "compute", of_all=of_all)[1]
    # The others wait for the culprit as long as it takes longer; the culprit waits for no rank.
    if more > _WAITS_MORE * excess:
        return False
    return True if more < _WAITS_LESS * excess else None


def _own_and_mates(ratios: Ratios, found: Candidate, name: str, *, of_all: bool) -> tuple[float, float]:
    """Return the median of a series since the onset of the rank, and of all steps of its mates together, or
    ``of_all`` others; NaN where not read.

    All who are slow for as long ask for the mates of one role, each without itself.
    """
    history, steps = ratios.history, found.steps
    role = ratios.comparison.groups.index
    key = -1 if of_all else int(role[found.rank])
    pool = history.once(
        ("pool", name, steps, key),
        lambda: Pool(history.view(name, steps)[:, slice(None) if of_all else role == key], most=steps),
    )
    own = history.columns(name, steps, found.rank)
    return float(nan_median(own)), pool.median_without(own)
