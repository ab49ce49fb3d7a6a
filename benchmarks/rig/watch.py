"""Findings of a cluster over time: when each was first seen open."""

from __future__ import annotations

import json
import time
from typing import Any, Protocol

from benchmarks.rig.verdict import OPEN, Seen


class Source(Protocol):
    """Where findings are read, as ``finding.v1`` with their status."""

    def findings(self, cluster: str) -> list[dict[str, Any]]: ...


class Watch:
    """Polls the findings of a cluster and remembers when each was first seen open."""

    def __init__(self, source: Source, cluster: str) -> None:
        self._source, self._cluster = source, cluster
        self.seen: dict[tuple[str, str, str, str], Seen] = {}

    def look(self) -> list[Seen]:
        """Read the findings; return all that were ever open, each once per kind, severity and suspects."""
        now = time.time()
        for doc in self._source.findings(self._cluster):
            if doc["status"] in OPEN:
                suspects = json.dumps(doc.get("suspects") or [])
                version = (doc["id"], doc["kind"], doc["severity"], suspects)
                self.seen.setdefault(version, Seen(now, doc))
        return list(self.seen.values())
