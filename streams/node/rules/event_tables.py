"""Event rules as a table: what events of the kernel log and the driver indicate, by code and grade.

Data only; ``event_rules`` applies it. Sources are as in ``counter_rules``. A new XID is a row of
``slowrank.telemetry.hardware.xids.XIDS``.
"""

from dataclasses import dataclass

from slowrank.telemetry.hardware.event_grades import CORRECTED, DRIVER, FATAL, NONE, NONFATAL, NVLINK5
from slowrank.telemetry.hardware.xids import XIDS, Xid
from streams.node.rules.counter_rules import (
    NIC_FLAP,
    REMAP_FAILED,
    REMAP_PENDING,
    UNCORRECTABLE,
    Symptom,
    xid_symptom,
)


@dataclass(frozen=True, slots=True)
class EventRule:
    """``faults`` faults within ``window`` seconds on one subject give ``symptom``.

    Fewer give ``first``, or else the same at half the weight and with severity info. Events less than
    ``burst`` seconds apart are one fault. ``shared``: a fault on several GPUs of a node comes from software,
    and counts as none. ``fatal``: it counts towards ``REPEAT_OFFENDER``. The defaults
    of ``window`` and ``burst`` are chosen: ten minutes of one incident, and the lines of one fault.
    """

    symptom: Symptom
    source: str
    faults: int = 1
    window: float = 600.0
    shared: bool = False
    fatal: bool = False
    burst: float = 5.0
    first: Symptom | None = None


_NVLINK = Symptom("link.nvlink_degraded", "nvlink_pcie", "error", 3.0)
_NVLINK_ONCE = Symptom("link.nvlink_degraded", "nvlink_pcie", "warning", 1.5, alone=True)

_XID = "NVIDIA XID catalogue"

# XIDs that indicate a kind of finding for which there is other evidence, too.
_XID_SYMPTOMS: dict[int, Symptom] = {
    **dict.fromkeys((48, 95, 140, 171, 172), UNCORRECTABLE),
    94: Symptom("ecc.uncorrectable", "gpu_memory", "error", 5.0),
    63: REMAP_PENDING,
    64: REMAP_FAILED,
    **dict.fromkeys((74, 136, *NVLINK5, 155), _NVLINK),
}

# NVIDIA's actions for XIDs that are no failure of their GPU: these do not count towards a repeat offender.
_OF_OTHERS = ("IGNORE", "RESTART_APP", "XID_154")


def _repeating(code: int) -> Symptom:
    # A warning only: repeated starts of one faulty program look the same as a faulty GPU.
    return Symptom(f"xid.{code}", "event", "warning", 2.0, alone=True)


def _xid_rule(code: int, row: Xid) -> EventRule | None:
    if row.grade == "recorded":
        return None
    if row.grade == "application":
        return EventRule(_repeating(code), "slowrank", faults=3, window=86400.0, shared=True)
    if row.grade == "warning":
        return EventRule(Symptom(f"xid.{code}", "event", "warning", 2.0, alone=True), _XID)
    usual = xid_symptom(code, row.grade, 6.0 if row.grade == "critical" else 5.0)
    fatal = row.bucket.partition("/")[0] not in _OF_OTHERS
    return EventRule(_XID_SYMPTOMS.get(code, usual), _XID, fatal=fatal)


# Nonfatal errors are corrected or retried by the hardware; many of them show a marginal link.
_REPEATED = "after NVSentinel (3 flaps of a port)"

# By the names of ``event_grades``. None: recorded, and no evidence by itself.
EVENT_RULES: dict[str, EventRule | None] = {
    **{f"xid.{code}": _xid_rule(code, row) for code, row in sorted(XIDS.items())},
    "xid.31": EventRule(_repeating(31), "after NVSentinel (2 faults)", faults=3, window=86400.0, shared=True),
    "xid.74": EventRule(_NVLINK, "slowrank", faults=2, fatal=True, first=_NVLINK_ONCE),
    **{
        f"xid.{code}{NONFATAL}": EventRule(_NVLINK_ONCE, _REPEATED, faults=3, window=3600.0)
        for code in NVLINK5
    },
    f"xid.154{NONE}": None,
    "nvswitch.sxid": EventRule(
        Symptom("link.nvswitch", "nvlink_pcie", "error", 5.0), "NVIDIA Fabric Manager guide"
    ),
    f"nvswitch.sxid{NONFATAL}": EventRule(
        Symptom("link.nvswitch", "nvlink_pcie", "warning", 2.0, alone=True),
        _REPEATED,
        faults=3,
        window=3600.0,
    ),
    f"pcie.aer{FATAL}": EventRule(Symptom("link.pcie_fatal", "nvlink_pcie", "error", 5.0), "PCI Express AER"),
    # Uncorrected, or of unknown severity: a transfer was lost, the link goes on.
    "pcie.aer": EventRule(
        Symptom("link.pcie_uncorrected", "nvlink_pcie", "warning", 3.0, alone=True), "PCI Express AER"
    ),
    # Above the error rate allowed on a link of 16 lanes of generation 5 (31 a minute), as for replays.
    f"pcie.aer{CORRECTED}": EventRule(
        Symptom("link.pcie_replay", "nvlink_pcie", "warning", 2.0, alone=True),
        "DCGM",
        faults=32,
        window=60.0,
        burst=0.0,
    ),
    "nic.link_down": EventRule(NIC_FLAP, "ByteRobust", faults=2, window=300.0),
    "nic.link_up": None,
    "host.oom_kill": EventRule(Symptom("host.memory_pressure", "host", "warning", 2.0), "slowrank"),
    # The kernel logs it after two minutes in which a process could not be woken up.
    "host.hung_task": EventRule(Symptom("host.hung_task", "host", "warning", 2.0, alone=True), "Linux"),
    f"host.hung_task{DRIVER}": EventRule(Symptom("host.hung_task", "host", "error", 4.0), "Linux"),
    "host.boot": None,
    "exporter.records_lost": None,
}

# For every code that is not in the catalogue: one kind for all, so that a GPU has one such finding.
UNKNOWN_XID = EventRule(Symptom("xid", "event", "warning", 1.0, alone=True), "slowrank")

# For one GPU, over all fatal XIDs; the burst is an hour because a hung driver repeats its message.
REPEAT_OFFENDER = EventRule(
    Symptom("node.lemon", "event", "error", 3.0),
    "after NVSentinel (bursts of 3 min)",
    faults=5,
    window=86400.0,
    burst=3600.0,
)
