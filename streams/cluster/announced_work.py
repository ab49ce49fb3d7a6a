"""Announcements of other work (``job.schedule``), for the scopes of the machines that are slow in its job."""

from collections.abc import Iterator

from msgspec.structs import replace

from alerts.cases.ending import ASIDE_SECONDS
from alerts.cases.scope import scope_key
from alerts.kinds import PLANNED, RESCHEDULED, kind_of
from slowrank.telemetry import Suspicion

# Announcements and scopes that are kept of a job. Chosen: jobs change their work every few minutes at most,
# and scopes are its machines.
_MOST_ANNOUNCED, _MOST_SCOPES = 16, 4096

_Job = tuple[str, str]
"""Cluster and id of a job."""

_Scope = tuple[str, bool]
"""Key of a scope, and whether its suspicion is in shadow."""


class AnnouncedWork:
    """Brings together what a job announces and which machines are slow in it, whichever comes first."""

    def __init__(self) -> None:
        self._announced: dict[_Job, list[Suspicion]] = {}
        self._slow_at: dict[_Job, dict[_Scope, float]] = {}

    def meet(self, s: Suspicion) -> Iterator[tuple[str, Suspicion]]:
        """Yield (scope, announcement) for each announcement that is new to a scope with the suspicion."""
        job = (s.cluster, s.subject.job_id or "")
        if s.kind == PLANNED and s.detector == RESCHEDULED:
            self._announced[job] = [*self._announced.get(job, ()), s][-_MOST_ANNOUNCED:]
            for scope, in_shadow in self._slow_at.get(job, ()):
                yield scope, replace(s, shadow=in_shadow)
        elif s.subject.job_id and kind_of(s.kind).warms_up:
            scopes, at = self._slow_at.setdefault(job, {}), (scope_key(s), s.shadow)
            if at in scopes:
                scopes[at] = max(s.ts, scopes[at])
            elif len(scopes) < _MOST_SCOPES:
                scopes[at] = s.ts
                for announced in self._announced.get(job, ()):
                    yield at[0], replace(announced, shadow=s.shadow)

    def forget(self, event_time: float) -> None:
        """Drop what is older than cases of what jobs declare are kept."""
        oldest = event_time - ASIDE_SECONDS
        for job, announced in list(self._announced.items()):
            if not any(s.ts > oldest for s in announced):
                del self._announced[job]
        for job, scopes in list(self._slow_at.items()):
            for scope in [scope for scope, ts in scopes.items() if ts <= oldest]:
                del scopes[scope]
            if not scopes:
                del self._slow_at[job]
