"""Calibration of findings' confidence (`python -m benchmarks calibration --data FOLDER`).

Fits the table of ``alerts.reasoning.calibration`` on one range of draws (``--fit`` prints it), and reports
expected calibration error, Brier score and reliability of the confidences on another. Three sources count
alike, however many findings each has: simulated clusters and jobs of our own simulator; jobs of
``benchmarks.randomised`` (tuning draws); recorded step times of H100 jobs with one rank slowed or none.
Findings count that opened, accuse a machine and are not part of another.
"""

import argparse
import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from alerts.config import FindingConfig
from alerts.finding import Finding
from alerts.reasoning.calibration import FITTED, Calibration
from benchmarks.detection.real import h100_job
from benchmarks.detection.step_jobs import records, synchronous
from benchmarks.randomised.file import write_job
from benchmarks.randomised.ranges import SETS
from benchmarks.randomised.score import accusations
from benchmarks.speed import stress
from simulator import Cluster, ClusterSpec, JobSpec, Truth, Workload
from simulator.cluster.scenarios import draw_fault
from simulator.faults.catalogue import CATALOGUE
from slowrank.telemetry import Record
from streams.config.settings import Configs, Tuning
from streams.files.record_builder import read_records
from streams.files.replay import final_versions, findings_of
from streams.pipeline import local_pipeline

Floats = npt.NDArray[np.float64]
Row = tuple[float, bool]
"""Confidence of a finding, and whether the machine it names was at fault."""

LOWEST, SPAN = -20.0, 120.0

# Returns the log-odds in a range that no cap reaches.
LINEAR = Calibration("linear", ((LOWEST, 0.0), (LOWEST + SPAN, 1.0)))

MACHINES = ("gpu", "rank", "node", "nic")

# Kinds that accuse no machine.
ASIDES = ("exporter.", "host.clock_skew", "self", "hang.idle")

NODES, GPUS, SECONDS = 4, 8, 200.0
BENIGN = (
    Workload(),
    Workload(gc_share=0.05),
    Workload(packing_cv=0.1),
    Workload(last_stage=1.5),
    Workload(spike_every=15, spike_factor=2.5),
    Workload(checkpoint_every=25),
)

# Of a randomised job (chosen: larger ones take minutes).
MOST_RANKS = 64
# First seed by use: at most 5,000 draws of each source.
FIRST = {"fit": 0, "report": 5_000}


@dataclass(frozen=True, slots=True)
class Judged:
    """Confidence of findings, whether they were right, and their weights, all [findings]."""

    confidence: Floats
    right: Floats
    weight: Floats

    def of(self, mine: npt.NDArray[np.bool_]) -> "Judged":
        """Return some of the findings."""
        return Judged(self.confidence[mine], self.right[mine], self.weight[mine])


def joined(sources: Iterable[Sequence[Row]]) -> Judged:
    """Return the findings of all sources, whose weights sum to the same for each source that has any."""
    rows = [(c, right, 1.0 / len(source)) for source in sources for c, right in source]
    confidence, right, weight = np.array(rows, dtype=np.float64).reshape(-1, 3).T
    return Judged(confidence, right, weight / weight.mean() if len(weight) else weight)


def fitted(judged: Judged, name: str) -> Calibration:
    """Return the table for findings whose ``confidence`` is that of ``LINEAR``.

    Its knots are those of an isotonic regression; each plateau counts a right and a wrong finding more.
    """
    from sklearn.isotonic import IsotonicRegression

    log_odds = judged.confidence * SPAN + LOWEST
    plateaus = IsotonicRegression().fit_transform(log_odds, judged.right, sample_weight=judged.weight)
    knots = []
    for level in np.unique(plateaus):
        mine = plateaus == level
        weight = judged.weight[mine]
        share = (weight @ judged.right[mine] + 1.0) / (weight.sum() + 2.0)
        knots.append((round(float(np.median(log_odds[mine])), 2), round(float(share), 4)))
    ascending = np.maximum.accumulate([p for _, p in knots])
    table = tuple((x, float(p)) for (x, _), p in zip(knots, ascending, strict=True))
    return Calibration(f"{name}-{hashlib.sha256(repr(table).encode()).hexdigest()[:8]}", table)


def calibration_error(judged: Judged, bins: int = 10) -> float:
    """Return the mean distance of confidence and share right, over bins of equal width."""
    which = np.minimum((judged.confidence * bins).astype(np.intp), bins - 1)
    gaps = np.bincount(which, judged.weight * (judged.confidence - judged.right), minlength=bins)
    return float(np.abs(gaps).sum() / judged.weight.sum())


def brier(judged: Judged) -> float:
    """Return the mean squared distance of the confidence from the outcome."""
    return float(np.average((judged.confidence - judged.right) ** 2, weights=judged.weight))


def simulated(seed: int, calibration: Calibration) -> list[Row]:
    """Run a seed of our simulator: two of three are clusters, one is a job with step times only."""
    return list(_job(seed, calibration) if seed % 3 == 2 else _cluster(seed, calibration))


def randomised(seed: int, calibration: Calibration) -> list[Row]:
    """Run a job of the independent generator."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.ndjson.gz"
        truth = write_job(SETS["tuning"][seed], path, most_ranks=MOST_RANKS)
        found = _opened(read_records([path]).records, calibration)
    return [(f["confidence"], right) for f, right in accusations(truth, [f.to_json() for f in found])]


def recorded(seed: int, calibration: Calibration, *, data: Path) -> list[Row]:
    """Run H100 step times with one rank slowed by a factor of 1.01 to 2.4, in a quarter of the jobs none."""
    rng = np.random.default_rng([seed, 0xCA3])
    work = h100_job(data, rng)
    onset = int(rng.integers(0, len(work) - 200))
    work = work[max(0, onset - 400) : onset + 200]
    onset, rank = min(onset, 400), int(rng.integers(work.shape[1]))
    healthy = rng.random() < 0.25
    if not healthy:
        ramp = np.minimum(np.arange(1, len(work) - onset + 1) / rng.choice([1, 20, 60]), 1.0)
        work[onset:, rank] *= 1.0 + ramp * np.expm1(rng.uniform(np.log(1.01), np.log(2.4)))
    return [
        (f.confidence, not healthy and f.subject.rank == rank)
        for f in _accusing(_opened(records(synchronous(work)), calibration))
    ]


def _cluster(seed: int, calibration: Calibration) -> Iterator[Row]:
    rng = np.random.default_rng([seed, 0xCA1])
    load = BENIGN[int(rng.integers(len(BENIGN)))]
    pp = 2 if load.last_stage > 1.2 else 1
    job = JobSpec(dp=NODES // pp, pp=pp, tp=GPUS, step_seconds=float(rng.uniform(1.0, 3.0)), workload=load)
    spec = ClusterSpec(nodes=NODES, gpus=GPUS, nics=2, jobs=(job,))
    kinds = sorted(CATALOGUE)
    faults = [] if rng.random() < 0.25 else [
        draw_fault(spec, str(rng.choice(kinds)), rng=rng, onset=float(rng.uniform(80, 140)))
    ]  # fmt: skip
    cluster = Cluster(spec, seed=seed, faults=faults)
    for finding in _accusing(_opened(cluster.run(SECONDS), calibration)):
        yield finding.confidence, any(_names(finding, truth) for truth in cluster.truth)


def _names(finding: Finding, truth: Truth) -> bool:
    subject = finding.subject
    gpu = None in (subject.gpu_index, truth.gpu_index) or subject.gpu_index == truth.gpu_index
    return truth.machine and subject.node in truth.nodes and gpu


def _job(seed: int, calibration: Calibration) -> Iterator[Row]:
    rng = np.random.default_rng([seed, 0xCA2])
    noise, change = list(stress.SCENARIOS.values())[int(rng.integers(len(stress.SCENARIOS)))]
    job = stress.draw(rng, noise=noise)
    bad = change(job, rng)
    for finding in _accusing(_opened(records(stress.observed(job, rng)), calibration)):
        node = finding.subject.type == "node"
        named = {r // 8 for r in bad} if node else set(bad)
        mine = int((finding.subject.node or "-1").split("-")[-1]) if node else finding.subject.rank
        yield finding.confidence, mine in named


def _opened(stream: Iterable[Record], calibration: Calibration) -> list[Finding]:
    pipeline = local_pipeline(Tuning(base=Configs(finding=FindingConfig(calibration=calibration))))
    return final_versions(findings_of(stream, pipeline))


def _accusing(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that accuse a machine and are not part of another finding.

    Findings of one kind about GPUs of one node count once, since they have a common cause.
    """
    accusing = [
        f
        for f in findings
        if f.subject.type in MACHINES and f.group_key is None and not f.kind.startswith(ASIDES)
    ]
    return list({(f.kind, f.subject.node or f.subject.rank): f for f in accusing}.values())


def main(argv: list[str]) -> int:
    """Fit if requested, then report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks calibration", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the recordings")
    parser.add_argument("--fit", action="store_true", help="fit a new table first, and report that one")
    parser.add_argument(
        "--draws", type=int, default=500, help="draws of each source, to fit and to report (500)"
    )
    parser.add_argument("--workers", type=int, default=1, help="draws at a time (1)")
    options = parser.parse_args(argv)
    table = FITTED
    with ProcessPoolExecutor(options.workers) as pool:

        def rows(first: int, calibration: Calibration) -> dict[str, list[Row]]:
            seeds = range(first, first + options.draws)
            return {
                name: [
                    row for found in pool.map(partial(run, calibration=calibration), seeds) for row in found
                ]
                for name, run in _sources(options.data).items()
            }

        if options.fit:
            table = fitted(joined(rows(FIRST["fit"], LINEAR).values()), f"draws-{options.draws}")
            print(f"{table}\n")
        report(rows(FIRST["report"], table), table)
    return 0


def _sources(data: Path) -> dict[str, Callable[..., list[Row]]]:
    return {"simulator": simulated, "randomised jobs": randomised, "recordings": partial(recorded, data=data)}


def report(rows: Mapping[str, Sequence[Row]], table: Calibration) -> None:
    """Print what findings with the confidences of ``table`` were worth, by source and by confidence."""
    parts = {name: joined([found]) for name, found in rows.items() if found}
    everything = joined(found for found in rows.values() if found)
    print(f"{table.version}; sources count alike in the last row\n")
    print("| source | findings | mean confidence | right | calibration error | Brier score |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, judged in {**parts, "all": everything}.items():
        mean, right = (np.average(v, weights=judged.weight) for v in (judged.confidence, judged.right))
        scores = f"{calibration_error(judged):.3f} | {brier(judged):.3f}"
        print(f"| {name} | {len(judged.right)} | {mean:.2f} | {right:.3f} | {scores} |")
    print("\n| confidence | findings | mean | right |\n|---|---:|---:|---:|")
    for low in np.arange(0.0, 1.0, 0.1):
        mine = everything.of(
            (everything.confidence >= low) & (everything.confidence < low + 0.1 + (low > 0.85))
        )
        if len(mine.right):
            mean, right = (np.average(v, weights=mine.weight) for v in (mine.confidence, mine.right))
            print(f"| {low:.1f} to {low + 0.1:.1f} | {len(mine.right)} | {mean:.2f} | {right:.2f} |")
