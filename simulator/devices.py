"""What sensors and counters show, derived from what the ranks are doing and the condition of the hardware.

A GPU that computes draws power and grows warm; one that waits spins: fully utilised, at a third of the power,
with idle tensor cores. Counters integrate over time. Nobody sets a metric because of a fault.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.board import Board
from simulator.faults import HW_THERMAL, Condition
from simulator.layout import ClusterSpec, FloatArray
from slowrank.telemetry.schema import SAMPLE_SCHEMAS

SM_CLOCK_HZ = 1.755e9
POWER_LIMIT_WATTS, IDLE_WATTS, BUSY_WATTS = 700.0, 75.0, 640.0
SPIN_POWER = 0.34
THERMAL_SECONDS = 25.0
SLOWDOWN_CELSIUS = 87.0
MEMORY_BYTES = 80 * 2.0**30
NIC_BITS = 400e9
IDLE_BIT = 0x1


@dataclass(slots=True)
class Activity:
    """What the GPUs do at the moment of a sample: shares of the step, [nodes, gpus], and bytes a second.

    ``running`` is False where no job is; ``sent`` is [nodes, nics].
    """

    compute: FloatArray
    wait: FloatArray
    running: npt.NDArray[np.bool_]
    sent: FloatArray


class Devices:
    """The sensors and counters of every node; ``read`` moves them on and fills the boards."""

    def __init__(self, spec: ClusterSpec, rng: np.random.Generator) -> None:
        self._spec = spec
        self._rng = rng
        gpus, nics, nodes = (spec.nodes, spec.gpus), (spec.nodes, spec.nics), (spec.nodes, 1)
        schema = SAMPLE_SCHEMAS[1]
        self.gpu = Board(schema.gpu, *gpus)
        self.nic = Board(schema.nic, *nics)
        self.host = Board(schema.host, *nodes)
        self._ambient = rng.normal(30.0, 1.5, gpus)
        self._temperature = self._ambient + 20.0
        self._energy = rng.integers(10**11, 10**12, gpus)
        self._throttled = np.zeros(gpus, np.int64)
        self._corrected = rng.integers(0, 20, gpus)
        self._rx, self._tx = (rng.integers(10**13, 10**14, nics) for _ in range(2))
        self._xmit_wait = rng.integers(0, 10**6, nics)
        self._symbol_errors = rng.integers(0, 5, nics)
        self._switches = rng.integers(10**9, 10**10, nodes)
        self._efficiency = rng.normal(1.0, 0.012, gpus)
        self._set_constants()

    def read(self, activity: Activity, condition: Condition, dt: float, downs: npt.NDArray[np.int64]) -> None:
        """Let ``dt`` seconds pass and fill the boards; ``downs`` [nodes, nics] counts link losses so far."""
        self._read_gpus(activity, condition, dt)
        self._read_nics(activity, condition, dt, downs)
        self._read_hosts(activity, condition, dt)

    def _set_constants(self) -> None:
        constants = {
            "gpu.clock.mem_hz": 2.619e9,
            "gpu.clock.sm_max_hz": 1.98e9,
            "gpu.power_limit_watts": POWER_LIMIT_WATTS,
            "gpu.memory.total_bytes": MEMORY_BYTES,
            "gpu.pcie.link_gen": 5.0,
            "gpu.pcie.link_width_max": 16.0,
            "gpu.row_remap.pending": 0,
            "gpu.row_remap.failed": 0,
            "gpu.recovery_action": 0,
            "gpu.throttle.power_nanoseconds_total": 0,
            "gpu.xid_events_total": 0,
            "gpu.ecc.uncorrected_total": 0,
            "gpu.row_remap.correctable_total": 0,
            "gpu.row_remap.uncorrectable_total": 0,
            "gpu.pcie.replay_total": 0,
            "gpu.nvlink.crc_errors_total": 0,
            "gpu.nvlink.replay_errors_total": 0,
            "gpu.nvlink.recovery_errors_total": 0,
        }
        for name, value in constants.items():
            self.gpu[name] = value
        quiet = ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "link_error_recovery", "xmit_discards")
        for name in (*quiet, "out_of_sequence", "local_ack_timeout", "roce_slow_restart", "cnp_handled"):
            self.nic[f"nic.port.{name}_total"] = 0
        self.host["host.cpu_count"] = 192.0
        self.host["host.memory.total_bytes"] = 2.0**41
        self.host["exporter.spool_bytes"] = 0.0
        for name in (
            "exporter.spool_dropped_total",
            "exporter.step_rows_dropped_total",
            "host.oom_kills_total",
        ):
            self.host[name] = 0

    def _read_gpus(self, activity: Activity, condition: Condition, dt: float) -> None:
        normal = self._rng.standard_normal
        shape = condition.clock.shape
        busy = activity.compute * condition.clock**1.5 + SPIN_POWER * activity.wait
        power = IDLE_WATTS + (BUSY_WATTS - IDLE_WATTS) * busy * self._efficiency + 6.0 * normal(shape)
        target = self._ambient + 36.0 * power / POWER_LIMIT_WATTS + condition.heat
        self._temperature += (target - self._temperature) * -np.expm1(-dt / THERMAL_SECONDS)
        clock = np.where(activity.running, SM_CLOCK_HZ * condition.clock, 0.345e9)
        self._energy += np.maximum(power * dt * 1e3, 0.0).astype(np.int64)
        hot = (condition.throttle & HW_THERMAL) != 0
        self._throttled += np.where(hot, int(dt * 1e9), 0)
        self._corrected += self._rng.poisson(condition.ecc_per_second * dt)
        gpu = self.gpu
        gpu["gpu.utilization_ratio"] = np.where(
            activity.running, np.round(0.99 + 0.005 * normal(shape), 2), 0.0
        )
        gpu["gpu.memory_utilization_ratio"] = np.round(0.55 * activity.compute, 2)
        gpu["gpu.tensor_active_ratio"] = np.maximum(0.0, 0.62 * activity.compute + 0.01 * normal(shape))
        gpu["gpu.dram_active_ratio"] = np.maximum(0.0, 0.48 * activity.compute + 0.01 * normal(shape))
        gpu["gpu.clock.sm_hz"] = np.round((clock + 6e6 * normal(shape)) / 15e6) * 15e6
        gpu["gpu.power_watts"] = power
        celsius = np.round(self._temperature)
        gpu["gpu.temp_celsius"] = celsius
        gpu["gpu.temp.mem_celsius"] = celsius + 9.0
        gpu["gpu.temp.margin_celsius"] = SLOWDOWN_CELSIUS - celsius
        gpu["gpu.memory.used_bytes"] = np.where(activity.running, 0.87 * MEMORY_BYTES, 5e8)
        gpu["gpu.pcie.link_width"] = condition.pcie_width
        traffic = np.where(activity.running, 6e8, 1e6) * (1.0 + 0.05 * normal(shape))
        gpu["gpu.pcie.tx_bytes_per_second"] = traffic
        gpu["gpu.pcie.rx_bytes_per_second"] = 1.4 * traffic
        gpu["gpu.nvml_call_seconds"] = 0.004 * np.exp(0.2 * normal(shape))
        gpu["gpu.throttle_reasons"] = condition.throttle | np.where(activity.running, 0, IDLE_BIT)
        gpu["gpu.energy_millijoules_total"] = self._energy
        gpu["gpu.throttle.thermal_nanoseconds_total"] = self._throttled
        gpu["gpu.ecc.corrected_total"] = self._corrected

    def _read_nics(
        self, activity: Activity, condition: Condition, dt: float, downs: npt.NDArray[np.int64]
    ) -> None:
        up = condition.link_back == 0
        moved = np.where(up, activity.sent * dt, 0.0)
        jitter = 1.0 + 0.03 * self._rng.standard_normal(moved.shape)
        self._tx += (moved * jitter).astype(np.int64)
        self._rx += (moved * jitter[::-1]).astype(np.int64)
        # A port that cannot send as fast as it is asked to counts the ticks in which data waits.
        self._xmit_wait += (moved * (1.0 / condition.link - 0.98) * 1e-4).astype(np.int64)
        self._symbol_errors += self._rng.poisson(0.001 * dt, up.shape)
        nic = self.nic
        nic["nic.port.up"] = up
        nic["nic.port.speed_bits_per_second"] = np.where(up, NIC_BITS, np.nan)
        nic["nic.port.rx_bytes_total"], nic["nic.port.tx_bytes_total"] = self._rx, self._tx
        nic["nic.port.rx_packets_total"], nic["nic.port.tx_packets_total"] = (
            self._rx // 4096,
            self._tx // 4096,
        )
        nic["nic.port.link_downed_total"] = downs
        nic["nic.port.carrier_changes_total"] = 2 * downs - ~up
        nic["nic.port.symbol_errors_total"] = self._symbol_errors
        nic["nic.port.xmit_wait_ticks_total"] = self._xmit_wait

    def _read_hosts(self, activity: Activity, condition: Condition, dt: float) -> None:
        nodes = (self._spec.nodes, 1)
        noise = self._rng.standard_normal(nodes)
        load = np.where(activity.running.any(axis=1, keepdims=True), 0.16, 0.02)
        cpu = np.clip(load + condition.cpu[:, None] + 0.01 * noise, 0.0, 1.0)
        self._switches += (dt * 2e5 * (0.5 + cpu)).astype(np.int64)
        host = self.host
        host["host.cpu.utilization_ratio"] = cpu
        host["host.cpu.iowait_ratio"] = np.clip(0.004 + condition.iowait[:, None] + 0.001 * noise, 0.0, 1.0)
        host["host.cpu.steal_ratio"] = 0.0
        host["host.load1"] = 192.0 * cpu
        host["host.run_queue"] = np.round(192.0 * cpu * (1.0 + 2.0 * condition.cpu[:, None]))
        host["host.memory.available_bytes"] = 1.4e12 + 1e9 * noise
        host["host.pressure.cpu_some_ratio"] = np.clip(0.01 + 0.5 * condition.cpu[:, None], 0.0, 1.0)
        host["host.pressure.memory_some_ratio"] = 0.0
        host["host.pressure.io_some_ratio"] = np.clip(0.005 + condition.iowait[:, None], 0.0, 1.0)
        host["host.clock_offset_seconds"] = condition.skew[:, None] + 2e-4 * noise
        host["exporter.scrape_duration_seconds"] = 0.03 * np.exp(0.15 * noise)
        host["host.major_page_faults_total"] = 1000
        host["host.context_switches_total"] = self._switches
