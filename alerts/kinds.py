"""What is known of every finding kind before any evidence: its standing, base severity and default action."""

from dataclasses import dataclass
from enum import IntEnum

from slowrank.telemetry.records import Severity
from slowrank.telemetry.xids import XIDS, Xid


class Standing(IntEnum):
    """Which of two kinds about one place tells the story; the lower is the finding, the other evidence."""

    FATAL = 0
    SYMPTOM = 1
    CAUSE = 2
    ASIDE = 3
    """About the telemetry, not the machine: neither corroborates nor explains anything else."""


@dataclass(frozen=True, slots=True)
class KindRule:
    """``opens_alone``: one detector is enough, because the finding claims no more than what it saw.

    ``explained_by``: kinds that say why this one is seen; beside one of them it is no explanation of its own.
    ``permanent``: it stays until somebody repairs or resets something.
    ``debounced``: it happens once in a while; until a detector calls it an error nobody is sent for it.
    """

    standing: Standing
    severity: Severity
    action: str
    text: str
    opens_alone: bool = False
    explained_by: tuple[str, ...] = ()
    permanent: bool = False
    debounced: bool = False


_FATAL, _SYMPTOM, _CAUSE, _ASIDE = Standing

_WHY_THROTTLED = ("throttle.thermal", "throttle.power", "throttle.sync_boost")
_FABRIC = ("fabric.rail_degraded",)

RULES: dict[str, KindRule] = {
    "straggler.fail_slow": KindRule(
        _SYMPTOM,
        "warning",
        "RUN_DIAG",
        "Run diagnostics on {place} at the next pause.",
        explained_by=("data.loader_slow",),
    ),
    "straggler.intermittent": KindRule(_SYMPTOM, "warning", "WATCH", "Watch {place}; it comes and goes."),
    "straggler.job_wide": KindRule(
        _SYMPTOM, "info", "CHECK_APP", "No machine stands out: look at the code, the data and the schedule."
    ),
    "hang.job": KindRule(
        _FATAL,
        "critical",
        "RUN_DIAG",
        "Dump the stacks of the named ranks, then restart the job without them.",
    ),
    "hang.idle": KindRule(_ASIDE, "info", "NONE", "Idle machines alone say nothing."),
    "job.planned": KindRule(_ASIDE, "info", "NONE", "The job says that it changes its work."),
    "hang.rank_missing": KindRule(
        _SYMPTOM, "error", "RUN_DIAG", "Dump the stack of {place}; it stopped reporting steps."
    ),
    "gray.node": KindRule(
        _CAUSE, "warning", "RUN_DIAG", "Run diagnostics on {place}: several weak signs agree."
    ),
    "node.silent": KindRule(_FATAL, "error", "REBOOT_NODE", "Check {place} over its BMC; reboot it."),
    "node.lemon": KindRule(
        _CAUSE, "warning", "HARDWARE_INSPECTION", "Inspect {place}: it fails again and again."
    ),
    "exporter.stale": KindRule(_ASIDE, "warning", "WATCH", "Restart the exporter on {place}.", True),
    "throttle.thermal": KindRule(
        _CAUSE, "warning", "HARDWARE_INSPECTION", "Check the cooling of {place}: fans, air flow, heat sink."
    ),
    "throttle.power": KindRule(
        _CAUSE, "warning", "HARDWARE_INSPECTION", "Check the power supplies and the power policy of {place}."
    ),
    "throttle": KindRule(
        _CAUSE, "warning", "HARDWARE_INSPECTION", "Find out why the clocks of {place} are held down."
    ),
    "throttle.hw_slowdown": KindRule(
        _CAUSE,
        "warning",
        "HARDWARE_INSPECTION",
        "Find out why the clocks of {place} are held down.",
        explained_by=_WHY_THROTTLED,
    ),
    "clock.low": KindRule(
        _CAUSE,
        "warning",
        "RESET_GPU",
        "Look for a left-over clock lock, then reset {place}.",
        explained_by=(*_WHY_THROTTLED, "throttle.hw_slowdown"),
        permanent=True,
    ),
    "gpu.slow_reads": KindRule(
        _CAUSE,
        "warning",
        "RUN_DIAG",
        "Run diagnostics on {place} at the next pause: reads through its driver take long.",
        opens_alone=True,
        explained_by=("xid.62", "xid.79", "xid.119", "xid.120", "xid.154"),
    ),
    "ecc.correctable_rate": KindRule(
        _CAUSE, "warning", "WATCH", "Schedule diagnostics: {place} corrects many errors.", True
    ),
    "ecc.uncorrectable": KindRule(_FATAL, "error", "RESET_GPU", "Reset {place} before the next job."),
    "ecc.row_remap_pending": KindRule(
        _CAUSE,
        "error",
        "RESET_GPU",
        "Reset {place} to finish the row remap.",
        explained_by=("ecc.uncorrectable",),
    ),
    "ecc.row_remap_failure": KindRule(
        _FATAL, "error", "CONTACT_SUPPORT", "Replace {place}: rows ran out.", permanent=True
    ),
    "xid.79": KindRule(
        _FATAL,
        "critical",
        "REBOOT_NODE",
        "Drain and reboot the node: {place} fell off the bus.",
        permanent=True,
    ),
    "xid": KindRule(_FATAL, "error", "RUN_DIAG", "Look the XID up, then run diagnostics on {place}."),
    "link.nvlink_degraded": KindRule(
        _CAUSE, "error", "RESET_GPU", "Reset {place}; inspect the hardware if it returns."
    ),
    "link.nvswitch": KindRule(
        _CAUSE,
        "error",
        "RESET_GPU",
        "Stop the jobs on {place}, then reset all its GPUs and NVSwitches together (nvidia-smi -r).",
    ),
    "link.pcie_fatal": KindRule(
        _FATAL, "error", "REBOOT_NODE", "Drain and reboot the node; reseat {place} if it happens again."
    ),
    "link.pcie_uncorrected": KindRule(
        _CAUSE, "warning", "RUN_DIAG", "Run PCIe diagnostics on {place}: a transfer was lost."
    ),
    "link.nic_errors": KindRule(
        _CAUSE,
        "warning",
        "REPLACE_CABLE",
        "Replace the cable of {place}; look at the remote end too.",
        explained_by=_FABRIC,
    ),
    "link.nic_flap": KindRule(
        _CAUSE,
        "error",
        "REPLACE_CABLE",
        "Replace the cable or optic of {place}.",
        explained_by=_FABRIC,
        debounced=True,
    ),
    "link.nic_slow": KindRule(
        _CAUSE,
        "warning",
        "CHECK_NETWORK",
        "Compare the speed of {place} with its rail.",
        explained_by=(*_FABRIC, "link.nic_errors", "link.nic_flap", "link.pcie_downgrade"),
    ),
    "link.pcie_downgrade": KindRule(
        _CAUSE,
        "error",
        "REBOOT_NODE",
        "Reboot the node; reseat {place} if the link stays narrow.",
        permanent=True,
    ),
    "link.pcie_replay": KindRule(_CAUSE, "warning", "RUN_DIAG", "Run PCIe diagnostics on {place}."),
    "link": KindRule(_CAUSE, "warning", "RUN_DIAG", "Run link diagnostics on {place}."),
    "fabric.rail_degraded": KindRule(
        _CAUSE, "error", "CHECK_NETWORK", "Check the switch and the uplinks of {place}."
    ),
    "congestion": KindRule(_CAUSE, "info", "WATCH", "Watch the network; no machine is to blame."),
    "group": KindRule(
        _CAUSE, "info", "CHECK_NETWORK", "Look at the links of the ranks of {place}: one of them is slow."
    ),
    "imbalance.stage": KindRule(
        _CAUSE,
        "warning",
        "CHECK_APP",
        "Give the slowest stage fewer layers, or the others more: no machine is at fault.",
    ),
    "imbalance.workload": KindRule(
        _CAUSE,
        "warning",
        "CHECK_APP",
        "Spread the work more evenly, as by packing sequences by what they cost: no machine is at fault.",
    ),
    "domain": KindRule(
        _CAUSE,
        "error",
        "CHECK_NETWORK",
        "Check the power and the uplinks of {place}: its nodes fell together.",
    ),
    "host.cpu_contention": KindRule(
        _CAUSE, "warning", "CHECK_APP", "Find what else runs on {place} and move it."
    ),
    "host.memory_pressure": KindRule(
        _CAUSE, "warning", "CHECK_APP", "Find what fills the memory of {place}."
    ),
    "host.hung_task": KindRule(
        _CAUSE,
        "error",
        "RUN_DIAG",
        "Find out what the processes of {place} wait for (a driver, a file system); reboot it if they stay.",
    ),
    "host.clock_skew": KindRule(_ASIDE, "warning", "WATCH", "Repair the time service of {place}.", True),
    "host": KindRule(_CAUSE, "warning", "CHECK_APP", "Look at the host side of {place}."),
    "data": KindRule(
        _CAUSE, "warning", "CHECK_DATA", "All ranks wait for data: look at the storage and how it is read."
    ),
    "data.loader_slow": KindRule(_SYMPTOM, "warning", "CHECK_DATA", "Look at the data loader of {place}."),
    "training.loss_anomaly": KindRule(
        _ASIDE, "warning", "CHECK_APP", "Roll back and replay; the machine cannot be told from the loss."
    ),
    "startup.slow": KindRule(_ASIDE, "warning", "WATCH", "Look at the start of {place}."),
    "self.job_memory": KindRule(
        _ASIDE,
        "warning",
        "NONE",
        "Raise SLOWRANK_STREAMS_JOB_MEMORY_MIB where there is memory, or give job-steps more partitions.",
        True,
    ),
    "self.telemetry_gap": KindRule(
        _ASIDE,
        "warning",
        "CHECK_NETWORK",
        "Check how telemetry leaves {place} (brokers, network): no rack or switch explains the silent nodes.",
        True,
    ),
    "self": KindRule(_ASIDE, "warning", "NONE", "slowrank itself is impaired; see its metrics.", True),
}

_UNKNOWN = KindRule(_CAUSE, "warning", "WATCH", "Watch {place}.")


def rule_of(kind: str) -> KindRule:
    """Return the rule of the kind or of its family (``throttle.sync_boost`` is a ``throttle``).

    XIDs have those of NVIDIA's catalogue; one that is not in it has that of all XIDs.
    """
    return RULES.get(kind) or _XIDS.get(kind) or RULES.get(kind.split(".", 1)[0]) or _UNKNOWN


def _of_xid(number: int, row: Xid) -> KindRule:
    what = f"XID {number}, {row.meaning}"
    text = {
        "RESET_GPU": f"Reset {{place}} before the next job: {what}.",
        "REBOOT_NODE": f"Drain and reboot the node of {{place}}: {what}.",
        "CONTACT_SUPPORT": f"Take {{place}} out of service and ask its vendor: {what}.",
        "HARDWARE_INSPECTION": f"Inspect {{place}}: {what}.",
        "RUN_DIAG": f"Run diagnostics on {{place}}: {what}.",
        "NONE": f"Nothing to do by itself: {what}.",
    }
    # Of an application's XID only what repeats on one GPU is a finding, and then an error of the GPU's.
    severity: Severity = row.grade if row.grade in ("critical", "error", "warning") else "error"
    return KindRule(_FATAL, severity, row.action, text[row.action])


def _recovery(action: str, text: str) -> KindRule:
    return KindRule(_FATAL, "error", action, text)


_XIDS = {f"xid.{number}": _of_xid(number, row) for number, row in XIDS.items()} | {
    # By the action that the driver asks for, as NVML numbers them.
    "xid.154.1": _recovery("RESET_GPU", "Reset {place}: its driver asks for it."),
    "xid.154.2": _recovery("REBOOT_NODE", "Drain and reboot the node of {place}: its driver asks for it."),
    "xid.154.3": _recovery(
        "RESET_GPU", "Stop the jobs that use {place} and its peers, then see what its driver asks for next."
    ),
    "xid.154.4": _recovery(
        "RESET_GPU", "Let the work on {place} end, then reset it: its driver asks for it."
    ),
    "xid.154.6": _recovery("RESET_GPU", "Reset the bus of {place}: its driver asks for it."),
    "xid.154.7": _recovery(
        "REBOOT_NODE", "Drain and power-cycle the node of {place}: its driver asks for it."
    ),
}
