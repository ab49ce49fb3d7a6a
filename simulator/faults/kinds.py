"""Fields of a row of the fault catalogue."""

from dataclasses import dataclass
from typing import Literal

from simulator.faults.effects import Effect

Scope = Literal["gpu", "nic", "node", "rack", "switch", "rail", "job"]
Shape = Literal["step", "ramp", "square", "ladder"]
CauseClass = Literal[
    "memory", "gpu", "clock", "compute", "nvlink", "pcie", "nic", "link", "fabric", "congestion",
    "host", "data", "hang", "software", "loss", "lemon", "telemetry", "stage", "workload", "planned",
]  # fmt: skip

# Kinds of findings that are right for several faults.
STRAGGLER = ("straggler.fail_slow", "straggler.intermittent")
CLOCK = ("throttle.thermal", "throttle.hw_slowdown", "throttle.power", "clock.low")
STOPPED = ("hang.job", "hang.rank_missing")
JOB_WIDE = ("straggler.job_wide",)


@dataclass(frozen=True, slots=True)
class Log:
    """A line in the log of a node: when the fault goes on, goes off, or repeatedly while it is on.

    ``after`` is seconds from that moment, ``every`` the seconds between repeats (0: once each time).
    """

    code: str
    message: str
    severity: Literal["info", "warning", "error", "critical"] = "error"
    when: Literal["on", "off"] = "on"
    after: float = 0.05
    every: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """One kind of fault: its scope, its effects, the right findings, and the ranges it is drawn from.

    ``scope`` is what it reaches from its place; ``verdicts`` are the right kinds of findings, ``hypotheses``
    the right causes; ``machine`` is False where no machine is at fault, ``gating`` whether it slows or stops
    a job. ``size`` is the range of magnitudes in ``unit``, drawn log-uniformly, for factors ("x") by their
    excess over 1. ``minutes`` is the mean of a lognormal duration with log-sd ``sigma``, None for a fault
    that lasts until repair; ``period`` in seconds.
    """

    cause: CauseClass
    verdicts: tuple[str, ...]
    effects: tuple[Effect, ...] = ()
    logs: tuple[Log, ...] = ()
    scope: Scope = "gpu"
    hypotheses: tuple[str, ...] = ()
    machine: bool = True
    gating: bool = True
    size: tuple[float, float] = (1.02, 4.0)
    unit: str = "x"
    minutes: float | None = None
    sigma: float = 1.2
    shapes: tuple[Shape, ...] = ("step",)
    period: tuple[float, float] = (30.0, 30.0)
    duty: tuple[float, float] = (0.5, 0.5)
