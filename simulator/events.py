"""The discrete events a fault leaves in the logs of its node."""

import math
from collections.abc import Iterator
from typing import Literal

from simulator.faults import Fault
from simulator.layout import ClusterSpec
from slowrank.telemetry import NodeEvent


def events(spec: ClusterSpec, fault: Fault, duration: float) -> Iterator[NodeEvent]:
    """Yield the events of one fault within ``duration`` seconds of the run, in order of time."""
    if fault.kind == "gpu_lost" and fault.onset < duration:
        gpu = fault.gpu or 0
        yield _event(
            spec,
            fault,
            fault.onset + 0.05,
            code="xid.79",
            severity="critical",
            subject={"gpu_index": gpu},
            message=f"NVRM: Xid (PCI:0000:{0x1A + 8 * gpu:02x}:00): 79, GPU has fallen off the bus.",
        )
    elif fault.kind == "nic_flap":
        yield from _flaps(spec, fault, duration)


def link_losses(fault: Fault, t: float) -> int:
    """Return how often the link of a ``nic_flap`` has gone down by ``t`` seconds from the start."""
    since = min(t - fault.onset, fault.duration - 1e-9)
    if since < 0:
        return 0
    return 1 + (math.floor(since / fault.period) if fault.shape == "square" else 0)


def _flaps(spec: ClusterSpec, fault: Fault, duration: float) -> Iterator[NodeEvent]:
    nic = f"mlx5_{spec.nic_of(fault.gpu or 0)}"
    for cycle in range(link_losses(fault, duration)):
        down = fault.onset + cycle * fault.period
        back = down + fault.remaining(down)
        yield _event(
            spec, fault, down, code="nic.link_down", severity="error", subject={"nic": nic, "port": "1"},
            message=f"mlx5_core {nic}: Port: 1 Link DOWN",
        )  # fmt: skip
        if back < duration:
            yield _event(
                spec, fault, back, code="nic.link_up", severity="info", subject={"nic": nic, "port": "1"},
                message=f"mlx5_core {nic}: Port: 1 Link ACTIVE",
            )  # fmt: skip


def _event(
    spec: ClusterSpec,
    fault: Fault,
    t: float,
    *,
    code: str,
    severity: Literal["info", "error", "critical"],
    subject: dict[str, str | int],
    message: str,
) -> NodeEvent:
    return NodeEvent(
        cluster=spec.name,
        node=spec.node_name(fault.node),
        ts=spec.start + t,
        source="kmsg",
        code=code,
        severity=severity,
        subject=subject,
        message=message,
    )
