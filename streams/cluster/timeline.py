"""Suspicions of one scope put into the order of their event time, whatever order they came in.

What can no longer be overtaken is folded once (``settled``); what is above it is kept, and folded anew when
something comes late.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, Protocol, TypeVar

from alerts.cases import fold
from alerts.cases.case import Case, case_key
from alerts.cases.scope import Scope
from alerts.cases.source import source_id
from alerts.config import FindingConfig
from slowrank.telemetry import NodeAnnounced, Suspicion, encode

# Of one time and detector the clear comes last: it ends what was raised with it, in whatever order they came.
_STATE_ORDER = {"raise": 0, "update": 1, "clear": 2}

Order = tuple[float, str, int, bytes]

S = TypeVar("S")
M = TypeVar("M", bound=Suspicion | NodeAnnounced)


class Advance(Protocol[S]):
    """Yields time and state after each deadline before ``until`` (or at it, when inclusive)."""

    def __call__(
        self, state: S, until: float, config: FindingConfig, /, *, inclusive: bool
    ) -> Iterator[tuple[float, S]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold(Generic[S, M]):
    """What a timeline does with its messages: pure functions on an immutable state.

    ``apply`` takes the messages of one event time; ``next_deadline`` is when something changes without new
    ones; ``is_stale``: whether a late message is void, because the state has a later one of its source.
    """

    start: S
    apply: Callable[[S, Iterable[M], FindingConfig], S]
    advance: Advance[S]
    next_deadline: Callable[[S, FindingConfig], tuple[float, str] | None]
    is_stale: Callable[[S, M], bool]
    is_empty: Callable[[S], bool]


def is_superseded(case: Case | None, s: Suspicion) -> bool:
    """Return whether the case has a suspicion of the same source that is as late as ``s``."""
    source = None if case is None else case.sources.get(source_id(s))
    # Without an earlier suspicion of the source there is nothing to clear.
    return s.state == "clear" if source is None else source.latest.ts >= s.ts


def _is_stale(state: Scope, s: Suspicion) -> bool:
    return is_superseded(state.cases.get(case_key(s)), s)


def _is_empty(state: Scope) -> bool:
    return not state.cases


SCOPE = Fold(
    start=Scope(),
    apply=fold.apply,
    advance=fold.advance,
    next_deadline=fold.next_deadline,
    is_stale=_is_stale,
    is_empty=_is_empty,
)


class Timeline(Generic[S, M]):
    """One state through event time; ``shown``: the last one reached, and up to when it has all messages."""

    def __init__(self, fold: Fold[S, M], config: FindingConfig) -> None:
        self._fold, self._config = fold, config
        self._settled, self._settled_to = fold.start, -math.inf
        self._head, self._head_to = fold.start, -math.inf
        self.shown: tuple[float, S] = (-math.inf, fold.start)
        self._entries: list[tuple[Order, M]] = []
        self._shown_to = -math.inf
        self._due = math.inf

    def fork(self) -> "Timeline[S, M]":
        """Return one with the same past and a future of its own."""
        other = copy(self)
        # States are immutable and may be shared; only the list changes in place.
        other._entries = list(self._entries)
        return other

    @property
    def empty(self) -> bool:
        """Whether nothing is left to remember."""
        return not self._entries and self._fold.is_empty(self._head)

    def add(self, s: M) -> None:
        """Put a message in its place; a repeat changes nothing.

        One that comes after its place was settled is applied at once, unless its source has reported since.
        """
        order = _order_of(s)
        place = bisect_left(self._entries, order, key=_order)
        if s.ts <= self._settled_to:
            if self._fold.is_stale(self._settled, s):
                return
            self._settled = self._fold.apply(self._settled, (s,), self._config)
        elif place < len(self._entries) and self._entries[place][0] == order:
            return
        else:
            self._entries.insert(place, (order, s))
        if s.ts <= self._head_to:
            # Overtaken: all that is not settled is folded anew by the next ``reach``.
            self._head, self._head_to = self._settled, self._settled_to
            self._due = -math.inf

    def has_work(self, now: float) -> bool:
        """Return whether the state at ``now`` may differ from what was last reached."""
        if self._due <= now:
            return True
        if not self._entries:
            return False
        return bool(self._between(self._head_to, now)) or _time(self._entries[0]) <= self._horizon(now)

    def reach(self, now: float) -> Iterator[tuple[float, S]]:
        """Yield the state after each event time up to ``now`` not reached before, and then at ``now``.

        With each comes the event time up to which all messages are in it.
        """
        for ts, batch in _batches(self._between(self._head_to, now)):
            # A deadline at this very time waits for the suspicions of that time.
            for at, state in self._fold.advance(self._head, ts, self._config, inclusive=False):
                self._head = state
                if at > self._shown_to:
                    yield self._head_to, state
            self._head, self._head_to = self._fold.apply(self._head, batch, self._config), ts
            if ts > self._shown_to:
                yield ts, self._head
        self._settle(self._horizon(now))
        # Shown and not kept as the head: what still comes before ``now`` may move these deadlines.
        shown = self._head
        for at, shown in self._fold.advance(self._head, now, self._config, inclusive=True):
            if at > self._shown_to:
                yield self._head_to, shown
        yield self._head_to, shown
        self._conclude(shown, now)

    def _conclude(self, shown: S, now: float) -> None:
        deadline = self._fold.next_deadline(shown, self._config)
        self._due = deadline[0] if deadline else math.inf
        self._shown_to = max(self._shown_to, now)
        self.shown = (self._head_to, shown)
        if self._fold.is_empty(shown):
            self._head = shown

    def _horizon(self, now: float) -> float:
        return now - self._config.lateness_seconds

    def _between(self, after: float, until: float) -> list[tuple[Order, M]]:
        """Return the entries after one event time and up to another; they are in order of it."""
        start = bisect_right(self._entries, after, key=_time)
        return self._entries[start : bisect_right(self._entries, until, key=_time)]

    def _settle(self, horizon: float) -> None:
        done = self._between(-math.inf, horizon)
        for ts, batch in _batches(done):
            for _, state in self._fold.advance(self._settled, ts, self._config, inclusive=False):
                self._settled = state
            self._settled, self._settled_to = self._fold.apply(self._settled, batch, self._config), ts
        self._entries = self._entries[len(done) :]
        if done and not self._entries:
            # Folded from the same messages, and so equal: one of the two is enough.
            self._head = self._settled


def _order_of(s: Suspicion | NodeAnnounced) -> Order:
    """Return what orders a message: time, source and state, then its bytes, which stand for the rest."""
    if isinstance(s, Suspicion):
        return s.ts, s.detector, _STATE_ORDER[s.state], encode(s)
    return s.ts, "", 0, encode(s)


def _order(entry: tuple[Order, object]) -> Order:
    return entry[0]


def _time(entry: tuple[Order, object]) -> float:
    return entry[0][0]


def _batches(entries: Sequence[tuple[Order, M]]) -> list[tuple[float, list[M]]]:
    return [(ts, [s for _, s in batch]) for ts, batch in groupby(entries, key=_time)]
