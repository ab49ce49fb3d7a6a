"""Findings of slowrank about itself, whose reporter may have been restarted since it said that one began."""

from typing import Any

from psycopg import Connection

from alerts.config import FindingConfig
from alerts.finding import Finding
from store.findings import Change, FindingFilter, find, save


def save_own(conn: Connection[Any], finding: Finding, config: FindingConfig) -> Change | None:
    """Store a version as ``findings.save`` does, but the end of a finding only where one is open."""
    live = FindingFilter(dedup_key=finding.dedup_key, status=("open", "acknowledged"), limit=1)
    if finding.status != "open" and not find(conn, live).items:
        return None
    return save(conn, finding, config)
