"""What each GPU of a node is called in the records, for as long as the exporter runs."""

from collections.abc import Mapping
from itertools import count


class GpuNames:
    """Keeps the name of every GPU by its UUID, whatever index NVML gives it later.

    A GPU is called by the index at which it was first seen. NVML counts anew once the driver is loaded again:
    were a GPU missing then, those behind it would move up, and the one that is missing would be the last.
    """

    def __init__(self) -> None:
        self._by_uuid: dict[str, str] = {}
        self._at: dict[int, str] = {}

    def found(self, gpus: int) -> None:
        """Take how many GPUs NVML has now; their indices are as before until ``learn`` says otherwise."""
        self._at = {index: name for index, name in self._at.items() if index < gpus}
        for index in range(gpus):
            self._at.setdefault(index, self._free(index))

    def learn(self, index: int, uuid: str) -> None:
        """Take which GPU is at ``index``."""
        name = self._by_uuid.get(uuid)
        if name is None:
            known = self._at[index] in self._by_uuid.values()
            name = self._by_uuid[uuid] = self._new() if known else self._at[index]
        before = next((i for i, held in self._at.items() if held == name), index)
        self._at[index] = name
        if before != index:
            # Which GPU is there is not known yet, only that it is not this one.
            del self._at[before]
            self._at[before] = self._free(before)

    def name(self, index: int) -> str:
        """Return what the GPU at ``index`` is called."""
        return self._at[index]

    def all(self) -> tuple[str, ...]:
        """Return the names of all GPUs there ever were, in their order."""
        return tuple(sorted({*self._by_uuid.values(), *self._at.values()}, key=int))

    def by_uuid(self) -> Mapping[str, str]:
        """Return the names by UUID, as far as it was read."""
        return self._by_uuid

    def _free(self, index: int) -> str:
        """Return what a GPU may be called until its UUID is read: its index, or what no GPU there is has."""
        held = self._at.values()
        missing = sorted(set(self._by_uuid.values()) - set(held), key=int)
        return next((name for name in (str(index), *missing) if name not in held), self._new())

    def _new(self) -> str:
        held = {*self._by_uuid.values(), *self._at.values()}
        return next(name for name in map(str, count()) if name not in held)
