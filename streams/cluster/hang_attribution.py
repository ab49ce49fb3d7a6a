"""Attribution of hangs: which finding about a machine explains that a job stopped, or transfers slowly.

Machines and jobs are judged separately. A stopped job is shown as part of the finding about a machine if

* the machine runs the job (named with it within ten minutes before the stop), and
* a fatal fault began there between one minute before the stop and 15 s after it, or one that most jobs
  survive (``may_stop_job``: a port that went down, a task blocked in the kernel, missing telemetry) within
  ± 15 s, and
* that finding is open, or ended after the stop.

A job whose processes end at once shows no hang: that a fatal fault of hardware stopped it is added to the
vote of its steps (``with_failure``). Each stop of a job has a cause of its own.

Of several causes, the earliest wins; among those within 1.5 s, the gravest, then one that the votes of the
hang name as a suspect. The finding gains the hang's evidence and cost, and the hang itself is no longer
notified. A job whose transfers are slow is attributed in the same way (``slow_transfers``).

The times are chosen: a job stops at its last step, which may be a step before the fault, and nodes are read
once a second. Whether a cause is found is measured by ``python -m benchmarks quality --part hang``.
"""

import math
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from alerts.cases.case import Case
from alerts.cases.lifecycle import LIVE, NOTIFIED
from alerts.cases.scope import job_scope
from alerts.config import FindingConfig
from alerts.finding import BlastRadius, Finding
from alerts.kind import Standing
from alerts.kinds import kind_of
from alerts.reasoning.hang import ONSET_APART_SECONDS, votes_among
from alerts.report.action import action, check_uplinks, paging
from alerts.report.render import MAX_EVIDENCE
from alerts.report.severity import severity
from alerts.report.title import title
from alerts.stated_severity import ORDER
from slowrank.telemetry import HangVote, Suspicion
from slowrank.telemetry.records import Severity
from streams.cluster.slow_transfers import harm, slows, slows_alone, the_one_port

# A job stops at its last step, up to a step before the fault (chosen: longer than most steps).
AFTER_SECONDS = 15.0

# A node runs a job while it was reported with it so lately (chosen: twice the usual five minutes).
PRESENT_SECONDS = 600.0

# A hang with a silent node waits so long for the finding about the node (chosen: the silence of a node that
# sends once a second is found within it).
AWAITED_SECONDS = 7.0

# How long before the finding about its silence a node has sent nothing (``SilenceConfig.unheard`` at one
# record a second).
_UNHEARD_SECONDS = 5.0

# Beginnings of the detectors that read the logs and counters of a machine.
_OF_MACHINE = ("event.", "counter.")

# Time between two clean-ups, and without a report after which a job without cases is forgotten (chosen:
# longer than suspicions come late).
PRUNE_SECONDS = 3600.0


# How long after its nodes are known to vote on its stops a job is. Chosen: a stop is repeated for a day
# (``detectors.job.progress``), and must not count alone then.
VOTED_SECONDS = 25 * 3600.0


def attributable(kind: str) -> bool:
    """Return whether a finding about a machine may explain this kind: a stop of a job, or its slowness."""
    row = kind_of(kind)
    return row.hang or row.no_culprit


@dataclass(frozen=True, slots=True)
class _Part:
    """A stop of a job that the finding of dedup key ``cause`` explains, as its hang was ``shown``.

    ``lost``: GPU-hours of the hang's case up to this stop, which are on the accounts of causes.
    """

    cause: str
    shown: Finding
    lost: float

    def over(self, later: Case) -> "_Part":
        """Return it as it is once the case has stopped again later."""
        if self.shown.status not in LIVE:
            return self
        ended = replace(
            self.shown,
            status="resolved",
            resolved_at=later.since,
            gpu_hours_lost_per_hour=0.0,
            cost_per_hour=None,
        )
        return replace(self, shown=ended)


class HangAttribution:
    """Where jobs run, and which hangs are explained by which finding.

    Both follow from the suspicions up to a time, in whatever order they came within an hour.
    """

    def __init__(self, config: FindingConfig) -> None:
        self._config = config
        self._runs: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
        self._voting: dict[tuple[str, str], tuple[float, float]] = {}
        # Of each job's hang the explained stops, by their onset.
        self._parts: dict[str, dict[float, _Part]] = {}
        self._moved: set[str] = set()
        self._pruned_at = -math.inf

    def runs(
        self, cluster: str, node: str | None, job_id: str | None, ts: float, *, votes: bool = False
    ) -> None:
        """Note from any message about a node which job it runs, and whether it can vote on a hang."""
        if node is None or job_id is None:
            return
        job = (cluster, job_id)
        if votes:
            first, last = self._voting.get(job, (ts, ts))
            self._voting[job] = min(first, ts), max(last, ts)
        nodes = self._runs.setdefault(job, {})
        first, last = nodes.get(node, (ts, ts))
        nodes[node] = (min(first, ts), max(last, ts))

    def weighed(self, vote: HangVote) -> HangVote:
        """Return a vote of the steps; where nodes can vote on their job, it does not count alone."""
        voting, _ = self._voting.get((vote.cluster, vote.subject.job_id or ""), (math.inf, math.inf))
        return vote if vote.onset < voting else msgspec.structs.replace(vote, alone=False, severity=None)

    def nodes_of(self, hang: Case, now: float) -> list[str]:
        """Return in order of their names the nodes that ran the job of ``hang`` when it stopped."""
        nodes = self._runs.get((hang.subject.cluster, hang.subject.job_id or ""), {})
        stop = hang.since
        return sorted(
            n for n, (first, last) in nodes.items() if first <= now and last >= stop - PRESENT_SECONDS
        )

    def part(self, finding: Finding, hang: Case, causes: Iterable[Case], *, awaited: bool = False) -> Finding:
        """Return the finding of a hang as it is shown: as part of the one of ``causes`` that explains it.

        A relapse that is only suspected leaves the finding of the last stop as it was. While its cause may
        still be found (``awaited``), the hang is suspected.
        """
        if hang.status == "suspected" and hang.opened_at is not None:
            return finding
        stopped = hang.opened_at is not None
        found = explanations(causes, hang, finding, self._config) if stopped else []
        cause = leading(found, hang, finding)
        before = self._parts.pop(hang.key, {})
        # What earlier stops cost stays with their causes; slow spells of a job are one.
        earlier = {since: part for since, part in before.items() if hang.rule.hang and since < hang.since}
        after = {since: part.over(hang) for since, part in earlier.items()}
        finding = _without(finding, max((part.lost for part in after.values()), default=0.0))
        if cause is not None:
            shown = self._standing_still(finding, hang, cause)
            if slows_alone(cause, hang, found):
                shown = replace(shown, severity=harm(cause, hang, self._config))
            after[hang.since] = _Part(cause.key, shown, hang.account.lost)
        if after:
            self._parts[hang.key] = after
        if before != after:
            self._moved |= {part.cause for part in (*before.values(), *after.values())}
        if cause is None and stopped and awaited and finding.status in NOTIFIED:
            return replace(finding, status="suspected")
        return finding if cause is None else as_part(finding, cause)

    def _standing_still(self, finding: Finding, hang: Case, cause: Case) -> Finding:
        """Return the finding of a hang with what its job loses until ``cause`` has ended or it moves."""
        account, ended_at = hang.account, math.inf if hang.live else hang.ended_at
        if ended_at is None:
            return finding
        lost = account.after_end(ended_at, math.inf if cause.ended_at is None else cause.ended_at)
        if not lost:
            return finding
        waits = account.stalled and cause.live
        rate = float(account.gpus) if waits else 0.0
        price = self._config.gpu_hour_price
        return replace(
            finding,
            gpu_hours_lost=round((finding.gpu_hours_lost or 0.0) + lost, 4),
            gpu_hours_lost_per_hour=rate,
            cost_per_hour=round(rate * price, 2) if price is not None and rate else None,
            last_seen_at=max(finding.last_seen_at, account.accrued_to) if waits else finding.last_seen_at,
        )

    def hangs_of(self, key: str) -> list[Finding]:
        """Return the hangs that the finding of dedup key ``key`` explains."""
        jobs = (parts for _, parts in sorted(self._parts.items()))
        stops = ([part.shown for part in parts.values() if part.cause == key] for parts in jobs)
        return [_together(of_job) for of_job in stops if of_job]

    def explains(self, key: str) -> bool:
        """Return whether a finding explains the case ``key`` about a job."""
        return key in self._parts

    def moved(self) -> set[str]:
        """Return, once, the dedup keys of the findings whose hangs have changed."""
        moved, self._moved = self._moved, set()
        return moved

    def forget(self, key: str) -> None:
        """Drop the hangs of the finding of dedup key ``key``; one that is over stays with its finding."""
        kept = {
            hang: {since: part for since, part in parts.items() if part.cause != key}
            for hang, parts in self._parts.items()
        }
        self._parts = {hang: parts for hang, parts in kept.items() if parts}

    def prune(self, now: float, *, in_use: Container[tuple[str, bool]]) -> None:
        """Drop, once an hour, the jobs without a report for an hour, but for those with a scope ``in_use``
        (its key, and whether it is in shadow)."""
        if now < self._pruned_at + PRUNE_SECONDS:
            return
        self._pruned_at = now
        for (cluster, job), nodes in list(self._runs.items()):
            silent = max(last for _, last in nodes.values()) < now - PRUNE_SECONDS
            if silent and (job_scope(cluster, job), False) not in in_use:
                del self._runs[cluster, job]
        oldest = now - VOTED_SECONDS
        self._voting = {job: times for job, times in self._voting.items() if times[1] >= oldest}


def explanations(causes: Iterable[Case], hang: Case, finding: Finding, config: FindingConfig) -> list[Case]:
    """Return those of ``causes`` that may explain the hang, or the slow transfers, of this ``finding``."""
    if hang.rule.hang:
        return _of_one_node([case for case in causes if _explains(case, hang.since, config)])
    if not _of_network(hang):
        return []
    named = {s.subject.node for s in finding.suspects}
    reported = (case for case in causes if _is_reported(case, hang.since))
    return [case for case in reported if slows(case, hang, named, config)]


def with_failure(hang: Case, causes: Iterable[Case], config: FindingConfig) -> HangVote | None:
    """Return the last vote of the steps on a stop with which a machine of the job failed; None if none did.

    An XID of a program is a warning, and comes as well where its job is ended from outside; so does missing
    telemetry. What counts is what a log or a counter of the machine says.
    """
    graver = [case for case in causes if _fails_at_once(case)]
    failed_at = [c.opened_at for c in graver if c.opened_at is not None and _explains(c, hang.since, config)]
    if not failed_at:
        return None
    last = max(votes_among(hang.suspicions()), key=lambda vote: (vote.ts, vote.detector))
    at = max(last.ts, min(failed_at))
    return msgspec.structs.replace(last, state="update", ts=at, machine_failed=True)


def _fails_at_once(case: Case) -> bool:
    if case.rule.stops_job_by:
        return True
    reported = any(s.detector.startswith(_OF_MACHINE) for s in case.suspicions())
    return reported and case.rule.standing is Standing.FATAL and case.rule.severity != "warning"


def confirmed_by(hang: Case, causes: Iterable[Case], config: FindingConfig) -> list[Suspicion]:
    """Return what a node showed as its job stopped, or became slow, if that is what confirms it."""
    if hang.rule.hang:
        earliest, latest = hang.since - AFTER_SECONDS, hang.since + AFTER_SECONDS
        stopping = [case for case in causes if case.rule.stops_job_by and _began(case, earliest, latest)]
        signs = [(case, _stopping(case)) for case in _of_one_node(stopping)]
    else:
        signs = the_one_port(causes, hang, config) if _of_network(hang) else []
    weak = [s for case, shown in signs if case.status == "suspected" and case.active for s in shown]
    votes = [vote.ts for vote in votes_among(hang.suspicions())]
    found_at = max(votes) if hang.opened_at is None else hang.opened_at
    return [
        msgspec.structs.replace(s, state="update", ts=max(s.ts, found_at), overwhelming=True) for s in weak
    ]


def leading(found: Sequence[Case], hang: Case, finding: Finding) -> Case | None:
    """Return of the cases that may explain the hang the earliest, or of those at once the likeliest to
    blame."""
    if not found:
        return None
    named = {s.subject.node for s in finding.suspects} if hang.rule.hang else set()
    # What came later may be a consequence of the stop itself.
    latest = min(case.since for case in found) + ONSET_APART_SECONDS
    return min(
        (case for case in found if case.since <= latest),
        key=lambda c: (c.rule.standing, c.subject.node not in named, c.since, c.key),
    )


def as_part(hang: Finding, cause: Case) -> Finding:
    """Return the finding of an explained hang: resolved if it was opened before, else unopened."""
    opened = cause.since if cause.opened_at is None else max(cause.opened_at, cause.since)
    if cause.rule.with_hang:
        opened -= _UNHEARD_SECONDS
    if hang.detected_at < opened:
        return replace(hang, status="resolved", resolved_at=opened, group_key=cause.key)
    return replace(hang, status="suspected" if hang.status in NOTIFIED else hang.status, group_key=cause.key)


def with_hangs(finding: Finding, hangs: Sequence[Finding]) -> Finding:
    """Return the finding with what its hangs show and cost; it is open as long as one of them is."""
    if not hangs:
        return finding
    confirmed = kind_of(finding.kind).with_hang
    shown = finding if confirmed is None else _confirmed(finding, hangs, confirmed)
    everything = (finding, *hangs)
    # A hang that is part of another finding is on that account.
    charged = (finding, *(hang for hang in hangs if hang.group_key is None))
    live = any(hang.status in LIVE for hang in hangs)
    ended = [f.resolved_at for f in everything if f.resolved_at is not None]
    over = finding.status not in LIVE
    graver = max(shown.severity, _severity(finding, hangs), key=ORDER.index)
    step = shown.action
    if graver == "critical":
        why = shown.kind if shown.cause is None else shown.cause.hypothesis
        step = paging(step, shown.subject, finding_id=finding.id, why=why)
    return replace(
        shown,
        action=step,
        status="open" if over and live else finding.status,
        resolved_at=max(ended) if over and not live else None,
        severity=graver,
        last_seen_at=max(f.last_seen_at for f in everything),
        job_slowdown_ratio=max(
            (r for f in everything if (r := f.job_slowdown_ratio) is not None), default=None
        ),
        gpu_hours_lost=_sum(f.gpu_hours_lost for f in charged),
        gpu_hours_lost_per_hour=_sum(f.gpu_hours_lost_per_hour for f in charged),
        cost_per_hour=_sum(f.cost_per_hour for f in charged),
        evidence=(*finding.evidence, *(e for h in hangs for e in h.evidence))[:MAX_EVIDENCE],
        blast_radius=_blast(finding, hangs),
    )


def as_missing_telemetry(finding: Finding) -> Finding:
    """Return the finding of a rack or switch whose nodes fell silent together while no job stopped.

    They may be well and only their exporters silent; a job that stops with them confirms that they are gone.
    """
    subject, row = finding.subject, kind_of(finding.kind)
    kind = row.until_hang or finding.kind
    return replace(
        finding,
        kind=kind,
        title=title(kind, subject),
        severity=row.severity,
        action=check_uplinks(subject),
    )


def may_wait(hang: Case, now: float) -> bool:
    """Return whether a hang was found so lately that its cause may not be found yet."""
    if not hang.rule.hang or hang.opened_at is None:
        return False
    return now < hang.opened_at + AWAITED_SECONDS


def may_explain(silence: Case, hang: Case) -> bool:
    """Return whether a node sent nothing when the hang was found, and fell silent as the job stopped."""
    if hang.opened_at is None or not silence.active or silence.last_seen_at > hang.opened_at:
        return False
    return abs(silence.since - hang.since) <= AFTER_SECONDS


def all_silent(silences: Sequence[Case | None], hang: Case) -> bool:
    """Return whether all nodes of a job, of two or more, fell silent before it stopped or as it did.

    ``silences``: of each node the case of its missing telemetry. No node then shows that the others wait for
    one that is gone: the job may have ended, and what collected the telemetry with it.
    """
    return len(silences) > 1 and all(case is not None and _silent_with(case, hang) for case in silences)


def _silent_with(silence: Case, hang: Case) -> bool:
    latest = hang.since + AFTER_SECONDS
    heard_at = math.inf if silence.cleared_at is None else silence.cleared_at
    # Of one that fell silent again since then, only the first onset is known.
    return silence.first_onset <= latest and (silence.since > latest or heard_at > hang.since)


def _confirmed(finding: Finding, hangs: Sequence[Finding], kind: str) -> Finding:
    """Return the finding about a node's telemetry as one about the node: its job has stopped with it."""
    subject = finding.subject
    why = finding.cause and replace(finding.cause, hypothesis=kind)
    return replace(
        finding,
        kind=kind,
        title=title(kind, subject),
        severity=max(finding.severity, kind_of(kind).severity, key=ORDER.index),
        confidence=max(f.confidence for f in (finding, *hangs)),
        cause=why,
        action=action(kind, subject, hypothesis=kind, finding_id=finding.id),
    )


def _explains(case: Case, stop: float, config: FindingConfig) -> bool:
    row = case.rule
    fatal = row.standing is Standing.FATAL and not row.hang
    if not fatal and not row.may_stop_job:
        return False
    earliest = stop - (config.agree_within_seconds if fatal else AFTER_SECONDS)
    return _is_reported(case, stop) and _began(case, earliest, stop + AFTER_SECONDS)


def _began(case: Case, earliest: float, latest: float) -> bool:
    """Return whether what may stop a job began, or came again, within these times."""
    began = [(s.onset_lo, s.onset) for s in _stopping(case)]
    if not case.rule.stops_job_by:
        began.append((case.since, case.since))
    return any(earliest <= onset and lo <= latest for lo, onset in began)


def _stopping(case: Case) -> list[Suspicion]:
    """Return the suspicions of a case that date what may stop a job: its events, each of which is dated by
    itself, or what alone of its evidence does."""
    metrics = case.rule.stops_job_by
    if not metrics:
        return [s for s in case.suspicions() if s.detector.startswith("event.")]
    return [s for s in case.suspicions() if any(e.metric in metrics for e in s.evidence)]


def _of_one_node(causes: Sequence[Case]) -> list[Case]:
    """Return the cases without those that several nodes show because of what they share."""
    places = {(case.kind, case.subject.node) for case in causes if case.rule.of_one_node}
    shared = {kind for kind, count in Counter(kind for kind, _ in places).items() if count > 1}
    return [case for case in causes if case.kind not in shared]


def _of_network(case: Case) -> bool:
    return any(kind_of(name).transfers == "slow" for s in case.suspicions() for name in s.hypotheses)


def _is_reported(case: Case, at: float) -> bool:
    # A fault that was over before did not stop the job.
    over = case.status not in LIVE and case.opened_at is not None
    return case.status in NOTIFIED or (over and (case.ended_at or 0.0) >= at)


def _severity(finding: Finding, hangs: Sequence[Finding]) -> Severity:
    """Return the worst of all; a fatal fault that stops a job is certain at once, a hang alone is not."""
    own = max((f.severity for f in (finding, *hangs)), key=ORDER.index)
    fatal = kind_of(finding.kind).standing is Standing.FATAL
    sure = finding.confidence
    return severity(
        finding.kind, finding.subject, own=own, hurt=fatal, sustained=fatal, confidence=sure, basis="stop"
    )


def _blast(finding: Finding, hangs: Sequence[Finding]) -> BlastRadius:
    own, others = finding.blast_radius, [hang.blast_radius for hang in hangs]
    return BlastRadius(
        jobs=tuple(sorted({job for blast in (own, *others) for job in blast.jobs})),
        ranks=max(own.ranks, sum(blast.ranks for blast in others)),
        nodes=max(own.nodes, sum(blast.nodes for blast in others)),
        other_findings=tuple(dict.fromkeys((*own.other_findings, *(hang.id for hang in hangs)))),
    )


def _without(finding: Finding, lost: float) -> Finding:
    """Return the finding without GPU-hours that are on another account."""
    if not lost:
        return finding
    return replace(finding, gpu_hours_lost=round(max(0.0, (finding.gpu_hours_lost or 0.0) - lost), 4))


def _together(stops: Sequence[Finding]) -> Finding:
    """Return the last stop of a job with what all of them cost, which have one cause."""
    return replace(stops[-1], gpu_hours_lost=_sum(stop.gpu_hours_lost for stop in stops))


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(math.fsum(known), 4) if known else None
