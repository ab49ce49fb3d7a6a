"""CPU time of one tick of the exporter on this machine, and memory of the process.

    python -m benchmarks exporter

All collectors read this machine, and eight ranks send ten steps a second; records are encoded and spooled to
disk synchronously. CPU time of the process, median over ticks without pause, without sending to Kafka.
"""

import argparse
import json
import resource
import statistics
import tempfile
import time
from pathlib import Path

from exporters import service
from exporters.disk_store import DiskStore
from exporters.exporter import Exporter
from exporters.registry import collectors
from exporters.spool import MemoryStore, Spool
from slowrank import StepTimer

RANKS = 8
STEPS_PER_TICK = 10


def main(argv: list[str]) -> int:
    """Print one JSON object; return the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks exporter")
    parser.add_argument("--ticks", type=int, default=200)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder) / "steps.sock")
        exporter = Exporter(service.identity("bench", "bench", time.time_ns()), collectors([address]))
        spool = Spool(DiskStore(Path(folder), 64 << 20), MemoryStore(1 << 20))
        timers = [StepTimer(exporter=address, environ={}, rank=rank) for rank in range(RANKS)]
        spent = [_tick(exporter, spool, timers) for _ in range(options.ticks)]
        records = spool.stats().records
        for timer in timers:
            timer.close()
        exporter.close()
        spool.close()
    print(
        json.dumps(
            {
                "tick_cpu_ms": round(statistics.median(cpu for cpu, _ in spent) * 1e3, 2),
                "tick_wall_ms": round(statistics.median(wall for _, wall in spent) * 1e3, 2),
                "tick_wall_p99_ms": round(sorted(wall for _, wall in spent)[-options.ticks // 100] * 1e3, 2),
                "records": records,
                "max_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
            },
            indent=2,
        )
    )
    return 0


def _tick(exporter: Exporter, spool: Spool, timers: list[StepTimer]) -> tuple[float, float]:
    for timer in timers:
        for _ in range(STEPS_PER_TICK):
            with timer.step(tokens=4096):
                pass
        timer.flush()
    cpu, wall = time.process_time(), time.perf_counter()
    service.once(exporter, spool, prefix="")
    return time.process_time() - cpu, time.perf_counter() - wall
