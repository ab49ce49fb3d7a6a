"""The kinds of NVIDIA's XIDs, made from the catalogue (``slowrank.telemetry.hardware.xids``)."""

from alerts.kind import Kind, Standing
from slowrank.telemetry.hardware.xids import XIDS, Xid
from slowrank.telemetry.records import Severity

# The driver asks for a recovery action: ``xid.154.N`` is the kind of action N, as NVML numbers them.
RECOVERY = "xid.154"

_TEXTS = {
    "RESET_GPU": "Reset {{place}} before the next job: {what}.",
    "REBOOT_NODE": "Drain and reboot the node of {{place}}: {what}.",
    "CONTACT_SUPPORT": "Take {{place}} out of service and ask its vendor: {what}.",
    "HARDWARE_INSPECTION": "Inspect {{place}}: {what}.",
    "RUN_DIAG": "Run diagnostics on {{place}}: {what}.",
    "CHECK_APP": (
        "Look at the program that ran on {{place}}: {what}. Run diagnostics if others have it there, too."
    ),
    "NONE": "Nothing to do by itself: {what}.",
}


def _catalogued(number: int, row: Xid) -> Kind:
    # An application's XID is a finding only if it repeats on one GPU. One user's bug does so too, and no row
    # names the program: it is a warning.
    severity: Severity = row.grade if row.grade in ("critical", "error") else "warning"
    return Kind(
        standing=Standing.FATAL,
        title=f"{{place}} reports XID {number}: {row.meaning}",
        phrase=f"XID {number}, {row.meaning}",
        severity=severity,
        action=row.action,
        text=_TEXTS[row.action].format(what=f"XID {number}, {row.meaning}"),
    )


def _recovery(action: str, text: str) -> Kind:
    return Kind(standing=Standing.FATAL, severity="error", action=action, text=text)


XID_KINDS = {f"xid.{number}": _catalogued(number, row) for number, row in XIDS.items()} | {
    f"{RECOVERY}.1": _recovery("RESET_GPU", "Reset {place}: its driver asks for it."),
    f"{RECOVERY}.2": _recovery(
        "REBOOT_NODE", "Drain and reboot the node of {place}: its driver asks for it."
    ),
    f"{RECOVERY}.3": _recovery(
        "RESET_GPU", "Stop the jobs that use {place} and its peers, then see what its driver asks for next."
    ),
    f"{RECOVERY}.4": _recovery(
        "RESET_GPU", "Let the work on {place} end, then reset it: its driver asks for it."
    ),
    f"{RECOVERY}.6": _recovery("RESET_GPU", "Reset the bus of {place}: its driver asks for it."),
    f"{RECOVERY}.7": _recovery(
        "REBOOT_NODE", "Drain and power-cycle the node of {place}: its driver asks for it."
    ),
}
