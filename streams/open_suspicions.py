"""Suspicions that are raised and not yet cleared; each is raised once, updated at intervals, and cleared."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

import msgspec

from slowrank.telemetry import Suspicion

K = TypeVar("K", bound=Hashable)


class OpenSuspicions(Generic[K]):
    """Open suspicions by what they are about; ``update_seconds`` of event time between two about the
    same thing. ``stamp`` completes each suspicion that goes out.
    """

    def __init__(
        self, update_seconds: float, stamp: Callable[[K, Suspicion], Suspicion] | None = None
    ) -> None:
        self.update_seconds = update_seconds
        # Not a lambda: one cannot be part of a snapshot.
        self._stamp = stamp or _as_it_is
        self._open: dict[K, Suspicion] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._open))

    def __getitem__(self, key: K) -> Suspicion:
        return self._open[key]

    def is_due(self, key: K, at: float) -> bool:
        """Whether an open suspicion was last emitted so long ago that it is updated."""
        return at - self._open[key].ts >= self.update_seconds

    def refreshed(self, key: K, at: float) -> Suspicion:
        """Return an open suspicion, with a new time when its update is due: it still holds, and has cost
        more."""
        last = self._open[key]
        return msgspec.structs.replace(last, ts=at) if self.is_due(key, at) else last

    def settle(self, standing: Mapping[K, Suspicion], among: Iterable[K], at: float) -> list[Suspicion]:
        """Raise or update what is ``standing``, except an open suspicion itself; clear the other keys
        ``among``."""
        gone = [key for key in among if key not in standing]
        out: list[Suspicion] = []
        for key, suspicion in standing.items():
            if self._open.get(key) is not suspicion:
                out += self.put(key, suspicion)
        return out + [cleared for key in gone for cleared in self.clear(key, at)]

    def put(self, key: K, suspicion: Suspicion, *, at_once: bool = False) -> list[Suspicion]:
        """Raise a new suspicion; update an open one when due, or ``at_once``, as when it has become
        overwhelming or something else explains it.

        An update keeps the onset of what was raised, and thereby its identity, and its likely node, which
        says beside what it is weighed; it stays overwhelming.
        """
        last = self._open.get(key)
        if last is None:
            self._open[key] = self._stamp(key, suspicion)
            return [self._open[key]]
        escalates = suspicion.overwhelming and not last.overwhelming
        explained = bool(suspicion.hypotheses.keys() - last.hypotheses.keys())
        if not (at_once or escalates or explained or self.is_due(key, suspicion.ts)):
            return []
        update = msgspec.structs.replace(
            suspicion,
            state="update",
            onset=last.onset,
            onset_lo=last.onset_lo,
            onset_hi=last.onset_hi,
            ranks_likely_on_node=last.ranks_likely_on_node,
            overwhelming=suspicion.overwhelming or last.overwhelming,
        )
        self._open[key] = self._stamp(key, update)
        return [self._open[key]]

    def costing_nothing(self, at: float) -> list[Suspicion]:
        """Return what costs something at present, with all that it has cost so far: at ``at`` no steps are
        made that could be slow."""
        out: list[Suspicion] = []
        for key, last in self._open.items():
            if last.lost is not None and last.lost.gpus:
                update = self._stamp(key, msgspec.structs.replace(last, state="update", ts=max(at, last.ts)))
                lost = None if update.lost is None else msgspec.structs.replace(update.lost, gpus=0.0)
                self._open[key] = msgspec.structs.replace(update, lost=lost)
                out.append(self._open[key])
        return out

    def clear(self, key: K, at: float) -> list[Suspicion]:
        """End what was raised about ``key``, if anything was; never before it was raised."""
        last = self._open.pop(key, None)
        if last is None:
            return []
        cleared = msgspec.structs.replace(last, state="clear", ts=max(at, last.ts), score=0.0)
        return [self._stamp(key, cleared)]


def _as_it_is(_: Hashable, suspicion: Suspicion) -> Suspicion:
    return suspicion
