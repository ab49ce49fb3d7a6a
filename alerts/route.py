"""Which findings an endpoint gets, and when: the route to a webhook.

A finding is one cause with all that it explains: what a group of alerts is in Alertmanager. The times below
are its ``group_wait``, ``group_interval`` and ``repeat_interval``, with a finding as the group.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from alerts.notify import END
from alerts.silence import Matcher

# After this time a delivery that something else than the clock holds back is looked at again (chosen: nobody
# waits longer for a finding whose cause has ended than for its detection).
RECHECK = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The filter and the times of an endpoint, in seconds; 0 means at once, ``repeat_seconds`` None never.

    ``wait_seconds``: how long a finding must stand before its first event is sent; with
    ``unless_acknowledged`` it is not sent at all once a person has acknowledged the finding, which makes the
    endpoint an escalation. ``interval_seconds``: between two events of a finding. ``repeat_seconds``: after
    which the last event is sent again while the finding is open and not acknowledged.
    """

    matchers: tuple[Matcher, ...] = ()
    wait_seconds: int = 0
    unless_acknowledged: bool = False
    interval_seconds: int = 0
    repeat_seconds: int | None = None

    def takes(self, labels: Mapping[str, str]) -> bool:
        """Return whether all matchers match; a route without any takes everything."""
        return all(matcher.matches(labels) for matcher in self.matchers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What an endpoint has got of a finding in its present occurrence.

    ``waits_since``: when the first event came that was not sent, None where none waits; ``sent_at``: when an
    event was last sent, None where none was.
    """

    waits_since: datetime | None = None
    sent_at: datetime | None = None
    acknowledged: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """Keeps a delivery back until a time; ``by``: id of a silence or inhibition, or a rule of the route."""

    by: str
    until: datetime


def hold(route: Route, event_type: str, past: Past, mute: Hold | None, now: datetime) -> Hold | None:
    """Return what holds an event back longest, or None where it may be sent now.

    ``mute`` is the silence or inhibition that applies to the finding.
    """
    held = [mute] if mute else []
    if past.sent_at is not None:
        held.append(Hold("interval", past.sent_at + timedelta(seconds=route.interval_seconds)))
    elif event_type != END:
        begun = past.waits_since or now
        held.append(Hold("wait", begun + timedelta(seconds=route.wait_seconds)))
        if route.unless_acknowledged and past.acknowledged:
            held.append(Hold("acknowledged", now + RECHECK))
    return max((one for one in held if one.until > now), key=lambda one: one.until, default=None)
