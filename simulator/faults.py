"""Faults as data, and what each does to the devices and hosts; nobody writes into a metric.

A ``Fault`` names its kind, place, time and size. ``EFFECTS`` says per kind how it acts on a ``Condition``,
the state of the hardware at one moment, from which work and readings are derived.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from simulator.layout import ClusterSpec, FloatArray

# Compute follows the clock less than in proportion, because part of a step is bound by memory.
CLOCK_EXPONENT = 0.6
HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x8, 0x20, 0x40, 0x80


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong, from ``onset`` (seconds from the start) for ``duration`` seconds.

    ``magnitude`` is what the kind makes of it (most often by how much compute slows: 1.31). ``shape`` is how
    it comes: at once, along a ramp of ``period`` seconds, or on for a ``duty`` share of every period.
    """

    kind: str
    node: int
    gpu: int | None = None
    onset: float
    duration: float = math.inf
    magnitude: float = 1.3
    shape: Literal["step", "ramp", "square"] = "step"
    period: float = 30.0
    duty: float = 0.5

    def __post_init__(self) -> None:
        if self.kind not in EFFECTS:
            raise ValueError(f"unknown fault {self.kind!r}; there are: {', '.join(sorted(EFFECTS))}")

    def severity(self, t: float) -> float:
        """Return how far the fault is developed at ``t``, 0 to 1."""
        since = t - self.onset
        if not 0 <= since < self.duration:
            return 0.0
        if self.shape == "ramp":
            return min(1.0, since / self.period)
        if self.shape == "square":
            return 1.0 if since % self.period < self.duty * self.period else 0.0
        return 1.0

    def remaining(self, t: float) -> float:
        """Return the seconds from ``t`` until the fault, which is on at ``t``, is off again."""
        ends = self.duration - (t - self.onset)
        if self.shape == "square":
            return min(ends, self.duty * self.period - (t - self.onset) % self.period)
        return ends

    def slots(self) -> tuple[int, int | slice]:
        """Return the index of the place in a [nodes, gpus] array: one GPU or all of the node."""
        return self.node, slice(None) if self.gpu is None else self.gpu


def parse_fault(text: str) -> Fault:
    """Return the fault written as ``kind:field=value,…`` (``clock_lock:node=3,gpu=1,onset=60``).

    Raises ``ValueError`` saying what is wrong with it.
    """
    kind, _, rest = text.partition(":")
    fields = dict(part.partition("=")[::2] for part in rest.split(",") if part)
    try:
        return msgspec.convert({"kind": kind, **fields}, Fault, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"--fault {text}: {error}") from error


@dataclass(slots=True)
class Condition:
    """The state of all hardware at one moment; arrays [nodes, gpus], [nodes, nics] or [nodes].

    ``clock`` is the SM clock over its healthy value, ``stretch`` what makes compute longer beside the clock,
    ``link`` the bandwidth left on the way out, ``link_back`` the seconds until a link that is down returns.
    """

    clock: FloatArray
    stretch: FloatArray
    heat: FloatArray
    throttle: npt.NDArray[np.int64]
    present: npt.NDArray[np.bool_]
    ecc_per_second: FloatArray
    pcie_width: FloatArray
    link: FloatArray
    link_back: FloatArray
    cpu: FloatArray
    iowait: FloatArray
    loader: FloatArray
    reporting: npt.NDArray[np.bool_]
    skew: FloatArray
    stopped: npt.NDArray[np.bool_]

    def slowdown(self) -> FloatArray:
        """Return how many times longer compute takes on each GPU."""
        return self.stretch * self.clock**-CLOCK_EXPONENT


def healthy(spec: ClusterSpec) -> Condition:
    """Return the condition in which nothing is wrong."""
    gpus, nics, nodes = (spec.nodes, spec.gpus), (spec.nodes, spec.nics), (spec.nodes,)
    return Condition(
        clock=np.ones(gpus),
        stretch=np.ones(gpus),
        heat=np.zeros(gpus),
        throttle=np.zeros(gpus, np.int64),
        present=np.ones(gpus, np.bool_),
        ecc_per_second=np.zeros(gpus),
        pcie_width=np.full(gpus, 16.0),
        link=np.ones(nics),
        link_back=np.zeros(nics),
        cpu=np.zeros(nodes),
        iowait=np.zeros(nodes),
        loader=np.zeros(nodes),
        reporting=np.ones(nodes, np.bool_),
        skew=np.zeros(nodes),
        stopped=np.zeros(nodes, np.bool_),
    )


def condition_at(spec: ClusterSpec, faults: tuple[Fault, ...], t: float, phase: FloatArray) -> Condition:
    """Return the condition at ``t + phase[node]`` of each node (seconds from the start)."""
    condition = healthy(spec)
    for fault in faults:
        moment = t + float(phase[fault.node])
        if fault.severity(moment) > 0:
            EFFECTS[fault.kind].apply(condition, fault, moment)
    return condition


Apply = Callable[[Condition, Fault, float], None]


@dataclass(frozen=True, slots=True)
class Effect:
    """How a kind acts, what a right finding about it may be called, and whom it may name.

    ``machine`` is False where no machine is at fault; ``gating`` says whether the job pays for it.
    """

    apply: Apply
    verdicts: tuple[str, ...]
    machine: bool = True
    gating: bool = True


def _slower(f: Fault, t: float) -> float:
    return 1.0 + (f.magnitude - 1.0) * f.severity(t)


def _clock_for(slowdown: float) -> float:
    return float(slowdown ** (-1.0 / CLOCK_EXPONENT))


def _thermal(c: Condition, f: Fault, t: float) -> None:
    place = f.slots()
    c.clock[place] *= _clock_for(_slower(f, t))
    c.heat[place] += 22.0 * f.severity(t)
    c.throttle[place] |= HW_SLOWDOWN | HW_THERMAL | SW_THERMAL


def _power_brake(c: Condition, f: Fault, t: float) -> None:
    place = f.slots()
    c.clock[place] *= _clock_for(_slower(f, t))
    c.throttle[place] |= HW_SLOWDOWN | POWER_BRAKE


def _clock_lock(c: Condition, f: Fault, t: float) -> None:
    c.clock[f.slots()] *= _clock_for(_slower(f, t))


def _silent_slow(c: Condition, f: Fault, t: float) -> None:
    c.stretch[f.slots()] *= _slower(f, t)


def _host_contention(c: Condition, f: Fault, t: float) -> None:
    c.stretch[f.node] *= _slower(f, t)
    c.cpu[f.node] += 0.65 * f.severity(t)


def _loader_stall(c: Condition, f: Fault, t: float) -> None:
    c.loader[f.node] += (f.magnitude - 1.0) * f.severity(t)
    c.iowait[f.node] += 0.3 * f.severity(t)


def _pcie_downgrade(c: Condition, f: Fault, t: float) -> None:
    c.pcie_width[f.node, f.gpu or 0] = 4.0
    c.link[f.node, _nic(c, f)] /= max(1.0, f.magnitude * f.severity(t))


def _nic_slow(c: Condition, f: Fault, t: float) -> None:
    c.link[f.node, _nic(c, f)] /= max(1.0, f.magnitude * f.severity(t))


def _nic_flap(c: Condition, f: Fault, t: float) -> None:
    c.link_back[f.node, _nic(c, f)] = f.remaining(t)


def _gpu_lost(c: Condition, f: Fault, t: float) -> None:
    c.present[f.slots()] = False
    c.stopped[f.node] = True


def _ecc_storm(c: Condition, f: Fault, t: float) -> None:
    c.ecc_per_second[f.slots()] += f.magnitude * f.severity(t)
    c.stretch[f.slots()] *= 1.01


def _hang(c: Condition, f: Fault, t: float) -> None:
    c.stopped[f.node] = True


def _node_silent(c: Condition, f: Fault, t: float) -> None:
    c.reporting[f.node] = False
    c.stopped[f.node] = True


def _exporter_gap(c: Condition, f: Fault, t: float) -> None:
    c.reporting[f.node] = False


def _clock_skew(c: Condition, f: Fault, t: float) -> None:
    c.skew[f.node] += f.magnitude


def _nic(c: Condition, f: Fault) -> int:
    return (f.gpu or 0) * int(c.link.shape[1]) // int(c.clock.shape[1])


_STRAGGLER = ("straggler.fail_slow", "straggler.intermittent")
_CLOCK = ("throttle.thermal", "throttle.hw_slowdown", "throttle.power", "clock.low")

EFFECTS: dict[str, Effect] = {
    "thermal_throttle": Effect(_thermal, (*_STRAGGLER, *_CLOCK)),
    "power_brake": Effect(_power_brake, (*_STRAGGLER, *_CLOCK)),
    "clock_lock": Effect(_clock_lock, (*_STRAGGLER, *_CLOCK)),
    "silent_slow": Effect(_silent_slow, _STRAGGLER),
    "host_contention": Effect(_host_contention, (*_STRAGGLER, "host.cpu_contention")),
    "loader_stall": Effect(_loader_stall, (*_STRAGGLER, "data.loader_slow")),
    "pcie_downgrade": Effect(_pcie_downgrade, (*_STRAGGLER, "link.pcie_downgrade")),
    "nic_slow": Effect(_nic_slow, (*_STRAGGLER, "link.nic_slow", "link.nic_errors")),
    "nic_flap": Effect(_nic_flap, ("link.nic_flap", "link.nic_errors", *_STRAGGLER)),
    "gpu_lost": Effect(_gpu_lost, ("xid.79", "node.silent", "hang.job", "hang.rank_missing")),
    "ecc_storm": Effect(_ecc_storm, ("ecc.correctable_rate",), gating=False),
    "job_hang": Effect(_hang, ("hang.job", "hang.rank_missing"), machine=False),
    "node_silent": Effect(_node_silent, ("node.silent", "hang.job", "hang.rank_missing", "exporter.stale")),
    "exporter_gap": Effect(_exporter_gap, ("exporter.stale",), machine=False, gating=False),
    "clock_skew": Effect(_clock_skew, ("host.clock_skew",), machine=False, gating=False),
}
