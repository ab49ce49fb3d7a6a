"""Counters of devices, which rise by an amount, at random by a rate, or by one with an incident."""

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from simulator.cluster.layout import FloatArray
from simulator.faults.events import Incident

Counts = npt.NDArray[np.int64]


class Counters:
    """Counters by name, each [nodes, instances], beginning at ``start`` or zero."""

    def __init__(self, names: Iterable[str], shape: tuple[int, int], start: Mapping[str, Counts]) -> None:
        self.values: dict[str, Counts] = {
            name: start[name].astype(np.int64) if name in start else np.zeros(shape, np.int64)
            for name in names
        }

    def add(self, name: str, amount: npt.ArrayLike) -> None:
        """Add an amount [nodes, instances] to one counter."""
        self.values[name] += np.asarray(amount).astype(np.int64)

    def happen(self, rates: Mapping[str, FloatArray], dt: float, rng: np.random.Generator) -> None:
        """Add Poisson counts of ``dt`` seconds at ``rates`` a second, for those names that are ours."""
        for name, rate in rates.items():
            if name in self.values:
                self.values[name] += rng.poisson(rate * dt)

    def count(self, incident: Incident) -> None:
        """Count an incident; one that resets the node sets all of its counters to zero."""
        for name in self.values if incident.resets else incident.counters:
            if incident.resets:
                self.values[name][incident.node] = 0
            elif name in self.values:
                column = {"gpu": incident.gpu, "nic": incident.nic}.get(name.partition(".")[0], 0)
                self.values[name][incident.node, column] += 1
