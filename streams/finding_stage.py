"""FindingStage: suspicions of a cluster in, versions of findings out; one finding per cause.

The rules live in ``alerts``; ``timeline`` feeds them in order of event time. Here is kept what was last said
of each finding, so that only news goes out.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from alerts.case import IDLE, Case
from alerts.config import FindingConfig
from alerts.finding import Finding
from alerts.render import render
from alerts.scope import Scope, scope_key
from slowrank.telemetry import Record, Suspicion
from streams.timeline import Timeline


class FindingStage:
    """The stage behind the ``suspicions`` topic; keyed by cluster.

    Findings come with ``tick``: suspicions of one event time are weighed together, once that time has passed.
    The same set of suspicions, in any order within ``config.lateness_seconds`` and with any repeats, ends in
    the same findings; one that comes later still is not lost, but is taken as it comes.
    """

    def __init__(self, config: FindingConfig | None = None) -> None:
        self.config = config or FindingConfig()
        self._timelines: dict[str, Timeline] = {}
        self._said: dict[str, dict[str, Finding]] = {}
        self._now = -math.inf

    def process(self, record: Record | Suspicion) -> Sequence[Finding]:
        """Take one suspicion; what follows from it comes with the next tick at or after its time."""
        if isinstance(record, Suspicion):
            key = scope_key(record)
            if key not in self._timelines:
                self._timelines[key], self._said[key] = Timeline(self.config), {}
            self._timelines[key].add(record)
        return ()

    def tick(self, event_time: float) -> Sequence[Finding]:
        """Let event time pass: weigh what has come in, and end what has been silent for long enough."""
        self._now = max(self._now, event_time)
        changed: list[Finding] = []
        for key in sorted(k for k, timeline in self._timelines.items() if timeline.has_work(self._now)):
            for as_of, scope in self._timelines[key].reach(self._now):
                changed += self._news(self._said[key], scope, as_of)
            if self._timelines[key].empty:
                del self._timelines[key], self._said[key]
        return changed

    def _news(self, said: dict[str, Finding], scope: Scope, as_of: float) -> list[Finding]:
        news: list[Finding] = []
        for key, case in sorted(scope.cases.items()):
            if case.kind == IDLE:
                continue
            before = said.get(key)
            finding = render(scope, case, self.config, identity=self._identity(case, before))
            if before is None or replace(finding, as_of=before.as_of) != before:
                said[key] = replace(finding, as_of=max(as_of, case.ended_at or -math.inf))
                news.append(said[key])
        for key in said.keys() - scope.cases.keys():
            del said[key]
        return news

    def _identity(self, case: Case, before: Finding | None) -> str | None:
        """Return the id under which the finding was first shown, also when an earlier onset came in late."""
        if before is None:
            return None
        ended = before.last_seen_at if before.resolved_at is None else before.resolved_at
        return before.id if case.first_onset <= ended + self.config.reopen_within_seconds else None
