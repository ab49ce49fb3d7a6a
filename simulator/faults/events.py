"""Log lines of faults, and the counters that rise with each line."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from simulator.cluster.layout import ClusterSpec
from simulator.faults.fault import Fault
from simulator.faults.kinds import Log
from slowrank.telemetry import NodeEvent

# Counters that rise with a line of the log; other rates of faults are in the catalogue.
COUNTED: dict[str, tuple[str, ...]] = {
    "xid.48": ("gpu.ecc.uncorrected_total",),
    "xid.63": ("gpu.row_remap.uncorrectable_total",),
    "xid.74": ("gpu.nvlink.recovery_errors_total",),
    "nic.link_down": ("nic.port.link_downed_total", "nic.port.carrier_changes_total"),
    "nic.link_up": ("nic.port.carrier_changes_total",),
    "host.oom_kill": ("host.oom_kills_total",),
}
EVERY_XID = "gpu.xid_events_total"


@dataclass(frozen=True, slots=True)
class Incident:
    """An occurrence on a node at ``t`` seconds since the start.

    ``counters`` rise by one at GPU ``gpu`` or NIC ``nic``; ``resets``: all counters of the node restart at
    zero; ``reboots``: the node is booted.
    """

    t: float
    node: int
    gpu: int
    nic: int
    counters: tuple[str, ...] = ()
    resets: bool = False
    reboots: bool = False
    event: NodeEvent | None = None


def incidents(spec: ClusterSpec, faults: Iterable[Fault], duration: float) -> list[Incident]:
    """Return the incidents of the faults within ``duration`` seconds of the run, in order of time."""
    found = [incident for fault in faults for incident in _of(spec, fault, duration)]
    return sorted((i for i in found if i.t < duration), key=lambda i: i.t)


def job_event(spec: ClusterSpec, node: int, t: float, *, code: str, job_id: str, message: str) -> NodeEvent:
    """Return an event that a job announces: a checkpoint, an evaluation, a start, a planned change."""
    return NodeEvent(
        cluster=spec.name,
        node=spec.node_name(node),
        ts=spec.start + t,
        source="job",
        code=code,
        subject={"job_id": job_id},
        message=message,
    )


def _of(spec: ClusterSpec, fault: Fault, duration: float) -> Iterator[Incident]:
    if fault.kind == "counter_reset":
        yield Incident(fault.onset, fault.node, 0, 0, resets=True)
    if fault.kind == "node_silent":
        yield Incident(fault.end, fault.node, 0, 0, resets=True, reboots=True)
    for log in fault.row.logs:
        for on, off in fault.spells(duration):
            edge = on if log.when == "on" else off
            t, last = edge + log.after, off if log.every else edge
            while t <= min(last + log.after, duration):
                yield _logged(spec, fault, log, t)
                t += log.every or math.inf


def _logged(spec: ClusterSpec, fault: Fault, log: Log, t: float) -> Incident:
    gpu = fault.gpu or 0
    nic = spec.nic_of(gpu)
    subject: dict[str, str | int] = {}
    if log.code.startswith("xid."):
        subject = {"gpu_index": gpu}
    elif log.code.startswith("nic."):
        subject = {"nic": f"mlx5_{nic}", "port": "1"}
    event = NodeEvent(
        cluster=spec.name,
        node=spec.node_name(fault.node),
        ts=spec.start + t,
        source="kmsg",
        code=log.code,
        severity=log.severity,
        subject=subject,
        message=log.message.format(pci=f"0000:{0x1A + 8 * gpu:02x}:00", nic=f"mlx5_{nic}"),
    )
    counters = COUNTED.get(log.code, ()) + ((EVERY_XID,) if log.code.startswith("xid.") else ())
    return Incident(t, fault.node, gpu, nic, counters, event=event)
