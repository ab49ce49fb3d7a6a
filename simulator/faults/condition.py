"""The state of the hardware at one moment: faults change it, work and readings are derived from it."""

from dataclasses import dataclass, field, fields, replace

import numpy as np
import numpy.typing as npt

from simulator.cluster.layout import FloatArray

# Compute time goes with the clock to this power. Assumption: part of a step is bound by memory.
CLOCK_EXPONENT = 0.6

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a fault acts within the arrays of a ``Condition``: rows, and columns of GPU and NIC arrays."""

    nodes: slice
    gpus: slice
    nics: slice


@dataclass(frozen=True, slots=True)
class Dose:
    """State of a fault at one moment.

    ``severity`` is how far it is developed, 0 to 1, ``size`` its magnitude, ``since`` the seconds since its
    onset and ``remaining`` those until it is off again.
    """

    severity: float
    size: float
    since: float
    remaining: float

    @property
    def factor(self) -> float:
        """Factor against the healthy state, for magnitudes that are factors."""
        return 1.0 + (self.size - 1.0) * self.severity


@dataclass(slots=True)
class Condition:
    """The state of some nodes; arrays [nodes, gpus], [nodes, nics] or [nodes].

    ``clock`` is the SM clock over its healthy value, ``stretch`` the factor of compute time besides the
    clock, ``link`` the share of outgoing bandwidth left, ``link_back`` the seconds until a link that is down
    returns, ``loader`` and ``storage`` the seconds a step and a checkpoint wait for data. A process that is
    ``hung`` stands still without spinning. ``rates`` are errors a second by counter name, created when first
    used.
    """

    clock: FloatArray
    stretch: FloatArray
    heat: FloatArray
    throttle: npt.NDArray[np.int64]
    present: BoolArray
    frozen: BoolArray
    read_seconds: FloatArray
    exited: BoolArray
    hung: BoolArray
    remap: npt.NDArray[np.int64]
    pcie_width: FloatArray
    link: FloatArray
    link_back: FloatArray
    cpu: FloatArray
    memory: FloatArray
    iowait: FloatArray
    loader: FloatArray
    storage: FloatArray
    reporting: BoolArray
    stuck: BoolArray
    skew: FloatArray
    rates: dict[str, FloatArray] = field(default_factory=dict)

    def slowdown(self) -> FloatArray:
        """Return the factor of compute time on each GPU."""
        return self.stretch * self.clock**-CLOCK_EXPONENT

    def stops(self) -> bool:
        """Return whether no step can end in this condition."""
        return bool(self.exited.any() or self.hung.any() or np.isinf(self.link_back).any())

    def copy(self) -> "Condition":
        """Return a condition that can be changed without changing this one."""
        arrays = {f.name: getattr(self, f.name).copy() for f in fields(self) if f.name != "rates"}
        return replace(self, **arrays, rates={name: rate.copy() for name, rate in self.rates.items()})

    def add_errors(self, counter: str, extent: Extent, per_second: float) -> None:
        """Add errors a second to a counter of GPUs (``gpu.…``) or NIC ports (``nic.…``) at ``extent``."""
        of_gpus = counter.startswith("gpu.")
        rate = self.rates.setdefault(counter, np.zeros((self.clock if of_gpus else self.link).shape))
        rate[extent.nodes, extent.gpus if of_gpus else extent.nics] += per_second


def healthy(nodes: int, gpus: int, nics: int) -> Condition:
    """Return the condition without faults."""
    on_gpu, on_nic = (nodes, gpus), (nodes, nics)
    return Condition(
        clock=np.ones(on_gpu),
        stretch=np.ones(on_gpu),
        heat=np.zeros(on_gpu),
        throttle=np.zeros(on_gpu, np.int64),
        present=np.ones(on_gpu, np.bool_),
        frozen=np.zeros(on_gpu, np.bool_),
        read_seconds=np.zeros(on_gpu),
        exited=np.zeros(on_gpu, np.bool_),
        hung=np.zeros(on_gpu, np.bool_),
        remap=np.zeros(on_gpu, np.int64),
        pcie_width=np.full(on_gpu, 16.0),
        link=np.ones(on_nic),
        link_back=np.zeros(on_nic),
        cpu=np.zeros(nodes),
        memory=np.zeros(nodes),
        iowait=np.zeros(nodes),
        loader=np.zeros(nodes),
        storage=np.zeros(nodes),
        reporting=np.ones(nodes, np.bool_),
        stuck=np.zeros(nodes, np.bool_),
        skew=np.zeros(nodes),
    )
