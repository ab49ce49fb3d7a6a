"""How much later findings come when the batches of exporters wait longer.

Faults on a job of 32 nodes, each node's records in the order and at the time at which their batches arrive: a
batch opens with its first record and is sent after the linger, here within 50 ms. The delay is from the onset
of a fault to the first open finding, without transport and delivery.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence

from simulator import Cluster, ClusterSpec, Fault
from simulator.cluster.layout import one_job
from slowrank.telemetry import Record
from streams.pipeline import local_pipeline

LINGERS = (0.2, 1.1, 2.0)
KINDS = ("clock_lock", "gpu_lost", "nic_slow", "job_hang")
NODES, ONSET, AFTER = 32, 130.0, 120.0
SENT_SECONDS = 0.05


def main(argv: Sequence[str]) -> int:
    """Print the median delay of each kind of fault for each linger."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks linger", description=__doc__)
    parser.add_argument("--draws", type=int, default=3)
    draws = parser.parse_args(argv).draws
    print("| fault | " + " | ".join(f"{linger} s" for linger in LINGERS) + " |\n|---|---:|---:|---:|")
    for kind in KINDS:
        # Not at one phase of the nodes' batches.
        runs = [_delays(kind, seed, ONSET + (0.37 * seed) % 2.0) for seed in range(1, draws + 1)]
        medians = (statistics.median(run[i] for run in runs) for i in range(len(LINGERS)))
        print(f"| `{kind}` | " + " | ".join(f"{delay:.1f} s" for delay in medians) + " |", flush=True)
    return 0


def _delays(kind: str, seed: int, onset: float) -> list[float]:
    spec = ClusterSpec(nodes=NODES, jobs=(one_job(NODES, 8),))
    fault = Fault(kind=kind, node=3, gpu=2, onset=onset)
    records = sorted(Cluster(spec, seed=seed, faults=(fault,)).run(onset + AFTER), key=lambda r: r.ts)
    return [_first(arrivals(records, linger), spec.start + onset) for linger in LINGERS]


def arrivals(records: Sequence[Record], linger: float) -> list[tuple[float, Record]]:
    """Return records in order of event time with the time at which each arrives, in that order."""
    closes: dict[tuple[type[Record], str], float] = {}
    arrived = []
    for record in records:
        # A batch is of one partition of one topic.
        place = type(record), record.node
        if record.ts > closes.get(place, -math.inf):
            closes[place] = record.ts + linger
        arrived.append((closes[place] + SENT_SECONDS, record))
    return sorted(arrived, key=lambda pair: pair[0])


def _first(arrived: Sequence[tuple[float, Record]], onset: float) -> float:
    """Return after how many seconds the first finding is open; infinity where none is."""
    pipeline = local_pipeline()
    for at, record in arrived:
        if any(finding.status == "open" for finding in pipeline.process(record)) and at > onset:
            return at - onset
    return math.inf
