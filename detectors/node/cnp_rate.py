"""Congestion notifications of a node's ports, relative to their usual rate."""

import numpy as np
import numpy.typing as npt

from detectors.node.recent_usual import CALM, LEARN_SECONDS, USUAL_SECONDS, RecentAndUsual, Rows

Floats = npt.NDArray[np.float64]

# Notifications a second and port below which the usual rate is not resolved: a busy network without
# congestion sends some, and a rise from none to a few has no meaningful ratio. Chosen.
LEAST_PER_SECOND = 10.0


class CnpRateBank:
    """How many times the usual rate of congestion notification packets (CNPs) each node's mean port handles.

    RoCE switches mark packets when a queue fills (ECN), receivers answer with a CNP, and the sender slows
    down (DCQCN: Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015). A rise of
    the CNPs that a port handles therefore shows congestion somewhere in the network and no fault of the port
    or its node. The usual rate depends on the flows of the job, so each node learns its own.

    With c_t notifications of the mean port in d_t seconds, decayed sums (``RecentAndUsual``) give

        recent rate = Σ c · e^(-age/5 s)  /  Σ d · e^(-age/5 s)
        usual rate  = the same with 300 s, over calm samples alone
        ratio       = recent rate / max(usual rate, 10 per second)

    A sample is calm while the ratio is at most 3, or while fewer than 60 s have been learned. The mean port
    is judged and not the greatest: what one port receives alone is no congested network.

    >>> bank = CnpRateBank(1)
    >>> for second in range(100):
    ...     sent = 4000.0 if second >= 90 else 20.0
    ...     ratio = bank.update(slice(0, 1), np.array([[sent], [1.0]]))
    >>> round(float(ratio[0]))
    173
    """

    def __init__(self, nodes: int) -> None:
        self._sums = RecentAndUsual(nodes)

    def update(self, nodes: Rows, risen: Floats) -> Floats:
        """Process ``risen`` [2, n]: notifications of the mean port and the seconds they took, 0 = not read.

        Returns the ratios [n]; 0 where the usual rate is not known yet or nothing was read.
        """
        recent, usual = self._sums.add(nodes, risen, risen[1])
        learned = usual[1] >= LEARN_SECONDS
        ratio = _rate(recent) / np.maximum(_rate(usual), LEAST_PER_SECOND)
        calm = ~learned | (ratio <= CALM)
        amounts = np.where(calm, risen, 0.0)
        self._sums.learn(nodes, amounts, np.exp(-amounts[1] / USUAL_SECONDS))
        return np.where(learned & (risen[1] > 0.0), ratio, 0.0)

    def reset(self, node: int) -> None:
        """Learn a node anew."""
        self._sums.reset(node)


def _rate(sums: Floats) -> Floats:
    return np.asarray(sums[0] / np.maximum(sums[1], 1e-9))
