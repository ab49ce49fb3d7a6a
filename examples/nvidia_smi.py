r"""Turn what nvidia-smi logs into sample rows, for nodes that have no other telemetry.

    nvidia-smi --format=csv -l 5 --query-gpu=timestamp,index,utilization.gpu,power.draw,temperature.gpu,\
clocks.sm,clocks.max.sm,memory.used,memory.total,clocks_event_reasons.active > gpus.csv
    python examples/nvidia_smi.py gpus.csv --node gpu-0423 --utc-offset 2 > gpus.ndjson
    slowrank backtest gpus.ndjson

Columns are known by their names in the first line, in any order and with or without their units; others are
left out. nvidia-smi writes local time without a zone, which ``--utc-offset`` tells in hours.
"""

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta, timezone

# Metric, and by what a value of nvidia-smi is multiplied: it writes per cent, MHz and MiB.
METRICS: Mapping[str, tuple[str, float]] = {
    "utilization.gpu": ("gpu.utilization_ratio", 0.01),
    "utilization.memory": ("gpu.memory_utilization_ratio", 0.01),
    "power.draw": ("gpu.power_watts", 1.0),
    "temperature.gpu": ("gpu.temp_celsius", 1.0),
    "clocks.sm": ("gpu.clock.sm_hz", 1e6),
    "clocks.current.sm": ("gpu.clock.sm_hz", 1e6),
    "clocks.max.sm": ("gpu.clock.sm_max_hz", 1e6),
    "memory.used": ("gpu.memory.used_bytes", 2.0**20),
    "memory.total": ("gpu.memory.total_bytes", 2.0**20),
    "pcie.link.gen.current": ("gpu.pcie.link_gen", 1.0),
    "pcie.link.width.current": ("gpu.pcie.link_width", 1.0),
    "clocks_event_reasons.active": ("gpu.throttle_reasons", 1.0),
    "clocks_throttle_reasons.active": ("gpu.throttle_reasons", 1.0),
}


def rows(lines: Iterable[str], *, node: str, utc_offset: float) -> Iterator[dict[str, str | float]]:
    """Yield the sample rows of the ``lines`` of one node. Raises ``ValueError`` for a time or index that is
    none; a value that a GPU does not have ("[N/A]") is left out.

    >>> log = ["timestamp, index, power.draw [W]", "2026/11/20 09:41:12.250, 3, 412.50 W"]
    >>> [(row["ts"], row["metric"], row["value"]) for row in rows(log, node="n", utc_offset=2)]
    [(1795160472.25, 'gpu.power_watts', 412.5)]
    """
    zone = timezone(timedelta(hours=utc_offset))
    table = csv.reader(lines, skipinitialspace=True)
    names = [name.partition(" ")[0] for name in next(table, [])]
    for cells in table:
        if len(cells) != len(names):
            continue  # The last line of a log that is still written.
        row = dict(zip(names, cells, strict=True))
        at = datetime.fromisoformat(row["timestamp"].strip().replace("/", "-")).replace(tzinfo=zone)
        for name, cell in row.items():
            number = _number(cell) if name in METRICS else None
            if number is not None:
                metric, factor = METRICS[name]
                yield {
                    "ts": at.timestamp(),
                    "node": node,
                    "metric": metric,
                    "instance": str(int(row["index"])),
                    "value": number * factor,
                }


def _number(cell: str) -> float | None:
    text = cell.strip().partition(" ")[0]
    try:
        return float(int(text, 16)) if text.startswith("0x") else float(text)
    except ValueError:
        return None


def main() -> None:
    """Read a log, or standard input, and write rows to standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("log", type=argparse.FileType(), help="CSV of nvidia-smi; - is standard input")
    parser.add_argument("--node", required=True, help="name of the node, as its step rows have it")
    parser.add_argument("--utc-offset", type=float, default=0.0, help="hours of its local time from UTC (0)")
    options = parser.parse_args()
    try:
        for row in rows(options.log, node=options.node, utc_offset=options.utc_offset):
            print(json.dumps(row))
    except (ValueError, KeyError) as error:
        sys.exit(f"{options.log.name}: {error}. It takes timestamp, index and others: see --help.")


if __name__ == "__main__":
    main()
