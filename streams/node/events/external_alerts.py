"""Alerts of other systems about a node and its devices: they corroborate what slowrank suspects itself."""

from collections.abc import Hashable

from alerts.kind import Kind, Standing
from alerts.kinds import KINDS, kind_of
from slowrank.telemetry import Evidence, NodeEvent, Suspicion
from slowrank.telemetry.hardware.xids import xid_of
from streams.suspicions import Claim, subject_of

FIRING, RESOLVED = "alert.firing", "alert.resolved"

# What an alert that names no kind argues for: a weak sign of a fault.
DEFAULT_KIND = "gray.node"
# Log likelihood ratio of an alert. Chosen: that of a mild event of the kernel log.
WEIGHT = 2.0
# Alerts of one node that are remembered. Chosen: they come from outside, and memory must be bounded.
MAX_ALERTS = 1024

_Argued = tuple[str, Hashable]
"""Kind and subject."""


class ExternalAlerts:
    """Raises one suspicion for each kind and subject while any alert about them fires.

    All are of the family of events, so that alerts alone, however many, never open a finding.
    """

    def __init__(self) -> None:
        self._firing: dict[str, _Argued] = {}

    def update(self, event: NodeEvent) -> list[Suspicion]:
        """Process one event; other codes and repetitions give nothing."""
        if event.code not in (FIRING, RESOLVED):
            return []
        claim = _claim(event)
        argued = (claim.kind, claim.subject)
        identity = str(event.subject.get("alert", ""))
        if event.code == FIRING:
            known = argued in self._firing.values()
            self._firing[identity] = argued
            if len(self._firing) > MAX_ALERTS:
                del self._firing[next(iter(self._firing))]
            return [] if known else [claim.suspicion("raise", ts=event.ts, onset=_started(event))]
        self._firing.pop(identity, None)
        if argued in self._firing.values():
            return []
        # Also of an alert that is not remembered: it was raised before a restart.
        return [claim.suspicion("clear", ts=event.ts, onset=_started(event))]


def argued_kind(named: object) -> str:
    """Return the kind that an alert argues for: the one it names if an alert may, else ``DEFAULT_KIND``."""
    name = str(named)
    known = name in KINDS or xid_of(name) is not None
    return name if known and _may_be_argued(kind_of(name)) else DEFAULT_KIND


def _may_be_argued(kind: Kind) -> bool:
    """Whether it is a fault of a machine that needs a second witness."""
    alone = kind.opens_alone or kind.hang or kind.of_job or kind.counts_findings
    return kind.reported_as == "finding" and kind.standing in (Standing.FATAL, Standing.CAUSE) and not alone


def _claim(event: NodeEvent) -> Claim:
    seen = Evidence(metric="alert", unit="1", detector="alert", value=1.0, note=event.message[:400])
    return Claim(
        detector="alert.external",
        catalogue_id="alerts",
        family="event",
        kind=argued_kind(event.subject.get("kind")),
        subject=subject_of(event),
        weight=WEIGHT,
        severity="warning",
        evidence=(seen,),
        note=event.message[:200],
    )


def _started(event: NodeEvent) -> float:
    """Return when the alert began to fire (Unix seconds); not after it was received."""
    started = event.subject.get("started_ms")
    return min(event.ts, started / 1000.0) if isinstance(started, int) and started > 0 else event.ts
