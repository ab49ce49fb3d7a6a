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

from alerts import scope
from alerts.case import Case, case_key, voice
from alerts.config import FindingConfig
from alerts.scope import Scope
from slowrank.telemetry import Suspicion, encode

# Of one time and detector the clear comes last: it ends what was raised with it, in whatever order they came.
_STATE_ORDER = {"raise": 0, "update": 1, "clear": 2}

Entry = tuple[float, str, int, bytes, Suspicion]

S = TypeVar("S")


class Advance(Protocol[S]):
    """Yields time and state after each deadline before ``until`` (or at it, when inclusive)."""

    def __call__(
        self, state: S, until: float, config: FindingConfig, /, *, inclusive: bool
    ) -> Iterator[tuple[float, S]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold(Generic[S]):
    """What a timeline does with its suspicions: pure functions on an immutable state.

    ``apply`` takes the suspicions of one event time; ``next_deadline`` tells when silence alone will change
    something; ``is_old_news`` whether a state has heard what makes a suspicion that comes late void.
    """

    start: S
    apply: Callable[[S, Iterable[Suspicion], FindingConfig], S]
    advance: Advance[S]
    next_deadline: Callable[[S, FindingConfig], tuple[float, str] | None]
    is_old_news: Callable[[S, Suspicion], bool]
    is_empty: Callable[[S], bool]


def spoken_since(case: Case | None, s: Suspicion) -> bool:
    """Return whether the source of ``s`` has said something as young to the case that hears it."""
    source = None if case is None else case.sources.get(voice(s))
    # Where it has said nothing, there is nothing to end either.
    return s.state == "clear" if source is None else source.latest.ts >= s.ts


def _is_old_news(state: Scope, s: Suspicion) -> bool:
    return spoken_since(state.cases.get(case_key(s)), s)


def _is_empty(state: Scope) -> bool:
    return not state.cases


SCOPE = Fold(
    start=Scope(),
    apply=scope.apply,
    advance=scope.advance,
    next_deadline=scope.next_deadline,
    is_old_news=_is_old_news,
    is_empty=_is_empty,
)


class Timeline(Generic[S]):
    """One state through event time; ``shown`` is the last one reached and up to when it has heard all."""

    def __init__(self, fold: Fold[S], config: FindingConfig) -> None:
        self._fold, self._config = fold, config
        self._settled, self._settled_to = fold.start, -math.inf
        self._head, self._head_to = fold.start, -math.inf
        self.shown: tuple[float, S] = (-math.inf, fold.start)
        self._entries: list[Entry] = []
        self._shown_to = -math.inf
        self._due = math.inf

    def fork(self) -> "Timeline[S]":
        """Return one with the same past and a future of its own."""
        other = copy(self)
        # States are immutable and may be shared; only the list changes in place.
        other._entries = list(self._entries)
        return other

    @property
    def empty(self) -> bool:
        """Whether nothing is left to remember."""
        return not self._entries and self._fold.is_empty(self._head)

    def add(self, s: Suspicion) -> None:
        """Put a suspicion in its place; a repeat changes nothing.

        One that comes after its place was settled is taken as it comes, if it is news of its source.
        """
        entry = (s.ts, s.detector, _STATE_ORDER[s.state], encode(s), s)
        place = bisect_left(self._entries, entry[:4], key=_order)
        if s.ts <= self._settled_to:
            if self._fold.is_old_news(self._settled, s):
                return
            self._settled = self._fold.apply(self._settled, (s,), self._config)
        elif place < len(self._entries) and _order(self._entries[place]) == entry[:4]:
            return
        else:
            self._entries.insert(place, entry)
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
        return bool(self._between(self._head_to, now)) or self._entries[0][0] <= self._horizon(now)

    def reach(self, now: float) -> Iterator[tuple[float, S]]:
        """Yield the state after each event time up to ``now`` not reached before, and then at ``now``.

        With each comes the event time up to which it has heard everything.
        """
        for ts, batch in _batches(self._between(self._head_to, now)):
            # A deadline at this very time waits for what is said at it.
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

    def _between(self, after: float, until: float) -> list[Entry]:
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


def _order(entry: Entry) -> tuple[float, str, int, bytes]:
    # Without the suspicion itself, which has no order: its bytes stand for it.
    return entry[:4]


def _time(entry: Entry) -> float:
    return entry[0]


def _batches(entries: Sequence[Entry]) -> list[tuple[float, list[Suspicion]]]:
    return [(ts, [e[4] for e in batch]) for ts, batch in groupby(entries, key=_time)]
