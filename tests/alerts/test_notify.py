"""What is news, what is muted, and what the life cycle allows."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.cases.lifecycle import LIVE, TRANSITIONS, transition
from alerts.finding import Finding
from alerts.notify import NotifiedState, event_of
from alerts.silence import Matcher, Silence, labels, muting
from slowrank.telemetry import Subject

NOW = datetime(2026, 11, 20, 8, 0, tzinfo=UTC)
BASE = NotifiedState("open", "error", "straggler.fail_slow", "straggler.fail_slow", "RUN_DIAG", 1)
STATUSES = ["suspected", "open", "acknowledged", "resolved", "expired"]


FINDING = Finding(
    id="fnd_1",
    dedup_key="k",
    kind="straggler.fail_slow",
    title="t",
    severity="error",
    status="open",
    subject=Subject(type="gpu", cluster="c", node="n1", gpu_index=5),
    onset=0.0,
    onset_lo=0.0,
    onset_hi=0.0,
    detected_at=2.0,
    last_seen_at=2.0,
    detector="d",
)


@pytest.mark.parametrize(
    ("before", "after", "event"),
    [
        (None, BASE, "finding.opened"),
        (None, replace(BASE, status="suspected"), None),
        (None, replace(BASE, occurrences=2), "finding.reopened"),
        (replace(BASE, status="suspected"), BASE, "finding.opened"),
        (replace(BASE, status="resolved"), replace(BASE, occurrences=2), "finding.reopened"),
        (replace(BASE, status="suspected"), replace(BASE, status="resolved"), None),
        (BASE, BASE, None),
        (BASE, replace(BASE, severity="critical"), "finding.escalated"),
        (BASE, replace(BASE, severity="warning"), "finding.updated"),
        (BASE, replace(BASE, hypothesis="throttle.thermal"), "finding.updated"),
        (BASE, replace(BASE, status="resolved"), "finding.resolved"),
        (replace(BASE, status="acknowledged"), replace(BASE, status="expired"), "finding.resolved"),
        (replace(BASE, status="resolved"), replace(BASE, status="suspected"), None),
    ],
)
def test_news(before, after, event):
    """Openings, ends, escalations and new explanations are told; suspicions are not."""
    assert event_of(before, after) == event


@given(st.sampled_from(STATUSES), st.lists(st.sampled_from(sorted({e for _, e in TRANSITIONS}))))
def test_lifecycle_never_opens_without_corroboration(status, events):
    """From any status, no events but a corroboration lead to open."""
    for event in events:
        after = transition(status, event)
        if after == "open" and status != "open":
            assert (status, event) == ("suspected", "corroborated")
        status = after


def test_every_live_status_can_end():
    """Whatever is live recovers or expires."""
    assert {transition(s, "recovered") for s in LIVE} == {"resolved"}
    assert {transition(s, "expired") for s in LIVE} == {"expired"}


def silence(*matchers, hours=1):
    return Silence(
        id=f"s{hours}",
        matchers=matchers,
        starts_at=NOW,
        ends_at=NOW + timedelta(hours=hours),
        created_by="a",
        comment="c",
    )


@pytest.mark.parametrize(
    ("matcher", "muted"),
    [
        (Matcher("node", "n1"), True),
        (Matcher("node", "n"), False),
        (Matcher("node", "n", is_regex=True), False),
        (Matcher("node", "n.", is_regex=True), True),
        (Matcher("node", "n1", is_equal=False), False),
        (Matcher("rack", "r1", is_equal=False), True),
        (Matcher("rack", ""), True),
        (Matcher("gpu", "5"), True),
        (Matcher("kind", "straggler\\..*", is_regex=True), True),
    ],
)
def test_matchers(matcher, muted):
    """Equality, whole-value regex, negation and missing labels work as in Alertmanager."""
    known = labels(FINDING.to_json())
    assert (muting([silence(matcher)], known, NOW) is not None) is muted


@pytest.mark.parametrize("place", ["rack", "switch", "rail", "port"])
def test_a_place_can_be_silenced(place):
    """What is said of a rack or a switch names no node by which to silence it."""
    known = labels({"subject": {"type": "switch", "cluster": "c", place: "x1"}})
    assert silence(Matcher(place, "x1")).mutes(known, NOW)
    assert not silence(Matcher(place, "x2")).mutes(known, NOW)


def test_silence_holds_for_its_time_only():
    """It mutes from its start up to, and not including, its end; without matchers never."""
    quiet = silence(Matcher("node", "n1"))
    times = [NOW - timedelta(seconds=1), NOW, quiet.ends_at - timedelta(seconds=1), quiet.ends_at]
    assert [quiet.mutes({"node": "n1"}, t) for t in times] == [False, True, True, False]
    assert [quiet.state(t) for t in times] == ["pending", "active", "active", "expired"]
    assert not silence().mutes({"node": "n1"}, NOW)


def test_the_longest_silence_is_named():
    """Of two that mute, the one that ends later counts."""
    both = [silence(Matcher("node", "n1"), hours=h) for h in (1, 3)]
    chosen = muting(both, {"node": "n1"}, NOW)
    assert chosen is not None
    assert chosen.id == "s3"


@pytest.mark.parametrize("value", ["(", "*", "[a"])
def test_bad_regex_is_refused_with_its_reason(value):
    """A matcher that is no regular expression is refused when it is made."""
    with pytest.raises(ValueError, match="no regular expression"):
        Matcher("node", value, is_regex=True)
    with pytest.raises(ValueError, match="at most 256"):
        Matcher("node", "x" * 257)
