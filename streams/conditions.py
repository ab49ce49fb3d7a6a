"""Conditions that must hold for a while before they count: raise, refresh each minute, clear when gone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from slowrank.telemetry import Suspicion

State = Literal["raise", "update", "clear"]
Key = tuple[int, str]
"""Which rule, on which instance."""

Make = Callable[[State, float], Suspicion]
"""Writes the suspicion of a condition from its state and its onset."""


@dataclass(slots=True)
class _Held:
    since: float
    last_true: float
    last_emitted: float | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of event time: ``hold`` before raising, ``refresh`` between updates, ``clear`` of absence.

    A ``sticky`` condition is a fact that does not heal by being quiet; it is dropped without a clear.
    """

    hold: float = 0.0
    refresh: float = 60.0
    clear: float = 30.0
    sticky: bool = False


class Conditions:
    """All conditions of one node by key; remembers only those that hold or held a moment ago."""

    def __init__(self) -> None:
        self._held: dict[Key, _Held] = {}

    def pending(self) -> tuple[Key, ...]:
        """Return the keys that must be observed also when they do not hold."""
        return tuple(self._held)

    def observe(
        self, key: Key, active: bool, ts: float, *, timing: Timing, make: Make
    ) -> tuple[Suspicion, ...]:
        """Take whether the condition holds at ``ts``; return the suspicion this gives rise to, if any."""
        held = self._held.get(key)
        if not active:
            return () if held is None else self._absent(key, held, ts, timing=timing, make=make)
        if held is None:
            held = self._held[key] = _Held(since=ts, last_true=ts)
        held.last_true = ts
        if held.last_emitted is None:
            if ts - held.since < timing.hold:
                return ()
            held.last_emitted = ts
            return (make("raise", held.since),)
        if ts - held.last_emitted < timing.refresh:
            return ()
        held.last_emitted = ts
        return (make("update", held.since),)

    def forget(self) -> None:
        """Drop everything, without clears: the subject's past no longer counts."""
        self._held.clear()

    def _absent(
        self, key: Key, held: _Held, ts: float, *, timing: Timing, make: Make
    ) -> tuple[Suspicion, ...]:
        if held.last_emitted is None:
            del self._held[key]
            return ()
        if ts - held.last_true < timing.clear:
            return ()
        del self._held[key]
        return () if timing.sticky else (make("clear", held.since),)
