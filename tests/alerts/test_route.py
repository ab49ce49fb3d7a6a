"""When an endpoint gets an event of a finding: waits, intervals, escalation, recurring silences."""

from datetime import UTC, datetime, timedelta

import pytest

from alerts.inhibition import Inhibition
from alerts.recurrence import Recurrence
from alerts.route import Hold, Past, Route, hold
from alerts.silence import Matcher, Silence

NOW = datetime(2026, 11, 20, 7, 34, 2, tzinfo=UTC)
OPENED, END = "finding.opened", "finding.resolved"


def ago(**span):
    return NOW - timedelta(**span)


@pytest.mark.parametrize(
    ("route", "event", "past", "held"),
    [
        (Route(), OPENED, Past(), None),
        (Route(wait_seconds=30), OPENED, Past(), ("wait", 30)),
        # The first event of a finding begins the wait of all.
        (Route(wait_seconds=30), OPENED, Past(waits_since=ago(seconds=10)), ("wait", 20)),
        (Route(wait_seconds=30), OPENED, Past(waits_since=ago(seconds=30)), None),
        # What was sent before ends the wait, and begins the interval.
        (Route(wait_seconds=30), OPENED, Past(sent_at=ago(seconds=1)), None),
        (Route(interval_seconds=300), OPENED, Past(sent_at=ago(seconds=100)), ("interval", 200)),
        (Route(interval_seconds=300), END, Past(sent_at=ago(seconds=100)), ("interval", 200)),
        (Route(wait_seconds=30), END, Past(), None),
        (Route(wait_seconds=900, unless_acknowledged=True), OPENED, Past(acknowledged=True), ("wait", 900)),
        (
            Route(wait_seconds=900, unless_acknowledged=True),
            OPENED,
            Past(waits_since=ago(seconds=900), acknowledged=True),
            ("acknowledged", 30),
        ),
        # A person who was called learns of what follows, also after the acknowledgement.
        (Route(unless_acknowledged=True), OPENED, Past(sent_at=ago(seconds=9), acknowledged=True), None),
    ],
)
def test_what_holds_an_event_back(route, event, past, held):
    """The rule and the seconds from now, or None where it is sent."""
    found = hold(route, event, past, None, NOW)
    assert (found and (found.by, (found.until - NOW).total_seconds())) == held


def test_the_longest_hold_counts():
    """A silence beyond the wait, and a wait beyond the silence."""
    for seconds, by in ((10, "wait"), (60, "sil_1")):
        mute = Hold("sil_1", NOW + timedelta(seconds=seconds))
        found = hold(Route(wait_seconds=30), OPENED, Past(), mute, NOW)
        assert found is not None
        assert found.by == by


def test_a_route_takes_what_all_its_matchers_match():
    """Without matchers everything."""
    route = Route(matchers=(Matcher("rack", "r[12]", is_regex=True), Matcher("job_id", "", is_equal=False)))
    assert route.takes({"rack": "r1", "job_id": "7"})
    assert not route.takes({"rack": "r1"})
    assert Route().takes({})


def test_a_finding_that_matches_both_sides_is_not_inhibited():
    """Else the first of two alike would hold itself back."""
    both = (Matcher("kind", "clock.*", is_regex=True),)
    rule = Inhibition(id="i", source=both, target=both, equal=("node",), created_by="a", comment="c")
    assert not rule.holds({"kind": "clock.low", "node": "n"}, {"kind": "clock.skew", "node": "n"})


NIGHT = Recurrence(weekdays=("sun",), duration_seconds=4 * 3600, time_zone="Europe/Berlin")
FIRST = datetime(2026, 10, 18, 0, 30, tzinfo=UTC)  # 02:30 in Berlin, in summer time


@pytest.mark.parametrize(
    ("moment", "begins"),
    [
        ("2026-10-18T00:29:59+00:00", None),
        ("2026-10-18T00:30:00+00:00", "2026-10-18T00:30:00+00:00"),
        ("2026-10-18T04:30:00+00:00", None),
        ("2026-10-19T01:00:00+00:00", None),
        # Clocks go back at 03:00 on the 25th: 02:30 comes first in summer time, a week later in winter time.
        ("2026-10-25T00:30:00+00:00", "2026-10-25T00:30:00+00:00"),
        ("2026-11-01T00:31:00+00:00", None),
        ("2026-11-01T01:31:00+00:00", "2026-11-01T01:30:00+00:00"),
    ],
)
def test_a_maintenance_window_keeps_its_hour_of_the_wall(moment, begins):
    """Also over the changes of summer time."""
    found = NIGHT.occurrence(FIRST, datetime.fromisoformat(moment))
    assert (found and found[0].isoformat()) == begins


def test_a_recurring_silence_mutes_until_its_occurrence_ends():
    """Between two it is pending, after its end expired; the last occurrence is cut there."""
    silence = Silence(
        id="sil_1",
        matchers=(Matcher("node", "n1"),),
        starts_at=FIRST,
        ends_at=datetime(2026, 11, 8, 2, 0, tzinfo=UTC),
        created_by="a",
        comment="c",
        recurrence=NIGHT,
    )
    during, between = FIRST + timedelta(hours=1), FIRST + timedelta(days=1)
    assert silence.mutes_until(during) == FIRST + timedelta(hours=4)
    assert (silence.state(during), silence.state(between)) == ("active", "pending")
    assert not silence.mutes({"node": "n1"}, between)
    last = datetime(2026, 11, 8, 1, 45, tzinfo=UTC)
    assert silence.mutes_until(last) == silence.ends_at
    assert silence.state(silence.ends_at) == "expired"


@pytest.mark.parametrize("name", ["Mars/Base", "../../etc/passwd", "a\x00b", "", "Europe"])
def test_an_unknown_time_zone_is_refused(name):
    """Whatever its characters."""
    with pytest.raises(ValueError, match="no time zone"):
        Recurrence(weekdays=("mon",), duration_seconds=60, time_zone=name)
