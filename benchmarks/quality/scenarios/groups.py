"""Scenarios of slow groups: jobs in which one port slows the transfers of a parallel group."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.quality.scenarios.scenario import Scenario, job_of, scenario
from simulator import ClusterSpec, JobSpec
from simulator.cluster.scenarios import draw_fault

GPUS = 8

# (dp, pp, tp): each stage has four data-parallel groups or more, the fewest that can be compared.
LAYOUTS = ((4, 1, 8), (8, 1, 4), (4, 2, 4), (4, 2, 8))

TIERS = {"all telemetry": False, "step rows alone": True}


def groups(seed: int) -> Sequence[Scenario]:
    """Two jobs with one slow port each, once with all telemetry and once with step rows only.

    Each GPU has a port of its own, so that one port slows one group.
    """
    rng = np.random.default_rng([seed, 12])
    jobs: list[JobSpec] = []
    for number in range(2):
        first_node = sum(job.world for job in jobs) // GPUS
        job = job_of(rng, number, LAYOUTS, first_node=first_node, shortest=0.5)
        jobs.append(job)
    nodes = sum(job.world for job in jobs) // GPUS
    spec = ClusterSpec(nodes=nodes, gpus=GPUS, nics=GPUS, jobs=tuple(jobs), nodes_per_switch=nodes)
    onset, faults = float(rng.uniform(80, 110)), []
    for job in jobs:
        fault = draw_fault(spec, "nic_slow", rng=rng, onset=onset, magnitude=float(rng.uniform(1.5, 4.0)))
        node = job.first_node + int(rng.integers(job.world // GPUS))
        faults.append(replace(fault, node=node, duration=1e9, shape="step"))
    return [
        replace(
            scenario("groups", seed, spec, faults, rows=[tier] * len(faults), seconds=190, compared=False),
            steps_alone=alone,
        )
        for tier, alone in TIERS.items()
    ]
