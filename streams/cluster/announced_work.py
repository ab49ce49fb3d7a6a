"""Announcements of other work (``job.schedule``), for the scopes of the machines that are slow in its job."""

from collections.abc import Iterator

from msgspec.structs import replace

from alerts.cases.ending import ASIDE_SECONDS
from alerts.cases.scope import scope_key
from alerts.cases.source import MOST_ANNOUNCED, source_id
from alerts.kinds import PLANNED, RESCHEDULED, kind_of
from slowrank.telemetry import Suspicion

# Scopes that are kept of a job, the latest. Chosen: they are its machines.
_MOST_SCOPES = 4096

_Job = tuple[str, str]
"""Cluster and id of a job."""

_Scope = tuple[str, bool]
"""Key of a scope, and whether its suspicion is in shadow."""


class AnnouncedWork:
    """Brings together what a job announces and which machines are slow in it, whichever comes first.

    What is kept follows from event times, and not from the order or repetition of messages.
    """

    def __init__(self) -> None:
        self._announced: dict[_Job, dict[str, Suspicion]] = {}
        self._slow_at: dict[_Job, dict[_Scope, float]] = {}

    def announcements_for(self, s: Suspicion) -> Iterator[tuple[str, Suspicion]]:
        """Yield (scope, announcement) for each announcement that is new to a scope with the suspicion."""
        job = (s.cluster, s.subject.job_id or "")
        if s.kind == PLANNED and s.detector == RESCHEDULED:
            if self._keep(job, s):
                for scope, in_shadow in self._slow_at.get(job, ()):
                    yield scope, replace(s, shadow=in_shadow)
        elif s.subject.job_id and kind_of(s.kind).warms_up:
            scopes, at = self._slow_at.setdefault(job, {}), (scope_key(s), s.shadow)
            if at in scopes:
                scopes[at] = max(s.ts, scopes[at])
                return
            scopes[at] = s.ts
            if len(scopes) > _MOST_SCOPES:
                del scopes[min(scopes, key=lambda scope: (scopes[scope], scope))]
            if at in scopes:
                for announced in self._announced.get(job, {}).values():
                    yield at[0], replace(announced, shadow=s.shadow)

    def _keep(self, job: _Job, s: Suspicion) -> bool:
        """Keep an announcement if it is one of the latest; return whether it is, and is no repeat."""
        kept, change = self._announced.setdefault(job, {}), source_id(s)
        if change in kept and _age(kept[change]) >= _age(s):
            return False
        kept[change] = s
        if len(kept) > MOST_ANNOUNCED:
            del kept[min(kept, key=lambda name: _age(kept[name]))]
        return change in kept

    def forget(self, event_time: float) -> None:
        """Drop what is older than cases of what jobs declare are kept."""
        oldest = event_time - ASIDE_SECONDS
        for job, announced in list(self._announced.items()):
            for change in [change for change, s in announced.items() if s.ts <= oldest]:
                del announced[change]
            if not announced:
                del self._announced[job]
        for job, scopes in list(self._slow_at.items()):
            for scope in [scope for scope, ts in scopes.items() if ts <= oldest]:
                del scopes[scope]
            if not scopes:
                del self._slow_at[job]


def _age(s: Suspicion) -> tuple[float, float, str]:
    return s.onset, s.ts, s.subject.node or ""
