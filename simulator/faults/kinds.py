"""What one row of the fault catalogue says."""

from dataclasses import dataclass
from typing import Literal

from simulator.faults.effects import Effect

Scope = Literal["gpu", "nic", "node", "rack", "switch", "rail", "job"]
Shape = Literal["step", "ramp", "square", "ladder"]
CauseClass = Literal[
    "memory", "gpu", "clock", "compute", "nvlink", "pcie", "nic", "link", "fabric", "congestion",
    "host", "data", "hang", "software", "loss", "lemon", "telemetry", "stage", "workload", "planned",
]  # fmt: skip

# Finding kinds that are right about several faults.
STRAGGLER = ("straggler.fail_slow", "straggler.intermittent")
CLOCK = ("throttle.thermal", "throttle.hw_slowdown", "throttle.power", "clock.low")
STOPPED = ("hang.job", "hang.rank_missing")
JOB_WIDE = ("straggler.job_wide",)


@dataclass(frozen=True, slots=True)
class Log:
    """A line in the log of a node: when the fault comes on, goes off, or again and again while it is on.

    ``after`` is seconds from that moment, ``every`` the seconds between repeats (0: once each time).
    """

    code: str
    message: str
    severity: Literal["info", "warning", "error", "critical"] = "error"
    when: Literal["on", "off"] = "on"
    after: float = 0.05
    every: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of fault: whom it reaches, what it does, what a right finding says, how it is drawn.

    ``scope`` is how far it reaches from its place; ``verdicts`` are the finding kinds that are right about
    it, ``hypotheses`` the causes that are; ``machine`` is False where no machine is at fault, ``gating``
    whether the job pays. ``size`` is the range of magnitudes in ``unit``, drawn evenly in the logarithm of
    their excess over 1 for factors ("x") and of themselves otherwise. ``minutes`` is the mean of a lognormal
    duration with log-sd ``sigma``, None for a fault that lasts until repair; ``period`` in seconds.
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
