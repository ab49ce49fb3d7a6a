"""State rules as tables: conditions of GPUs, fabric ports and nodes that indicate a fault while they hold.

Data only; ``rule_engine`` applies it. The columns are [nodes, devices].
"""

from collections.abc import Callable, Mapping

import numpy as np

from streams.columns import Array, Mask
from streams.debounce import Debounce
from streams.node.rules.counter_rules import (
    CORRECTABLE,
    REMAP_FAILED,
    REMAP_PENDING,
    StateRule,
    Symptom,
    xid_symptom,
)

# Bits of NVML's reasons to lower the clocks. The software power cap is no evidence: at full load it is set on
# healthy GPUs.
IDLE, SW_POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 1, 4, 8, 32, 64, 128

# Rule of the recovery action that a driver asks for, and the seconds without one that clear it. Chosen: the
# default of ``Debounce``.
RECOVERY = "state.recovery_action"
RECOVERY_CLEAR = 30.0

# Derived, node: congestion notifications a second on the mean port, as a multiple of the usual rate.
CNP_RATIO = "nic.port.cnp_handled_ratio"

# Derived, GPU and node: whether all readings repeat (``detectors.frozen_readings``).
FROZEN, STUCK = "gpu.frozen", "exporter.stuck"

# Derived, GPU: whether its clock has been below its siblings' ever since (``detectors.clock_history``).
ALWAYS_LOW = "gpu.clock.always_low"

# Derived, GPU: whether its clock is low, and its power limit below its siblings'
# (``detectors.clock_history``).
LOWER_LIMIT = "gpu.power_limit.lower"

# Derived, GPU: whether its clock is far below its siblings', and the bits that state why
# (``detectors.clock_history``).
FAR_LOW, HELD_BY = "gpu.clock.far_low", "gpu.clock.held_by"

# Derived, node: the share of its GPUs whose clocks heat holds down (``detectors.hot_gpus``).
HOT_SHARE = "gpu.throttle.thermal_share"
# Chosen: most GPUs, as the last ones may still be cool enough.
MOST_GPUS = 0.75

# Chosen: no shift of the load, and no thermal control, holds one GPU's clock far below the others' so long.
FAR_LOW_HOLD_SECONDS = 180.0
# Chosen: heat swings within seconds on each GPU, but not on most of a node at once.
HOT_NODE_HOLD_SECONDS = 60.0
# Chosen: no reboot of a switch, no new cable and no rush for memory takes so long.
LASTING_HOLD_SECONDS = 300.0

# Derived, port: see ``detectors.port_history``.
WAS_UP, BEST_SPEED, OTHERS_UP, IN_JOB = "was_up", "best_speed", "others_up", "in_job"

READ_SECONDS = "gpu.nvml_call_seconds"

MEMORY_WAIT = "host.pressure.memory_some_ratio"

# Chosen: four times a whole read with PCIe throughput (two calls of 20 ms), which takes some 60 ms, and below
# the 0.3 s for which the exporter's tick waits.
SLOW_READ_SECONDS = 0.25
# Chosen: longer than an exporter takes to read each GPU by its own process, which isolates the slow one.
READ_HOLD_SECONDS = 15.0

_SLOW_READS = Symptom("gpu.slow_reads", "event", "warning", 2.0, alone=True)


# Utilisation of a GPU that works. Chosen: "10 %" below.
LOADED = 0.1


def at_rest(gpu: Mapping[str, Array]) -> Mask:
    """Return which GPUs [n, gpus] do not work, by their utilisation or the driver's idle bit."""
    reasons = gpu["gpu.throttle_reasons"]
    bits = np.where(reasons > 0, reasons, 0).astype(np.int64)
    return np.asarray((gpu["gpu.utilization_ratio"] <= LOADED) | (bits & IDLE != 0))


def _loaded(gpu: Mapping[str, Array]) -> Mask:
    # Links of an idle GPU train down to save power, which is no fault.
    return np.asarray(gpu["gpu.utilization_ratio"] > LOADED)


def _reason(bit: int) -> Callable[[Mapping[str, Array]], Mask]:
    def test(gpu: Mapping[str, Array]) -> Mask:
        reasons = gpu["gpu.throttle_reasons"]
        # Usually no GPU of a block has the bit set: skip the rest.
        found = np.asarray(reasons & bit != 0)
        return np.asarray(found & (reasons > 0) & (reasons & IDLE == 0)) if found.any() else found

    return test


def _unexplained_slowdown(gpu: Mapping[str, Array]) -> Mask:
    """Return where the general bit is set without a specific one, which it usually accompanies."""
    reasons = gpu["gpu.throttle_reasons"]
    return np.asarray(_reason(HW_SLOWDOWN)(gpu) & (reasons & (SW_THERMAL | HW_THERMAL | POWER_BRAKE) == 0))


def _far_low(bits: int, unless: int = 0) -> Callable[[Mapping[str, Array]], Mask]:
    """Return the test for clocks far below the siblings', for one of the reasons ``bits`` (0: for none)."""

    def test(gpu: Mapping[str, Array]) -> Mask:
        far, held = gpu[FAR_LOW], gpu[HELD_BY]
        return np.asarray(far & (held & bits != 0 if bits else held == 0) & (held & unless == 0))

    return test


def _narrow(gpu: Mapping[str, Array]) -> Mask:
    width, widest = gpu["gpu.pcie.link_width"], gpu["gpu.pcie.link_width_max"]
    return np.asarray((width > 0) & (width < widest) & _loaded(gpu))


def _older_generation(gpu: Mapping[str, Array]) -> Mask:
    """Return GPUs below the best of their node, as all GPUs of a node are of one model."""
    read = np.where(_loaded(gpu), gpu["gpu.pcie.link_gen"], np.nan)
    best = np.fmax.reduce(read, axis=1, initial=0.0)
    return np.asarray((read > 0) & (read < best[:, None]))


def _remapped(gpu: Mapping[str, Array]) -> Array:
    correctable, uncorrectable = (
        gpu["gpu.row_remap.correctable_total"],
        gpu["gpu.row_remap.uncorrectable_total"],
    )
    # Missing values are negative.
    return np.asarray(np.maximum(correctable, 0) + np.maximum(uncorrectable, 0))


def _slow_reads(gpu: Mapping[str, Array]) -> Mask:
    """Return slow GPUs among faster ones; if all are slow, the driver is (``slow_driver``)."""
    seconds = gpu[READ_SECONDS]
    slow = np.asarray(seconds > SLOW_READ_SECONDS)
    for k, i in np.argwhere(slow).tolist():
        others = np.delete(seconds[k], i)
        others = others[np.isfinite(others)]
        slow[k, i] = not others.size or seconds[k, i] > 2 * np.median(others)
    return slow


def _flag(metric: str) -> Callable[[Mapping[str, Array]], Mask]:
    return lambda columns: np.asarray(columns[metric] > 0)


_FAR = "SM clock below 85 % of the node's other GPUs (median), utilisation > 50 %"


def _far_low_rule(
    name: str, reason: str, test: Callable[[Mapping[str, Array]], Mask], kind: str, log_odds: float
) -> StateRule:
    """Return the rule for clocks far below the siblings' of one stated ``reason``."""
    return StateRule(
        f"far_low_{name}",
        f"{_FAR}, {reason}",
        "gpu.clock.sm_hz",
        test,
        Debounce(hold=FAR_LOW_HOLD_SECONDS),
        Symptom(kind, "clocks", "warning", log_odds, alone=True),
        "slowrank",
    )


# Holds that "slowrank" set are chosen: 10 s (ten samples) where healthy hardware shows the condition for
# single samples, 30 s where it does so for seconds (thermal control, link training). Levels are chosen at the
# bound of the range in operation: a margin of 0 °C, 10 % utilisation for "loaded".
GPU_STATES = (
    StateRule(
        "hw_slowdown",
        "HW slowdown bit (8) without one that says why, not idle",
        "gpu.throttle_reasons",
        _unexplained_slowdown,
        Debounce(hold=10.0),
        Symptom("throttle.hw_slowdown", "clocks", "warning", 3.0),
        "NVML bit, slowrank hold",
    ),
    StateRule(
        "hw_thermal",
        "HW thermal bit (64), not idle",
        "gpu.throttle_reasons",
        _reason(HW_THERMAL),
        Debounce(hold=10.0),
        Symptom("throttle.thermal", "clocks", "warning", 3.0),
        "NVML bit, slowrank hold",
    ),
    StateRule(
        "sw_thermal",
        "SW thermal bit (32), not idle",
        "gpu.throttle_reasons",
        _reason(SW_THERMAL),
        Debounce(hold=30.0),
        Symptom("throttle.thermal", "clocks", "warning", 2.0),
        "NVML bit, slowrank hold",
    ),
    StateRule(
        "power_brake",
        "power brake bit (128), not idle",
        "gpu.throttle_reasons",
        _reason(POWER_BRAKE),
        Debounce(hold=10.0),
        Symptom("throttle.power", "clocks", "warning", 3.0),
        "NVML bit, slowrank hold",
    ),
    StateRule(
        "no_margin",
        "temperature margin ≤ 0 °C",
        "gpu.temp.margin_celsius",
        lambda gpu: np.asarray(gpu["gpu.temp.margin_celsius"] <= 0),
        Debounce(hold=10.0),
        Symptom("throttle.thermal", "clocks", "warning", 1.5),
        "slowrank",
    ),
    # A lock that was left over: no change of level shows it.
    StateRule(
        "low_clock",
        "SM clock below 96 % of the node's other GPUs (median) since the first sample, utilisation > 10 %",
        "gpu.clock.sm_hz",
        _flag(ALWAYS_LOW),
        Debounce(hold=30.0),
        Symptom("clock.low", "clocks", "warning", 2.0),
        "slowrank",
    ),
    StateRule(
        "power_limit",
        "power limit below 95 %, SM clock below 96 % of the node's other GPUs (median), utilisation > 10 %",
        "gpu.power_limit_watts",
        _flag(LOWER_LIMIT),
        Debounce(hold=30.0),
        Symptom("throttle.power_limit", "clocks", "warning", 2.0),
        "slowrank",
    ),
    # These last: clocks that are so low, or are held down for so long, are a finding without step times, too.
    StateRule(
        "hw_thermal_stays",
        "HW thermal bit (64), not idle",
        "gpu.throttle_reasons",
        _reason(HW_THERMAL),
        Debounce(hold=FAR_LOW_HOLD_SECONDS),
        Symptom("throttle.thermal", "clocks", "warning", 3.0, alone=True),
        "NVML bit, slowrank hold",
    ),
    StateRule(
        "power_brake_stays",
        "power brake bit (128), not idle",
        "gpu.throttle_reasons",
        _reason(POWER_BRAKE),
        Debounce(hold=FAR_LOW_HOLD_SECONDS),
        Symptom("throttle.power", "clocks", "warning", 3.0, alone=True),
        "NVML bit, slowrank hold",
    ),
    _far_low_rule(
        "clock",
        "no reason stated and no software power cap (4); where none is read, in a job or with 5 % less power",
        _far_low(0),
        "clock.low",
        2.0,
    ),
    _far_low_rule(
        "thermal",
        "a thermal bit (32 or 64)",
        _far_low(SW_THERMAL | HW_THERMAL),
        "throttle.thermal",
        3.0,
    ),
    _far_low_rule(
        "power",
        "power brake bit (128)",
        _far_low(POWER_BRAKE, unless=SW_THERMAL | HW_THERMAL),
        "throttle.power",
        3.0,
    ),
    _far_low_rule(
        "slowdown",
        "HW slowdown bit (8) without one that says why",
        _far_low(HW_SLOWDOWN, unless=SW_THERMAL | HW_THERMAL | POWER_BRAKE),
        "throttle.hw_slowdown",
        3.0,
    ),
    StateRule(
        "pcie_width",
        "fewer PCIe lanes than the GPU has, or had where its maximum is not read, utilisation > 10 %",
        "gpu.pcie.link_width",
        _narrow,
        Debounce(hold=30.0),
        Symptom("link.pcie_downgrade", "nvlink_pcie", "error", 3.0),
        "slowrank",
    ),
    StateRule(
        "pcie_generation",
        "PCIe generation below that of other GPUs of the node, utilisation > 10 %",
        "gpu.pcie.link_gen",
        _older_generation,
        Debounce(hold=30.0),
        Symptom("link.pcie_downgrade", "nvlink_pcie", "error", 3.0),
        "slowrank",
    ),
    StateRule(
        "remap_pending",
        "row remap pending",
        "gpu.row_remap.pending",
        _flag("gpu.row_remap.pending"),
        Debounce(),
        REMAP_PENDING,
        "NVML",
    ),
    # Each remapped row makes memory a little slower; a GPU has 512 spare rows.
    StateRule(
        "remapped_rows",
        "more than 10 rows remapped",
        "gpu.row_remap.correctable_total",
        lambda gpu: np.asarray(_remapped(gpu) > 10),
        Debounce(refresh=300.0),
        CORRECTABLE,
        "SuperBench (second-hand)",
    ),
    StateRule(
        "rows_exhausted",
        "512 or more rows remapped",
        "gpu.row_remap.correctable_total",
        lambda gpu: np.asarray(_remapped(gpu) >= 512),
        Debounce(refresh=300.0),
        REMAP_FAILED,
        "after DCGM (uncorrectable rows alone)",
    ),
    StateRule(
        "remap_failed",
        "row remap failed",
        "gpu.row_remap.failed",
        _flag("gpu.row_remap.failed"),
        Debounce(),
        REMAP_FAILED,
        "NVML",
    ),
    # XID 154 is the driver's own "recovery action changed".
    StateRule(
        "recovery_action",
        "the driver recommends a recovery action",
        "gpu.recovery_action",
        _flag("gpu.recovery_action"),
        Debounce(clear=RECOVERY_CLEAR),
        xid_symptom(154, "error", 5.0),
        "NVML",
    ),
    StateRule(
        "slow_reads",
        "a read through NVML takes more than 0.25 s, and twice the median of the node's other GPUs",
        READ_SECONDS,
        _slow_reads,
        Debounce(hold=READ_HOLD_SECONDS),
        _SLOW_READS,
        "slowrank",
    ),
    # With a working driver the energy counter always rises: power is never zero.
    StateRule(
        "frozen",
        "the energy counter stands still",
        "gpu.energy_millijoules_total",
        lambda gpu: np.asarray(gpu[FROZEN]),
        Debounce(hold=10.0),
        xid_symptom(119, "error", 4.0),
        "slowrank",
    ),
)


def _down(nic: Mapping[str, Array]) -> Mask:
    return np.asarray((nic["nic.port.up"] == 0) & nic[WAS_UP])


def _lost(nic: Mapping[str, Array]) -> Mask:
    """Return ports that are down while other ports of the node are up: no reboot, no switch."""
    return np.asarray(_down(nic) & nic[OTHERS_UP])


def _lost_or_only(nic: Mapping[str, Array]) -> Mask:
    """Return ports that are down as by ``_lost``, or that are the only port of their node."""
    only = np.isfinite(nic["nic.port.up"]).sum(axis=1, keepdims=True) == 1
    return np.asarray(_down(nic) & (nic[OTHERS_UP] | only))


def _slowed(nic: Mapping[str, Array]) -> Mask:
    # Below any rounding, and above the next lower link speed.
    return np.asarray(nic["nic.port.speed_bits_per_second"] < 0.95 * nic[BEST_SPEED])


NIC_STATES = (
    # Hold: longer than a flap of one to two seconds, shorter than the timeout of a collective.
    StateRule(
        "port_dead",
        "down after it was up, in a job, other ports of the node up",
        "nic.port.up",
        lambda nic: np.asarray(_lost(nic) & nic[IN_JOB]),
        Debounce(hold=2.5),
        Symptom("link.nic_flap", "nic", "error", 4.0),
        "slowrank",
    ),
    # Of nodes whose telemetry Prometheus or an OpenTelemetry collector sends, no job is known.
    StateRule(
        "port_lost",
        "down after it was up, in no job that is known, other ports of the node up",
        "nic.port.up",
        lambda nic: np.asarray(_lost(nic) & ~nic[IN_JOB]),
        Debounce(hold=10.0),
        Symptom("link.nic_flap", "nic", "warning", 3.0, alone=True),
        "slowrank",
    ),
    StateRule(
        "port_down",
        "down after it was up, in a job or all ports of the node",
        "nic.port.up",
        lambda nic: np.asarray(_down(nic) & (nic[IN_JOB] | ~nic[OTHERS_UP])),
        Debounce(hold=10.0),
        Symptom("link.nic_flap", "nic", "warning", 3.0),
        "NVSentinel, slowrank hold",
    ),
    StateRule(
        "port_speed",
        "speed below 95 % of the best this port was ever read at",
        "nic.port.speed_bits_per_second",
        _slowed,
        Debounce(hold=30.0),
        Symptom("link.nic_slow", "nic", "warning", 2.0),
        "slowrank",
    ),
    # These last: what stays so is a finding without step times, too.
    StateRule(
        "port_stays_slow",
        "speed below 95 % of the best this port was ever read at",
        "nic.port.speed_bits_per_second",
        _slowed,
        Debounce(hold=LASTING_HOLD_SECONDS),
        Symptom("link.nic_slow", "nic", "warning", 3.0, alone=True),
        "slowrank",
    ),
    StateRule(
        "port_stays_down",
        "down after it was up, the node's only port or other ports up",
        "nic.port.up",
        _lost_or_only,
        Debounce(hold=LASTING_HOLD_SECONDS),
        Symptom("link.nic_flap", "nic", "error", 4.0, alone=True),
        "slowrank",
    ),
)


def _short_of_memory(node: Mapping[str, Array]) -> Mask:
    return np.asarray(node[MEMORY_WAIT] >= 0.1)


# Congestion is measured on the mean port: notifications on a single one are no full network. Ten times the
# usual rate is chosen: well above its variation with the traffic.
NODE_STATES = (
    # No sibling shows how low their clocks are, and no family confirms it, where all of a node are hot.
    StateRule(
        "hot_node",
        "thermal bits (32, 64) on three quarters of the node's GPUs, at least three, not idle",
        HOT_SHARE,
        lambda node: np.asarray(node[HOT_SHARE] >= MOST_GPUS),
        Debounce(hold=HOT_NODE_HOLD_SECONDS),
        Symptom("throttle.thermal", "clocks", "warning", 3.0, alone=True),
        "slowrank",
    ),
    StateRule(
        "congested",
        "congestion notifications 10 times as frequent as usual and 100 a second a port, in a job",
        CNP_RATIO,
        lambda node: np.asarray(node[CNP_RATIO] >= 10.0),
        # All nodes of a job raise it at once: refreshed seldom, but before it expires.
        Debounce(hold=10.0, refresh=300.0),
        Symptom("congestion", "nic", "info", 1.0),
        "slowrank",
    ),
    # Grows too slowly to be a change of level. Chosen: healthy hosts wait for memory for less than a
    # hundredth of the time, and for seconds only.
    StateRule(
        "memory_pressure",
        "some processes wait for memory for 10 % of the time (pressure stall information)",
        MEMORY_WAIT,
        _short_of_memory,
        Debounce(hold=30.0),
        Symptom("host.memory_pressure", "host", "warning", 2.0),
        "slowrank",
    ),
    StateRule(
        "memory_stays_short",
        "some processes wait for memory for 10 % of the time (pressure stall information)",
        MEMORY_WAIT,
        _short_of_memory,
        Debounce(hold=LASTING_HOLD_SECONDS),
        Symptom("host.memory_pressure", "host", "warning", 3.0, alone=True),
        "slowrank",
    ),
    StateRule(
        "slow_driver",
        "the median read of the node's GPUs through NVML takes more than 0.25 s",
        READ_SECONDS,
        lambda node: np.asarray(node[READ_SECONDS] > SLOW_READ_SECONDS),
        Debounce(hold=READ_HOLD_SECONDS),
        _SLOW_READS,
        "slowrank",
    ),
)
