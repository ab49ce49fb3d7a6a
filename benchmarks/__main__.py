"""`python -m benchmarks NAME [options]`: run one benchmark; without a name, list them."""

from __future__ import annotations

import importlib
import sys

# Name → module with `main(argv) -> int`; imported only when it is run.
BENCHMARKS = {
    "api": "benchmarks.api.latency",
    "blocks": "benchmarks.speed.blocks",
    "bocpd": "benchmarks.speed.bocpd",
    "calibration": "benchmarks.detection.calibration",
    "capacity": "benchmarks.capacity.command",
    "chaos": "benchmarks.chaos.command",
    "changes": "benchmarks.detection.changes",
    "chronic": "benchmarks.detection.chronic",
    "cost": "benchmarks.detection.cost",
    "delivery": "benchmarks.delivery.command",
    "exporter": "benchmarks.speed.exporter",
    "fleet": "benchmarks.scale.fleet",
    "gray": "benchmarks.detection.gray",
    "hook": "benchmarks.speed.hook",
    "huge_job": "benchmarks.scale.huge_job",
    "jobs": "benchmarks.speed.jobs",
    "lemons": "benchmarks.detection.lemons",
    "linger": "benchmarks.scale.linger",
    "peers": "benchmarks.speed.peers",
    "pipeline": "benchmarks.speed.pipeline",
    "place": "benchmarks.detection.localisation",
    "quality": "benchmarks.quality.command",
    "randomised": "benchmarks.randomised.command",
    "real": "benchmarks.detection.real",
    "resolution": "benchmarks.detection.resolution",
    "restart": "benchmarks.speed.restart",
    "rollups": "benchmarks.speed.rollups",
    "series": "benchmarks.series.command",
    "soak": "benchmarks.soak.command",
    "startup": "benchmarks.detection.startup",
    "storage": "benchmarks.scale.storage",
    "streams": "benchmarks.api.streams",
    "stress": "benchmarks.speed.stress",
    "transport": "benchmarks.speed.transport.throughput",
    "transport_kill": "benchmarks.speed.transport.kill",
    "wire": "benchmarks.speed.wire",
    "workers": "benchmarks.scale.workers",
}


def main(argv: list[str]) -> int:
    """Run the benchmark named first; the rest are its options. Exit status 2 for an unknown name."""
    if not argv or argv[0] not in BENCHMARKS:
        print(f"usage: python -m benchmarks {{{','.join(BENCHMARKS)}}} [options]", file=sys.stderr)
        return 2
    status: int = importlib.import_module(BENCHMARKS[argv[0]]).main(argv[1:])
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
