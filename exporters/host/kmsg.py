"""The kernel log: NVIDIA XIDs and SXids, PCIe errors, links, out-of-memory kills and hung tasks, as events.

Reads /dev/kmsg without blocking, from where the log ends when the exporter starts. The count of XIDs per
GPU is kept here too, since NVML keeps only the last one.
"""

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from exporters.collector import Event, Instant, Reading, Severity
from slowrank.telemetry.hardware.event_grades import CORRECTED, DRIVER, FATAL, NONE, NONFATAL, NVLINK5, graded
from slowrank.telemetry.hardware.xids import xid, xid_of

# The kernel's longest record: a smaller buffer gets EINVAL instead of it.
_RECORD_BYTES = 8192
# A storm of lines must not delay the tick; the rest waits in the kernel's ring (chosen).
_RECORDS_PER_TICK = 512
# For a MIG instance the address is followed by the UUID of the GPU and the number of the instance.
_XID = re.compile(r"NVRM: Xid \(PCI:(?P<pci>[0-9a-fA-F:.]+)(?: GPU-[^)]*)?\): (?P<xid>\d{1,4})\b")
# Names of processes may contain any character; a record allows these.
_NAMELESS = re.compile(r"[^A-Za-z0-9._:/-]")
_PCI = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"SXid \(PCI:(?P<pci>[0-9a-fA-F:.]+)\): (?P<sxid>\d{1,6})\b"), "nvswitch.sxid"),
    (re.compile(r"mlx5_core (?P<pci>[0-9a-fA-F:.]+) (?P<nic>[\w.-]+): Link down"), "nic.link_down"),
    (re.compile(r"mlx5_core (?P<pci>[0-9a-fA-F:.]+) (?P<nic>[\w.-]+): Link up"), "nic.link_up"),
    (re.compile(r"Out of memory: Killed process (?P<pid>\d+) \((?P<process>[^)]{1,64})"), "host.oom_kill"),
    (re.compile(r"INFO: task (?P<process>.{1,64}?):(?P<pid>\d+) blocked for more than"), "host.hung_task"),
    # From the device itself, then from the port above it, which has the device's address at the end.
    (re.compile(rf"(?P<pci>{_PCI}): (?:AER: )?PCIe Bus Error: severity=\w+"), "pcie.aer"),
    (
        re.compile(
            rf"pcieport (?P<port>{_PCI}): AER: .*[Cc]orrect(?:ed|able)\b.* error (?:message )?received"
            rf"(?:: (?:id=\w+)?| from )?(?P<pci>{_PCI})?"
        ),
        "pcie.aer",
    ),
)
# Severity of a single event by code and grade, as in the rules of the workers (streams/node/rules).
_SEVERITY: dict[str, Severity] = {
    f"xid.154{NONE}": "info",
    "xid.74": "warning",
    **dict.fromkeys((f"xid.{number}{NONFATAL}" for number in NVLINK5), "warning"),
    "nvswitch.sxid": "error",
    f"nvswitch.sxid{NONFATAL}": "warning",
    f"pcie.aer{FATAL}": "error",
    "pcie.aer": "warning",
    f"pcie.aer{CORRECTED}": "info",
    "nic.link_down": "error",
    "nic.link_up": "info",
    "host.oom_kill": "error",
    f"host.hung_task{DRIVER}": "error",
    "host.hung_task": "warning",
}

# The codes of this collector's events, besides ``xid.N``.
CODES = tuple(dict.fromkeys(code for _, code in _PATTERNS))


class KmsgCollector:
    """Turn new lines of the kernel log into events.

    ``gpu_indices`` maps the PCI addresses of GPUs read so far to indices, ``nic_names`` those of network
    devices to names; ``boot_clock`` reads the clock of the log's time stamps (seconds since boot).
    """

    name = "kmsg"
    columns: Mapping[str, str] = {"gpu.xid_events_total": "an NVIDIA GPU, and the right to read /dev/kmsg"}

    def __init__(
        self,
        gpu_indices: Callable[[], Mapping[str, int]],
        boot_clock: Callable[[], float],
        path: Path = Path("/dev/kmsg"),
        *,
        nic_names: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._gpu_indices = gpu_indices
        self._nic_names = nic_names
        self._boot_clock = boot_clock
        self._xids: Counter[int] = Counter()
        self._overwritten = 0
        self._log = _open_at_end(path)

    def collect(self, now: Instant) -> Reading:
        if self._log is None:
            return Reading()
        gpus = self._gpu_indices()
        # Computed in every tick, as the wall clock may be set meanwhile.
        booted = now.wall - self._boot_clock()
        found = (parse(r, booted, gpus) for r in self._records())
        events = tuple(self._with_nic(e) for e in found if e is not None)
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

    def _with_nic(self, event: Event) -> Event:
        """Return a PCIe event with the name of the network device at its address, if there is one."""
        address = event.subject.get("pci")
        if event.code != "pcie.aer" or "gpu_index" in event.subject or not isinstance(address, str):
            return event
        nic = self._nic_names().get(address.lower())
        return event if nic is None else replace(event, subject={**event.subject, "nic": nic})

    def _records(self) -> list[str]:
        records: list[str] = []
        while self._log is not None and len(records) < _RECORDS_PER_TICK:
            try:
                record = os.read(self._log, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:
                # The ring has overwritten the next record; the following read continues with the oldest.
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
    """Return the event of one /dev/kmsg record (``priority,sequence,microseconds,flags;message``), None if it
    matches no pattern. ``booted`` is the Unix time of the log's zero."""
    head, _, message = record.partition(";")
    # Further lines are the record's dictionary (SUBSYSTEM=, DEVICE=).
    message = message.partition("\n")[0]
    fields = head.split(",")
    if len(fields) < 3 or not fields[2].isdigit():
        return None
    ts = booted + int(fields[2]) / 1e6
    if xid := _XID.search(message):
        return _xid_event(xid, ts, message, gpu_indices)
    for pattern, code in _PATTERNS:
        if found := pattern.search(message):
            subject: dict[str, str | int] = {
                n: _NAMELESS.sub("_", v[:128]) for n, v in found.groupdict().items() if v
            }
            if code == "pcie.aer":
                # Without the address of the device below it, the port itself is the subject.
                address = str(subject.setdefault("pci", subject.pop("port", "")))
                if (index := gpu_indices.get(pci_address(address))) is not None:
                    subject["gpu_index"] = index
            return _event(code, ts, subject, message)
    return None


def _xid_event(xid: re.Match[str], ts: float, message: str, gpu_indices: Mapping[str, int]) -> Event:
    code, address = int(xid["xid"]), pci_address(xid["pci"])
    subject: dict[str, str | int] = {"pci_bus_id": address, "xid": code}
    if (index := gpu_indices.get(address)) is not None:
        subject["gpu_index"] = index
    return _event(f"xid.{code}", ts, subject, message)


def _event(code: str, ts: float, subject: Mapping[str, str | int], message: str) -> Event:
    text = _text(message)
    return Event(
        ts=ts, source="kmsg", code=code, severity=_severity(code, text), subject=subject, message=text
    )


def _severity(code: str, message: str) -> Severity:
    name = graded(code, message)
    if name in _SEVERITY:
        return _SEVERITY[name]
    number = xid_of(code)
    grade = xid(number).grade if number is not None else "warning"
    # XIDs caused by an application or by another XID are at most a warning by themselves.
    return grade if grade in ("critical", "error", "warning") else "warning"


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
    # A file without a position, such as a pipe, contains only new records.
    with contextlib.suppress(OSError):
        os.lseek(opened, 0, os.SEEK_END)
    return opened
