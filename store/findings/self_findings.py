"""Stores findings of slowrank about itself, whose reporter keeps no state across restarts."""

from typing import Any

from psycopg import Connection

from alerts.config import FindingConfig
from alerts.finding import Finding
from store.findings.findings import FindingChange, save
from store.findings.search import FindingFilter, find


def save_self_finding(conn: Connection[Any], finding: Finding, config: FindingConfig) -> FindingChange | None:
    """Store a version as ``findings.save`` does; ignore an end for which no finding is open."""
    live = FindingFilter(dedup_key=finding.dedup_key, status=("open", "acknowledged"), limit=1)
    if finding.status != "open" and not find(conn, live).items:
        return None
    return save(conn, finding, config)
