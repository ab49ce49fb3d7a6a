"""What a stage has raised and not yet cleared: raised once, freshened now and then, and cleared."""

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

import msgspec

from slowrank.telemetry import Suspicion

K = TypeVar("K", bound=Hashable)


class Ledger(Generic[K]):
    """Open suspicions by what they are about; ``update_seconds`` of event time between two about the
    same thing. ``stamp`` completes each suspicion that goes out.
    """

    def __init__(
        self, update_seconds: float, stamp: Callable[[K, Suspicion], Suspicion] = lambda _, s: s
    ) -> None:
        self.update_seconds = update_seconds
        self._stamp = stamp
        self._open: dict[K, Suspicion] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._open))

    def is_due(self, key: K, at: float) -> bool:
        """Tell whether an open suspicion has not been heard of for long enough to be freshened."""
        return at - self._open[key].ts >= self.update_seconds

    def is_believed(self, key: K) -> bool:
        """Tell whether an open suspicion needs no second kind of evidence already."""
        return self._open[key].overwhelming

    def put(self, key: K, suspicion: Suspicion, *, news: bool = False) -> list[Suspicion]:
        """Raise a new suspicion; freshen an open one when due, or at once when it has become overwhelming or
        is ``news``.

        An update keeps the onset of what was raised, and thereby its identity, and stays overwhelming.
        """
        last = self._open.get(key)
        if last is None:
            self._open[key] = self._stamp(key, suspicion)
            return [self._open[key]]
        escalates = suspicion.overwhelming and not last.overwhelming
        if not (news or escalates or self.is_due(key, suspicion.ts)):
            return []
        update = msgspec.structs.replace(
            suspicion,
            state="update",
            onset=last.onset,
            onset_lo=last.onset_lo,
            onset_hi=last.onset_hi,
            overwhelming=suspicion.overwhelming or last.overwhelming,
        )
        self._open[key] = self._stamp(key, update)
        return [self._open[key]]

    def repeat(self, key: K, at: float) -> list[Suspicion]:
        """Raise an open suspicion once more as it was, when due: it holds still, and has cost more."""
        if not self.is_due(key, at):
            return []
        return self.put(key, msgspec.structs.replace(self._open[key], ts=at))

    def clear(self, key: K, at: float) -> list[Suspicion]:
        """End what was raised about ``key``, if anything was; never before it was raised."""
        last = self._open.pop(key, None)
        if last is None:
            return []
        cleared = msgspec.structs.replace(last, state="clear", ts=max(at, last.ts), score=0.0)
        return [self._stamp(key, cleared)]
