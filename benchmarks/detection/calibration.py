"""Calibration of findings' confidence (`python -m benchmarks calibration`).

Fits the lines of ``alerts.reasoning.calibration`` on one range of draws (``--fit`` prints them), and reports
expected calibration error, Brier score and reliability of the confidences on another, by source and by what
findings rest on. Three sources count alike, however many findings each has: simulated clusters and jobs of
our own simulator; jobs of ``benchmarks.randomised`` (tuning draws); recorded step times of H100 jobs with one
rank slowed or none. Findings count that opened, accuse a machine and are not part of another, and stops of
drawn jobs. What was found stands in a file (``--rows``), a line a draw; with ``--data FOLDER``, the
recordings, draws that it lacks are run first.
"""

import argparse
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from alerts.config import FindingConfig
from alerts.finding import Finding
from alerts.reasoning.calibration import BASES, FITTED, Basis, Calibration
from benchmarks.detection.real import h100_job
from benchmarks.detection.step_jobs import records, synchronous
from benchmarks.randomised.file import write_job
from benchmarks.randomised.ranges import SETS
from benchmarks.randomised.score import accusations, stops
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


class Row(NamedTuple):
    """What a finding rests on, its log-odds, its effect as a ratio (None: unknown), whether it was right."""

    basis: Basis
    log_odds: float
    effect: float | None
    right: bool


Draws = Mapping[str, Iterable[list[Row]]]
"""The findings of each draw, by source."""

Found = list[tuple[Row, float]]
"""Findings with their weights."""

# Of fused log-odds: the prior and two families against, four families for.
LOWEST, HIGHEST = -11.0, 21.0


class Linear(Calibration):
    """Whose confidence is the number of the basis and the log-odds within its range."""

    def probability(self, basis: Basis, log_odds: float) -> float:
        """Return what ``_row`` reads."""
        within = (min(max(log_odds, LOWEST), HIGHEST) - LOWEST) / (HIGHEST - LOWEST)
        return (BASES.index(basis) + 0.98 * within) / len(BASES)


LINEAR = Linear("linear", ())

# Spreads of the normal priors that draw the lines of single bases towards the line of all: in nats, and in
# nats for each nat of log-odds. Chosen by five-fold cross-validation within the fit, whose Brier score is the
# same to 0.001 from 1 to 4.
OFFSET_SPREAD, SLOPE_SPREAD = 2.0, 0.5

# Below so many findings a basis keeps its line (chosen: one of them is a step of 0.07).
LEAST_FINDINGS = 15

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
# What was found in each draw.
ROWS = Path(__file__).parents[1] / "results" / "calibration.ndjson"
# First seeds of the draws to fit on, and of those to report on: detectors were tuned on neither.
FIT, REPORT = 7_000, 8_000


@dataclass(frozen=True, slots=True)
class Judged:
    """Confidence of findings, whether they were right, and their weights, all [findings]."""

    confidence: Floats
    right: Floats
    weight: Floats

    def of(self, mine: npt.NDArray[np.bool_]) -> "Judged":
        """Return some of the findings."""
        return Judged(self.confidence[mine], self.right[mine], self.weight[mine])


def weighted(draws: Draws, *, draws_alike: bool = False) -> Found:
    """Return the findings with weights whose mean is 1: sources count alike, and their findings or draws do.

    What misleads a detector in one job, as experts that are popular there, does so for many ranks at once.
    """
    sources = [[draw for draw in source if draw] for source in draws.values()]
    found = [
        (row, 1.0 / len(draw) / len(source) if draws_alike else 1.0 / sum(map(len, source)))
        for source in sources
        for draw in source
        for row in draw
    ]
    mean = sum(weight for _, weight in found) / max(len(found), 1)
    return [(row, weight / mean) for row, weight in found]


def judged(found: Found, table: Calibration) -> Judged:
    """Return the findings with the confidences that ``table`` gives them."""
    values = [(table.probability(row.basis, row.log_odds), row.right, weight) for row, weight in found]
    return Judged(*np.array(values, dtype=np.float64).reshape(-1, 3).T)


def fitted(found: Found, name: str) -> Calibration:
    """Return the lines of all bases, by the most probable of logistic regressions with normal priors.

    A basis with few findings keeps its line. ``other`` has the line of all: most of its findings are about
    jobs, and are not judged.
    """
    from scipy.optimize import minimize

    rows, weights = zip(*((row, weight) for row, weight in found if row.basis != "other"), strict=True)
    basis = np.array([BASES.index(row.basis) for row in rows])
    log_odds, weight = np.array([row.log_odds for row in rows]), np.array(weights)
    sign = np.where([row.right for row in rows], 1.0, -1.0)
    many = len(BASES)

    def loss(line: Floats) -> float:
        offsets, slopes = line[:many] * OFFSET_SPREAD, line[many : 2 * many] * SLOPE_SPREAD
        at = line[-2] + offsets[basis] + np.maximum(line[-1] + slopes[basis], 0.0) * log_odds
        return float(weight @ np.logaddexp(0.0, -sign * at) + 0.5 * (line[:-2] ** 2).sum())

    best = minimize(loss, np.zeros(2 * many + 2), method="L-BFGS-B").x
    offsets = best[-2] + best[:many] * OFFSET_SPREAD
    slopes = np.maximum(best[-1] + best[many:-2] * SLOPE_SPREAD, 0.0)
    pairs = zip(BASES, offsets.tolist(), slopes.tolist(), strict=True)
    few = {b for i, b in enumerate(BASES) if b != "other" and (basis == i).sum() < LEAST_FINDINGS}
    lines = tuple(
        (b, dict(FITTED.lines)[b] if b in few else (round(offset, 3), round(slope, 3)))
        for b, offset, slope in pairs
    )
    return Calibration(f"{name}-{hashlib.sha256(repr(lines).encode()).hexdigest()[:8]}", lines)


def calibration_error(found: Judged, bins: int = 10) -> float:
    """Return the mean distance of confidence and share right, over bins of equal width."""
    which = np.minimum((found.confidence * bins).astype(np.intp), bins - 1)
    gaps = np.bincount(which, found.weight * (found.confidence - found.right), minlength=bins)
    return float(np.abs(gaps).sum() / found.weight.sum())


def brier(found: Judged) -> float:
    """Return the mean squared distance of the confidence from the outcome."""
    return float(np.average((found.confidence - found.right) ** 2, weights=found.weight))


def simulated(seed: int) -> list[Row]:
    """Run a seed of our simulator: two of three are clusters, one is a job with step times only."""
    return list(_job(seed) if seed % 3 == 2 else _cluster(seed))


def randomised(seed: int) -> list[Row]:
    """Run a job of the independent generator."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.ndjson.gz"
        truth = write_job(SETS["tuning"][seed], path, most_ranks=MOST_RANKS)
        found = [f.to_json() for f in _opened(read_records([path]).records)]
    told = (*accusations(truth, found), *stops(truth, found))
    return [_row(f["confidence"], f.get("slowdown_ratio"), right) for f, right in told]


def recorded(seed: int, *, data: Path) -> list[Row]:
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
        _row(f.confidence, f.slowdown_ratio, not healthy and f.subject.rank == rank)
        for f in _accusing(_opened(records(synchronous(work))))
    ]


def _row(linear: float, effect: float | None, right: bool) -> Row:
    """Return the row of a finding with a confidence of ``LINEAR``."""
    index = int(linear * len(BASES))
    within = (linear * len(BASES) - index) / 0.98
    return Row(BASES[index], round(LOWEST + (HIGHEST - LOWEST) * within, 1), effect, right)


def _cluster(seed: int) -> Iterator[Row]:
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
    for finding in _accusing(_opened(cluster.run(SECONDS))):
        right = any(_names(finding, truth) for truth in cluster.truth)
        yield _row(finding.confidence, finding.slowdown_ratio, right)


def _names(finding: Finding, truth: Truth) -> bool:
    subject = finding.subject
    gpu = None in (subject.gpu_index, truth.gpu_index) or subject.gpu_index == truth.gpu_index
    return truth.machine and subject.node in truth.nodes and gpu


def _job(seed: int) -> Iterator[Row]:
    rng = np.random.default_rng([seed, 0xCA2])
    noise, change = list(stress.SCENARIOS.values())[int(rng.integers(len(stress.SCENARIOS)))]
    job = stress.draw(rng, noise=noise)
    bad = change(job, rng)
    for finding in _accusing(_opened(records(stress.observed(job, rng)))):
        node = finding.subject.type == "node"
        named = {r // 8 for r in bad} if node else set(bad)
        mine = int((finding.subject.node or "-1").split("-")[-1]) if node else finding.subject.rank
        yield _row(finding.confidence, finding.slowdown_ratio, mine in named)


def _opened(stream: Iterable[Record]) -> list[Finding]:
    pipeline = local_pipeline(Tuning(base=Configs(finding=FindingConfig(calibration=LINEAR))))
    opened = final_versions(findings_of(stream, pipeline))
    if pipeline.set_aside:
        raise RuntimeError(f"a detector failed: {dict(pipeline.set_aside)}")
    return opened


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
    """Run draws and fit if requested, then report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks calibration", description=__doc__)
    parser.add_argument("--rows", type=Path, default=ROWS, help=f"file of what was found ({ROWS.name})")
    parser.add_argument("--data", type=Path, help="folder with the recordings: run the draws not in the file")
    parser.add_argument("--draws", type=int, default=100, help="of each source, to fit and to report (100)")
    parser.add_argument("--workers", type=int, default=1, help="draws at a time (1)")
    parser.add_argument("--fit", action="store_true", help="fit new lines first, and report on those")
    options = parser.parse_args(argv)
    if options.data:
        with ProcessPoolExecutor(options.workers) as pool:
            for source, run in _sources(options.data).items():
                for first in (FIT, REPORT):
                    add_draws(options.rows, source, range(first, first + options.draws), run, pool)
    draws = read_draws(options.rows)
    table = FITTED
    if options.fit:
        table = fitted(weighted(_of_seeds(draws, range(FIT, REPORT))), "rows")
        print(f"{table}\n")
    report(_of_seeds(draws, range(REPORT, len(SETS["tuning"]))), table)
    return 0


def read_draws(path: Path) -> dict[str, dict[int, list[Row]]]:
    """Return the findings of each draw in a file of rows, by source and seed."""
    draws: dict[str, dict[int, list[Row]]] = {}
    for line in map(json.loads, path.read_text().splitlines() if path.exists() else ()):
        draws.setdefault(line["source"], {})[line["seed"]] = [Row(*row) for row in line["rows"]]
    return draws


def add_draws(
    path: Path, source: str, seeds: Iterable[int], run: Callable[[int], list[Row]], pool: Executor
) -> None:
    """Run those of ``seeds`` that the file lacks, and add a line for each."""
    have = read_draws(path).get(source, {})
    missing = [seed for seed in seeds if seed not in have]
    for seed, rows in zip(missing, pool.map(run, missing), strict=True):
        with path.open("a") as file:
            file.write(json.dumps({"source": source, "seed": seed, "rows": rows}) + "\n")


def _of_seeds(draws: Mapping[str, Mapping[int, list[Row]]], seeds: range) -> dict[str, list[list[Row]]]:
    return {
        source: [rows for seed, rows in by_seed.items() if seed in seeds] for source, by_seed in draws.items()
    }


def _sources(data: Path) -> dict[str, Callable[[int], list[Row]]]:
    return {"simulator": simulated, "randomised jobs": randomised, "recordings": partial(recorded, data=data)}


def report(draws: Draws, table: Calibration) -> None:
    """Print what findings with the confidences of ``table`` were worth: by source, basis and confidence."""
    print(f"{table.version}; sources count alike\n")
    one, all_alike = weighted(draws), weighted(draws, draws_alike=True)
    sources = {
        name: (weighted({name: found}), weighted({name: found}, draws_alike=True))
        for name, found in draws.items()
    }
    bases = {str(basis): (_on(basis, one), _on(basis, all_alike)) for basis in BASES}
    _print_scores("source", {**sources, "all": (one, all_alike)}, table)
    _print_scores("rests on", bases, table)
    found = judged(one, table)
    print("| confidence | findings | mean | right |\n|---|---:|---:|---:|")
    for low in np.arange(0.0, 1.0, 0.1):
        mine = found.of((found.confidence >= low) & (found.confidence < low + 0.1 + (low > 0.85)))
        if len(mine.right):
            mean, right = (np.average(v, weights=mine.weight) for v in (mine.confidence, mine.right))
            print(f"| {low:.1f} to {low + 0.1:.1f} | {len(mine.right)} | {mean:.2f} | {right:.2f} |")


def _on(basis: Basis, found: Found) -> Found:
    return [(row, weight) for row, weight in found if row.basis == basis]


def _print_scores(heading: str, parts: Mapping[str, tuple[Found, Found]], table: Calibration) -> None:
    print(f"| {heading} | findings | mean confidence | right | calibration error | draws alike | Brier |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, (one, alike) in parts.items():
        if one:
            found = judged(one, table)
            mean, right = (np.average(v, weights=found.weight) for v in (found.confidence, found.right))
            errors = f"{calibration_error(found):.3f} | {calibration_error(judged(alike, table)):.3f}"
            print(f"| {name} | {len(one)} | {mean:.2f} | {right:.3f} | {errors} | {brier(found):.3f} |")
    print()
