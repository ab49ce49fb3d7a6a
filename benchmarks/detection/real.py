"""The job stage and public rules on recorded step times (`python -m benchmarks real`).

Rules are run as published, and the step rules of `benchmarks quality` with the parameters tuned there. Needs
a folder with the recordings (H100 step times, trace ST, Alibaba mini-batches), which is not part of this
repository; without it nothing is measured, and the exit status is 0. Of ours, only accusations that need no
second kind of evidence count.
"""

import argparse
import csv
import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.detection.step_jobs import START, StepTable, records, synchronous
from benchmarks.quality.baselines.catalogue import BASELINES
from benchmarks.quality.baselines.step_rules import RULES, alarms
from slowrank.telemetry import Suspicion
from streams.job.stage import JobStage

Floats = npt.NDArray[np.float64]
Alarm = tuple[int, int]

OURS = "slowrank JobStage"
TUNED = {f"{name}, tuned": rule for name, rule in BASELINES.items() if rule.on == "steps"}
FACTORS = (1.02, 1.03, 1.05, 1.10, 1.50)


@dataclass(slots=True)
class Score:
    """Tally of one detector: false alarms on healthy rank-steps, and delays per injected factor (inf =
    never).
    """

    false: int = 0
    rank_steps: int = 0
    planned: int = 0
    delays: dict[str, list[float]] = field(default_factory=dict)


def suspicions(table: StepTable) -> list[Suspicion]:
    """Run the job stage over a table; return what it suspects."""
    stage = JobStage()
    return [s for record in records(table) for s in stage.process(record) if isinstance(s, Suspicion)]


def accused(found: Iterable[Suspicion]) -> list[Suspicion]:
    """Return the first suspicion of every episode of a rank that needs no second kind of evidence."""
    episodes, open_ranks = [], set()
    for s in found:
        rank = s.subject.rank
        if rank is None:
            continue
        if s.state == "clear":
            open_ranks.discard((s.kind, rank))
        elif s.overwhelming and (s.kind, rank) not in open_ranks:
            open_ranks.add((s.kind, rank))
            episodes.append(s)
    return episodes


def _our_alarms(table: StepTable) -> list[Alarm]:
    found = accused(suspicions(table))
    return [(int(np.searchsorted(table.ts, s.ts)), s.subject.rank or 0) for s in found]


def all_alarms(table: StepTable) -> dict[str, list[Alarm]]:
    """Return the alarms of every detector on one table."""
    seconds = table.compute
    published = {name: alarms(rule(seconds)) for name, rule in RULES.items()}
    tuned = {name: rule.rule(seconds, rule.knob) for name, rule in TUNED.items()}
    return {OURS: _our_alarms(table), **published, **tuned}


def h100_job(data: Path, rng: np.random.Generator) -> Floats:
    """Draw 8-16 runs of one group as the ranks of a job, [steps, ranks] seconds, with uniform noise of 1 ms
    against the rounding."""
    with np.load(data / "h100_step_times_2024" / "step_ms.npz") as groups:
        runs = groups[rng.choice(sorted(groups.files))].astype(np.float64)
    ranks = rng.choice(len(runs), int(rng.integers(8, 17)), replace=False)
    milliseconds: Floats = runs[ranks, 20:].T + rng.uniform(-0.5, 0.5, (runs.shape[1] - 20, len(ranks)))
    return milliseconds / 1000.0


def _shape(kind: str, steps: int, rng: np.random.Generator) -> Floats:
    """Return the factor over steps since the onset of one kind of slowdown."""
    if kind.startswith("ramp"):
        return np.minimum(np.linspace(0, steps / 20, steps), 1.0) * 0.10 + 1.0
    if kind.startswith("transient"):
        return np.where(np.arange(steps) < rng.integers(20, 60), 1.3, 1.0)
    return np.full(steps, float(kind.removeprefix("x")))


def h100(data: Path, trials: int, seed: int) -> dict[str, Score]:
    """Score every detector on healthy, injected and planned-change jobs cut from the H100 runs."""
    rng = np.random.default_rng(seed)
    scores = {name: Score() for name in [OURS, *RULES, *TUNED]}
    for _ in range(max(trials // 4, 4)):
        work = h100_job(data, rng)
        for name, found in all_alarms(synchronous(work)).items():
            scores[name].false += len(found)
            scores[name].rank_steps += work.size
        for name, found in all_alarms(synchronous(_planned(work, rng))).items():
            scores[name].planned += len(found)
    for kind in [*(f"x{f:.2f}" for f in FACTORS), "ramp to x1.10 in 20", "transient x1.30"]:
        for _ in range(trials):
            work = h100_job(data, rng)
            onset, rank = int(rng.integers(60, 1100)), int(rng.integers(work.shape[1]))
            work = work[max(0, onset - 400) : onset + 260]
            onset = min(onset, 400)
            work[onset:, rank] *= _shape(kind, len(work) - onset, rng)
            for name, found in all_alarms(synchronous(work)).items():
                hits = [s - onset for s, r in found if r == rank and s >= onset]
                scores[name].delays.setdefault(kind, []).append(min(hits, default=np.inf))
    return scores


def from_start(data: Path, factor: float, trials: int, seed: int) -> tuple[list[float], int]:
    """Slow one rank of H100 jobs since step 0, and none; return after how many steps it is named (inf = not
    within 60), and how many others are named in both.
    """
    rng, delays, false = np.random.default_rng(seed), [], 0
    for _ in range(trials):
        work = h100_job(data, rng)[:60]
        rank = int(rng.integers(work.shape[1]))
        slow = work.copy()
        slow[:, rank] *= factor
        tables = [
            replace(synchronous(w), numbers=np.arange(60), world_size=work.shape[1]) for w in (work, slow)
        ]
        healthy, found = (_our_alarms(table) for table in tables)
        delays.append(min((s + 1.0 for s, r in found if r == rank), default=np.inf))
        false += len(healthy) + sum(r != rank for _, r in found)
    return delays, false


def _planned(work: Floats, rng: np.random.Generator) -> Floats:
    """Return the work with a change common to all ranks: a new level, a ramp, alternation or pauses."""
    work, at, kind = work.copy(), int(rng.integers(100, 1000)), rng.integers(4)
    if kind == 0:
        work[at:] *= rng.choice([0.7, 1.2, 2.0])
    elif kind == 1:
        work[at:] *= np.linspace(1.0, 1.3, len(work) - at)[:, None]
    elif kind == 2:
        work[at::2] *= 1.06
    else:
        work[at :: int(rng.integers(20, 212))] *= 3.5
    return work


def trace_st(data: Path) -> StepTable:
    """Read the recorded dp 2 x pp 4 job with the long last stage."""
    with (data / "straggler_analysis_st" / "steps-ST.csv").open() as file:
        rows = list(csv.DictReader(file))
    numbers = sorted({int(r["step"]) for r in rows})
    values = {name: np.zeros((len(numbers), 8)) for name in ("compute_s", "wait_s", "step_s")}
    for r in rows:
        for name, array in values.items():
            array[numbers.index(int(r["step"])), int(r["rank"])] = float(r[name])
    place = {int(r["rank"]): {"dp": int(r["dp"]), "pp": int(r["pp"])} for r in rows}
    return StepTable(
        compute=values["compute_s"],
        step=values["step_s"],
        wait=values["wait_s"],
        numbers=np.array(numbers),
        ts=START + 2.2 * np.array(numbers),
        coords={c: [place[r][c] for r in range(8)] for c in ("dp", "pp")},
    )


def slowed(table: StepTable, rank: int, factor: float) -> StepTable:
    """Return the job with one rank's compute multiplied, the step longer by the excess and the waits
    accordingly.
    """
    compute = table.compute.copy()
    compute[:, rank] *= factor
    step = table.step + (compute - table.compute)[:, [rank]]
    return replace(table, compute=compute, step=step, wait=step - compute)


def alibaba(data: Path, job: int) -> StepTable:
    """Read one job of asynchronous workers; duplicates dropped, gaps filled with the last value."""
    with gzip.open(data / "alibaba_minibatch" / f"job_{job}_norm.csv.gz", "rt") as file:
        rows = {(int(r["time"]), int(r["worker"])): float(r["batch_time_norm"]) for r in csv.DictReader(file)}
    times = sorted({t for t, _ in rows})
    seconds = np.array([[rows.get((t, w), np.nan) for w in range(10)] for t in times]) / 100.0
    for i in range(1, len(seconds)):
        seconds[i] = np.where(np.isnan(seconds[i]), seconds[i - 1], seconds[i])
    return StepTable(
        compute=seconds,
        step=seconds,
        numbers=np.arange(len(times)),
        ts=START + np.array(times, dtype=np.float64),
        with_compute=False,
    )


def _lines_h100(scores: dict[str, Score]) -> Iterator[str]:
    yield (
        "| detector | false / 1,000 rank-steps | planned changes: accusations | "
        + " | ".join(f"{k}: <= 30 / <= 100 / median" for k in scores[OURS].delays)
        + " |"
    )
    yield "|---" * (3 + len(scores[OURS].delays)) + "|"
    for name, score in scores.items():
        cells = [f"{1000 * score.false / score.rank_steps:.3f}", str(score.planned)]
        for delays in score.delays.values():
            d = np.array(delays)
            median = f"{np.median(d):.0f}" if np.isfinite(np.median(d)) else "-"
            cells.append(f"{np.mean(d < 30):.2f} / {np.mean(d < 100):.2f} / {median}")
        yield f"| {name} | " + " | ".join(cells) + " |"


def _lines_from_start(data: Path, trials: int, seed: int) -> Iterator[str]:
    for factor in (1.2, 1.6, 2.35):
        delays, false = from_start(data, factor, trials, seed)
        yield (
            f"{OURS}: H100 with one rank x{factor} from the first step: "
            f"named {np.isfinite(delays).mean():.2f}, "
            f"within 5 steps {np.mean(np.array(delays) <= 5):.2f}, median {np.median(delays):.0f}, "
            f"others named {false}"
        )


def _lines_st(data: Path) -> Iterator[str]:
    table = trace_st(data)
    truth = json.loads((data / "straggler_analysis_st" / "truth-ST.json").read_text())
    found = suspicions(table)
    for s in found:
        if s.state == "raise" and s.subject.rank is None:
            yield (
                f"ST: {s.kind} {list(s.hypotheses)} {s.subject.coords}, job slowdown {s.job_slowdown_ratio} "
                f"(published {truth['job_slowdown']})"
            )
    for name, found_by in all_alarms(table).items():
        yield f"ST: ranks accused by {name}: {sorted({r for _, r in found_by})}"
    for factor in (1.1, 1.3, 2.0):
        alarms_of = [_our_alarms(slowed(table, r, factor)) for r in range(8)]
        right = [[rank for _, rank in named] == [r] for r, named in enumerate(alarms_of)]
        yield f"{OURS}: ST with one rank x{factor} from the start: named alone for {sum(right)} of 8 ranks"


def _lines_alibaba(data: Path) -> Iterator[str]:
    event = json.loads((data / "alibaba_minibatch" / "labels.json").read_text())["job_1"]["events"][0]
    for job in (1, 2):
        table = alibaba(data, job)
        for name, found in all_alarms(table).items():
            at = [(round(float(table.ts[s] - START)), r) for s, r in found]
            hits = [
                t
                for t, r in at
                if job == 1 and r in event["workers"] and event["start"] - 60 <= t <= event["end"]
            ]
            when = f"worker 6 after {min(hits) - event['start']} s, " if hits else ""
            yield f"Alibaba job_{job}: {name}: {when}{len(at) - len(hits)} false"


def main(argv: list[str]) -> int:
    """Print the tables of ``docs/detection-quality.md``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks real", description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data"), help="folder with the recordings"
    )
    parser.add_argument("--trials", type=int, default=40, help="injections per kind of slowdown")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    if not (options.data / "h100_step_times_2024").is_dir():
        print(f"No recordings in {options.data}: nothing measured. Give their folder with --data.")
        return 0
    print("\n".join(_lines_h100(h100(options.data, options.trials, options.seed))))
    print("\n".join(_lines_from_start(options.data, options.trials, options.seed)))
    print("\n".join([*_lines_st(options.data), *_lines_alibaba(options.data)]))
    return 0
