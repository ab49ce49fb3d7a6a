"""More work: whether the amounts that a rank reports explain its excess."""

import numpy as np
import numpy.typing as npt

from detectors.peers.ratios import Ratios
from detectors.robust import nan_median
from detectors.straggler.candidate import HALF, LOOK_BEFORE, Candidate

Floats = npt.NDArray[np.float64]

_AMOUNTS = ("tokens", "squares")


def has_more_work(ratios: Ratios, found: Candidate) -> bool:
    """Return whether the work that the rank reports beyond its mates' explains its excess.

    With a(t) the log of the rank's amount over the median of those it is compared with, the work explains
    median a(slow steps since the onset) - median a(before), at most: the time of a step grows no faster than
    its amount, and no more than a fit of time against amounts shows (``Ratios.cost``), once there is one.
    What is kept of a fit is out of the ratios already.
    """
    if ratios.work is not None:
        return False
    last = ratios.history.last
    steps = found.steps + LOOK_BEFORE
    own = (ratios.history.columns(name, found.steps, found.rank) for name in _AMOUNTS)
    if not any((np.isfinite(amount) & (amount > 0)).any() for amount in own):
        return False
    amounts = {name: np.where((a := last(name, steps)) > 0, a, np.nan) for name in _AMOUNTS}
    explained = max(_grown(ratios, found, np.log(amount)) for amount in amounts.values())
    if ratios.cost is not None:
        explained = min(explained, _grown(ratios, found, ratios.cost.log_expected(**amounts)))
    return bool(found.size - max(explained, 0.0) < np.log1p(ratios.config.min_effect))


def _grown(ratios: Ratios, found: Candidate, amount: Floats) -> float:
    """Return by how much the rank's share of a log ``amount`` [steps, ranks] has grown; 0 where unknown."""
    comparison = ratios.comparison
    mates = comparison.mates(found.rank)
    # A change in a role that is small or fills a machine is one against all others (``change_ratio``), and
    # its mates may have come to do as much more.
    beside_all = (comparison.small_role | comparison.fills_machine)[found.rank] and not found.lasting
    if beside_all or not mates.any():
        mates = np.arange(ratios.ranks) != found.rank
    share = amount[:, found.rank] - nan_median(amount[:, mates], axis=1)
    before = 0.0 if found.lasting else float(np.nan_to_num(nan_median(share[: -found.steps])))
    # In the others since the onset it had as much work as ever.
    slow = ratios.history.last("x", len(share))[-found.steps :, found.rank] >= HALF * found.size
    since = share[-found.steps :]
    return float(np.nan_to_num(nan_median(since[slow] if slow.any() else since))) - before
