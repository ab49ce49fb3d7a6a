"""Calibration of findings' confidence on simulated faults (`python -m benchmarks calibration`).

Fits the table of ``alerts.reasoning.calibration`` on one range of seeds (``--fit`` prints it), and reports
Brier score, expected calibration error and reliability of the confidences on another. Every finding that
accuses a machine counts, including those that never opened.
"""

import argparse
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from alerts.config import FindingConfig
from alerts.finding import Finding
from alerts.reasoning.calibration import FITTED, Calibration
from benchmarks.detection.step_jobs import records
from benchmarks.speed import stress
from simulator import Cluster, ClusterSpec, JobSpec, Truth, Workload
from simulator.cluster.scenarios import draw_fault
from simulator.faults.catalogue import CATALOGUE
from slowrank.telemetry import Record
from streams.config.settings import Configs, Tuning
from streams.files.replay import findings_of
from streams.pipeline import local_pipeline

Floats = npt.NDArray[np.float64]

LINEAR = Calibration("linear", ((-20.0, 0.0), (100.0, 1.0)))
"""Returns the log-odds in a range that no cap reaches: they are the confidence times 120, less 20."""

MACHINES = ("gpu", "rank", "node", "nic")
ASIDES = ("exporter.", "host.clock_skew", "self", "hang.idle")
"""Kinds that accuse no machine."""

NODES, GPUS, SECONDS = 4, 8, 200.0
BENIGN = (
    Workload(),
    Workload(gc_share=0.05),
    Workload(packing_cv=0.1),
    Workload(last_stage=1.5),
    Workload(spike_every=15, spike_factor=2.5),
    Workload(checkpoint_every=25),
)


@dataclass(frozen=True, slots=True)
class Judged:
    """Confidence (or log-odds) and whether the machine named was at fault, both [findings]."""

    confidence: Floats
    right: Floats


def judge(seeds: Iterable[int], calibration: Calibration) -> Judged:
    """Run the seeds: two thirds of them simulated clusters, one third jobs with step times only."""
    config, rows = FindingConfig(calibration=calibration), list[tuple[float, bool]]()
    for seed in seeds:
        rows += _job(seed, config) if seed % 3 == 2 else _cluster(seed, config)
    confidence, right = np.array(rows, dtype=np.float64).reshape(-1, 2).T
    return Judged(confidence, right)


def fit(judged: Judged) -> tuple[tuple[float, float], ...]:
    """Return the knots of an isotonic regression; each plateau counts a right and a wrong finding more."""
    from sklearn.isotonic import IsotonicRegression

    plateaus = IsotonicRegression().fit_transform(judged.confidence, judged.right)
    knots = []
    for level in np.unique(plateaus):
        mine = plateaus == level
        share = (judged.right[mine].sum() + 1.0) / (mine.sum() + 2.0)
        knots.append((round(float(np.median(judged.confidence[mine])), 2), round(float(share), 4)))
    ascending = np.maximum.accumulate([p for _, p in knots])
    return tuple((x, float(p)) for (x, _), p in zip(knots, ascending, strict=True))


def calibration_error(judged: Judged, bins: int = 10) -> float:
    """Return the mean distance of confidence and share right, over bins of equal width."""
    which = np.minimum((judged.confidence * bins).astype(np.intp), bins - 1)
    gaps = [
        abs(float((judged.confidence - judged.right)[which == b].sum()))
        for b in range(bins)
        if (which == b).any()
    ]
    return sum(gaps) / len(judged.confidence)


def brier(judged: Judged) -> float:
    """Return the mean squared distance of the confidence from the outcome."""
    return float(np.mean((judged.confidence - judged.right) ** 2))


def _cluster(seed: int, config: FindingConfig) -> Iterator[tuple[float, bool]]:
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
    for finding in _final(cluster.run(SECONDS), config):
        yield finding.confidence, any(_names(finding, truth) for truth in cluster.truth)


def _names(finding: Finding, truth: Truth) -> bool:
    subject = finding.subject
    gpu = None in (subject.gpu_index, truth.gpu_index) or subject.gpu_index == truth.gpu_index
    return truth.machine and subject.node in truth.nodes and gpu


def _job(seed: int, config: FindingConfig) -> Iterator[tuple[float, bool]]:
    rng = np.random.default_rng([seed, 0xCA2])
    noise, change = list(stress.SCENARIOS.values())[int(rng.integers(len(stress.SCENARIOS)))]
    job = stress.draw(rng, noise=noise)
    bad = change(job, rng)
    for finding in _final(records(stress.observed(job, rng)), config):
        node = finding.subject.type == "node"
        named = {r // 8 for r in bad} if node else set(bad)
        mine = int((finding.subject.node or "-1").split("-")[-1]) if node else finding.subject.rank
        yield finding.confidence, mine in named


def _final(stream: Iterable[Record], config: FindingConfig) -> list[Finding]:
    """Return the last version of every finding that accuses a machine and is not part of another finding.

    Findings of one kind about GPUs of one node count once, since they have a common cause.
    """
    pipeline = local_pipeline(Tuning(base=Configs(finding=config)))
    last = {f.id: f for f in findings_of(stream, pipeline)}
    accusing = [
        f
        for f in last.values()
        if f.subject.type in MACHINES and f.group_key is None and not f.kind.startswith(ASIDES)
    ]
    return list({(f.kind, f.subject.node or f.subject.rank): f for f in accusing}.values())


def main(argv: list[str]) -> int:
    """Fit if requested, then report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks calibration", description=__doc__)
    parser.add_argument("--fit", action="store_true", help="fit a new table first, and report that one")
    parser.add_argument(
        "--fit-seeds", type=int, default=150, help="seeds from 0 on that the table is fitted on"
    )
    parser.add_argument("--seeds", type=int, default=60, help="seeds from 1000 on that are reported")
    options = parser.parse_args(argv)
    table = FITTED
    if options.fit:
        judged = judge(range(options.fit_seeds), LINEAR)
        knots = fit(Judged(judged.confidence * 120.0 - 20.0, judged.right))
        digest = hashlib.sha256(repr((options.fit_seeds, knots)).encode()).hexdigest()[:8]
        table = Calibration(f"seeds-0-{options.fit_seeds - 1}-{digest}", knots)
        print(f"{len(judged.confidence)} findings, {judged.right.mean():.3f} of them right\n{table}\n")
    _report(judge(range(1000, 1000 + options.seeds), table), table)
    return 0


def _report(judged: Judged, table: Calibration) -> None:
    error, score = calibration_error(judged), brier(judged)
    print(
        f"{table.version}: {len(judged.confidence)} findings, {judged.right.mean():.3f} of them right; ",
        end="",
    )
    print(f"calibration error {error:.3f}, Brier score {score:.3f}\n")
    print("| confidence | findings | mean | right |\n|---|---:|---:|---:|")
    for low in np.arange(0.0, 1.0, 0.1):
        mine = (judged.confidence >= low) & (judged.confidence < low + 0.1 + (low > 0.85))
        if mine.any():
            confidence, right = judged.confidence[mine].mean(), judged.right[mine].mean()
            print(f"| {low:.1f} to {low + 0.1:.1f} | {mine.sum()} | {confidence:.2f} | {right:.2f} |")
