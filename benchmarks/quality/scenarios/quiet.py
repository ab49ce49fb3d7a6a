"""Clusters of healthy machines: all confounders in large fleets, and failing telemetry.

Most node-days come from fleets of two sizes whose exporters send every 10 s, with the long steps of large
jobs, the rest from exporters that send every second, with shorter steps. A seed takes some minutes of one
core.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.quality.scenarios.scenario import Scenario, scenario
from simulator import ClusterSpec, JobSpec
from simulator.cluster.scenarios import draw_faults
from simulator.jobs.benign import BENIGN, draw_spec, with_row

# Step time for which ``draw_spec`` draws the transfers.
USUAL_STEP_SECONDS = 2.5

# Rows that are properties of the layout and not of a workload.
STAGES = "long last stage"
ROLES, RESIZED, IDLE = "reinforcement learning", "resized", "idle nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Size of a healthy cluster, duration, and period of its samples. Times in seconds.

    ``step_seconds``: the range of step times, drawn log-uniformly. ``intensity`` multiplies the published
    rates of failing telemetry.
    """

    nodes: int
    largest: int
    seconds: float
    send_seconds: float
    step_seconds: tuple[float, float]
    intensity: float = 30.0


EVERY_TEN_SECONDS = Fleet(
    nodes=768, largest=96, seconds=2.5 * 3600.0, send_seconds=10.0, step_seconds=(10.0, 60.0)
)
LARGE = replace(EVERY_TEN_SECONDS, nodes=3072, largest=384)
EVERY_SECOND = Fleet(nodes=256, largest=32, seconds=3600.0, send_seconds=1.0, step_seconds=(1.0, 20.0))


def quiet(seed: int) -> Sequence[Scenario]:
    """768 nodes for two and a half hours at 10 s ticks, steps of 10 to 60 s."""
    return [_drawn("quiet", seed, EVERY_TEN_SECONDS)]


def quiet_large(seed: int) -> Sequence[Scenario]:
    """3,072 nodes for as long, jobs of up to 384 nodes; a node-day costs less to simulate."""
    return [_drawn("quiet-large", seed, LARGE)]


def quiet_1hz(seed: int) -> Sequence[Scenario]:
    """256 nodes for an hour at 1 Hz, steps of 1 to 20 s."""
    return [_drawn("quiet-1hz", seed, EVERY_SECOND)]


def node_days(spec: ClusterSpec, seconds: float, row_of: dict[str, str]) -> dict[str, float]:
    """Return the node-days of each benign row; a job may count in several rows."""
    found: dict[str, float] = {}
    busy = 0.0
    resized = {job.job_id for job in spec.jobs if job.attempt}
    for job in spec.jobs:
        days = len(spec.nodes_of_job(job)) * max(0.0, min(job.ends, seconds) - job.begins) / 86_400.0
        busy += days
        rows = [row_of[job.job_id]]
        rows += [ROLES] * (job.rollout_dp > 0) + [RESIZED] * (job.job_id in resized)
        for row in rows:
            found[row] = found.get(row, 0.0) + days
    return found | {IDLE: spec.nodes * seconds / 86_400.0 - busy}


def _drawn(part: str, seed: int, fleet: Fleet) -> Scenario:
    rng = np.random.default_rng([seed, round(fleet.send_seconds), 7])
    spec = draw_spec(
        fleet.nodes,
        seed=seed,
        duration=fleet.seconds,
        send_seconds=fleet.send_seconds,
        largest=fleet.largest,
    )
    rows = dict(_dealt(spec.jobs, rng))
    pace = {job_id: float(np.exp(rng.uniform(*np.log(fleet.step_seconds)))) for job_id in rows}
    jobs = []
    for job in spec.jobs:
        # All attempts of a job draw the same values.
        own = np.random.default_rng([seed, job.first_node])
        paced = _paced(job, pace[job.job_id])
        special = with_row(paced, rows[job.job_id], duration=fleet.seconds, rng=own)
        jobs.append(replace(special, job_id=_name(rows[job.job_id], job.job_id)))
    spec = replace(spec, jobs=tuple(jobs))
    faults = draw_faults(spec, seed=seed, duration=fleet.seconds, mix="telemetry", intensity=fleet.intensity)
    drawn = scenario(
        part, seed, spec, faults, rows=[f.kind for f in faults], seconds=fleet.seconds, compared=False
    )
    return replace(drawn, benign={_name(row, job_id): row for job_id, row in rows.items()})


def _dealt(jobs: Sequence[JobSpec], rng: np.random.Generator) -> Iterator[tuple[str, str]]:
    """Yield a row for each job, all equally often; a long stage only for a job that can have stages."""
    deck: list[str] = []
    for job in {job.job_id: job for job in reversed(jobs)}.values():
        if len(deck) < 2:
            deck += rng.permutation(list(BENIGN)).tolist()
        fits = (i for i, row in enumerate(deck) if row != STAGES or _can_have_stages(job))
        yield job.job_id, deck.pop(next(fits))


def _can_have_stages(job: JobSpec) -> bool:
    return job.pp > 1 or (not job.rollout_dp and job.dp % (2 * job.ep) == 0)


def _paced(job: JobSpec, step_seconds: float) -> JobSpec:
    """Return the job with another step time and the same share of transfers in it."""
    longer = step_seconds / USUAL_STEP_SECONDS
    load = replace(job.workload, comm_seconds=job.workload.comm_seconds * longer)
    return replace(job, step_seconds=step_seconds, gradient_bytes=job.gradient_bytes * longer, workload=load)


def _name(row: str, job_id: str) -> str:
    return f"{row} {job_id.removeprefix('job-')}"
