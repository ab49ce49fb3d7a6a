"""Suspicions of one scope put into the order of their event time, whatever order they came in.

What can no longer be overtaken is folded once (``settled``); what is above it is kept, and folded anew when
something comes late.
"""

import math
from bisect import insort
from collections.abc import Iterator, Sequence
from itertools import groupby

from alerts.case import Case, case_key, voice
from alerts.config import FindingConfig
from alerts.scope import Scope, advance, apply, next_deadline
from slowrank.telemetry import Suspicion, encode

_STATE_ORDER = {"raise": 0, "update": 1, "clear": 2}

Entry = tuple[float, str, int, bytes, Suspicion]


class Timeline:
    """One scope through event time."""

    def __init__(self, config: FindingConfig) -> None:
        self._config = config
        self._settled, self._settled_to = Scope(), -math.inf
        self._head, self._head_to = Scope(), -math.inf
        self._entries: list[Entry] = []
        self._shown_to = -math.inf
        self._due = math.inf

    @property
    def empty(self) -> bool:
        """Whether nothing is left to remember."""
        return not self._entries and not self._head.cases

    def add(self, s: Suspicion) -> None:
        """Put a suspicion in its place; a repeat changes nothing.

        One that comes after its place was settled is taken as it comes, if it is news of its source.
        """
        entry = (s.ts, s.detector, _STATE_ORDER[s.state], encode(s), s)
        if s.ts <= self._settled_to:
            if _spoken_since(self._settled.cases.get(case_key(s)), s):
                return
            self._settled = apply(self._settled, (s,), self._config)
        elif entry in self._entries:
            return
        else:
            insort(self._entries, entry, key=lambda e: e[:4])
        if s.ts <= self._head_to:
            self._head, self._head_to = self._settled, self._settled_to
            self._due = -math.inf

    def has_work(self, now: float) -> bool:
        """Return whether the scope at ``now`` may differ from what was last reached."""
        if self._due <= now:
            return True
        waiting = any(self._head_to < entry[0] <= now for entry in self._entries)
        return waiting or any(entry[0] <= self._horizon(now) for entry in self._entries[:1])

    def reach(self, now: float) -> Iterator[tuple[float, Scope]]:
        """Yield the scope after each event time up to ``now`` not reached before, and then at ``now``.

        With each comes the event time up to which it has heard everything.
        """
        for ts, batch in _batches(self._entries):
            if ts > now:
                break
            if ts > self._head_to:
                for at, scope in advance(self._head, ts, self._config, inclusive=False):
                    self._head = scope
                    if at > self._shown_to:
                        yield self._head_to, scope
                self._head, self._head_to = apply(self._head, batch, self._config), ts
                if ts > self._shown_to:
                    yield ts, self._head
        self._settle(self._horizon(now))
        shown = self._head
        for at, shown in advance(self._head, now, self._config, inclusive=True):
            if at > self._shown_to:
                yield self._head_to, shown
        yield self._head_to, shown
        self._conclude(shown, now)

    def _conclude(self, shown: Scope, now: float) -> None:
        deadline = next_deadline(shown, self._config)
        self._due = deadline[0] if deadline else math.inf
        self._shown_to = max(self._shown_to, now)
        if not shown.cases:
            self._head = shown

    def _horizon(self, now: float) -> float:
        return now - self._config.lateness_seconds

    def _settle(self, horizon: float) -> None:
        done = [entry for entry in self._entries if entry[0] <= horizon]
        for ts, batch in _batches(done):
            for _, scope in advance(self._settled, ts, self._config, inclusive=False):
                self._settled = scope
            self._settled, self._settled_to = apply(self._settled, batch, self._config), ts
        self._entries = self._entries[len(done) :]


def _batches(entries: Sequence[Entry]) -> list[tuple[float, list[Suspicion]]]:
    return [(ts, [e[4] for e in batch]) for ts, batch in groupby(entries, key=lambda e: e[0])]


def _spoken_since(case: Case | None, s: Suspicion) -> bool:
    source = None if case is None else case.sources.get(voice(s))
    return s.state == "clear" if source is None else source.latest.ts >= s.ts
