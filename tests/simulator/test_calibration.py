"""The healthy cluster against what real jobs were measured to do."""

import csv
import os
import time
from pathlib import Path

import numpy as np
import pytest

from simulator import Cluster, ClusterSpec, JobSpec, Workload
from simulator.layout import one_job
from slowrank.telemetry import JobSteps
from slowrank.telemetry.columns import read
from slowrank.telemetry.schema import STEP_SCHEMAS

MEASURED = {
    "per-step compute CV of one rank, even batches": (0.9, 2.4, "%"),
    "per-step compute CV of one rank, uneven sequence lengths": (10, 12, "%"),
    "persistent same-stage spread of rank medians (sd/mean), even batches": (0.1, 0.6, "%"),
    "same-stage instantaneous compute ratio sd, even batches": (0.48, 0.49, "%"),
    "same-stage instantaneous compute ratio sd, uneven sequence lengths": (10, 15, "%"),
    "last-stage excess compute, tuned job": (3, 16, "%"),
    "step-time CV of a job, even batches": (0.4, 2.4, "%"),
    "CV of step wall clock across ranks of one step": (0, 0.005, "%"),
    "lag-1 autocorrelation of per-rank step compute, even batches": (0.7, 0.8, "-"),
}
"""Real hybrid-parallel traces; the rows of calibration.csv that a healthy simulated job can be held to."""

BESIDE = Path(__file__).parents[3] / "shared" / "data"
CALIBRATION = Path(os.environ.get("SLOWRANK_DATA", BESIDE)) / "calibration.csv"


def job_tables(**workload):
    """Return compute and step seconds [stages, steps, ranks of a stage] of a healthy hybrid-parallel job."""
    job = JobSpec(dp=4, pp=2, tp=2, workload=Workload(gc_share=0.0, **workload))
    spec = ClusterSpec(nodes=4, gpus=4, nics=4, jobs=(job,))
    columns = [
        read(STEP_SCHEMAS[1].rows, r.rows, ("step", "rank", "step_seconds", "compute_seconds"))
        for r in Cluster(spec, seed=11).run(1500)
        if isinstance(r, JobSteps)
    ]
    rows = np.concatenate([np.array(list(c.values()), dtype=float) for c in columns], axis=1)
    step, rank, seconds, compute = rows
    order = np.lexsort((rank, step))
    shape = (-1, job.world)
    return tuple(
        np.moveaxis(x[order].reshape(*shape).reshape(-1, job.pp, job.world // job.pp), 1, 0)
        for x in (compute, seconds)
    )


def cv(values, axis):
    return values.std(axis=axis) / values.mean(axis=axis)


def ratio_to_peers(compute):
    """Return [stages, steps, ranks]: each rank over the median of its stage, its own level removed."""
    ranks = compute.shape[-1]
    others = np.stack([np.median(np.delete(compute, i, axis=-1), axis=-1) for i in range(ranks)], axis=-1)
    ratio = compute / others
    return ratio / np.median(ratio, axis=1, keepdims=True)


def lag1(values):
    centred = values - values.mean()
    return float((centred[1:] * centred[:-1]).sum() / (centred**2).sum())


@pytest.fixture(scope="module")
def statistics():
    even, seconds = job_tables()
    packed, _ = job_tables(packing_cv=0.1)
    medians = np.median(even, axis=1)
    lags = [lag1(even[s, :, r]) for s in range(even.shape[0]) for r in range(even.shape[2])]
    found = {
        "per-step compute CV of one rank, even batches": 100 * cv(even, 1).mean(),
        "per-step compute CV of one rank, uneven sequence lengths": 100 * cv(packed, 1).mean(),
        "persistent same-stage spread of rank medians (sd/mean), even batches": 100 * cv(medians, 1).mean(),
        "same-stage instantaneous compute ratio sd, even batches": 100 * ratio_to_peers(even).std(),
        "same-stage instantaneous compute ratio sd, uneven sequence lengths": 100
        * ratio_to_peers(packed).std(),
        "last-stage excess compute, tuned job": 100 * (np.median(even[-1]) / np.median(even[0]) - 1),
        "step-time CV of a job, even batches": 100 * cv(seconds[0].mean(axis=-1), 0),
        "CV of step wall clock across ranks of one step": 100 * cv(seconds, 2).mean(),
        "lag-1 autocorrelation of per-rank step compute, even batches": float(np.mean(lags)),
    }
    return {name: float(value) for name, value in found.items()}


@pytest.mark.parametrize("quantity", MEASURED)
def test_a_healthy_job_behaves_as_measured(statistics, quantity):
    """Each statistic of the healthy job lies within the measured range."""
    low, high, _ = MEASURED[quantity]
    assert low <= statistics[quantity] <= high


@pytest.mark.skipif(not CALIBRATION.exists(), reason="set SLOWRANK_DATA to the folder of calibration.csv")
def test_the_ranges_are_those_of_the_calibration_file():
    """The ranges held to above are the file's."""
    with CALIBRATION.open(newline="") as file:
        rows = {row["quantity"]: row for row in csv.DictReader(file)}
    for quantity, (low, high, unit) in MEASURED.items():
        row = rows[quantity]
        assert (float(row["low"]), float(row["high"]), row["unit"]) == (low, high, unit)


def test_the_simulator_is_much_faster_than_time():
    """Sixteen nodes of eight GPUs run at least fifty times as fast as real time on one core."""
    start = time.thread_time()
    records = sum(1 for _ in Cluster(ClusterSpec(jobs=(one_job(16, 8),)), seed=1).run(60))
    assert 60 / (time.thread_time() - start) > 50
    assert records > 16 * 60
