"""Sensors and counters of the whole cluster, derived from activity and the condition of the hardware."""

from collections.abc import Sequence

import numpy as np

from simulator.cluster.activity import Activity
from simulator.cluster.layout import ClusterSpec
from simulator.devices.gpus import Gpus
from simulator.devices.hosts import Hosts
from simulator.devices.nics import Nics
from simulator.faults.condition import Condition
from simulator.faults.events import Incident


class Devices:
    """GPUs, NICs and hosts of every node; ``read`` advances them and fills their boards.

    Temperatures begin at the equilibrium of the first activity.
    """

    def __init__(self, spec: ClusterSpec, rng: np.random.Generator) -> None:
        self._gpus, self._nics, self._hosts = Gpus(spec, rng), Nics(spec, rng), Hosts(spec, rng)
        self.gpu, self.nic, self.host = (part.board for part in (self._gpus, self._nics, self._hosts))

    def read(
        self, activity: Activity, condition: Condition, dt: float, happened: Sequence[Incident] = ()
    ) -> None:
        """Advance by ``dt`` seconds with the incidents that ``happened``, and fill the boards."""
        for part in (self._gpus, self._nics, self._hosts):
            part.read(activity, condition, dt, happened)
