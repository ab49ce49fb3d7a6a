"""Grade of an event, as several kernel messages state it.

An event's ``code`` names what happened (``xid.145``, ``nvswitch.sxid``); its grade is part of the name of the
rule (``xid.145.nonfatal``), which without a grade is the code. Exporters choose the severity of events by it,
and workers their rule, so that both agree, whichever of them is newer.
"""

import re

NONFATAL, FATAL, CORRECTED, NONE, DRIVER = ".nonfatal", ".fatal", ".corrected", ".none", ".driver"

# XIDs of NVLink 5, whose messages have the unit at fault and then ``Fatal`` or ``Nonfatal``.
NVLINK5 = range(144, 151)

_SXID = re.compile(r"SXid \(PCI:[^)]*\): \d+, (?P<grade>Non-?fatal|Fatal)\b", re.IGNORECASE)
_NVLINK5 = re.compile(r"\b(?P<grade>Nonfatal|Fatal) XC\d")
_AER = re.compile(r"(?P<what>Un)?correct(?:ed|able)(?: \((?P<grade>Non-Fatal|Fatal)\))?", re.IGNORECASE)
_RECOVERY = re.compile(
    r"action changed from (?:0x)?[0-9a-f]+ \([^)]*\) to (?P<to>0x[0-9a-f]{1,4}|\d{1,4})\b", re.IGNORECASE
)
_BLOCKED = re.compile(r"blocked for more than (?P<seconds>\d{1,6}) seconds")

# How often the kernel looks for blocked tasks, and how long one must be blocked to be logged
# (``kernel.hung_task_timeout_secs``, its default).
HUNG_TASK_SECONDS = 120.0

# Of the NVIDIA driver (nv_queue, nvidia-modeset, irq/97-nvidia, UVM …), and of file systems over the network.
_DRIVER = re.compile(
    r"task (?:nv|irq/\d+-nv|UVM|uvm|nfs|rpciod|kworker/\S*(?:rpc|xprt|nfs)|ll_|ptlrpc|mount\.nfs)"
    r".{0,64}?:\d+ blocked"
)


def graded(code: str, message: str) -> str:
    """Return the name of the rule for an event: its code, and its grade if the message states one."""
    if code == "nvswitch.sxid":
        return code + _nonfatal(_SXID.search(message))
    if code == "pcie.aer":
        return code + _of_aer(message)
    if code == "host.hung_task":
        return code + (DRIVER if _DRIVER.search(message) else "")
    if code == "xid.154":
        return code + (NONE if recovery_action(message) == 0 else "")
    if code in _OF_NVLINK5:
        return code + _nonfatal(_NVLINK5.search(message))
    return code


def recovery_action(message: str) -> int | None:
    """Return the recovery action that the driver requires, from the message of XID 154, with NVML's numbers.

    0 none, 1 reset, 2 reboot, 3 drain peers, 4 drain and reset; None where the message has none.
    """
    found = _RECOVERY.search(message)
    return None if found is None else int(found["to"], 16 if "x" in found["to"].lower() else 10)


def blocked_since(message: str, ts: float) -> tuple[float, float]:
    """Return the earliest and the latest time since when a task is blocked, from its message of time ``ts``.

    A kernel that states the limit and not the time was content with the task one round before.
    """
    found = _BLOCKED.search(message)
    latest = ts - (float(found["seconds"]) if found else HUNG_TASK_SECONDS)
    return latest - HUNG_TASK_SECONDS, latest


_OF_NVLINK5 = frozenset(f"xid.{number}" for number in NVLINK5)


def _nonfatal(found: re.Match[str] | None) -> str:
    return NONFATAL if found is not None and found["grade"].lower().startswith("non") else ""


def _of_aer(message: str) -> str:
    found = _AER.search(message)
    if found is None:
        return ""
    if found["what"] is None:
        return CORRECTED
    return FATAL if (found["grade"] or "").lower() == "fatal" else ""
