"""FindingStage: suspicions of a cluster in, versions of findings out; one finding per cause.

The rules live in ``alerts``; ``timeline`` feeds them in order of event time. Nodes, jobs and ranks are
weighed each by itself, and beside them what a cluster's racks and switches show together (``incidents``):
that decides how a node's cases are shown, never what they are. A hang, or slow transfers, are shown as part
of the finding about the machine that caused them (``hang_attribution``). Here is kept the last version of
each finding, so that only changes go out.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from alerts.cases.case import Case
from alerts.cases.explaining import leader_key
from alerts.cases.grouping import members_of
from alerts.cases.scope import Scope, scope_key
from alerts.cases.shadow import only_in_shadow, shadow_id, shadowed
from alerts.config import FindingConfig
from alerts.finding import Finding, dedup_key
from alerts.kinds import UNHEARD_KIND
from alerts.reasoning.corroborate import excused
from alerts.report.render import Sources, render, sources_of
from slowrank.telemetry import LinkDelay, NodeAnnounced, StartupPhase, Subject, Suspicion
from streams.cluster.hang_attribution import (
    HangAttribution,
    attributable,
    may_explain,
    may_wait,
    only_unheard,
    with_hangs,
)
from streams.cluster.incident_members import as_member, claim_on, with_members
from streams.cluster.incidents import INCIDENTS, Claim, Incidents
from streams.cluster.job_startup import Startups
from streams.cluster.link_delays import Pairwise
from streams.cluster.timeline import SCOPE, Timeline
from streams.stage import Input

_World = tuple[str, bool]
"""A scope, and whether it is as it would be if the detectors in shadow were on."""

_INCIDENTS = "/incidents"


@dataclass(frozen=True, slots=True)
class _Rendering:
    """A finding as it was last rendered: of which case of which scope, under which id."""

    scope: Scope
    identity: str | None
    sources: Sources
    finding: Finding


class FindingStage:
    """The stage behind the ``suspicions`` topic; keyed by cluster.

    Findings come with ``tick``: suspicions of one event time are weighed together, once that time has passed.
    The same set of suspicions, in any order within ``config.lateness_seconds`` and with any repeats, ends in
    the same findings; one that comes later still is not lost, but is taken as it comes.

    Suspicions in shadow are weighed apart, together with all others but unseen by them: what they alone lead
    to becomes findings in shadow.
    """

    def __init__(self, config: FindingConfig | None = None) -> None:
        self.config = config or FindingConfig()
        self._timelines: dict[_World, Timeline[Scope, Suspicion]] = {}
        self._said: dict[_World, dict[str, Finding]] = {}
        self._renderings: dict[tuple[_World, str], _Rendering] = {}
        self._incidents: dict[str, Timeline[Incidents, Suspicion | NodeAnnounced]] = {}
        self._hangs = HangAttribution(self.config)
        self._of_jobs: set[_World] = set()
        self._startups = Startups()
        self._pairwise = Pairwise()
        self._now = -math.inf

    def process(self, record: Input) -> Sequence[Finding]:
        """Take one suspicion; what follows from it comes with the next tick at or after its time."""
        match record:
            case Suspicion():
                self._suspect(record)
            case NodeAnnounced():
                self._hangs.runs(record.subject, record.ts)
                self._incidents_of(record.cluster).add(record)
            case StartupPhase():
                self._startups.update(record)
            case LinkDelay():
                self._pairwise.update(record)
        return ()

    def _suspect(self, s: Suspicion) -> None:
        if not s.shadow:
            self._hangs.runs(s.subject, s.ts)
        # A detector on trial must not change what others find: no incident is made of, or claims, what it
        # says.
        if s.subject.node is not None and not s.shadow:
            self._incidents_of(s.cluster).add(s)
        if s.kind != UNHEARD_KIND:
            real, shadow = (scope_key(s), False), (scope_key(s), True)
            if not s.shadow:
                self._timeline(real).add(s)
                if attributable(s.kind):
                    self._of_jobs.add(real)
            # The world in shadow hears the real ones too. It begins as a fork of what they have said so far.
            if s.shadow or shadow in self._timelines:
                self._timeline(shadow).add(s)

    def tick(self, event_time: float) -> Sequence[Finding]:
        """Let event time pass: weigh what has come in, and end what has been silent for long enough."""
        self._now = max(self._now, event_time)
        self._hangs.prune(self._now)
        for judged in (*self._startups.due(self._now), *self._pairwise.due(self._now)):
            self.process(judged)
        changed: list[Finding] = []
        moved: set[_World] = set()
        for cluster in sorted(c for c, timeline in self._incidents.items() if timeline.has_work(self._now)):
            news, scopes = self._reach_incidents(cluster)
            changed += news
            moved |= scopes
        # What is said of a job may change with its machines, without a word about the job itself.
        moved |= self._of_jobs
        due = [k for k, t in self._timelines.items() if k in moved or t.has_work(self._now)]
        # What stopped a job is known before it is shown that the job has stopped.
        for world in sorted(due, key=lambda k: (k in self._of_jobs, k)):
            changed += self._reach(world)
        return changed + self._changed_by_hangs()

    def _incidents_of(self, cluster: str) -> Timeline[Incidents, Suspicion | NodeAnnounced]:
        return self._incidents.setdefault(cluster, Timeline(INCIDENTS, self.config))

    def _timeline(self, world: _World) -> Timeline[Scope, Suspicion]:
        if world not in self._timelines:
            key, in_shadow = world
            real = self._timelines.get((key, False)) if in_shadow else None
            self._timelines[world] = Timeline(SCOPE, self.config) if real is None else real.fork()
            self._said[world] = {}
        return self._timelines[world]

    def _reach(self, world: _World) -> list[Finding]:
        timeline, changed = self._timelines[world], []
        states = list(timeline.reach(self._now)) if timeline.has_work(self._now) else [timeline.shown]
        for as_of, scope in states:
            changed += self._news(world, scope.cases, as_of, partial(self._of_case, world, scope))
        if timeline.empty:
            del self._timelines[world], self._said[world]
        if not any(self._may_be_explained(case) for case in states[-1][1].cases.values()):
            self._of_jobs.discard(world)
        return changed

    def _may_be_explained(self, case: Case) -> bool:
        """Return whether a machine's finding tells of a case about a job, or may before long."""
        if not attributable(case.kind):
            return False
        recent = self._now < (case.ended_at or -math.inf) + self.config.lateness_seconds
        return case.live or recent or self._hangs.explains(case.key)

    def _changed_by_hangs(self) -> list[Finding]:
        """Show again the findings about machines that now tell more, or less, of their jobs."""
        changed: list[Finding] = []
        moved = self._hangs.moved()
        for world in sorted(w for w, said in self._said.items() if not w[1] and moved & said.keys()):
            if world in self._timelines:
                as_of, scope = self._timelines[world].shown
                changed += self._news(world, scope.cases, as_of, partial(self._of_case, world, scope))
            else:
                as_of, after = self._incidents[world[0].removesuffix(_INCIDENTS)].shown
                changed += self._news(world, after.scope.cases, as_of, partial(self._of_incident, after))
        return changed

    def _reach_incidents(self, cluster: str) -> tuple[list[Finding], set[_World]]:
        """Let a cluster's incidents reach now; return the news, and the scopes whose cases changed hands."""
        timeline, world = self._incidents[cluster], (f"{cluster}{_INCIDENTS}", False)
        before = timeline.shown[1]
        for _ in timeline.reach(self._now):
            pass
        as_of, after = timeline.shown
        self._said.setdefault(world, {})
        changed = self._news(world, after.scope.cases, as_of, partial(self._of_incident, after))
        handed = before.claims.items() ^ after.claims.items()
        scopes = {scope_key((after.members.get(k) or before.members[k]).suspicions()[0]) for k, _ in handed}
        if timeline.empty:
            del self._incidents[cluster], self._said[world]
        return changed, {(key, False) for key in scopes} & self._timelines.keys()

    def _of_case(self, world: _World, scope: Scope, case: Case, identity: str | None) -> Finding | None:
        unseen = world[1] and case.key not in self._said[world] and not only_in_shadow(case)
        if unseen or case.rule.role == "evidence" or excused(case, scope.cases.values()):
            return None
        if world[1]:
            finding = self._rendered(world, scope, case, identity or shadow_id(case))
            return shadowed(finding, scope)
        finding = self._rendered(world, scope, case, identity)
        if attributable(case.kind):
            awaited = may_wait(case, self._now) and any(may_explain(s, case) for s in self._silences(case))
            return self._hangs.part(finding, case, self._causes(case), awaited=awaited)
        claim = self._claim_on(scope, case)
        return (
            with_hangs(finding, self._hangs.hangs_of(case.key))
            if claim is None
            else as_member(finding, claim)
        )

    def _rendered(self, world: _World, scope: Scope, case: Case, identity: str | None) -> Finding:
        """Return a case's finding within its scope, rendered anew only where what it is made from changed."""
        before = self._renderings.get((world, case.key))
        # Scopes are immutable: the same object has the same cases.
        if before is not None and before.scope is scope and before.identity == identity:
            return before.finding
        sources = sources_of(scope, case, self.config)
        if before is not None and before.sources == sources and before.identity == identity:
            finding = before.finding
        else:
            finding = render(sources, self.config, identity=identity)
        self._renderings[world, case.key] = _Rendering(scope, identity, sources, finding)
        return finding

    def _causes(self, hang: Case) -> Iterator[Case]:
        """Yield what has a finding of its own on the nodes of a hung job, or the incident it belongs to."""
        cluster = hang.subject.cluster
        for node in self._hangs.nodes_of(hang, self._now):
            timeline = self._timelines.get((f"{cluster}/node/{node}", False))
            scope = Scope() if timeline is None else timeline.shown[1]
            for case in scope.cases.values():
                claim = self._claim_on(scope, case)
                if claim is not None:
                    yield self._incidents[cluster].shown[1].scope.cases[claim.incident]
                elif leader_key(scope, case, self.config) is None:
                    yield case

    def _silences(self, hang: Case) -> Iterator[Case]:
        """Yield that a node of a hung job is unheard of, where no incident explains it."""
        cluster = hang.subject.cluster
        if cluster not in self._incidents:
            return
        state = self._incidents[cluster].shown[1]
        for node in self._hangs.nodes_of(hang, self._now):
            key = dedup_key(Subject(type="node", cluster=cluster, node=node), UNHEARD_KIND)
            if key in state.members and key not in state.claims:
                yield state.members[key]

    def _claim_on(self, scope: Scope, case: Case) -> Claim | None:
        """Return by which incident a case is explained: itself, or all the ranks that it is made of."""
        incidents = self._incidents.get(case.subject.cluster)
        if incidents is None:
            return None
        parts = (members_of(case, scope.cases, self.config) if case.made_of_ranks else ()) or (case,)
        claims = [claim_on(incidents.shown[1], part) for part in parts]
        known = [claim for claim in claims if claim is not None]
        return max(known, key=lambda claim: claim.at) if len(known) == len(parts) else None

    def _of_incident(self, incidents: Incidents, case: Case, identity: str | None) -> Finding:
        alone = sources_of(Scope({case.key: case}), case, self.config)
        finding = render(alone, self.config, identity=identity)
        hangs = self._hangs.hangs_of(case.key)
        if case.rule.until_hang and not hangs:
            finding = only_unheard(finding)
        return with_hangs(with_members(finding, incidents), hangs)

    def _news(
        self,
        world: _World,
        cases: Mapping[str, Case],
        as_of: float,
        show: Callable[[Case, str | None], Finding | None],
    ) -> list[Finding]:
        said, news = self._said[world], []
        for key, case in sorted(cases.items()):
            before = said.get(key)
            finding = show(case, self._identity(case, before))
            if finding is None:
                continue
            if finding != before:
                said[key] = finding
                # What is kept has no ``as_of``, so that time alone is no news. An end that a deadline brought
                # is later than the last word heard, and the store takes no version older than the one it
                # holds.
                news.append(replace(finding, as_of=max(as_of, case.ended_at or -math.inf)))
        for key in said.keys() - cases.keys():
            del said[key]
            self._renderings.pop((world, key), None)
            self._hangs.forget(key)
        return news

    def _identity(self, case: Case, before: Finding | None) -> str | None:
        """Return the id under which the finding was first shown, also when an earlier onset came in late."""
        if before is None:
            return None
        ended = before.last_seen_at if before.resolved_at is None else before.resolved_at
        return before.id if case.first_onset <= ended + self.config.reopen_within_seconds else None
