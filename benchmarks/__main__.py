"""`python -m benchmarks NAME [options]`: run one benchmark; without a name, list them."""

from __future__ import annotations

import importlib
import sys

BENCHMARKS = {
    "bocpd": "benchmarks.bocpd",
    "calibration": "benchmarks.calibration",
    "changes": "benchmarks.changes",
    "chronic": "benchmarks.chronic",
    "cost": "benchmarks.cost",
    "exporter": "benchmarks.exporter",
    "gray": "benchmarks.gray",
    "hook": "benchmarks.hook",
    "jobs": "benchmarks.jobs",
    "lemons": "benchmarks.lemons",
    "peers": "benchmarks.peers",
    "pipeline": "benchmarks.pipeline",
    "place": "benchmarks.place",
    "quality": "benchmarks.quality",
    "real": "benchmarks.real",
    "series": "benchmarks.series",
    "startup": "benchmarks.startup",
    "stress": "benchmarks.stress",
    "transport": "benchmarks.transport",
    "wire": "benchmarks.wire",
}
"""Name → module with `main(argv) -> int`; imported only when asked for."""


def main(argv: list[str]) -> int:
    """Run the benchmark named first; the rest are its options. Exit status 2 for an unknown name."""
    if not argv or argv[0] not in BENCHMARKS:
        print(f"usage: python -m benchmarks {{{','.join(BENCHMARKS)}}} [options]", file=sys.stderr)
        return 2
    status: int = importlib.import_module(BENCHMARKS[argv[0]]).main(argv[1:])
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
