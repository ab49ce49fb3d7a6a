"""The kernel log: NVIDIA XIDs, links going down, out-of-memory kills and hung tasks, as events.

Reads /dev/kmsg without blocking, from where the log ends when the exporter starts. The count of XIDs per
GPU is kept here too, since NVML only knows the last one.
"""

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from exporters.collector import Event, Instant, Reading, Severity

# The kernel's longest record: a smaller buffer gets EINVAL instead of it.
_RECORD_BYTES = 8192
# A storm of lines must not hold up the tick; the rest waits in the kernel's ring.
_RECORDS_PER_TICK = 512
_XID = re.compile(r"NVRM: Xid \(PCI:(?P<pci>[0-9a-fA-F:.]+)\): (?P<xid>\d{1,4})\b")
# How bad one such line is by itself, for whoever reads events: what the workers' rules, which go by the code,
# make of one. 140, uncorrectable errors whose rows the driver could not take out of use, has no rule.
_XID_SEVERITY: dict[int, Severity] = {
    **dict.fromkeys((48, 64, 79, 95, 140), "critical"),
    **dict.fromkeys((63, 94, 109, 119, 120, 145, 149), "error"),
}
# The application's (13, 31, 68), what follows others (43, 45), what counts once it repeats (74), the unknown.
_OTHER_XID: Severity = "warning"

_PATTERNS: tuple[tuple[re.Pattern[str], str, Severity], ...] = (
    (re.compile(r"SXid \(PCI:(?P<pci>[0-9a-fA-F:.]+)\): (?P<sxid>\d{1,6})\b"), "nvswitch.sxid", "error"),
    (re.compile(r"mlx5_core (?P<pci>[0-9a-fA-F:.]+) (?P<nic>[\w.-]+): Link down"), "nic.link_down", "error"),
    (re.compile(r"mlx5_core (?P<pci>[0-9a-fA-F:.]+) (?P<nic>[\w.-]+): Link up"), "nic.link_up", "info"),
    (
        re.compile(r"Out of memory: Killed process (?P<pid>\d+) \((?P<process>[\w.:/-]+)"),
        "host.oom_kill",
        "error",
    ),
    (
        re.compile(r"INFO: task (?P<process>[\w.:/-]+):(?P<pid>\d+) blocked for more than"),
        "host.hung_task",
        "warning",
    ),
    (re.compile(r"pcieport (?P<pci>[0-9a-fA-F:.]+): AER: .*rror"), "pcie.aer", "warning"),
)


class KmsgCollector:
    """Turns new lines of the kernel log into events.

    ``gpu_index_of`` maps a PCI address to the GPU's index where it is known; ``boot_clock`` reads the clock
    of the log's time stamps (seconds since boot).
    """

    name = "kmsg"
    columns: Mapping[str, str] = {"gpu.xid_events_total": "an NVIDIA GPU, and the right to read /dev/kmsg"}

    def __init__(
        self,
        gpu_indices: Callable[[], Mapping[str, int]],
        boot_clock: Callable[[], float],
        path: Path = Path("/dev/kmsg"),
    ) -> None:
        self._gpu_indices = gpu_indices
        self._boot_clock = boot_clock
        self._xids: Counter[int] = Counter()
        self._overwritten = 0
        self._log = _open_at_end(path)

    def collect(self, now: Instant) -> Reading:
        if self._log is None:
            return Reading()
        gpus = self._gpu_indices()
        # In every tick anew, as the wall clock may be set meanwhile.
        booted = now.wall - self._boot_clock()
        events = tuple(e for e in (parse(r, booted, gpus) for r in self._records()) if e is not None)
        for event in events:
            index = event.subject.get("gpu_index")
            if event.code.startswith("xid.") and isinstance(index, int):
                self._xids[index] += 1
        counts = {str(i): {"gpu.xid_events_total": self._xids[i]} for i in gpus.values()}
        return Reading(events=events, gpu=counts)

    def metrics(self) -> Mapping[str, float]:
        return {
            "kernel_log_readable": float(self._log is not None),
            "kernel_log_overwritten_total": float(self._overwritten),
        }

    def close(self) -> None:
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def _records(self) -> list[str]:
        records: list[str] = []
        while self._log is not None and len(records) < _RECORDS_PER_TICK:
            try:
                record = os.read(self._log, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:
                # The ring overwrote what was next; the following read goes on with the oldest record left.
                self._overwritten += 1
                continue
            except OSError:
                self.close()
                break
            if not record:
                break
            records.append(record.decode(errors="replace"))
        return records


def parse(record: str, booted: float, gpu_indices: Mapping[str, int]) -> Event | None:
    """Return the event of one /dev/kmsg record (``priority,sequence,microseconds,flags;message``), if it is
    one that matters. ``booted`` is the Unix time of the log's zero."""
    head, _, message = record.partition(";")
    # The lines below are the record's dictionary (SUBSYSTEM=, DEVICE=).
    message = message.partition("\n")[0]
    fields = head.split(",")
    if len(fields) < 3 or not fields[2].isdigit():
        return None
    ts = booted + int(fields[2]) / 1e6
    if xid := _XID.search(message):
        return _xid_event(xid, ts, message, gpu_indices)
    for pattern, code, severity in _PATTERNS:
        if found := pattern.search(message):
            subject = {name: value[:128] for name, value in found.groupdict().items()}
            return Event(
                ts=ts, source="kmsg", code=code, severity=severity, subject=subject, message=_text(message)
            )
    return None


def _xid_event(xid: re.Match[str], ts: float, message: str, gpu_indices: Mapping[str, int]) -> Event:
    code, address = int(xid["xid"]), pci_address(xid["pci"])
    subject: dict[str, str | int] = {"pci_bus_id": address, "xid": code}
    if (index := gpu_indices.get(address)) is not None:
        subject["gpu_index"] = index
    return Event(
        ts=ts,
        source="kmsg",
        code=f"xid.{code}",
        severity=_XID_SEVERITY.get(code, _OTHER_XID),
        subject=subject,
        message=_text(message),
    )


def pci_address(text: str) -> str:
    """Return ``domain:bus:device`` in lower case: NVML writes 00000000:3B:00.0, the log 0000:3b:00."""
    parts = text.lower().partition(".")[0].split(":")
    domain = parts[0][-4:].rjust(4, "0") if len(parts) == 3 else "0000"
    return ":".join((domain, *parts[-2:]))


def _text(message: str) -> str:
    return "".join(c if c.isprintable() else " " for c in message)[:1024]


def _open_at_end(path: Path) -> int | None:
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    # What cannot be positioned, as a pipe, holds only what is new.
    with contextlib.suppress(OSError):
        os.lseek(opened, 0, os.SEEK_END)
    return opened
