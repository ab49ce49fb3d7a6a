"""Debounces conditions: suspicions are raised after a hold, refreshed, and cleared after absence."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from slowrank.telemetry import Suspicion
from streams.columns import Array, Mask, Rows

State = Literal["raise", "update", "clear"]
Key = tuple[int, str]
"""Which rule, on which instance."""

Make = Callable[[State, float], Suspicion]
"""Makes the suspicion of a condition from its state and its onset."""


@dataclass(slots=True)
class _Condition:
    since: float
    last_true: float
    last_emitted: float | None = None


@dataclass(frozen=True, slots=True)
class Debounce:
    """Seconds of event time: ``hold`` before raising, ``refresh`` between updates, ``clear`` of absence.

    A ``sticky`` condition is a permanent fault; it is dropped without a clear. Defaults are chosen: a refresh
    well within the expiry of suspicions, and a clear after thirty ticks, so that a flapping condition is one
    fault.
    """

    hold: float = 0.0
    refresh: float = 60.0
    clear: float = 30.0
    sticky: bool = False


class NodeConditions:
    """The conditions of one node by key; only those that hold or held a moment ago are stored."""

    def __init__(self) -> None:
        self._held: dict[Key, _Condition] = {}

    def pending(self) -> tuple[Key, ...]:
        """Return the keys that must be observed even when they do not hold."""
        return tuple(self._held)

    def observe(
        self, key: Key, active: bool, ts: float, *, debounce: Debounce, make: Make
    ) -> list[Suspicion]:
        """Process whether the condition holds at ``ts``; return the suspicion to emit, if any."""
        held = self._held.get(key)
        if not active:
            return [] if held is None else self._absent(key, held, ts, debounce=debounce, make=make)
        if held is None:
            held = self._held[key] = _Condition(since=ts, last_true=ts)
        held.last_true = ts
        if held.last_emitted is None:
            if ts - held.since < debounce.hold:
                return []
            held.last_emitted = ts
            return [make("raise", held.since)]
        if ts - held.last_emitted < debounce.refresh:
            return []
        held.last_emitted = ts
        return [make("update", held.since)]

    def since(self, key: Key) -> float | None:
        """Return since when a condition has held, None where it does not."""
        held = self._held.get(key)
        return None if held is None else held.since

    def _absent(
        self, key: Key, held: _Condition, ts: float, *, debounce: Debounce, make: Make
    ) -> list[Suspicion]:
        # The hold has no gaps: a single sample without the condition starts it anew.
        if held.last_emitted is None:
            del self._held[key]
            return []
        if ts - held.last_true < debounce.clear:
            return []
        del self._held[key]
        return [] if debounce.sticky else [make("clear", held.since)]


class ConditionBank:
    """The conditions of many nodes; nodes without pending conditions take no time."""

    def __init__(self, nodes: int) -> None:
        self._nodes: dict[int, NodeConditions] = {}
        self._pending = np.zeros(nodes, np.bool_)

    @property
    def busy(self) -> bool:
        """Whether a condition of any node is pending."""
        return bool(self._nodes)

    def pending(self, index: Rows) -> Mask:
        """Return which of some nodes, [n], have pending conditions."""
        return np.asarray(self._pending[index])

    def due(self, index: Array, active: Iterable[tuple[int, Key]]) -> list[tuple[int, set[Key]]]:
        """Return (k, keys to observe) of the nodes ``index`` [n], in order: ``active`` (k, key) and
        pending."""
        pending = np.flatnonzero(self._pending[index]).tolist() if self._nodes else []
        keys: dict[int, set[Key]] = {k: set(self._nodes[int(index[k])].pending()) for k in pending}
        # Sets: the caller sorts the keys, as names are hashed differently in every process.
        for k, key in active:
            keys.setdefault(k, set()).add(key)
        return sorted(keys.items())

    def observe(
        self, node: int, key: Key, active: bool, ts: float, *, debounce: Debounce, make: Make
    ) -> list[Suspicion]:
        """Call ``NodeConditions.observe`` for one node."""
        held = self._nodes.setdefault(node, NodeConditions())
        found = held.observe(key, active, ts, debounce=debounce, make=make)
        self._pending[node] = bool(held.pending())
        if not self._pending[node]:
            del self._nodes[node]
        return found

    def since(self, node: int, key: Key) -> float | None:
        """Return since when a condition of a node has held, None where it does not."""
        held = self._nodes.get(node)
        return None if held is None else held.since(key)

    def forget(self, node: int) -> None:
        """Drop the conditions of a node, without clears."""
        self._nodes.pop(node, None)
        self._pending[node] = False

    def carry(self, node: int, source: "ConditionBank", row: int) -> None:
        """Take over the conditions of a node that was ``row`` of another bank."""
        if row in source._nodes:
            self._nodes[node], self._pending[node] = source._nodes[row], True
