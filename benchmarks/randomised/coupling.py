"""A synchronous step: from the work of each rank to when the step ends and how long each rank waits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from benchmarks.randomised.layout import Floats, Places

# Share of the backward pass in the work of a micro-batch: two matrix products of three.
BACKWARD = 2 / 3


class Work(NamedTuple):
    """Seconds of each step. ``compute``, ``data`` [steps, ranks]; ``transfer`` of the data-parallel rings
    [steps, pp, tp]; ``rest`` [steps] is what all ranks do besides, unmeasured."""

    compute: Floats
    data: Floats
    transfer: Floats
    rest: Floats


class Steps(NamedTuple):
    """Measured seconds [steps, ranks]; ``total`` [steps] = data + compute + wait + comm + rest."""

    compute: Floats
    wait: Floats
    comm: Floats
    data: Floats
    total: Floats


def couple(work: Work, where: Places, *, micro_batches: int, tensor_share: float) -> Steps:
    """Return the steps of a synchronous job, all of whose ranks end a step together.

    1. Tensor-parallel collectives lie inside compute: for ``tensor_share`` of its work a rank goes at the
       pace of the slowest of its group, and measures that as its own.
    2. A pipeline of stage times f (per micro-batch) takes Σf + (m - 1)·max f (1F1B without interleaving,
       Megatron-LM); stage p ends its backward pass Σ_{q<p} f_q · 2/3 before stage 0. A replica starts
       when the last of its ranks has its data.
    3. The ring of a stage starts when that stage of all replicas has ended; the step ends with the last ring.
    """
    shape = where.at.shape
    order = where.at.ravel()

    def by_place(values: Floats) -> Floats:
        return values[:, order].reshape(-1, *shape)

    def by_rank(values: Floats) -> Floats:
        flat = np.empty((len(values), order.size))
        flat[:, order] = np.broadcast_to(values, (len(values), *shape)).reshape(len(values), -1)
        return flat

    own = by_place(work.compute)
    compute = (1 - tensor_share) * own + tensor_share * own.max(axis=3, keepdims=True)
    stage = compute.max(axis=3) / micro_batches
    begin = by_place(work.data).max(axis=(2, 3))
    pipeline = stage.sum(axis=2) + (micro_batches - 1) * stage.max(axis=2)
    before = np.cumsum(stage, axis=2) - stage
    finish = (begin + pipeline)[:, :, None] - BACKWARD * before
    ring_end = finish.max(axis=1)[:, :, None] + work.transfer
    total = ring_end.max(axis=(1, 2)) + work.rest
    measured, comm = by_rank(compute), by_rank(work.transfer[:, None])
    wait = (total - work.rest)[:, None] - measured - work.data - comm
    return Steps(measured, np.maximum(wait, 0.0), comm, work.data, total)
