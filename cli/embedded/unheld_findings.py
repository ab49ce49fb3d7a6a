"""Open findings in the database that the detectors of a new process do not hold."""

from collections.abc import Iterable
from dataclasses import dataclass

from alerts.finding import Finding
from alerts.kinds import kind_of
from slowrank.telemetry import Record
from store.findings.findings import LiveFinding

# For so long its node reports, or its cluster where it names none, without the finding. Chosen: five minutes
# in which detectors find again what lasts (``Kind.found_anew``), and five as for any recovery
# (``FindingConfig.resolve_after_seconds``).
QUIET_SECONDS = 600.0
# A longer pause between records begins the time anew. Chosen: nodes that are scraped may report every five
# minutes.
PAUSE_SECONDS = 400.0

_Place = tuple[str, str | None]
"""Cluster, and node where there is one."""


@dataclass(slots=True)
class _Reports:
    """Receive times of the first and the ``last`` record without a pause between [Unix seconds]."""

    since: float
    last: float


class UnheldFindings:
    """Decides when such a finding is over: its node has reported for ten minutes without it.

    Only of kinds that are found again if they last; and only where this process gets the records: other
    processes may hold findings of other nodes. All times are receive times in Unix seconds.
    """

    def __init__(self, live: Iterable[LiveFinding] = ()) -> None:
        self._left = {f.dedup_key: f for f in live if kind_of(f.kind).found_anew}
        self._reports: dict[_Place, _Reports | None] = {_place(f): None for f in self._left.values()}

    def update(self, record: Record, now: float) -> None:
        """Note that a node reports."""
        if not self._left:
            return
        for place in ((record.cluster, record.node), (record.cluster, None)):
            if place not in self._reports:
                continue
            known = self._reports[place]
            if known is None or now - known.last > PAUSE_SECONDS:
                self._reports[place] = _Reports(now, now)
            else:
                known.last = now

    def hold(self, finding: Finding) -> None:
        """Leave a finding to the detectors, which have found it again."""
        self._left.pop(finding.dedup_key, None)

    def ended(self, now: float) -> list[LiveFinding]:
        """Return the findings that are over; ``end`` forgets one."""
        return [f for f in self._left.values() if self._is_over(f, now)]

    def end(self, finding: LiveFinding) -> None:
        """Forget a finding that was ended."""
        self._left.pop(finding.dedup_key, None)

    def _is_over(self, finding: LiveFinding, now: float) -> bool:
        reports = self._reports[_place(finding)]
        if reports is None or now - reports.last > PAUSE_SECONDS:
            return False
        return reports.last - reports.since >= QUIET_SECONDS


def _place(finding: LiveFinding) -> _Place:
    return finding.cluster, finding.node
