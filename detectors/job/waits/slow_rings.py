"""Slow transfers of a part of a job: the rings of one stage, or of one port of each machine.

One slow port delays every ring over it, and the others wait for these: no rank stands out within its stage,
and the shortest transfer of all ranks (``slow_network``) is as before. Where ranks report apart from their
transfers how long they wait, the transfer is watched that few ranks exceed, T = the k-th longest of a step,
k = 1/20 of the ranks and 4 at least, by the evidence and limits of ``NetworkWatch``. Until most ranks report
a transfer, what ranks do beside what they report is watched, for transfers are within it; from then on all is
learnt anew, and what showed is over. It is theirs whose transfers rose by half as much, half of the ranks at
most, if the waits of the others rose by half as much, theirs did not, and no rank computes or loads for that
much longer: else transfers contain the wait for a slow rank. Ranks of one machine that report no transfers
are found by what that does (``step_detector``), if the others, who are more, show what is usual.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from detectors.job.waits.slow_network import NetworkWatch, SlowNetwork
from detectors.peers.ratios import Ratios
from detectors.robust import nan_median

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

# Ranks whose transfers may be longer and are not watched. Chosen: those of a machine or two are found by what
# they do beside their work (``step_detector``), and stages are of a sixteenth of the ranks or more.
_FEW, _SHARE = 4, 20

# Of what transfers rose by, and of the ranks: most whose transfers are slow, and fewest whose waits are known
# (chosen).
_HALF, _QUARTER = 0.5, 0.25

# Share of the ranks that report transfers, beyond which these are watched (chosen).
_MOST = 0.5


class RingsWatch(NetworkWatch):
    """Weighs the longest transfers of a job step after step."""

    series = "rest"

    def seconds(self, comm: Floats) -> Floats:
        """Return the longest transfer of each step but for few ranks', [steps] from [steps, ranks]."""
        ranks = comm.shape[1]
        few = max(_FEW, ranks // _SHARE)
        if ranks < 2 * few:
            return np.full(len(comm), np.nan)
        read = np.where(np.isfinite(comm) & (comm > 0), comm, -np.inf)
        longest = np.partition(read, ranks - few, axis=1)[:, ranks - few]
        return np.where(np.isinf(longest), np.nan, longest)

    def update(self, ratios: Ratios) -> SlowNetwork | None:
        """Take the step that ``ratios`` took last; return what begins to show, and whose transfers it is."""
        if not np.isfinite(ratios.history.last("wait", 1)).any():
            self.gone = False
            return None
        ended = False
        if self.series == "rest" and np.isfinite(ratios.history.last("comm", 1)).mean() > _MOST:
            self.series, ended = "comm", self.shown
            # From this step on.
            self.begin(ratios.settled - 1)
        found = super().update(ratios)
        self.gone |= ended
        if found is None:
            return None
        members = _whose(ratios, found, self.series)
        if members is None:
            # What else it is shall be usual, and not be asked in every step.
            self.begin(ratios.settled)
            return None
        return replace(found, members=members, reported=self.series == "comm")


def _whose(ratios: Ratios, found: SlowNetwork, series: str) -> Ints | None:
    """Return the ranks whose transfers became slow while the others wait for them; None: it is not so."""
    history, held = ratios.history, min(ratios.settled, ratios.config.history)
    slow = nan_median(history.last("ts", held), axis=1) >= found.onset
    if slow.all() or not slow.any():
        return None
    least = _HALF * found.seconds * (1.0 - 1.0 / found.ratio)

    def rose(name: str) -> Floats:
        values = history.last(name, held)
        return nan_median(values[slow]) - nan_median(values[~slow])

    longer, waits = rose(series) >= least, rose("wait")
    others = ~longer & np.isfinite(waits)
    few_wait = others.sum() <= _QUARTER * ratios.ranks
    if not longer.any() or longer.sum() > _HALF * ratios.ranks or few_wait:
        return None
    of_one = series == "rest" and np.unique(ratios.nodes.index[longer]).size == 1
    if of_one and longer.sum() < _HALF * ratios.ranks:
        return None
    waited = nan_median(waits[others]) >= least and nan_median(waits[longer]) < least
    own = history.last("compute", held) + np.nan_to_num(history.last("data", held))
    now, before = (float(np.nanmax(nan_median(part), initial=-np.inf)) for part in (own[slow], own[~slow]))
    return np.flatnonzero(longer) if waited and now - before < least else None
