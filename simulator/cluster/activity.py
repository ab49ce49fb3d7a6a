"""Activity of GPUs and NICs at the moment of a sample."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.cluster.layout import ClusterSpec, FloatArray


@dataclass(slots=True)
class Activity:
    """Shares of time in which GPUs compute and wait, [nodes, gpus], and bytes a second ``sent`` [nodes,
    nics].

    ``running`` is False where there is no process.
    """

    compute: FloatArray
    wait: FloatArray
    running: npt.NDArray[np.bool_]
    sent: FloatArray


def idle(spec: ClusterSpec) -> Activity:
    """Return the activity of a cluster without jobs."""
    gpus = (spec.nodes, spec.gpus)
    return Activity(
        compute=np.zeros(gpus),
        wait=np.zeros(gpus),
        running=np.zeros(gpus, np.bool_),
        sent=np.zeros((spec.nodes, spec.nics)),
    )
