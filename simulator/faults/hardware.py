"""The condition of the hardware over time, from the faults that reach it."""

from collections.abc import Iterable

import numpy as np

from simulator.cluster.layout import ClusterSpec, FloatArray
from simulator.faults.condition import Condition, Extent, healthy
from simulator.faults.fault import Fault

# Parts of a piece of work, each with the condition at its middle: bounds the error to a sixteenth of it.
PARTS = 8


def nodes_of(spec: ClusterSpec, fault: Fault) -> range:
    """Return the nodes a fault reaches: its own, or those of its rack, switch or job."""
    scope, node = fault.row.scope, fault.node
    if scope == "job":
        job = spec.job_at(node, fault.onset)
        return range(node, node + 1) if job is None else spec.nodes_of_job(job)
    size = {"rack": spec.nodes_per_rack, "switch": spec.nodes_per_switch, "rail": spec.nodes_per_switch}
    around = size.get(scope, 1)
    first = node // around * around
    return range(first, min(first + around, spec.nodes))


def extent_of(spec: ClusterSpec, fault: Fault, nodes: range) -> Extent:
    """Return where the fault acts in arrays that hold ``nodes``; empty where it does not reach them."""
    reached = nodes_of(spec, fault)
    first, end = max(reached.start, nodes.start), min(reached.stop, nodes.stop)
    rows = slice(first - nodes.start, max(first, end) - nodes.start)
    scope = fault.row.scope
    # A GPU fault without a GPU affects all of the node, a port fault the first port.
    one = fault.gpu is not None and scope in ("gpu", "nic")
    nic = spec.nic_of(fault.gpu or 0)
    gpu = fault.gpu or 0
    return Extent(
        rows,
        slice(gpu, gpu + 1) if one or scope == "nic" else slice(None),
        slice(nic, nic + 1) if one or scope in ("nic", "rail") else slice(None),
    )


class Hardware:
    """The condition of some nodes over time; ``nodes`` is all of the cluster or those of one job."""

    def __init__(self, spec: ClusterSpec, faults: Iterable[Fault], nodes: range) -> None:
        self._spec, self._nodes = spec, nodes
        self._extents: list[tuple[Fault, Extent]] = []
        for fault in faults:
            self.add(fault)
        self._healthy = healthy(len(nodes), spec.gpus, spec.nics)

    def add(self, fault: Fault) -> None:
        """Add a fault, unless it does not reach these nodes."""
        extent = extent_of(self._spec, fault, self._nodes)
        if extent.nodes.start < extent.nodes.stop:
            self._extents.append((fault, extent))

    @property
    def faults(self) -> list[Fault]:
        """The faults that reach these nodes."""
        return [fault for fault, _ in self._extents]

    def at(self, t: float, phase: FloatArray | None = None) -> Condition:
        """Return the condition at ``t``, or at ``t + phase[node]`` of each node (seconds from the start).

        A fault that reaches several nodes has the phase of the first of them. The result may be shared with
        other times and must not be changed.
        """
        condition = self._healthy
        for fault, extent in self._extents:
            moment = t if phase is None else t + float(phase[extent.nodes.start])
            if fault.severity(moment) > 0:
                condition = condition.copy() if condition is self._healthy else condition
                dose = fault.dose(moment)
                for effect in fault.row.effects:
                    effect(condition, extent, dose)
        return condition

    def slowdown(self, begun: float, seconds: float) -> FloatArray:
        """Return the factor of the time of work that lasts ``seconds`` on healthy GPUs, [nodes, gpus].

        The mean over its parts: a fault that begins within it slows the rest of it.
        """
        parts = begun + seconds * (np.arange(PARTS) + 0.5) / PARTS
        slow: FloatArray = np.mean([self.at(t).slowdown() for t in parts.tolist()], axis=0)
        return slow

    def only(self, fault: Fault) -> Condition:
        """Return the condition at the onset of ``fault`` without other faults."""
        condition = self._healthy.copy()
        extent = next(extent for f, extent in self._extents if f is fault)
        dose = fault.dose(fault.onset)
        for effect in fault.row.effects:
            effect(condition, extent, dose)
        return condition
