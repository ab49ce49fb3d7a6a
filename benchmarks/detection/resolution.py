"""Faults that samples show, and quiet nodes, at several intervals between the samples.

Telemetry of other systems comes every 15 to 60 s. Each simulated node sends samples alone, no events and no
step rows; half of the nodes have a fault after an hour. Every run has one fault of each kind.

python -m benchmarks resolution [--runs N]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from alerts.finding import Finding
from simulator import Cluster, ClusterSpec, Fault, JobSpec
from slowrank.telemetry import NodeSample
from streams.pipeline import local_pipeline

INTERVALS = (5.0, 15.0, 30.0, 60.0)
ONSET, SECONDS = 3600.0, 5000.0

# Faults, and the kinds of finding that name them.
KINDS = {
    "ecc_uncorrectable": ("ecc.uncorrectable",),
    "ecc_storm": ("ecc.correctable_rate",),
    "gpu_lost": ("xid.79", "gpu.missing"),
    "power_brake": ("throttle.power",),
    "thermal_throttle": ("throttle.thermal",),
    "clock_lock": ("clock.low",),
    "pcie_downgrade": ("link.pcie_downgrade",),
    "nvlink_error": ("link.nvlink_degraded",),
    "link_errors": ("link.nic_errors",),
    "host_contention": ("host.cpu_contention",),
    "node_silent": ("exporter.stale", "node.silent"),
}

_OF_A_NODE = ("link_errors", "host_contention", "node_silent")


def main(argv: Sequence[str]) -> int:
    """Print the median delay of each fault by interval, and the findings about quiet nodes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks resolution", description=__doc__)
    parser.add_argument("--runs", type=int, default=2, help="runs, each of another seed")
    runs = parser.parse_args(argv).runs
    table = {interval: [delays(interval, seed) for seed in range(1, runs + 1)] for interval in INTERVALS}
    print("| fault | " + " | ".join(f"every {interval:g} s" for interval in INTERVALS) + " |")
    print("|---|" + "---|" * len(INTERVALS))
    for kind in (*KINDS, "false findings"):
        cells = (_cell([run.get(kind) for run in table[interval]]) for interval in INTERVALS)
        print(f"| {kind} | {' | '.join(cells)} |")
    return 0


def delays(interval: float, seed: int) -> dict[str, float]:
    """Return by fault the seconds from its onset until it is named; ``false findings`` are a number."""
    nodes = 2 * len(KINDS)
    faults = [
        Fault(kind=kind, node=node, gpu=None if kind in _OF_A_NODE else 1, onset=ONSET)
        for node, kind in enumerate(KINDS)
    ]
    start, pipeline = ClusterSpec().start, local_pipeline()
    wanted = {f"sim-{node:04d}": kind for node, kind in enumerate(KINDS)}
    found: dict[str, float] = {}
    wrong = set()
    for finding in (
        f for sample in _samples(nodes, faults, interval, seed) for f in pipeline.process(sample)
    ):
        kind = wanted.get(finding.subject.node or "")
        if kind is None or finding.detected_at < start + ONSET:
            wrong.add(finding.id)
        elif _names(finding, kind):
            found.setdefault(kind, finding.detected_at - start - ONSET)
    return {**found, "false findings": float(len(wrong))}


def _names(finding: Finding, kind: str) -> bool:
    return finding.kind in KINDS[kind]


def _samples(nodes: int, faults: Sequence[Fault], interval: float, seed: int) -> Iterator[NodeSample]:
    job = JobSpec(dp=4 * nodes, job_id="j", step_seconds=2.0)
    spec = ClusterSpec(nodes=nodes, gpus=4, nics=4, jobs=(job,), send_seconds=interval)
    for record in Cluster(spec, seed=seed, faults=faults).run(SECONDS):
        if isinstance(record, NodeSample):
            yield record


def _cell(values: Sequence[float | None]) -> str:
    known = sorted(value for value in values if value is not None)
    if not known:
        return "–"
    text = f"{known[len(known) // 2]:.0f}"
    return text if len(known) == len(values) else f"{text} ({len(known)} of {len(values)})"
