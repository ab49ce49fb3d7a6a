"""Scenarios of failing telemetry, one job for each class."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.quality.scenarios.scenario import Scenario, scenario
from simulator import ClusterSpec, Fault, JobSpec
from simulator.cluster.scenarios import draw_fault

NODES, RACK, GPUS = 4, 4, 4

# (dp, pp, tp) of a job of 16 ranks on four nodes; one of two racks has twice as many replicas.
LAYOUTS = ((4, 1, 4), (8, 1, 2), (16, 1, 1), (2, 2, 4))

PASSING = {
    "dead exporter": "exporter_gap",
    "frozen samples": "frozen_exporter",
    "clock ahead": "clock_skew",
    "late batches": "late_batch",
    "records twice": "duplicate_batch",
    "counters from zero": "counter_reset",
}
LASTING = {"blocked reads": "gsp_hang", "silent GPU": "gpu_lost", "silent node": "node_silent"}
RACKS = {"rack of silent exporters": "exporter_gap", "rack of dead nodes": "node_silent"}

SECONDS = 230.0

# A batch that is late by less leaves no gap of ten seconds, the least that is reported.
LATE_SECONDS = (15.0, 90.0)


def telemetry(seed: int) -> Sequence[Scenario]:
    """One job of four nodes for each class, and two of eight nodes of which one rack falls silent.

    Passing faults last one or two minutes, so that their end is included. The racks fall silent at different
    times, because many nodes that do so at once count as a failure of the telemetry path.
    """
    rng = np.random.default_rng([seed, 11])
    rows = (*PASSING, *LASTING, *RACKS)
    jobs = [_job(rng, number, 2 if row in RACKS else 1) for number, row in enumerate(rows)]
    places = np.cumsum([0, *(job.world // GPUS for job in jobs)])
    placed = tuple(replace(job, first_node=int(node)) for job, node in zip(jobs, places, strict=False))
    nics = int(rng.choice([1, 2, 4]))
    spec = ClusterSpec(
        nodes=int(places[-1]), gpus=GPUS, nics=nics, jobs=placed, nodes_per_rack=RACK, nodes_per_switch=16
    )
    faults: list[tuple[str, Fault]] = []
    for number, (row, kind) in enumerate((PASSING | LASTING).items()):
        fault = draw_fault(spec, kind, rng=rng, onset=float(rng.uniform(60, 90)))
        if kind == "late_batch":
            fault = replace(fault, magnitude=float(rng.uniform(*LATE_SECONDS)))
        seconds = float(rng.uniform(60, 120)) if row in PASSING and kind != "counter_reset" else 1e9
        node = placed[number].first_node + int(rng.integers(NODES))
        faults.append((row, replace(fault, node=node, duration=seconds)))
    for number, (row, kind) in enumerate(RACKS.items(), start=len(faults)):
        onset = float(rng.uniform(105, 125)) + 50 * (kind == "node_silent")
        first = placed[number].first_node + RACK * int(rng.integers(2))
        faults += [(row, Fault(kind=kind, node=first + n, onset=onset, duration=1e9)) for n in range(RACK)]
    drawn = scenario(
        "telemetry",
        seed,
        spec,
        [fault for _, fault in faults],
        rows=[row for row, _ in faults],
        seconds=SECONDS,
        compared=False,
    )
    return [replace(drawn, as_one=tuple(RACKS))]


def _job(rng: np.random.Generator, number: int, racks: int) -> JobSpec:
    dp, pp, tp = LAYOUTS[int(rng.integers(len(LAYOUTS)))]
    return JobSpec(
        dp=dp * racks,
        pp=pp,
        tp=tp,
        job_id=f"job-{number}",
        step_seconds=float(np.clip(rng.lognormal(0.0, 0.6), 0.3, 4.0)),
        first_step=int(rng.integers(100, 100_000)),
        micro_batches=int(rng.choice([4, 8, 16])),
    )
