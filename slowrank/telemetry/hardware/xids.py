"""NVIDIA's XIDs: meaning, grade and recommended action.

Facts from NVIDIA's XID catalogue (docs.nvidia.com/deploy/xid-errors, for A100 and newer) and the error
numbers of the open kernel modules (nverror.h); texts and grades are our own. Codes that the catalogue calls
unused are left out: they count as unknown, like those that a newer driver adds.
"""

import re
from dataclasses import dataclass
from typing import Literal

Grade = Literal["critical", "error", "warning", "application", "recorded"]
"""Grade of one XID. ``critical`` and ``error``: the GPU is lost or unusable until it is reset or its node
rebooted. ``warning``: a fault of hardware or driver with which the GPU still works. ``application``: a fault
of the program, and a warning where it repeats on one GPU. ``recorded``: no evidence by itself."""


@dataclass(frozen=True, slots=True)
class Xid:
    """One row: short ``meaning``, our ``grade`` and ``action``, and ``bucket``, NVIDIA's action.

    ``bucket`` is the catalogue's immediate action and, after ``/``, its investigatory action.
    """

    meaning: str
    grade: Grade
    action: str
    bucket: str


def _reset(meaning: str, grade: Grade = "error", bucket: str = "RESET_GPU/CONTACT_SUPPORT") -> Xid:
    return Xid(meaning, grade, "RESET_GPU", bucket)


def _program(meaning: str, bucket: str = "RESTART_APP/CONTACT_SUPPORT") -> Xid:
    return Xid(meaning, "application", "CHECK_APP", bucket)


def _odd(meaning: str, bucket: str = "IGNORE/CONTACT_SUPPORT", *, grade: Grade = "warning") -> Xid:
    return Xid(meaning, grade, "RUN_DIAG", bucket)


def _nothing(meaning: str, bucket: str = "IGNORE/IGNORE") -> Xid:
    return Xid(meaning, "recorded", "NONE", bucket)


_SW = "RESET_GPU/INVESTIGATE_SW"
_NVLINK5 = "WORKFLOW_NVLINK5_ERR"
_APP = "RESTART_APP/CHECK_APP"

UNKNOWN = Xid("not in the catalogue", "warning", "RUN_DIAG", "")

XIDS: dict[int, Xid] = {
    8: _program("GPU stopped processing"),
    11: _program("invalid push buffer", _APP),
    13: _program("graphics engine exception", "RESTART_APP/WORKFLOW_XID_13"),
    25: _program("illegal push buffer", _APP),
    31: _program("memory page fault", "RESTART_APP/WORKFLOW_XID_31"),
    32: _program("corrupted push buffer", _APP),
    37: _odd("firmware method error", "IGNORE/CHECK_APP"),
    38: _odd("firmware watchdog timeout"),
    **{code: _program("copy engine exception") for code in (*range(39, 42), *range(70, 73), *range(75, 78))},
    43: _nothing("channel reset after an error of the program", "IGNORE/CONTACT_SUPPORT"),
    44: _odd("fault during a context switch"),
    45: _nothing("clean-up after an earlier error", "WORKFLOW_XID_45"),
    46: _reset("GPU stopped processing"),
    48: _reset("uncorrectable memory error", "critical", "WORKFLOW_XID_48"),
    54: Xid(
        "auxiliary power not connected", "error", "HARDWARE_INSPECTION", "CHECK_MECHANICALS/CONTACT_SUPPORT"
    ),
    60: _program("SEC2 exception", "RESTART_APP/INVESTIGATE_SW"),
    61: _odd("microcontroller breakpoint", "CONTACT_SUPPORT"),
    62: _reset("microcontroller halted"),
    63: _reset("memory row marked for remapping", "error", "IGNORE/IGNORE"),
    64: Xid("memory row remapping failed", "critical", "CONTACT_SUPPORT", "RESET_GPU/CONTACT_SUPPORT"),
    66: _odd("illegal access by the driver", "IGNORE/INVESTIGATE_SW"),
    67: _odd("illegal access by the driver"),
    68: _program("video decoder exception"),
    69: _program("graphics class error", _APP),
    74: _reset("NVLink error", "error", "WORKFLOW_NVLINK_ERR/CONTACT_SUPPORT"),
    78: _odd("vGPU could not start", "UPDATE_SWFW"),
    79: Xid("GPU has fallen off the bus", "critical", "REBOOT_NODE", "RESTART_BM/CONTACT_SUPPORT"),
    80: _program("corrupted data sent to the GPU", _APP),
    82: _program("JPEG engine error"),
    **{code: _program("video decoder error") for code in (83, 84, 88, 89, 96, 97, 98)},
    85: _program("copy engine exception"),
    86: _program("optical flow engine error"),
    # Corrected, but so many that NVIDIA sends one to its support; gpud calls it critical.
    92: _odd("corrected memory errors at a high rate", grade="error"),
    93: _odd("InfoROM written too often"),
    94: _reset("contained memory error", "error", "RESTART_APP/IGNORE"),
    95: _reset("uncontained memory error", "critical", "RESET_GPU/IGNORE"),
    **{code: _program("JPEG engine error") for code in range(99, 106)},
    106: _nothing("test message"),
    107: _nothing("test message"),
    108: _program("NVLink address translation error", "IGNORE/XID_137_FLOW"),
    109: _reset("context switch timeout"),
    110: _reset("security fault", bucket=_SW),
    119: _reset("GSP call timed out", bucket=_SW),
    120: _reset("GSP error", bucket=_SW),
    121: _odd("chip-to-chip link error"),
    **{code: _program("copy engine exception") for code in range(126, 136)},
    136: _reset("NVLink training failed", bucket="RESET_GPU/INVESTIGATE_LINK_SI"),
    137: _program("illegal access of a peer over NVLink", "IGNORE/XID_137_FLOW"),
    139: _program("optical flow engine error"),
    140: _reset("memory error that was not contained", "critical"),
    141: _odd("CUDA fast path error"),
    142: _program("video encoder error", "CONTACT_SUPPORT"),
    143: _reset("GPU initialisation failed"),
    144: _reset("NVLink SAW error", bucket=_NVLINK5),
    145: _reset("NVLink RLW error", bucket=_NVLINK5),
    146: _reset("NVLink TLW error", bucket=_NVLINK5),
    147: _reset("NVLink TREX error", bucket=_NVLINK5),
    148: _reset("NVLink NVLPW error", bucket=_NVLINK5),
    149: _reset("NVLink NETIR error", bucket=_NVLINK5),
    150: _reset("NVLink MSE error", bucket=_NVLINK5),
    151: Xid("key rotation failed", "error", "REBOOT_NODE", "RESTART_VM/CONTACT_SUPPORT"),
    152: _odd("deep learning accelerator memory error"),
    153: _odd("deep learning accelerator timeout"),
    154: _reset("the driver asks for recovery", bucket="XID_154"),
    155: _reset("NVLink error found by software", bucket="RESET_GPU/INVESTIGATE_SW_USER"),
    156: _reset("faulty part of the GPU retired", bucket="RESET_GPU/IGNORE"),
    157: Xid("faulty part of the GPU not retired", "error", "CONTACT_SUPPORT", "IGNORE/CONTACT_SUPPORT"),
    158: _reset("GPU timed out for good"),
    159: _odd("coherent link error", "CHECK_UVM/SYMPATHETIC_REPORT_SOLO"),
    160: _odd("memory channel retired", "IGNORE/INVESTIGATE_SW"),
    161: _odd("memory channel not retired", "IGNORE/INVESTIGATE_SW"),
    # NVIDIA gives no action for the following ones: the grades follow their meaning.
    162: _nothing("power smoothing back on", ""),
    163: _odd("power smoothing off", ""),
    164: _odd("power smoothing hardware nearly worn out", ""),
    165: _odd("power smoothing hardware worn out", ""),
    166: _odd("unencrypted traffic on an NVLink", ""),
    167: Xid("PCIe timed out for good", "error", "REBOOT_NODE", ""),
    168: Xid("memory lost to errors in a protected region", "error", "CONTACT_SUPPORT", ""),
    169: _reset("SEC2 microcontroller halted", bucket=""),
    170: _odd("interrupt of a secured NVLink", ""),
    171: _reset("uncorrectable error in DRAM", "critical", ""),
    172: _reset("uncorrectable error in SRAM", "critical", ""),
}

_NUMBER = re.compile(r"xid\.(\d{1,4})(?:\.|$)")


def xid_of(code: str) -> int | None:
    """Return the number in an event's code or a finding's kind (``xid.145``), None where it is no XID."""
    found = _NUMBER.match(code)
    return int(found[1]) if found else None


def xid(number: int) -> Xid:
    """Return the row of an XID, of one that is not in the catalogue ``UNKNOWN``."""
    return XIDS.get(number, UNKNOWN)
