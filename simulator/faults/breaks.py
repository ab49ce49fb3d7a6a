"""Stops of a job: faults that no step survives, and the times of their repair."""

from dataclasses import dataclass

from simulator.faults.condition import BoolArray
from simulator.faults.hardware import Hardware


@dataclass(frozen=True, slots=True)
class Break:
    """A stop from ``at`` until the repair at ``end``; masks [nodes, gpus] of the job.

    Where ``exited`` the process has ended, where ``still`` it neither computes nor spins; the others wait for
    it, and time out if the stop is ``noticed``.
    """

    at: float
    end: float
    exited: BoolArray
    still: BoolArray
    noticed: bool


def breaks(hardware: Hardware, *, alone: bool) -> list[Break]:
    """Return the breaks of a job in order of time; a job ``alone`` on one node does not need the network."""
    found = []
    for fault in hardware.faults:
        condition = hardware.only(fault)
        # A job within one node is independent of the NICs.
        if alone:
            condition.link_back[:] = 0.0
        if condition.stops():
            still = condition.exited | condition.hung
            # Peers time out on a process with a frozen driver as on a dead one, but not on a hung one.
            noticed = not condition.hung.any() or bool(condition.frozen.any())
            found.append(Break(fault.onset, fault.end, condition.exited, still, noticed))
    return sorted(found, key=lambda b: b.at)


def first_in(found: list[Break], begun: float, until: float) -> Break | None:
    """Return the first break that is on at some time in (begun, until]."""
    return next((b for b in found if b.at <= until and b.end > begun), None)


def repaired(found: list[Break], broken: Break) -> float:
    """Return the end of the last break in the sequence of overlapping breaks that begins with ``broken``."""
    end = broken.end
    for other in found:
        if broken.at <= other.at <= end:
            end = max(end, other.end)
    return end
