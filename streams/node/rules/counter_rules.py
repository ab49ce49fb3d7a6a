"""Counter rules as tables: which increase indicates which fault, with what weight and severity.

Data only; ``rule_engine`` applies it. The ``source`` of a rule is where its threshold comes from: "slowrank"
where we chose it, "after X (…)" where X has what is in brackets instead.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from slowrank.telemetry import Evidence, Subject
from slowrank.telemetry.records import Family, Severity
from streams.columns import Array, Mask
from streams.debounce import Debounce
from streams.suspicions import Claim


@dataclass(frozen=True, slots=True)
class Symptom:
    """The kind of finding that a rule indicates; ``weight`` is a log likelihood ratio.

    ``alone``: it opens a finding by itself although it is mild, because the finding states only the event.
    """

    kind: str
    family: Family
    severity: Severity
    weight: float
    alone: bool = False

    @property
    def overwhelming(self) -> bool:
        """Whether this alone opens a finding: errors and worse need no second family."""
        return self.alone or self.severity in ("critical", "error")

    def claim(
        self,
        subject: Subject,
        evidence: Evidence,
        *,
        detector: str,
        catalogue_id: str,
        rule_id: str,
        note: str,
    ) -> Claim:
        """Return the claim of a rule about ``subject``."""
        return Claim(
            detector=detector,
            catalogue_id=catalogue_id,
            rule_id=rule_id,
            family=self.family,
            kind=self.kind,
            subject=subject,
            weight=self.weight,
            score=2.0 if self.overwhelming else 1.0,
            overwhelming=self.overwhelming,
            evidence=(evidence,),
            severity=self.severity,
            note=note,
        )


@dataclass(frozen=True, slots=True)
class CountRule:
    """``metric`` increased by at least ``count`` within ``window`` seconds.

    ``count_of`` gives the count by instance, NaN where it is not known, which leaves ``count``.
    ``apart``: and by so many times the median of at least three siblings on the node, GPUs only at work; a
    count on all of them comes from the load or the path. ``usual`` (events a day): and by more than chance
    allows (p < 1e-6) at that rate, or at the siblings' mean, now or over an hour.
    """

    metric: str
    count: float
    window: float
    symptom: Symptom
    source: str
    sticky: bool = False
    count_of: Callable[[Mapping[str, Array]], Array] | None = None
    apart: float | None = None
    usual: float | None = None

    @property
    def debounce(self) -> Debounce:
        """The hold is 0: the window of the count takes its place."""
        return Debounce(sticky=self.sticky)


@dataclass(frozen=True, slots=True)
class StateRule:
    """``test`` holds on an instance for ``debounce.hold`` seconds; ``metric`` is shown as the evidence.

    ``when`` is the test in words.
    """

    name: str
    when: str
    metric: str
    test: Callable[[Mapping[str, Array]], Mask]
    debounce: Debounce
    symptom: Symptom
    source: str


def xid_symptom(code: int, severity: Severity, weight: float) -> Symptom:
    return Symptom(f"xid.{code}", "event", severity, weight)


# Weights are starting values, not estimated on faults yet: 6 for what is fatal, 3 for throttling, degraded
# links and classes of port errors, 1 for what only hints.
UNCORRECTABLE = Symptom("ecc.uncorrectable", "gpu_memory", "critical", 6.0)
REMAP_PENDING = Symptom("ecc.row_remap_pending", "gpu_memory", "error", 5.0)
REMAP_FAILED = Symptom("ecc.row_remap_failure", "gpu_memory", "critical", 6.0)
CORRECTABLE = Symptom("ecc.correctable_rate", "gpu_memory", "warning", 2.0)
_NVLINK_WEAK = Symptom("link.nvlink_degraded", "nvlink_pcie", "warning", 1.5)
_NVLINK_LASTING = replace(_NVLINK_WEAK, alone=True)
NIC_FLAP = Symptom("link.nic_flap", "nic", "error", 3.0)
_NIC_FLAP_ONCE = Symptom("link.nic_flap", "nic", "warning", 3.0, alone=True)
_NIC_ERRORS = Symptom("link.nic_errors", "nic", "warning", 3.0)
_NIC_FAILING = Symptom("link.nic_errors", "nic", "error", 3.0)
_NIC_HINT = Symptom("link.nic_errors", "nic", "warning", 1.0)


def _replays_allowed(gpu: Mapping[str, Array]) -> Array:
    """Bit errors at the rate the specification allows: 0.06 a minute per lane and GT/s (DCGM)."""
    generation = gpu["gpu.pcie.link_gen"]
    known = np.isin(generation, range(1, len(_GT_PER_SECOND)))
    speed = np.array(_GT_PER_SECOND)[np.where(known, generation, 0).astype(np.int64)]
    return np.asarray(np.ceil(0.06 * speed * gpu["gpu.pcie.link_width_max"]))


# By PCIe generation.
_GT_PER_SECOND = (np.nan, 2.5, 5.0, 8.0, 16.0, 32.0, 64.0)

GPU_COUNTS = (
    CountRule("gpu.ecc.uncorrected_total", 1, 60.0, UNCORRECTABLE, "slowrank", sticky=True),
    # Ten a minute, over five minutes.
    CountRule("gpu.ecc.corrected_total", 50, 300.0, CORRECTABLE, "slowrank"),
    CountRule(
        "gpu.pcie.replay_total",
        # A link of 16 lanes of generation 5 is allowed 31 a minute; this is for one whose
        # generation is not read.
        32,
        60.0,
        Symptom("link.pcie_replay", "nvlink_pcie", "warning", 2.0),
        "DCGM",
        count_of=_replays_allowed,
    ),
    CountRule("gpu.nvlink.recovery_errors_total", 1, 60.0, _NVLINK_WEAK, "DCGM"),
    CountRule("gpu.nvlink.replay_errors_total", 2, 120.0, _NVLINK_WEAK, "DCGM"),
    CountRule("gpu.nvlink.crc_errors_total", 6000, 60.0, _NVLINK_WEAK, "DCGM"),
    # A link that fails all the time is slower, and a finding without step times. Replays are chosen: one a
    # second, where DCGM allows none.
    CountRule("gpu.nvlink.crc_errors_total", 30000, 300.0, _NVLINK_LASTING, "DCGM, over five minutes"),
    CountRule("gpu.nvlink.replay_errors_total", 300, 300.0, _NVLINK_LASTING, "slowrank"),
    CountRule(
        "gpu.throttle.thermal_nanoseconds_total",
        # Nanoseconds: a twentieth of a minute.
        0.05 * 60e9,
        60.0,
        Symptom("throttle.thermal", "clocks", "warning", 3.0),
        "slowrank",
    ),
    # At full load every GPU reaches its power limit at times; one that is limited alone is slowed down.
    CountRule(
        "gpu.throttle.power_nanoseconds_total",
        0.05 * 60e9,
        60.0,
        Symptom("throttle.power", "clocks", "warning", 2.0),
        "slowrank",
        apart=5.0,
    ),
)

# Sources give most triggers as rates: 600 in a minute are 10/s, 6000 are 100/s.
NIC_COUNTS = (
    CountRule("nic.port.link_downed_total", 2, 300.0, NIC_FLAP, "ByteRobust"),
    CountRule("nic.port.link_downed_total", 3, 43200.0, NIC_FLAP, "after gpud (25 s down each time)"),
    CountRule("nic.port.link_downed_total", 1, 60.0, _NIC_FLAP_ONCE, "NVSentinel"),
    CountRule("nic.port.carrier_changes_total", 4, 600.0, NIC_FLAP, "slowrank"),
    CountRule("nic.port.carrier_changes_total", 2, 600.0, _NIC_FLAP_ONCE, "NVSentinel"),
    CountRule("nic.port.link_error_recovery_total", 6, 60.0, _NIC_ERRORS, "NVSentinel"),
    CountRule("nic.port.symbol_errors_total", 600, 60.0, _NIC_ERRORS, "NVSentinel"),
    CountRule("nic.port.symbol_errors_total", 120, 3600.0, _NIC_FAILING, "NVSentinel"),
    CountRule("nic.port.local_link_integrity_errors_total", 1, 60.0, _NIC_FAILING, "NVSentinel"),
    CountRule("nic.port.excessive_buffer_overrun_errors_total", 1, 60.0, _NIC_FAILING, "NVSentinel"),
    # Retries run out where the other end is not ready: this does not show which end is at fault.
    CountRule("nic.port.rnr_nak_retry_errors_total", 1, 60.0, _NIC_ERRORS, "after NVSentinel (fatal)"),
    CountRule("nic.port.rx_errors_total", 600, 60.0, _NIC_ERRORS, "NVSentinel"),
    CountRule("nic.port.xmit_discards_total", 6000, 60.0, _NIC_HINT, "NVSentinel"),
    CountRule("nic.port.local_ack_timeout_total", 60, 60.0, _NIC_HINT, "NVSentinel"),
    CountRule("nic.port.roce_slow_restart_total", 600, 60.0, _NIC_HINT, "NVSentinel"),
    CountRule("nic.port.out_of_sequence_total", 2, 600.0, _NIC_HINT, "slowrank", apart=3.0, usual=0.1),
)

HOST_COUNTS = (
    CountRule(
        "host.oom_kills_total", 1, 60.0, Symptom("host.memory_pressure", "host", "warning", 2.0), "slowrank"
    ),
)
