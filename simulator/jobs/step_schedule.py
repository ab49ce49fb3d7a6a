"""The dependency model of one step: wait times and step time from the work of each rank.

Tensor-parallel ranks synchronise in every layer, pipeline stages pass micro-batches on in order (1F1B),
data-parallel ranks reduce gradients together, and the step ends for all when the last rank has finished.
"""

from dataclasses import dataclass

import numpy as np

from simulator.cluster.layout import FloatArray


@dataclass(frozen=True, slots=True)
class Work:
    """Work of each rank in one step, in seconds; arrays are [pp, dp, tp], ``compute`` [micro, ...].

    ``comm`` is the transfer time of the rank's gradients over its own link, ``stall`` the time until that
    link is back; ``pause`` is a stop of the whole job (checkpoint, evaluation).
    """

    compute: FloatArray
    data: FloatArray
    comm: FloatArray
    stall: FloatArray
    pause: float = 0.0


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of each rank in one step, in seconds; arrays are [pp, dp, tp]."""

    step_seconds: float
    compute: FloatArray
    wait: FloatArray
    data: FloatArray
    comm: FloatArray
    pause: float


def run_step(work: Work) -> StepTimes:
    """Return the times of one step that starts on all ranks at zero.

    A data-parallel group starts its transfer when its last member is ready and transfers at the pace of its
    slowest link, so that transfer time is common to the group; the rest of the step is waiting.
    """
    compute = work.compute.sum(axis=0)
    ready = pipeline_finish(work.compute.max(axis=-1), work.data.max(axis=-1))[:, :, None]
    group_ready = ready.max(axis=1, keepdims=True)
    comm = np.broadcast_to((work.comm + work.stall).max(axis=1, keepdims=True), compute.shape)
    end = float((group_ready + comm).max()) + work.pause
    # The rank that computes longest waits least.
    wait = end - compute - work.data - comm - work.pause
    return StepTimes(end, compute, wait, work.data, comm, work.pause)


def after_rollout(times: StepTimes, generation: FloatArray) -> StepTimes:
    """Return the step preceded by a phase in which the first replicas generate and the others wait.

    ``generation`` is [pp, replicas, tp] in seconds; the replicas that generate do not train.
    """
    replicas, phase = generation.shape[1], float(generation.max())
    step_seconds = times.step_seconds + phase
    compute, comm, data = times.compute.copy(), times.comm.copy(), times.data.copy()
    compute[:, :replicas] = generation
    comm[:, :replicas] = data[:, :replicas] = 0.0
    return StepTimes(
        step_seconds, compute, step_seconds - compute - comm - data - times.pause, data, comm, times.pause
    )


def pipeline_finish(micro: FloatArray, start: FloatArray) -> FloatArray:
    """Return when each stage has finished, [pp, dp], for ``micro`` [micro, pp, dp] and ready times ``start``.

    A stage begins a micro-batch when it has finished the one before and the previous stage has passed this
    one on; forward and backward of a micro-batch count as one visit, which for even stages gives 1F1B's
    (micro + pp - 1) visits. A stage ends when the backward pass of the last stage has come back to it.
    """
    # With one stage, micro-batches follow each other directly.
    if micro.shape[1] == 1:
        return np.asarray(start + micro.sum(axis=0))
    done = start.copy()
    for batch in micro:
        arrived = done[0] + batch[0]
        done[0] = arrived
        for stage in range(1, len(batch)):
            arrived = np.maximum(done[stage], arrived) + batch[stage]
            done[stage] = arrived
    return np.maximum.accumulate(done[::-1], axis=0)[::-1]
