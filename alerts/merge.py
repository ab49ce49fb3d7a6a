"""Merge a stored finding with a new version of it, without losing what people have done to it.

Detectors are restarted and re-read their input, so a version may come twice, late, or from a worker that
remembers less than the store does. None of that may move a finding backwards.
"""

from dataclasses import dataclass, replace

from alerts.cases.lifecycle import LIVE, NOTIFIED
from alerts.finding import Finding, Status
from alerts.notify import NotifiedState

_ORDER: dict[Status, int] = {"suspected": 0, "open": 1, "acknowledged": 1, "resolved": 2, "expired": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the store holds of a finding; times in Unix seconds.

    ``opened``: it has been more than suspected. ``closed_at``: when a person closed its occurrence number
    ``closed_occurrence``, if one did.
    """

    id: str
    notified: NotifiedState
    as_of: float
    onset: tuple[float, float, float]
    detected_at: float
    flaps: int
    gpu_hours_lost: float
    opened: bool
    resolved_at: float | None = None
    closed_at: float | None = None
    closed_occurrence: int | None = None


def version_time(finding: Finding) -> float:
    """Return the event time that orders versions of a finding, in whole microseconds as it is stored.

    Otherwise the stored version of a moment could be the newer one, by what its time was rounded up.
    """
    if finding.as_of is not None:
        return round(finding.as_of, 6)
    return round(max(finding.last_seen_at, finding.detected_at, finding.resolved_at or 0.0), 6)


def merge(held: Held, incoming: Finding) -> Finding | None:
    """Return the finding to store under the held id, or None when the held version is the newer one."""
    # Of two versions of one event time the one further on in its life is newer.
    if (version_time(incoming), _ORDER[incoming.status]) < (held.as_of, _ORDER[held.notified.status]):
        return None
    occurrences = _occurrences(held, incoming)
    status = _status(held, incoming, occurrences)
    onset = _onset(held, incoming)
    lost = max(held.gpu_hours_lost, incoming.gpu_hours_lost or 0.0)
    return replace(
        incoming,
        id=held.id,
        status=status,
        occurrences=occurrences,
        onset=onset[0],
        onset_lo=onset[1],
        onset_hi=onset[2],
        detected_at=_detected_at(held, incoming),
        resolved_at=None
        if status in LIVE
        else _first(incoming.resolved_at, held.closed_at, held.resolved_at),
        flaps=max(held.flaps, incoming.flaps),
        gpu_hours_lost=lost or incoming.gpu_hours_lost,
    )


def _onset(held: Held, incoming: Finding) -> tuple[float, float, float]:
    onset = incoming.onset, incoming.onset_lo, incoming.onset_hi
    # What was suspected may have ended, as a pause does, and the suspicion of now be about something else; a
    # worker with another id does not remember the one before.
    if not held.opened and incoming.id == held.id:
        return onset
    return min(held.onset, onset)


def _detected_at(held: Held, incoming: Finding) -> float:
    # A finding is detected when it opens, not when it was first suspected.
    if not held.opened and incoming.status != "suspected":
        return incoming.detected_at
    return min(held.detected_at, incoming.detected_at)


def _occurrences(held: Held, incoming: Finding) -> int:
    before = held.notified.occurrences
    # A worker that no longer remembers the cause gives it a new id and counts from one.
    forgetful = incoming.id != held.id and incoming.occurrences <= before
    if forgetful and held.notified.status not in LIVE and incoming.status in NOTIFIED:
        return before + 1
    return max(before, incoming.occurrences)


def _status(held: Held, incoming: Finding, occurrences: int) -> Status:
    before = held.notified.status
    # What a person closed stays closed until it happens again.
    closed = before not in LIVE and held.closed_occurrence is not None
    if closed and incoming.status in LIVE and occurrences == held.closed_occurrence:
        return before
    # A worker that reads the log again may have less evidence by that time than was notified.
    if incoming.status == "suspected" and before in NOTIFIED:
        return before
    if before == "acknowledged" and incoming.status == "open" and occurrences == held.notified.occurrences:
        return "acknowledged"
    return incoming.status


def _first(*times: float | None) -> float | None:
    """Return the first time that is given; zero is a time."""
    return next((time for time in times if time is not None), None)
