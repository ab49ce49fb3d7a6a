"""Simulates a small cluster and reads single series out of its records."""

import numpy as np

from simulator import Cluster, ClusterSpec, JobSpec, Workload
from slowrank.telemetry import JobSteps, NodeSample
from slowrank.telemetry.columns import read, unpack
from slowrank.telemetry.schema import SAMPLE_SCHEMAS, STEP_SCHEMAS

NODES, GPUS, START = 4, 4, 1_795_160_400.0


def cluster(*, job=None, **workload):
    """Return four nodes of four GPUs and two NICs under one job."""
    job = job or JobSpec(dp=NODES, tp=GPUS, workload=Workload(gc_share=0.0, **workload))
    return ClusterSpec(nodes=NODES, gpus=GPUS, nics=2, jobs=(job,))


def records(spec, *faults, seconds=120.0, seed=3):
    """Return all records of a run."""
    return list(Cluster(spec, seed=seed, faults=faults).run(seconds))


def series(found, metric, node):
    """Return [ticks, instances] of one metric of node number ``node``; NaN where it was not read."""
    part = metric.partition(".")[0].replace("exporter", "host")
    samples = [r for r in found if isinstance(r, NodeSample) and r.node == f"sim-{node:04d}"]
    rows = [list(unpack(getattr(SAMPLE_SCHEMAS[s.schema], part), getattr(s, part))) for s in samples]
    return np.array([[row[metric] for row in tick] for tick in rows], dtype=float)


def steps(found, column, *, after=0.0, before=1e12):
    """Return [steps, ranks] of one column of the step rows that ended in a stretch of the run."""
    names = ("step", "rank", "ts", column)
    tables = [read(STEP_SCHEMAS[1].rows, s.rows, names) for s in found if isinstance(s, JobSteps)]
    step, rank, ts, values = (np.concatenate([np.array(t[name], float) for t in tables]) for name in names)
    kept = (after <= ts - START) & (ts - START < before)
    order, row = np.unique(step[kept], return_inverse=True)
    table = np.full((len(order), 1 + int(rank.max())), np.nan)
    table[row, rank[kept].astype(int)] = values[kept]
    return table
