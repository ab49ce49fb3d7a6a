"""Joint findings: a job that stops because a machine failed is told by the finding about that machine.

A machine and its job are weighed each by itself. Here is decided which finding explains a hang: it gains the
hang's evidence and cost, and the hang is no news of its own. A job whose transfers are slow because of one
port is told by the finding about the port in the same way; what is said of hangs below holds for it, too.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from alerts.account import beyond
from alerts.action import action, check_uplinks
from alerts.case import Case
from alerts.config import FindingConfig
from alerts.finding import BlastRadius, Finding
from alerts.hang import ONSET_APART_SECONDS
from alerts.kinds import Standing, rule_of
from alerts.lifecycle import LIVE, NOTIFIED
from alerts.render import MAX_EVIDENCE
from alerts.severity import ORDER, severity
from alerts.title import title
from slowrank.telemetry import Suspicion
from slowrank.telemetry.records import Severity

AFTER_SECONDS = 15.0
"""A job stops at its last step, up to a step before the fault that keeps it from the next one."""

PRESENT_SECONDS = 600.0
"""A node is its job's as long as it was heard of with the job so lately; most are every five minutes."""

AWAITED_SECONDS = 7.0
"""Within this time a node that was unheard of when a hang was found is back, or its silence is told."""

_UNHEARD_SECONDS = 5.0
"""A node that sends each second is unheard of so long before its silence is told, or longer."""

PRUNE_SECONDS = 3600.0

_STOPPING = ("exporter.stale", "link.nic_flap", "fabric.rail_degraded")
"""Kinds that most jobs survive: they explain a hang only if it began right after them."""

_SLOWING = ("link.nic_errors", "link.nic_slow", "link.pcie_downgrade", "fabric.rail_degraded")
"""Kinds that slow the transfers of a whole job down: what a GPU sends passes its PCIe link and a port."""

_OF_NETWORK = ("congestion", "group")

JOB_KINDS = ("hang.job", "straggler.job_wide")
"""Kinds about a job that a finding about a machine may tell: a stop, and slow transfers."""


class Joints:
    """Where jobs run, and which hangs are told by which finding.

    Both are what the suspicions up to a time say, in whatever order they came.
    """

    def __init__(self, config: FindingConfig) -> None:
        self._config = config
        self._runs: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
        self._told: dict[str, tuple[str, Finding]] = {}
        self._moved: set[str] = set()
        self._pruned_at = -math.inf

    def hear(self, s: Suspicion) -> None:
        """Note from any suspicion about a node which job it runs."""
        if s.subject.node is None or s.subject.job_id is None or s.shadow:
            return
        nodes = self._runs.setdefault((s.cluster, s.subject.job_id), {})
        first, last = nodes.get(s.subject.node, (s.ts, s.ts))
        nodes[s.subject.node] = (min(first, s.ts), max(last, s.ts))

    def nodes_of(self, hang: Case, now: float) -> list[str]:
        """Return in order of their names the nodes that ran the job of ``hang`` when it stopped."""
        nodes = self._runs.get((hang.subject.cluster, hang.subject.job_id or ""), {})
        stop = hang.since
        return sorted(
            n for n, (first, last) in nodes.items() if first <= now and last >= stop - PRESENT_SECONDS
        )

    def part(self, finding: Finding, hang: Case, causes: Iterable[Case], *, awaited: bool = False) -> Finding:
        """Return the finding of a hang as it is shown: as part of the one of ``causes`` that explains it.

        While a relapse is not yet one, the last stop remains told as it was. While what may explain the hang
        is ``awaited``, it is suspected.
        """
        if hang.status == "suspected" and hang.opened_at is not None:
            return finding
        stopped = hang.opened_at is not None
        cause = leading(causes, hang, finding, self._config) if stopped else None
        before, after = self._told.pop(hang.key, None), None
        if cause is not None:
            after = self._told[hang.key] = (cause.key, self._standing_still(finding, hang, cause))
        if before != after:
            self._moved |= {told[0] for told in (before, after) if told is not None}
        if cause is None and stopped and awaited and finding.status in NOTIFIED:
            return replace(finding, status="suspected")
        return finding if cause is None else as_part(finding, cause)

    def _standing_still(self, finding: Finding, hang: Case, cause: Case) -> Finding:
        """Return the finding of a hang with what its job loses until ``cause`` has ended or it moves."""
        lost = beyond(hang, math.inf if cause.ended_at is None else cause.ended_at)
        if not lost:
            return finding
        waits = hang.stalled and cause.live
        rate = float(hang.gpus) if waits else 0.0
        price = self._config.gpu_hour_price
        return replace(
            finding,
            gpu_hours_lost=round((finding.gpu_hours_lost or 0.0) + lost, 4),
            gpu_hours_lost_per_hour=rate,
            cost_per_hour=round(rate * price, 2) if price is not None and rate else None,
            last_seen_at=max(finding.last_seen_at, hang.accounted_to) if waits else finding.last_seen_at,
        )

    def hangs_of(self, key: str) -> list[Finding]:
        """Return the hangs that the finding of dedup key ``key`` tells of."""
        return [finding for _, (leader, finding) in sorted(self._told.items()) if leader == key]

    def tells_of(self, key: str) -> bool:
        """Return whether a finding tells of the case ``key`` about a job."""
        return key in self._told

    def moved(self) -> set[str]:
        """Return, once, the dedup keys of the findings whose hangs have changed."""
        moved, self._moved = self._moved, set()
        return moved

    def forget(self, key: str) -> None:
        """Drop what the finding of dedup key ``key`` told of; a hang that is over stays with its finding."""
        self._told = {k: told for k, told in self._told.items() if told[0] != key}

    def prune(self, now: float) -> None:
        """Drop, once an hour, the jobs nobody has spoken of for as long as a finding may stay open."""
        if now < self._pruned_at + PRUNE_SECONDS:
            return
        self._pruned_at = now
        oldest = now - self._config.open_expires_after_seconds
        for key in [k for k, nodes in self._runs.items() if max(last for _, last in nodes.values()) < oldest]:
            del self._runs[key]


def leading(causes: Iterable[Case], hang: Case, finding: Finding, config: FindingConfig) -> Case | None:
    """Return the case that explains the hang: the earliest, or of those at once the likeliest to blame."""
    if hang.kind != "hang.job" and not _of_network(hang):
        return None
    explains = _explains if hang.kind == "hang.job" else _slows
    found = [case for case in causes if explains(case, hang.since, config)]
    if not found:
        return None
    named = {s.subject.node for s in finding.suspects} if hang.kind == "hang.job" else set()
    latest = min(case.since for case in found) + ONSET_APART_SECONDS
    return min(
        (case for case in found if case.since <= latest),
        key=lambda c: (rule_of(c.kind).standing, c.subject.node not in named, c.since, c.key),
    )


def as_part(hang: Finding, cause: Case) -> Finding:
    """Return the finding of a hang that another tells of: resolved if it was opened before, else unopened."""
    opened = cause.since if cause.opened_at is None else max(cause.opened_at, cause.since)
    if cause.kind == "exporter.stale":
        opened -= _UNHEARD_SECONDS
    if hang.detected_at < opened:
        return replace(hang, status="resolved", resolved_at=opened, group_key=cause.key)
    return replace(hang, status="suspected" if hang.status in NOTIFIED else hang.status, group_key=cause.key)


def with_hangs(finding: Finding, hangs: Sequence[Finding]) -> Finding:
    """Return the finding with what its hangs show and cost; it is open as long as one of them is."""
    if not hangs:
        return finding
    shown = _silent_node(finding, hangs) if finding.kind == "exporter.stale" else finding
    everything = (finding, *hangs)
    # What another hang tells of besides is on its account.
    charged = (finding, *(hang for hang in hangs if hang.group_key is None))
    live = any(hang.status in LIVE for hang in hangs)
    ended = [f.resolved_at for f in everything if f.resolved_at is not None]
    over = finding.status not in LIVE
    return replace(
        shown,
        status="open" if over and live else finding.status,
        resolved_at=max(ended) if over and not live else None,
        severity=max(shown.severity, _severity(finding, hangs), key=ORDER.index),
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


def only_unheard(finding: Finding) -> Finding:
    """Return what is told of the nodes of a rack or switch that fell silent together while no job stopped.

    They may be well and only their exporters unheard of; that they are gone is known when their job stops.
    """
    kind, subject = "exporter.stale", finding.subject
    return replace(
        finding,
        kind=kind,
        title=title(kind, subject),
        severity=rule_of("node.silent").severity,
        action=check_uplinks(subject),
    )


def may_wait(hang: Case, now: float) -> bool:
    """Tell whether a hang was found so lately that what explains it may not be told yet."""
    if hang.kind != "hang.job" or hang.opened_at is None:
        return False
    return now < hang.opened_at + AWAITED_SECONDS


def may_explain(silence: Case, hang: Case) -> bool:
    """Tell whether a node was unheard of when the hang was found, and fell silent as the job stopped."""
    if hang.opened_at is None or not silence.active or silence.last_seen_at > hang.opened_at:
        return False
    return abs(silence.since - hang.since) <= AFTER_SECONDS


def _silent_node(finding: Finding, hangs: Sequence[Finding]) -> Finding:
    """Return the finding about a node's telemetry as one about the node: its job has stopped with it."""
    kind, subject = "node.silent", finding.subject
    why = finding.cause and replace(finding.cause, hypothesis=kind)
    return replace(
        finding,
        kind=kind,
        title=title(kind, subject),
        severity=max(finding.severity, rule_of(kind).severity, key=ORDER.index),
        confidence=max(f.confidence for f in (finding, *hangs)),
        cause=why,
        action=action(kind, subject, hypothesis=kind, finding_id=finding.id),
    )


def _explains(case: Case, stop: float, config: FindingConfig) -> bool:
    fatal = rule_of(case.kind).standing is Standing.FATAL and case.kind != "hang.job"
    if not fatal and case.kind not in _STOPPING:
        return False
    before = config.agree_within_seconds if fatal else AFTER_SECONDS
    return _is_told(case, stop) and stop - before <= case.since <= stop + AFTER_SECONDS


def _of_network(case: Case) -> bool:
    return any(name in s.hypotheses for s in case.voices() for name in _OF_NETWORK)


def _slows(case: Case, since: float, config: FindingConfig) -> bool:
    """Tell whether a link, or many of one rail, became slow when the transfers of the job did."""
    return (
        case.kind in _SLOWING
        and _is_told(case, since)
        and abs(case.since - since) <= config.agree_within_seconds
    )


def _is_told(case: Case, at: float) -> bool:
    # A fault that was over before did not stop the job.
    over = case.status not in LIVE and case.opened_at is not None
    return case.status in NOTIFIED or (over and (case.ended_at or 0.0) >= at)


def _severity(finding: Finding, hangs: Sequence[Finding]) -> Severity:
    """Return the worst of all; a fatal fault that stops a job is certain at once, a hang alone is not."""
    own = max((f.severity for f in (finding, *hangs)), key=ORDER.index)
    fatal = rule_of(finding.kind).standing is Standing.FATAL
    return severity(finding.kind, finding.subject, own=own, hurt=fatal, confidence=finding.confidence)


def _blast(finding: Finding, hangs: Sequence[Finding]) -> BlastRadius:
    own, others = finding.blast_radius, [hang.blast_radius for hang in hangs]
    return BlastRadius(
        jobs=tuple(sorted({job for blast in (own, *others) for job in blast.jobs})),
        ranks=max(own.ranks, sum(blast.ranks for blast in others)),
        nodes=max(own.nodes, sum(blast.nodes for blast in others)),
        other_findings=tuple(dict.fromkeys((*own.other_findings, *(hang.id for hang in hangs)))),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(math.fsum(known), 4) if known else None
