"""Findings about failing endpoints (``self.webhook_failing``), open as long as ``Webhook.failing``."""

from dataclasses import replace
from datetime import datetime
from typing import Any

from psycopg import Connection

from alerts.config import FindingConfig
from alerts.finding import Action, Finding, Status, dedup_key, finding_id
from alerts.kinds import kind_of
from slowrank.telemetry.records import Subject
from store.findings import webhooks
from store.findings.deliveries import Attempt
from store.findings.findings import save
from store.findings.leases import Due
from store.findings.queue import WEBHOOK_PLACE
from store.findings.rows import StoredFinding
from store.findings.search import FindingFilter, find
from store.findings.webhooks import Webhook

KIND = "self.webhook_failing"
# The defaults: the notifier does not read the tuning file of the detectors.
CONFIG = FindingConfig()

_LIVE: tuple[Status, ...] = ("open", "acknowledged")


def report_failing(
    conn: Connection[Any], webhook: Webhook, due: Due, attempt: Attempt, config: FindingConfig = CONFIG
) -> None:
    """Store that an endpoint fails: one finding, in the cluster of the delivery by which it began to."""
    place = f"{WEBHOOK_PLACE}{webhook.id}"
    live = find(conn, FindingFilter(kinds=(KIND,), status=_LIVE, nodes=(place,), limit=1)).items
    cluster = str(due.event.body.get("subject", {}).get("cluster", "slowrank"))
    title = f"webhook {webhook.name or webhook.id} takes no deliveries: {attempt.error}"[:120]
    onset = webhook.failing_since or attempt.at
    where = live[0].cluster if live else cluster
    save(conn, _finding(webhook.id, where, title, onset.timestamp(), attempt.at.timestamp()), config)


def end_recovered(conn: Connection[Any], now: datetime, config: FindingConfig = CONFIG) -> None:
    """Resolve findings about endpoints that recovered or that a person disabled or removed."""
    live = find(conn, FindingFilter(kinds=(KIND,), status=_LIVE, limit=1000))
    about = [(finding.doc["subject"]["node"].removeprefix(WEBHOOK_PLACE), finding) for finding in live.items]
    endpoints = webhooks.by_id(conn, {webhook_id for webhook_id, _ in about})
    for webhook_id, finding in about:
        if not _fails(endpoints.get(webhook_id)):
            save(conn, _ended(finding, webhook_id, now.timestamp()), config)


def _fails(webhook: Webhook | None) -> bool:
    return webhook is not None and webhook.failing


def _ended(finding: StoredFinding, webhook_id: str, at: float) -> Finding:
    onset = datetime.fromisoformat(finding.doc["onset"]).timestamp()
    version = _finding(webhook_id, finding.cluster, finding.doc["title"], onset, at)
    return replace(version, id=finding.id, status="resolved", resolved_at=at)


def _finding(webhook_id: str, cluster: str, title: str, onset: float, at: float) -> Finding:
    subject = Subject(type="telemetry", cluster=cluster, node=f"{WEBHOOK_PLACE}{webhook_id}")
    key, rule = dedup_key(subject, KIND), kind_of(KIND)
    return Finding(
        id=finding_id(key, onset),
        dedup_key=key,
        kind=KIND,
        title=title,
        severity=rule.severity,
        status="open",
        subject=subject,
        onset=onset,
        onset_lo=onset,
        onset_hi=onset,
        detected_at=at,
        last_seen_at=at,
        detector="notifier",
        confidence=1.0,
        score=1.0,
        action=Action(
            rule.action,
            "Look at the receiver, then send again what it missed.",
            (f"slowrank webhook deliveries {webhook_id}", f"slowrank webhook test {webhook_id}"),
        ),
    )
