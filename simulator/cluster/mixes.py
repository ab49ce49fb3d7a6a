"""Rates of faults by kind, from published incident counts."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """``rates``: faults per 1,000 node-days by kind; ``chronic``: share of nodes with a fault from the start.

    A lemon (``lemons``: share of nodes) has ``LEMON_HAZARD`` times as many faults as another node.
    """

    rates: Mapping[str, float]
    chronic: Mapping[str, float] = field(default_factory=dict)
    lemons: float = 0.0


# Assumption; with 1.2 % lemons (Kokolis et al., HPCA 2025) they have a fifth of all faults.
LEMON_HAZARD = 20.0


def _spread(total: float, counts: Mapping[str, float]) -> dict[str, float]:
    """Return rates proportional to ``counts`` with the sum ``total``."""
    return {kind: total * count / sum(counts.values()) for kind, count in counts.items()}


# 419 interruptions of the Llama 3 405B run, by the kind that stands for each of its rows.
_LLAMA3_COUNTS = {
    "gpu_exec": 74, "gpu_lost": 74, "hbm_degradation": 36, "ecc_uncorrectable": 36 + 19, "app_crash": 54 + 2,
    "switch_down": 7, "nic_flap": 14, "link_errors": 14, "node_silent": 32 + 2, "gsp_hang": 17,
    "nic_crash": 4, "nic_slow": 3, "job_hang": 7, "loss_spike": 6, "thermal_throttle": 6, "storage_stall": 3,
    "power_brake": 3, "pcie_downgrade": 2, "host_contention": 2, "memory_overload": 2,
}  # fmt: skip

# Seven months of Minder's production faults, per cent.
_MINDER_SHARES = {
    "ecc_uncorrectable": 38.9, "gpu_exec": 14.6 + 7.7, "pcie_downgrade": 6.6, "node_silent": 6.0,
    "nic_crash": 5.7, "storage_stall": 5.7, "gpu_lost": 2.0, "nvlink_error": 1.7, "link_errors": 0.9,
}  # fmt: skip

# Shares of causes in the default mix, after the counts above and those of ByteRobust.
_FAIL_STOP = {
    "ecc_uncorrectable": 25, "gpu_lost": 10, "gpu_exec": 15, "gsp_hang": 8, "node_silent": 10, "nic_crash": 6,
    "nic_flap": 8, "job_hang": 10, "switch_down": 0.3, "nan_loss": 1, "loss_spike": 2,
}  # fmt: skip
_FAIL_SLOW = {
    "thermal_throttle": 12, "silent_slow": 12, "host_contention": 30, "power_brake": 5, "nvlink_error": 6,
    "pcie_downgrade": 6, "nic_slow": 6, "link_errors": 6, "rail_degraded": 1, "loader_stall": 8,
    "memory_overload": 4, "storage_stall": 4,
}  # fmt: skip
_TELEMETRY = {
    "exporter_gap": 10, "clock_skew": 3, "counter_reset": 5, "late_batch": 10, "duplicate_batch": 10,
    "frozen_exporter": 1,
}  # fmt: skip
# Together the 0.5 % of machines that were slow for good in production.
_CHRONIC = {"clock_lock": 0.003, "silent_slow": 0.002}

# Mixes by name; ``default`` is a dedicated cluster, ``shared`` one with neighbours.
MIXES: dict[str, Mix] = {
    "default": Mix(
        rates={
            # Between 2.3 and 6.5, as two research clusters had; slowness of dedicated clusters is a default.
            **_spread(4.0, _FAIL_STOP),
            **_spread(5.0, _FAIL_SLOW),
            "hbm_degradation": 1.0,
            "app_crash": 4.0,
            "congestion": 5.0,
            **_spread(8.0, _TELEMETRY),
        },
        chronic=_CHRONIC,
        lemons=0.012,
    ),
    # On shared clusters even more was seen: 275 slow spells and 470 of congestion.
    "shared": Mix(
        rates={**_spread(4.0, _FAIL_STOP), **_spread(100.0, _FAIL_SLOW), "congestion": 100.0},
        chronic=_CHRONIC,
        lemons=0.012,
    ),
    # 419 in 54 days on 2,048 nodes; Minder: 30 a week on 1,000 machines.
    "llama3": Mix(rates=_spread(3.79, _LLAMA3_COUNTS)),
    "minder": Mix(rates=_spread(4.3, _MINDER_SHARES)),
    "fail_slow": Mix(rates=_spread(5.0, {"silent_slow": 1, "thermal_throttle": 1, "clock_lock": 1})),
    "telemetry": Mix(rates=_spread(8.0, _TELEMETRY)),
}
