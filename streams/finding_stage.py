"""FindingStage: suspicions of a cluster in, versions of findings out; one finding per cause.

The rules live in ``alerts``. Here they are fed in order of event time, whatever order the log has: a scope is
folded once up to what can no longer be overtaken (``settled``) and anew above it when a suspicion comes late.
"""

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import cast

from alerts.case import Case, case_key, voice
from alerts.config import FindingConfig
from alerts.finding import Finding
from alerts.render import render, visible
from alerts.scope import Scope, advance, apply, next_deadline, scope_key
from slowrank.telemetry import Record, Suspicion, encode

_STATE_ORDER = {"raise": 0, "update": 1, "clear": 2}

Entry = tuple[float, str, int, bytes, Suspicion]


@dataclass(slots=True)
class _Timeline:
    """One scope with the suspicions that may still be overtaken, sorted by event time."""

    settled: Scope = field(default_factory=Scope)
    settled_to: float = -math.inf
    head: Scope = field(default_factory=Scope)
    head_to: float = -math.inf
    entries: list[Entry] = field(default_factory=list)
    due: float = math.inf
    emitted: dict[str, Finding] = field(default_factory=dict)


class FindingStage:
    """The stage behind the ``suspicions`` topic; keyed by cluster.

    Suspicions of one event time are weighed together: their findings come with the first later suspicion of
    the scope or with the next ``tick`` at or after that time. The same set of suspicions, in any order within
    ``config.lateness_seconds`` and with any repeats, ends in the same findings.
    """

    def __init__(self, config: FindingConfig | None = None) -> None:
        self.config = config or FindingConfig()
        self._timelines: dict[str, _Timeline] = {}
        self._now = -math.inf

    def process(self, record: Record | Suspicion) -> Sequence[Finding]:
        """Take one suspicion; return the new versions of findings whose event time has passed."""
        s = cast(Suspicion, record)
        key = scope_key(s)
        timeline = self._timelines.setdefault(key, _Timeline())
        entry = _entry(s)
        if s.ts <= timeline.settled_to:
            return self._overtaken(key, s)
        if entry in timeline.entries:
            return ()
        insort(timeline.entries, entry, key=lambda e: e[:4])
        if s.ts <= timeline.head_to:
            timeline.head, timeline.head_to = timeline.settled, timeline.settled_to
        before = max(self._now, math.nextafter(timeline.entries[-1][0], -math.inf))
        return self._brought_to(key, before)

    def tick(self, event_time: float) -> Sequence[Finding]:
        """Let event time pass: weigh what has come in, and end what has been silent for long enough."""
        self._now = max(self._now, event_time)
        changed: list[Finding] = []
        for key in sorted(k for k, t in self._timelines.items() if self._has_work(t)):
            changed += self._brought_to(key, self._now)
        return changed

    def _overtaken(self, key: str, s: Suspicion) -> list[Finding]:
        """Take a suspicion that comes too late to be put in its place: news are kept, repeats are not."""
        timeline = self._timelines[key]
        if _spoken_since(timeline.settled.cases.get(case_key(s)), s):
            return []
        timeline.settled = apply(timeline.settled, (s,), self.config)
        timeline.head, timeline.head_to = timeline.settled, timeline.settled_to
        return self._brought_to(key, max(self._now, timeline.settled_to))

    def _has_work(self, timeline: _Timeline) -> bool:
        waiting = bool(timeline.entries) and timeline.entries[-1][0] > timeline.head_to
        overtakable = bool(timeline.entries) and timeline.entries[0][0] <= self._horizon(self._now)
        return timeline.due <= self._now or (waiting and timeline.entries[0][0] <= self._now) or overtakable

    def _horizon(self, now: float) -> float:
        return now - self.config.lateness_seconds

    def _brought_to(self, key: str, now: float) -> list[Finding]:
        timeline = self._timelines[key]
        self._fold(timeline, now)
        shown = advance(timeline.head, now, self.config, inclusive=True)
        deadline = next_deadline(shown, self.config)
        timeline.due = deadline[0] if deadline else math.inf
        changed = self._changes(timeline, shown)
        if not shown.cases and not timeline.entries:
            del self._timelines[key]
        return changed

    def _fold(self, timeline: _Timeline, now: float) -> None:
        horizon = self._horizon(now)
        for ts, batch in groupby(tuple(timeline.entries), key=lambda e: e[0]):
            if ts > now:
                break
            if ts > timeline.head_to:
                before = advance(timeline.head, ts, self.config, inclusive=False)
                timeline.head = apply(before, (e[4] for e in batch), self.config)
                timeline.head_to = ts
        if timeline.entries and timeline.entries[0][0] <= horizon:
            self._settle(timeline, horizon)

    def _settle(self, timeline: _Timeline, horizon: float) -> None:
        done = [e for e in timeline.entries if e[0] <= horizon]
        for ts, batch in groupby(done, key=lambda e: e[0]):
            before = advance(timeline.settled, ts, self.config, inclusive=False)
            timeline.settled = apply(before, (e[4] for e in batch), self.config)
            timeline.settled_to = ts
        timeline.entries = timeline.entries[len(done) :]

    def _changes(self, timeline: _Timeline, shown: Scope) -> list[Finding]:
        changed: list[Finding] = []
        for key in sorted(shown.cases):
            case = shown.cases[key]
            if not visible(case):
                continue
            before = timeline.emitted.get(key)
            finding = render(shown, case, self.config, identity=self._identity(case, before))
            as_of = max(timeline.head_to, case.ended_at or -math.inf)
            if before is None or replace(finding, as_of=before.as_of) != before:
                finding = replace(finding, as_of=as_of)
                timeline.emitted[key] = finding
                changed.append(finding)
        for key in timeline.emitted.keys() - shown.cases.keys():
            del timeline.emitted[key]
        return changed

    def _identity(self, case: Case, before: Finding | None) -> str | None:
        """Return the id under which the finding was first shown, also when an earlier onset came in late."""
        if before is None:
            return None
        ended = before.last_seen_at if before.resolved_at is None else before.resolved_at
        return before.id if case.first_onset <= ended + self.config.reopen_within_seconds else None


def _spoken_since(case: Case | None, s: Suspicion) -> bool:
    source = None if case is None else case.sources.get(voice(s))
    return s.state == "clear" if source is None else source.latest.ts >= s.ts


def _entry(s: Suspicion) -> Entry:
    return (s.ts, s.detector, _STATE_ORDER[s.state], encode(s), s)
