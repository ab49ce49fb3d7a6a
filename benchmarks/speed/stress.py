"""The job stage on random synthetic jobs (`python -m benchmarks stress`): ranks named, delays, false names.

Sizes, layouts, step lengths, noise, collection spikes, lost rows and sampled steps are drawn per job from the
seed; nothing here was used to choose a threshold with the default seed.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from benchmarks.detection.real import accused, suspicions
from benchmarks.detection.step_jobs import StepTable, synchronous

Floats = npt.NDArray[np.float64]
Change = Callable[["Job", np.random.Generator], list[int]]


@dataclass(slots=True)
class Job:
    """A job under construction: ``work`` [steps, ranks] seconds, ``stage`` [ranks], the step of change.

    ``replica`` [ranks]: the data-parallel replica of each rank, where the job reports it.
    """

    work: Floats
    stage: npt.NDArray[np.intp]
    onset: int
    with_coords: bool
    replica: npt.NDArray[np.intp] | None = None


def draw(rng: np.random.Generator, *, noise: float | None = None) -> Job:
    """Draw a healthy job of 8-64 ranks and 200-400 steps of 0.1-30 s."""
    ranks, steps = int(rng.choice([8, 16, 32, 64])), int(rng.integers(200, 400))
    stages = 1 if noise else int(rng.choice([1, 1, 1, 2, 4]))
    sigma = noise or float(rng.uniform(0.003, 0.02))
    drift = np.zeros(steps)
    for s in range(1, steps):
        drift[s] = 0.8 * drift[s - 1] + rng.normal(0, 0.006)
    tails = (
        rng.standard_t(5, (steps, ranks)) * 0.775 if rng.random() < 0.5 else rng.normal(0, 1, (steps, ranks))
    )
    work = 10 ** rng.uniform(-1, 1.47) * np.exp(drift[:, None] + rng.normal(0, 0.003, ranks) + sigma * tails)
    collects = rng.random(work.shape) < rng.choice([0.0, 0.005, 0.02])
    work *= np.where(collects, 1 + rng.uniform(0.05, 0.5, work.shape), 1.0)
    if rng.random() < 0.5:
        work[:15] *= np.linspace(3.0, 1.0, 15)[:, None]
    return Job(
        work, np.arange(ranks) // (ranks // stages), int(rng.integers(60, steps - 100)), rng.random() < 0.6
    )


def observed(job: Job, rng: np.random.Generator) -> StepTable:
    """Return the steps as reported: sometimes sampled, sometimes without waits or coordinates."""
    coords = {"pp": job.stage.tolist()} if job.with_coords else None
    if job.replica is not None:
        coords = {"pp": job.stage.tolist(), "dp": job.replica.tolist()}
    table = synchronous(job.work, overhead=0.1 * float(job.work.mean()), coords=coords)
    if rng.random() < 0.4:
        table = replace(table, wait=None)
    if rng.random() < 0.3:
        kept = np.sort(rng.choice(len(job.work), int(0.8 * len(job.work)), replace=False))
        table = replace(
            table,
            compute=table.compute[kept],
            step=table.step[kept],
            wait=None if table.wait is None else table.wait[kept],
            numbers=table.numbers[kept],
            ts=table.ts[kept],
        )
    return table


def _slow(factor: float, *, share: float = 0.0, ramp: int = 0, start: bool = False) -> Change:
    def change(job: Job, rng: np.random.Generator) -> list[int]:
        members = np.flatnonzero(job.stage == rng.integers(job.stage.max() + 1))
        count = 1 if len(members) < 4 else max(1, int(share * len(members)))
        bad = rng.choice(members, count, replace=False)
        job.onset = 0 if start else job.onset
        shape = np.ones(len(job.work))
        rise = np.minimum(np.arange(1, len(shape) - job.onset + 1) / max(ramp, 1), 1.0)
        shape[job.onset :] += (factor - 1) * rise
        job.work[:, bad] *= shape[:, None]
        return sorted(bad.tolist())

    return change


def _common(job: Job, rng: np.random.Generator) -> list[int]:
    kind = rng.integers(4)
    if kind == 0:
        job.work[job.onset :] *= rng.choice([0.7, 1.1, 1.3, 2.0])
    elif kind == 1:
        job.work *= np.linspace(1.0, 1.25, len(job.work))[:, None]
    elif kind == 2:
        job.work[::2] *= 1.06
    else:
        job.work[:: int(rng.integers(20, 80))] *= 3.0
    return []


def _long_stage(job: Job, rng: np.random.Generator) -> list[int]:
    job.stage = np.arange(len(job.stage)) // (len(job.stage) // 4)
    job.work[:, job.stage == 3] *= rng.uniform(1.15, 1.7)
    return []


def _packed_pipeline(factor: float) -> Change:
    """Four stages; the replicas' batches differ by 10 % from step to step."""
    slow = _slow(factor)

    def change(job: Job, rng: np.random.Generator) -> list[int]:
        steps, ranks = job.work.shape
        job.stage, job.replica = np.arange(ranks) // (ranks // 4), np.arange(ranks) % (ranks // 4)
        job.work *= np.exp(rng.normal(0, 0.10, (steps, ranks // 4)))[:, job.replica]
        return slow(job, rng) if factor > 1 else []

    return change


def _nothing(job: Job, rng: np.random.Generator) -> list[int]:
    return []


SCENARIOS: dict[str, tuple[float | None, Change]] = {
    "healthy": (None, _nothing),
    "common change": (None, _common),
    "long stage": (None, _long_stage),
    "packed, healthy": (0.10, _nothing),
    "one rank x1.03": (None, _slow(1.03)),
    "one rank x1.05": (None, _slow(1.05)),
    "one rank x1.10": (None, _slow(1.10)),
    "one rank x1.50": (None, _slow(1.50)),
    "ramp to x1.10 in 10 steps": (None, _slow(1.10, ramp=10)),
    "a third x1.15": (None, _slow(1.15, share=0.33)),
    "x1.15 from the first step": (None, _slow(1.15, start=True)),
    "packed, one rank x1.20": (0.10, _slow(1.20)),
    "packed, one rank x1.50": (0.10, _slow(1.50)),
    "packed pipeline, healthy": (None, _packed_pipeline(1.0)),
    "packed pipeline, one rank x1.05": (None, _packed_pipeline(1.05)),
    "packed pipeline, one rank x1.10": (None, _packed_pipeline(1.10)),
}


@dataclass(slots=True)
class Tally:
    """Results of the jobs of one scenario.

    ``onset_errors``: the reported onset less the start of the first slow step, in usual steps of the job;
    ``onset_covered``: whether the reported interval contains that start.
    """

    bad: int = 0
    named: int = 0
    wrong: int = 0
    delays: list[int] = field(default_factory=list)
    onset_errors: list[float] = field(default_factory=list)
    onset_covered: list[bool] = field(default_factory=list)
    verdicts: dict[str, int] = field(default_factory=dict)


def run(name: str, jobs: int, seed: int) -> Tally:
    """Run ``jobs`` draws of one scenario."""
    noise, change = SCENARIOS[name]
    tally = Tally()
    for n in range(jobs):
        rng = np.random.default_rng([seed, n, list(SCENARIOS).index(name)])
        job = draw(rng, noise=noise)
        bad = change(job, rng)
        full = synchronous(job.work, overhead=0.1 * float(job.work.mean()))
        began = full.ts[job.onset] - full.step[job.onset, 0]
        found = suspicions(observed(job, rng))
        first = {s.subject.rank: s for s in reversed(accused(found))}
        tally.bad += len(bad)
        tally.named += len(first.keys() & set(bad))
        tally.wrong += len(first.keys() - set(bad))
        for rank in first.keys() & set(bad):
            raised = first[rank]
            tally.delays.append(int(np.searchsorted(full.ts, raised.ts)) - job.onset)
            tally.onset_errors.append((raised.onset - began) / float(np.median(full.step)))
            tally.onset_covered.append(raised.onset_lo <= began + 1e-6 and began <= raised.onset_hi)
        for s in found:
            # A stall without evidence from machines has a lower score at first and is no verdict yet.
            if s.subject.rank is None and s.state == "raise" and s.score >= 1.0:
                verdict = next(iter(s.hypotheses), s.kind)
                tally.verdicts[verdict] = tally.verdicts.get(verdict, 0) + 1
    return tally


def main(argv: list[str]) -> int:
    """Print one line per scenario."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks stress", description=__doc__)
    parser.add_argument("--jobs", type=int, default=20, help="jobs per scenario")
    parser.add_argument("--seed", type=int, default=2026)
    options = parser.parse_args(argv)
    print("| scenario | slow ranks named | named wrongly | delay in steps (median, P95) ", end="")
    print("| onset error (P5, P95) | in its interval | verdicts on the job |\n" + "|---" * 7 + "|")
    for name in SCENARIOS:
        t = run(name, options.jobs, options.seed)
        delay = "{:.0f}, {:.0f}".format(*np.percentile(t.delays, [50, 95])) if t.delays else "-"
        onset = "{:.1f}, {:.1f}".format(*np.percentile(t.onset_errors, [5, 95])) if t.onset_errors else "-"
        covered = f"{np.mean(t.onset_covered):.2f}" if t.onset_covered else "-"
        verdicts = ", ".join(f"{k} {v}" for k, v in sorted(t.verdicts.items())) or "-"
        print(
            f"| {name} | {t.named} of {t.bad} | {t.wrong} | {delay} | {onset} | {covered} | {verdicts} |",
            flush=True,
        )
    return 0
