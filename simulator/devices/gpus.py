"""Sensors of the GPUs: power, clocks, heat and counters, derived from the activity of the ranks on them.

A GPU that computes draws power and warms up; one that waits in a collective is fully utilised at some 40 % of
the power, with idle tensor cores. No metric is set because of a fault.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.cluster.activity import Activity
from simulator.cluster.layout import ClusterSpec, FloatArray
from simulator.devices.board import Board
from simulator.devices.counters import Counters
from simulator.faults.condition import Condition
from simulator.faults.events import Incident
from simulator.faults.machine_faults import HW_THERMAL, POWER_BRAKE
from slowrank.telemetry.schema import CURRENT_SAMPLE_SCHEMA, SAMPLE_SCHEMAS

# Power above idle while a rank waits in a collective, which polls on every SM, over that of computing. An
# assumption within reports of 30 to 50 % of the whole power (nebius/soperator issue 796): 0.34 gives 42 %.
# The test of idle nodes fires below 60 %, and would miss ranks that spin at more.
SPIN_POWER = 0.34
# Time constant of the temperature, which follows the power as a first-order lag. Assumption.
THERMAL_SECONDS = 25.0
# Temperature from which NVML counts the margin. Assumption, as the idle clock.
SLOWDOWN_CELSIUS = 87.0
IDLE_CLOCK_HZ = 0.345e9
# NVML's bit in the clock event reasons.
IDLE_BIT = 0x1
# One corrected error of a healthy GPU in six days. Assumption.
BACKGROUND_ECC_PER_SECOND = 2e-6


@dataclass(frozen=True, slots=True)
class Model:
    """One model of GPU: watts at the limit, idle and computing, clocks, memory, and how warm it gets.

    ``ambient`` is the temperature without power and ``rise`` what full power adds, each with its spread over
    GPUs, ``memory_above`` how much warmer the memory is than the core, ``spread`` that of power over GPUs.
    """

    limit_watts: float
    idle_watts: float
    busy_watts: float
    clock_hz: float
    max_clock_hz: float
    memory_bytes: float
    ambient: tuple[float, float]
    rise: tuple[float, float]
    memory_above: float
    spread: float


# The A100's figures fit the quantiles of the Kalos cluster of AcmeTrace.
MODELS = {
    "H100": Model(700.0, 75.0, 640.0, 1.755e9, 1.98e9, 80 * 2.0**30, (30.0, 1.5), (36.0, 0.0), 9.0, 0.012),
    "A100": Model(400.0, 65.0, 405.0, 1.41e9, 1.41e9, 80 * 2.0**30, (25.0, 3.5), (28.0, 7.0), 6.0, 0.075),
}


class Gpus:
    """The sensors and counters of every GPU; ``read`` advances them and fills the board."""

    def __init__(self, spec: ClusterSpec, rng: np.random.Generator) -> None:
        self._rng = rng
        shape = (spec.nodes, spec.gpus)
        block = SAMPLE_SCHEMAS[CURRENT_SAMPLE_SCHEMA].gpu
        self.board = Board(block, *shape)
        self._model = MODELS.get(spec.gpu_model, MODELS["H100"])
        self._ambient = rng.normal(*self._model.ambient, shape)
        self._temperature: FloatArray | None = None
        self._rise = rng.normal(*self._model.rise, shape)
        # Permanent factor of a GPU's power against its model.
        self._draw = rng.normal(1.0, self._model.spread, shape)
        start = {
            "gpu.energy_millijoules_total": rng.integers(10**11, 10**12, shape),
            "gpu.ecc.corrected_total": rng.integers(0, 20, shape),
        }
        self._counters = Counters((c.name for c in block.columns if c.kind == "counter"), shape, start)
        self.board.update(
            {
                "gpu.clock.mem_hz": 2.619e9,
                "gpu.clock.sm_max_hz": self._model.max_clock_hz,
                "gpu.power_limit_watts": self._model.limit_watts,
                "gpu.memory.total_bytes": self._model.memory_bytes,
                "gpu.pcie.link_gen": 5.0,
                "gpu.pcie.link_width_max": 16.0,
                "gpu.recovery_action": 0,
            }
        )

    def read(
        self, activity: Activity, condition: Condition, dt: float, happened: Iterable[Incident] = ()
    ) -> None:
        """Advance by ``dt`` seconds and fill the board."""
        power = self._power(activity, condition)
        self._count(power, condition, dt, happened)
        # A driver that hangs repeats its last values, while the counters of the hardware continue.
        held = condition.frozen | condition.stuck[:, None]
        values = self._sensors(activity, condition, power, self._warm(power, condition, dt))
        self.board.update(values | self._counters.values, held=held if held.any() else None)
        # The exporter measures the time of a read itself, so that it varies when the values do not.
        normal = self._rng.standard_normal(power.shape)
        self.board["gpu.nvml_call_seconds"] = 0.004 * np.exp(0.2 * normal) + condition.read_seconds

    def _power(self, activity: Activity, condition: Condition) -> FloatArray:
        model = self._model
        busy = activity.compute * condition.clock**1.5 + SPIN_POWER * activity.wait
        swing = (model.busy_watts - model.idle_watts) * busy * self._draw
        noise = 0.0086 * model.limit_watts * self._rng.standard_normal(busy.shape)
        # GPUs differ less at rest than at work.
        idle = model.idle_watts * (1.0 + 0.4 * (self._draw - 1.0))
        watts: FloatArray = idle + swing + np.where(activity.running, noise, 0.1 * noise)
        return watts

    def _warm(self, power: FloatArray, condition: Condition, dt: float) -> FloatArray:
        target = self._ambient + self._rise * power / self._model.limit_watts + condition.heat
        if self._temperature is None:
            self._temperature = target
        self._temperature = self._temperature + (target - self._temperature) * -np.expm1(
            -dt / THERMAL_SECONDS
        )
        return self._temperature

    def _count(
        self, power: FloatArray, condition: Condition, dt: float, happened: Iterable[Incident]
    ) -> None:
        self._counters.add("gpu.energy_millijoules_total", np.maximum(power * dt * 1e3, 0.0))
        for bit, reason in ((HW_THERMAL, "thermal"), (POWER_BRAKE, "power")):
            held = (condition.throttle & bit) != 0
            self._counters.add(f"gpu.throttle.{reason}_nanoseconds_total", held * int(dt * 1e9))
        background = np.full(power.shape, BACKGROUND_ECC_PER_SECOND)
        self._counters.happen({"gpu.ecc.corrected_total": background}, dt, self._rng)
        self._counters.happen(condition.rates, dt, self._rng)
        for incident in happened:
            self._counters.count(incident)

    def _sensors(
        self, activity: Activity, condition: Condition, power: FloatArray, temperature: FloatArray
    ) -> dict[str, npt.ArrayLike]:
        model, shape, normal = self._model, power.shape, self._rng.standard_normal
        running, compute = activity.running, activity.compute
        spinning = running & (compute + activity.wait > 0)
        # Drivers report clocks in steps of 15 MHz and temperatures in whole degrees.
        clock = np.where(running, model.clock_hz * condition.clock, IDLE_CLOCK_HZ)
        celsius = np.round(temperature)
        width = condition.pcie_width
        traffic = np.where(running, 6e8, 1e6) * width / 16.0 * (1.0 + 0.05 * normal(shape))
        return {
            "gpu.utilization_ratio": np.where(spinning, np.round(0.99 + 0.005 * normal(shape), 2), 0.0),
            "gpu.memory_utilization_ratio": np.round(0.55 * compute, 2),
            "gpu.tensor_active_ratio": np.maximum(0.0, 0.62 * compute + 0.01 * normal(shape)),
            "gpu.dram_active_ratio": np.maximum(0.0, 0.48 * compute + 0.01 * normal(shape)),
            "gpu.clock.sm_hz": np.round((clock + 6e6 * normal(shape)) / 15e6) * 15e6,
            "gpu.power_watts": power,
            "gpu.temp_celsius": celsius,
            "gpu.temp.mem_celsius": celsius + model.memory_above,
            "gpu.temp.margin_celsius": SLOWDOWN_CELSIUS - celsius,
            "gpu.memory.used_bytes": np.where(running, 0.87 * model.memory_bytes, 5e8),
            "gpu.pcie.link_width": width,
            "gpu.pcie.tx_bytes_per_second": traffic,
            "gpu.pcie.rx_bytes_per_second": 1.4 * traffic,
            "gpu.throttle_reasons": condition.throttle | np.where(running, 0, IDLE_BIT),
            "gpu.row_remap.pending": condition.remap & 1,
            "gpu.row_remap.failed": condition.remap >> 1,
        }
