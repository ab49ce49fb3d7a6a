"""Stable names of the GPUs of a node in the records, for as long as the exporter runs."""

from collections.abc import Mapping
from itertools import count


class GpuNames:
    """Keep the name of every GPU by its UUID, whatever index NVML gives it later.

    The name is the index at which the GPU was first seen. NVML numbers GPUs anew when the driver is loaded
    again: after the loss of one, those behind it move up by one, and the last index would appear missing.
    """

    def __init__(self) -> None:
        self._by_uuid: dict[str, str] = {}
        self._at: dict[int, str] = {}

    def found(self, gpus: int) -> None:
        """Set the number of GPUs that NVML has now; indices keep their names until ``learn`` changes them."""
        self._at = {index: name for index, name in self._at.items() if index < gpus}
        for index in range(gpus):
            self._at.setdefault(index, self._free(index))

    def learn(self, index: int, uuid: str) -> None:
        """Record which GPU is at ``index``."""
        name = self._by_uuid.get(uuid)
        if name is None:
            taken = self._at[index] in self._by_uuid.values()
            name = self._by_uuid[uuid] = self._new() if taken else self._at[index]
        before = next((i for i, held in self._at.items() if held == name), index)
        self._at[index] = name
        if before != index:
            # Another GPU is there, whose UUID has not been read yet.
            del self._at[before]
            self._at[before] = self._free(before)

    def name(self, index: int) -> str:
        """Return the name of the GPU at ``index``."""
        return self._at[index]

    def all(self) -> tuple[str, ...]:
        """Return the names of all GPUs seen so far, in numerical order."""
        return tuple(sorted({*self._by_uuid.values(), *self._at.values()}, key=int))

    def by_uuid(self) -> Mapping[str, str]:
        """Return the names of the GPUs whose UUID was read, by UUID."""
        return self._by_uuid

    def _free(self, index: int) -> str:
        """Return a preliminary name until the UUID is read: the index, or a name that no present GPU has."""
        held = self._at.values()
        missing = sorted(set(self._by_uuid.values()) - set(held), key=int)
        return next((name for name in (str(index), *missing) if name not in held), self._new())

    def _new(self) -> str:
        held = {*self._by_uuid.values(), *self._at.values()}
        return next(name for name in map(str, count()) if name not in held)
