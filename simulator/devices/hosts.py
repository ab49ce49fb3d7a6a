"""Readings of the hosts: processors, memory, disks, clock and the exporter itself."""

from collections.abc import Iterable

import numpy as np

from simulator.cluster.activity import Activity
from simulator.cluster.layout import ClusterSpec
from simulator.devices.board import Board
from simulator.devices.counters import Counters
from simulator.faults.condition import Condition
from simulator.faults.events import Incident
from slowrank.telemetry.schema import CURRENT_SAMPLE_SCHEMA, SAMPLE_SCHEMAS

# A usual server of eight GPUs: 192 CPUs and 2 TiB of memory, of which two thirds are free.
CPUS = 192.0
MEMORY_BYTES = 2.0**41
FREE_BYTES = 1.4e12


class Hosts:
    """The readings of every host; ``read`` advances its counters and fills the board."""

    def __init__(self, spec: ClusterSpec, rng: np.random.Generator) -> None:
        self._rng = rng
        shape = (spec.nodes, 1)
        block = SAMPLE_SCHEMAS[CURRENT_SAMPLE_SCHEMA].host
        self.board = Board(block, *shape)
        start = {
            "host.context_switches_total": rng.integers(10**9, 10**10, shape),
            "host.major_page_faults_total": np.full(shape, 1000),
        }
        self._counters = Counters((c.name for c in block.columns if c.kind == "counter"), shape, start)
        self.board.update(
            {
                "host.cpu_count": CPUS,
                "host.memory.total_bytes": MEMORY_BYTES,
                "host.cpu.steal_ratio": 0.0,
                "exporter.spool_bytes": 0.0,
            }
        )

    def read(
        self, activity: Activity, condition: Condition, dt: float, happened: Iterable[Incident] = ()
    ) -> None:
        """Advance by ``dt`` seconds and fill the board."""
        noise = self._rng.standard_normal((len(condition.cpu), 1))
        load = np.where(activity.running.any(axis=1, keepdims=True), 0.16, 0.02)
        extra, waiting, full = (x[:, None] for x in (condition.cpu, condition.iowait, condition.memory))
        cpu = np.clip(load + extra + 0.01 * noise, 0.0, 1.0)
        self._counters.add("host.context_switches_total", dt * 2e5 * (0.5 + cpu))
        # The last fifth of memory is where reclaim begins.
        tight = np.clip((full - 0.8) / 0.2, 0.0, 1.0)
        self._counters.add("host.major_page_faults_total", dt * 2e3 * tight)
        for incident in happened:
            self._counters.count(incident)
        slowest_read = condition.read_seconds.max(axis=1, keepdims=True)
        values = {
            "host.cpu.utilization_ratio": cpu,
            "host.cpu.iowait_ratio": np.clip(0.004 + waiting + 0.001 * noise, 0.0, 1.0),
            "host.load1": CPUS * cpu,
            "host.run_queue": np.round(CPUS * cpu * (1.0 + 2.0 * extra)),
            "host.memory.available_bytes": FREE_BYTES * (1.0 - 0.97 * full) + 1e9 * noise,
            "host.pressure.cpu_some_ratio": np.clip(0.01 + 0.5 * extra, 0.0, 1.0),
            "host.pressure.memory_some_ratio": 0.6 * tight,
            "host.pressure.io_some_ratio": np.clip(0.005 + waiting, 0.0, 1.0),
            "host.clock_offset_seconds": condition.skew[:, None] + 2e-4 * noise,
            "exporter.scrape_duration_seconds": 0.03 * np.exp(0.15 * noise) + slowest_read,
        }
        held = condition.stuck[:, None]
        self.board.update(values | self._counters.values, held=held if held.any() else None)
