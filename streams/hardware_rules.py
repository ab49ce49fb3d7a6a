"""What the hardware says outright, as tables: which reading means which fault, how sure, how severe.

Data only; ``hardware`` applies it. Triggers are those of the NVSentinel, gpud and DCGM defaults unless the
row says otherwise.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from slowrank.telemetry.records import Family
from streams.arrays import Array
from streams.conditions import Timing

Severity = Literal["critical", "error", "warning", "info"]
Mask = npt.NDArray[np.bool_]

IDLE, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 1, 8, 32, 64, 128


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule argues for; ``weight`` is a log likelihood ratio."""

    kind: str
    family: Family
    severity: Severity
    weight: float

    @property
    def overwhelming(self) -> bool:
        """Whether this alone opens a finding: errors and worse need no second family."""
        return self.severity in ("critical", "error")


@dataclass(frozen=True, slots=True)
class EventRule:
    """``faults`` events (bursts counted once) within ``window`` seconds on one subject reach the verdict;
    fewer argue for it with half the weight as a warning."""

    verdict: Verdict
    faults: int = 1
    window: float = 600.0


@dataclass(frozen=True, slots=True)
class CountRule:
    """``metric`` increased by at least ``count`` within ``window`` seconds."""

    metric: str
    count: float
    window: float
    verdict: Verdict
    sticky: bool = False

    @property
    def timing(self) -> Timing:
        """An increase needs no hold of its own: the window is one."""
        return Timing(sticky=self.sticky)


@dataclass(frozen=True, slots=True)
class StateRule:
    """``test`` holds on an instance for ``timing.hold`` seconds; ``metric`` is shown as the evidence."""

    name: str
    metric: str
    test: Callable[[Mapping[str, Array]], Mask]
    timing: Timing
    verdict: Verdict


def _xid(code: int, severity: Severity, weight: float) -> Verdict:
    return Verdict(f"xid.{code}", "event", severity, weight)


_UNCORRECTABLE = Verdict("ecc.uncorrectable", "gpu_memory", "critical", 6.0)
_REMAP_PENDING = Verdict("ecc.row_remap_pending", "gpu_memory", "error", 5.0)
_REMAP_FAILED = Verdict("ecc.row_remap_failure", "gpu_memory", "critical", 6.0)
_CORRECTABLE = Verdict("ecc.correctable_rate", "gpu_memory", "warning", 2.0)
_NVLINK = Verdict("link.nvlink_degraded", "nvlink_pcie", "error", 3.0)
_NVLINK_WEAK = Verdict("link.nvlink_degraded", "nvlink_pcie", "warning", 1.5)
_NIC_FLAP = Verdict("link.nic_flap", "nic", "error", 3.0)
_NIC_FLAP_ONCE = Verdict("link.nic_flap", "nic", "warning", 3.0)
_NIC_ERRORS = Verdict("link.nic_errors", "nic", "warning", 3.0)
_NIC_HINT = Verdict("link.nic_errors", "nic", "warning", 1.0)

# XID 45 follows other faults and never counts alone; 13, 31 and 43 are the application's until they repeat.
EVENT_RULES: dict[str, EventRule | None] = {
    "xid.13": EventRule(_xid(13, "error", 2.0), faults=3, window=86400.0),
    "xid.31": EventRule(_xid(31, "error", 2.0), faults=3, window=86400.0),
    "xid.43": None,
    "xid.45": None,
    "xid.48": EventRule(_UNCORRECTABLE),
    "xid.63": EventRule(_REMAP_PENDING),
    "xid.64": EventRule(_REMAP_FAILED),
    "xid.74": EventRule(_NVLINK, faults=2),
    "xid.79": EventRule(_xid(79, "critical", 6.0)),
    "xid.94": EventRule(Verdict("ecc.uncorrectable", "gpu_memory", "error", 5.0)),
    "xid.95": EventRule(_UNCORRECTABLE),
    "xid.119": EventRule(_xid(119, "error", 5.0)),
    "xid.120": EventRule(_xid(120, "error", 5.0)),
    "xid.145": EventRule(_NVLINK),
    "xid.149": EventRule(_NVLINK),
    "nic.link_down": EventRule(_NIC_FLAP, faults=2, window=300.0),
    "host.oom_kill": EventRule(Verdict("host.memory_pressure", "host", "warning", 2.0)),
}
UNKNOWN_XID = EventRule(Verdict("xid", "event", "warning", 1.0))

GPU_COUNTS = (
    CountRule("gpu.ecc.uncorrected_total", 1, 60.0, _UNCORRECTABLE, sticky=True),
    CountRule("gpu.ecc.corrected_total", 50, 300.0, _CORRECTABLE),
    CountRule("gpu.pcie.replay_total", 32, 60.0, Verdict("link.pcie_replay", "nvlink_pcie", "warning", 2.0)),
    CountRule("gpu.nvlink.recovery_errors_total", 1, 60.0, _NVLINK_WEAK),
    CountRule("gpu.nvlink.replay_errors_total", 2, 120.0, _NVLINK_WEAK),
    CountRule("gpu.nvlink.crc_errors_total", 6000, 60.0, _NVLINK_WEAK),
    CountRule(
        "gpu.throttle.thermal_nanoseconds_total",
        0.05 * 60e9,
        60.0,
        Verdict("throttle.thermal", "clocks", "warning", 3.0),
    ),
)

NIC_COUNTS = (
    CountRule("nic.port.link_downed_total", 2, 300.0, _NIC_FLAP),
    CountRule("nic.port.link_downed_total", 1, 60.0, _NIC_FLAP_ONCE),
    CountRule("nic.port.carrier_changes_total", 4, 600.0, _NIC_FLAP),
    CountRule("nic.port.carrier_changes_total", 2, 600.0, _NIC_FLAP_ONCE),
    CountRule("nic.port.link_error_recovery_total", 6, 60.0, _NIC_ERRORS),
    CountRule("nic.port.symbol_errors_total", 600, 60.0, _NIC_ERRORS),
    CountRule("nic.port.rx_errors_total", 600, 60.0, _NIC_ERRORS),
    CountRule("nic.port.xmit_discards_total", 6000, 60.0, _NIC_HINT),
    CountRule("nic.port.local_ack_timeout_total", 60, 60.0, _NIC_HINT),
    CountRule("nic.port.roce_slow_restart_total", 600, 60.0, _NIC_HINT),
)

HOST_COUNTS = (
    CountRule("host.oom_kills_total", 1, 60.0, Verdict("host.memory_pressure", "host", "warning", 2.0)),
)


def _loaded(gpu: Mapping[str, Array]) -> Mask:
    return np.asarray(gpu["gpu.utilization_ratio"] > 0.1)


def _reason(bit: int) -> Callable[[Mapping[str, Array]], Mask]:
    def test(gpu: Mapping[str, Array]) -> Mask:
        reasons = gpu["gpu.throttle_reasons"]
        return np.asarray((reasons > 0) & (reasons & IDLE == 0) & (reasons & bit != 0))

    return test


def _unexplained_slowdown(gpu: Mapping[str, Array]) -> Mask:
    """The general bit comes with the bit that says why; it speaks only where no other does."""
    reasons = gpu["gpu.throttle_reasons"]
    return np.asarray(_reason(HW_SLOWDOWN)(gpu) & (reasons & (SW_THERMAL | HW_THERMAL | POWER_BRAKE) == 0))


def _narrow(gpu: Mapping[str, Array]) -> Mask:
    width, widest = gpu["gpu.pcie.link_width"], gpu["gpu.pcie.link_width_max"]
    return np.asarray((width > 0) & (width < widest) & _loaded(gpu))


def _flag(metric: str) -> Callable[[Mapping[str, Array]], Mask]:
    return lambda columns: np.asarray(columns[metric] > 0)


GPU_STATES = (
    StateRule(
        "hw_slowdown",
        "gpu.throttle_reasons",
        _unexplained_slowdown,
        Timing(hold=10.0),
        Verdict("throttle.hw_slowdown", "clocks", "warning", 3.0),
    ),
    StateRule(
        "hw_thermal",
        "gpu.throttle_reasons",
        _reason(HW_THERMAL),
        Timing(hold=10.0),
        Verdict("throttle.thermal", "clocks", "warning", 3.0),
    ),
    StateRule(
        "sw_thermal",
        "gpu.throttle_reasons",
        _reason(SW_THERMAL),
        Timing(hold=30.0),
        Verdict("throttle.thermal", "clocks", "warning", 2.0),
    ),
    StateRule(
        "power_brake",
        "gpu.throttle_reasons",
        _reason(POWER_BRAKE),
        Timing(hold=10.0),
        Verdict("throttle.power", "clocks", "warning", 3.0),
    ),
    StateRule(
        "no_margin",
        "gpu.temp.margin_celsius",
        lambda gpu: np.asarray(gpu["gpu.temp.margin_celsius"] <= 0),
        Timing(hold=10.0),
        Verdict("throttle.thermal", "clocks", "warning", 1.5),
    ),
    StateRule(
        "pcie_width",
        "gpu.pcie.link_width",
        _narrow,
        Timing(hold=30.0),
        Verdict("link.pcie_downgrade", "nvlink_pcie", "error", 3.0),
    ),
    StateRule(
        "remap_pending", "gpu.row_remap.pending", _flag("gpu.row_remap.pending"), Timing(), _REMAP_PENDING
    ),
    StateRule("remap_failed", "gpu.row_remap.failed", _flag("gpu.row_remap.failed"), Timing(), _REMAP_FAILED),
    # XID 154 is the driver's own "recovery action changed".
    StateRule(
        "recovery_action",
        "gpu.recovery_action",
        _flag("gpu.recovery_action"),
        Timing(),
        _xid(154, "error", 5.0),
    ),
    StateRule(
        "slow_reads",
        "gpu.nvml_call_seconds",
        lambda gpu: np.asarray(gpu["gpu.nvml_call_seconds"] > 1.0),
        Timing(hold=3.0),
        _xid(119, "warning", 2.0),
    ),
    # The energy counter of a working driver never stands still: power is never zero.
    StateRule(
        "frozen",
        "gpu.energy_millijoules_total",
        lambda gpu: np.asarray(gpu["frozen"]),
        Timing(hold=10.0),
        _xid(119, "error", 4.0),
    ),
)
