"""FindingStage: suspicions of a cluster in, versions of findings out; one finding per cause.

The rules are in ``alerts``; ``timeline`` applies them in order of event time, to the cases of each node, job
and rank. Three things change how a case is shown, and never what it is: incidents of a rack, switch or site
(``incidents``), the attribution of hangs and slow transfers to the machine that caused them
(``hang_attribution``), and shadow mode. The stage keeps the last version of each finding, so that only
changes go out.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from alerts.cases.case import Case
from alerts.cases.explaining import began_at, explaining_key
from alerts.cases.grouping import members_of
from alerts.cases.scope import Scope, scope_key
from alerts.cases.shadow import raised_in_shadow, shadow_id, shadowed
from alerts.config import FindingConfig
from alerts.finding import Finding, dedup_key
from alerts.kinds import UNHEARD_KIND
from alerts.reasoning.corroborate import awaits_next_attempt, excused, is_open_about_job
from alerts.report.render import Sources, render, sources_of
from slowrank.telemetry import (
    HangVote,
    JobNodes,
    LinkDelay,
    LoadedMinute,
    NodeAnnounced,
    RankPace,
    StartupPhase,
    StepsReported,
    Subject,
    Suspicion,
)
from slowrank.telemetry.hardware.boards import on_board
from streams.cluster.announced_work import AnnouncedWork
from streams.cluster.hang_attribution import (
    HangAttribution,
    all_silent,
    as_missing_telemetry,
    attributable,
    confirmed_by,
    may_explain,
    may_wait,
    with_failure,
    with_hangs,
)
from streams.cluster.incidents.fold import INCIDENTS
from streams.cluster.incidents.members import Incidents, Membership, as_member, membership_of, with_members
from streams.cluster.job_startup import Startups
from streams.cluster.later_job import recovered
from streams.cluster.link_delays import Pairwise
from streams.cluster.shared_clocks import SharedClocks
from streams.cluster.stuck_jobs import StuckJobs
from streams.cluster.timeline import SCOPE, Timeline
from streams.stage import Input

_ScopeId = tuple[str, bool]
"""Key of a scope, and whether suspicions in shadow count in it."""

_INCIDENTS = "/incidents"


@dataclass(frozen=True, slots=True)
class _Rendering:
    """A finding as it was last rendered, and from what."""

    scope: Scope
    identity: str | None
    sources: Sources
    finding: Finding


class FindingStage:
    """Turn the messages of the ``suspicions`` topic into findings; keyed by cluster.

    Findings come with ``tick``: suspicions of one event time are weighed together, once that time has passed.
    The same set of suspicions, in any order within ``config.lateness_seconds`` and with any repeats, ends in
    the same findings; one that is later than that is applied when it comes.

    Shadow state receives live suspicions and those in shadow; live state only live ones. What opens in shadow
    state alone becomes a finding in shadow.
    """

    def __init__(self, config: FindingConfig | None = None) -> None:
        self.config = config or FindingConfig()
        self._timelines: dict[_ScopeId, Timeline[Scope, Suspicion]] = {}
        self._shown: dict[_ScopeId, dict[str, Finding]] = {}
        self._renderings: dict[tuple[_ScopeId, str], _Rendering] = {}
        self._incidents: dict[str, Timeline[Incidents, Suspicion | NodeAnnounced]] = {}
        self._hangs = HangAttribution(self.config)
        self._of_jobs: set[_ScopeId] = set()
        # Whether they count depends on announcements of nodes, which another partition may bring later.
        self._votes_alone: list[HangVote] = []
        self._announced_work = AnnouncedWork()
        self._startups = Startups()
        self._pairwise = Pairwise()
        self._clocks = SharedClocks()
        self._stuck = StuckJobs()
        self._now = -math.inf

    def process(self, record: Input) -> Sequence[Finding]:
        """Take one message; the findings that follow come with the next tick at or after its time."""
        match record:
            case HangVote() if record.alone:
                self._votes_alone.append(record)
            case Suspicion():
                self._suspect(record)
                if isinstance(record, HangVote):
                    self._stuck.update(record)
            case NodeAnnounced():
                votes = record.gpus > 0 < record.ports
                self._hangs.runs(record.cluster, record.node, record.job_id, record.ts, votes=votes)
                self._incidents_of(record.cluster).add(record)
                self._stuck.update(record)
            case StepsReported():
                self._stuck.update(record)
            case JobNodes():
                for node in record.nodes:
                    self._hangs.runs(record.cluster, node, record.job_id, record.ts)
            case StartupPhase():
                self._startups.update(record)
            case LinkDelay():
                self._pairwise.update(record)
            case LoadedMinute():
                self._clocks.update(record)
            case RankPace():
                self._keeps_pace(record)
        return ()

    def _keeps_pace(self, pace: RankPace) -> None:
        """End what earlier jobs found slow at a GPU that keeps pace with its peers in another one."""
        for in_shadow in (False, True):
            timeline = self._timelines.get((f"{pace.cluster}/node/{pace.node}", in_shadow))
            if timeline is not None:
                for over in recovered(timeline.shown[1].cases.values(), pace):
                    if over.shadow == in_shadow:
                        self._suspect(over)

    def _suspect(self, s: Suspicion) -> None:
        if not s.shadow:
            self._hangs.runs(s.cluster, s.subject.node, s.subject.job_id, s.ts)
        # A detector on trial must not change live findings: incidents ignore its suspicions.
        if s.subject.node is not None and not s.shadow:
            self._incidents_of(s.cluster).add(s)
        if s.kind != UNHEARD_KIND:
            for scope, announced in self._announced_work.announcements_for(s):
                self._add(scope, announced)
            self._add(scope_key(s), s)

    def _add(self, scope: str, s: Suspicion) -> None:
        live, shadow = (scope, False), (scope, True)
        if not s.shadow:
            self._timeline(live).add(s)
            if attributable(s.kind):
                self._of_jobs.add(live)
        # Shadow state also receives live suspicions; it begins as a copy of the live state.
        if s.shadow or shadow in self._timelines:
            self._timeline(shadow).add(s)

    def tick(self, event_time: float) -> Sequence[Finding]:
        """Let event time pass: return the findings that open, change or end by then."""
        self._now = max(self._now, event_time)
        self._hangs.prune(self._now, in_use=self._of_jobs)
        self._announced_work.forget(self._now)
        ready, self._votes_alone = _split(self._votes_alone, self._now)
        for vote in ready:
            self._suspect(self._hangs.weighed(vote))
        for vote in self._stuck.due(self._now):
            self._suspect(vote)
        for judging in (self._startups, self._pairwise, self._clocks):
            for judged in judging.due(self._now):
                self.process(judged)
        changed: list[Finding] = []
        moved: set[_ScopeId] = set()
        for cluster in sorted(c for c, timeline in self._incidents.items() if timeline.has_work(self._now)):
            incidents, scopes = self._reach_incidents(cluster)
            changed += incidents
            moved |= scopes
        # The finding about a job may change with those about its machines.
        moved |= self._of_jobs
        due = [k for k, t in self._timelines.items() if k in moved or t.has_work(self._now)]
        # Jobs last: what stopped a job is up to date before the stop is attributed.
        for scope_id in sorted(due, key=lambda k: (k in self._of_jobs, k)):
            changed += self._reach(scope_id)
        return changed + self._changed_by_hangs()

    def _incidents_of(self, cluster: str) -> Timeline[Incidents, Suspicion | NodeAnnounced]:
        return self._incidents.setdefault(cluster, Timeline(INCIDENTS, self.config))

    def _timeline(self, scope_id: _ScopeId) -> Timeline[Scope, Suspicion]:
        if scope_id not in self._timelines:
            key, in_shadow = scope_id
            live = self._timelines.get((key, False)) if in_shadow else None
            self._timelines[scope_id] = Timeline(SCOPE, self.config) if live is None else live.fork()
            self._shown[scope_id] = {}
        return self._timelines[scope_id]

    def _reach(self, scope_id: _ScopeId) -> list[Finding]:
        timeline, changed = self._timelines[scope_id], []
        states = list(timeline.reach(self._now)) if timeline.has_work(self._now) else [timeline.shown]
        if scope_id in self._of_jobs:
            for node_scope in self._confirm(states[-1][1]):
                changed += self._reach(node_scope)
            if failed := self._failures(states[-1][1]):
                for vote in failed:
                    self._suspect(vote)
                states[-1:] = timeline.reach(self._now)
        for as_of, scope in states:
            changed += self._changes(scope_id, scope.cases, as_of, partial(self._of_case, scope_id, scope))
        if timeline.empty:
            del self._timelines[scope_id], self._shown[scope_id]
        if not any(self._may_be_explained(case) for case in states[-1][1].cases.values()):
            self._of_jobs.discard(scope_id)
        return changed

    def _confirm(self, scope: Scope) -> list[_ScopeId]:
        """Confirm what nodes showed as the job of a scope stopped or became slow; return the scopes of these
        nodes."""
        cases = scope.cases.values()
        stops = [case for case in cases if is_open_about_job(case) or awaits_next_attempt(case, cases)]
        found = [s for case in stops for s in confirmed_by(case, self._causes(case), self.config)]
        for s in found:
            self._suspect(s)
        return sorted({(scope_key(s), False) for s in found})

    def _failures(self, scope: Scope) -> list[HangVote]:
        """Return what is to be added to the stops of a job that are not found to be hangs."""
        cases = scope.cases.values()
        stops = [case for case in cases if awaits_next_attempt(case, cases)]
        votes = (with_failure(case, self._causes(case), self.config) for case in stops)
        return [vote for vote in votes if vote is not None]

    def _may_be_explained(self, case: Case) -> bool:
        """Return whether a machine's finding explains a case about a job, or may soon."""
        if not attributable(case.kind):
            return False
        recent = self._now < (case.ended_at or -math.inf) + self.config.lateness_seconds
        return case.live or recent or self._hangs.explains(case.key)

    def _changed_by_hangs(self) -> list[Finding]:
        """Return the findings about machines to which hangs were attributed, or are not any more."""
        changed: list[Finding] = []
        moved = self._hangs.moved()
        for scope_id in sorted(i for i, shown in self._shown.items() if not i[1] and moved & shown.keys()):
            if scope_id in self._timelines:
                as_of, scope = self._timelines[scope_id].shown
                changed += self._changes(
                    scope_id, scope.cases, as_of, partial(self._of_case, scope_id, scope)
                )
            else:
                as_of, after = self._incidents[scope_id[0].removesuffix(_INCIDENTS)].shown
                changed += self._changes(
                    scope_id, after.scope.cases, as_of, partial(self._of_incident, after)
                )
        return changed

    def _reach_incidents(self, cluster: str) -> tuple[list[Finding], set[_ScopeId]]:
        """Bring a cluster's incidents up to date; return their changed findings, and the scopes of the cases
        that joined or left one."""
        timeline, scope_id = self._incidents[cluster], (f"{cluster}{_INCIDENTS}", False)
        before = timeline.shown[1]
        for _ in timeline.reach(self._now):
            pass
        as_of, after = timeline.shown
        self._shown.setdefault(scope_id, {})
        changed = self._changes(scope_id, after.scope.cases, as_of, partial(self._of_incident, after))
        moved = before.memberships.items() ^ after.memberships.items()
        scopes = {scope_key((after.members.get(k) or before.members[k]).suspicions()[0]) for k, _ in moved}
        if timeline.empty:
            del self._incidents[cluster], self._shown[scope_id]
        return changed, {(key, False) for key in scopes} & self._timelines.keys()

    def _of_case(self, scope_id: _ScopeId, scope: Scope, case: Case, identity: str | None) -> Finding | None:
        unseen = scope_id[1] and case.key not in self._shown[scope_id] and not raised_in_shadow(case)
        if unseen or case.rule.reported_as == "evidence" or excused(case, scope.cases.values()):
            return None
        if scope_id[1]:
            finding = self._rendered(scope_id, scope, case, identity or shadow_id(case))
            return shadowed(finding, scope)
        finding = self._rendered(scope_id, scope, case, identity)
        if attributable(case.kind):
            awaited = may_wait(case, self._now) and any(may_explain(s, case) for s in self._silences(case))
            return self._hangs.part(finding, case, self._causes(case), awaited=awaited)
        membership = self._membership(scope, case)
        if membership is not None:
            return as_member(finding, membership)
        return with_hangs(finding, self._hangs.hangs_of(case.key))

    def _rendered(self, scope_id: _ScopeId, scope: Scope, case: Case, identity: str | None) -> Finding:
        """Return a case's finding within its scope, rendered anew only where what it is made from changed."""
        before = self._renderings.get((scope_id, case.key))
        # Scopes are immutable: the same object has the same cases.
        if before is not None and before.scope is scope and before.identity == identity:
            return before.finding
        sources = sources_of(scope, case, self.config)
        if before is not None and before.sources == sources and before.identity == identity:
            finding = before.finding
        else:
            finding = render(sources, self.config, identity=identity)
        self._renderings[scope_id, case.key] = _Rendering(scope, identity, sources, finding)
        return finding

    def _causes(self, hang: Case) -> Iterator[Case]:
        """Yield the unexplained cases on the nodes of a hung job, or the incidents they are members of.

        A case comes dated as the first of the fatal faults that it took over from.
        """
        cluster = hang.subject.cluster
        scopes = {node: self._of_node(cluster, node) for node in self._hangs.nodes_of(hang, self._now)}
        dark = all_silent(self._silences_of(cluster, scopes), hang)
        for scope in scopes.values():
            for case in scope.cases.values():
                membership = self._membership(scope, case)
                if membership is not None:
                    yield self._incidents[cluster].shown[1].scope.cases[membership.incident]
                elif explaining_key(scope, case, self.config) is None and not (dark and case.rule.with_hang):
                    yield replace(case, since=began_at(scope, case, self.config))

    def _silences_of(self, cluster: str, scopes: Mapping[str, Scope]) -> list[Case | None]:
        """Return for each node that sends telemetry the case that it is missing, None where it is not."""
        incidents = self._incidents.get(cluster)
        sending = {} if incidents is None else incidents.shown[1].layout.known
        found = {
            node: next((case for case in scope.cases.values() if case.rule.with_hang), None)
            for node, scope in scopes.items()
        }
        return [case for node, case in found.items() if case is not None or node in sending]

    def _of_node(self, cluster: str, node: str) -> Scope:
        timeline = self._timelines.get((f"{cluster}/node/{node}", False))
        return Scope() if timeline is None else timeline.shown[1]

    def _silences(self, hang: Case) -> Iterator[Case]:
        """Yield the cases of a hung job's nodes without telemetry, where no incident explains them."""
        cluster = hang.subject.cluster
        if cluster not in self._incidents:
            return
        state = self._incidents[cluster].shown[1]
        for node in self._hangs.nodes_of(hang, self._now):
            key = dedup_key(Subject(type="node", cluster=cluster, node=node), UNHEARD_KIND)
            if key in state.members and key not in state.memberships:
                yield state.members[key]

    def _membership(self, scope: Scope, case: Case) -> Membership | None:
        """Return of which incident a case is a member: itself, or all the ranks that it is made of."""
        incidents = self._incidents.get(case.subject.cluster)
        if incidents is None:
            return None
        parts = (members_of(case, scope.cases, self.config) if case.made_of_ranks else ()) or (case,)
        found = [membership_of(incidents.shown[1], part) for part in parts]
        memberships = [membership for membership in found if membership is not None]
        return max(memberships, key=lambda m: m.since) if len(memberships) == len(parts) else None

    def _of_incident(self, incidents: Incidents, case: Case, identity: str | None) -> Finding:
        alone = sources_of(Scope({case.key: case}), case, self.config)
        finding = render(alone, self.config, identity=identity)
        hangs = self._hangs.hangs_of(case.key)
        if case.rule.until_hang and not hangs:
            finding = as_missing_telemetry(finding)
        return with_hangs(with_members(finding, incidents), hangs)

    def _changes(
        self,
        scope_id: _ScopeId,
        cases: Mapping[str, Case],
        as_of: float,
        show: Callable[[Case, str | None], Finding | None],
    ) -> list[Finding]:
        """Return the findings of the cases that differ from those last shown."""
        shown, changed = self._shown[scope_id], []
        for key, case in sorted(cases.items()):
            before = shown.get(key)
            finding = show(case, self._identity(case, before))
            if finding is not None and finding.subject.gpu_index is not None:
                finding = replace(finding, subject=self._on_board(finding, before))
            if finding is not None and finding != before:
                # Kept without ``as_of``: time alone is no change. A version is as of the last suspicion, or
                # of the deadline that ended it, for the store refuses older versions than it holds.
                shown[key] = finding
                changed.append(replace(finding, as_of=max(as_of, case.ended_at or -math.inf)))
        for key in shown.keys() - cases.keys():
            del shown[key]
            self._renderings.pop((scope_id, key), None)
            self._hangs.forget(key)
        return changed

    def _on_board(self, finding: Finding, before: Finding | None) -> Subject:
        """Return the subject with the board of its GPU: the one that was there when the finding was first
        shown with one."""
        subject = finding.subject
        if before is not None and before.id == finding.id and before.subject.gpu_uuid is not None:
            return on_board(subject, {str(subject.gpu_index): _board(before.subject)})
        incidents = self._incidents.get(subject.cluster)
        where = None if incidents is None else incidents.shown[1].layout.known.get(subject.node or "")
        return subject if where is None else on_board(subject, where.boards)

    def _identity(self, case: Case, before: Finding | None) -> str | None:
        """Return the id under which the finding was first shown, also when an earlier onset came in late."""
        if before is None:
            return None
        ended = before.last_seen_at if before.resolved_at is None else before.resolved_at
        return before.id if case.first_onset <= ended + self.config.reopen_within_seconds else None


def _board(subject: Subject) -> str:
    return "/".join(name for name in (subject.gpu_uuid, subject.serial) if name)


def _split(votes: Sequence[HangVote], now: float) -> tuple[list[HangVote], list[HangVote]]:
    """Return the votes up to event time ``now``, and those after it."""
    return [v for v in votes if v.ts <= now], [v for v in votes if v.ts > now]
