"""A stored finding and new versions of it."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.cases.lifecycle import LIVE
from alerts.finding import Finding, finding_id
from alerts.merge import Held, merge, version_time
from alerts.notify import NotifiedState
from slowrank.telemetry import Subject


def finding(*, as_of=0, status="open", occurrences=1, onset=0):
    """A finding; its id follows the onset, as that of a worker without memory would."""
    ended = float(as_of) if status in ("resolved", "expired") else None
    return Finding(
        id=finding_id("k", onset + 1000.0),
        dedup_key="k",
        kind="straggler.fail_slow",
        title="t",
        severity="error",
        status=status,
        subject=Subject(type="gpu", cluster="c", node="n1", gpu_index=5),
        onset=onset,
        onset_lo=onset - 1,
        onset_hi=onset + 1,
        detected_at=onset + 2,
        last_seen_at=as_of,
        detector="d",
        resolved_at=ended,
        gpu_hours_lost=float(as_of % 7),
        occurrences=occurrences,
        as_of=as_of,
    )


def held(version, **changes):
    fields = {
        "id": version.id,
        "notified": NotifiedState.of(version),
        "as_of": version.as_of,
        "onset": (version.onset, version.onset_lo, version.onset_hi),
        "detected_at": version.detected_at,
        "flaps": version.flaps,
        "gpu_hours_lost": version.gpu_hours_lost or 0.0,
        "opened": version.status != "suspected",
        "resolved_at": version.resolved_at,
    }
    return Held(**(fields | changes))


def merged(before, after, **changes):
    """What is stored once ``after`` has come; it must be the newer one."""
    stored = merge(held(before, **changes), after)
    assert stored is not None
    return stored


versions = st.builds(
    finding,
    as_of=st.integers(0, 50),
    status=st.sampled_from(["suspected", "open", "resolved", "expired"]),
    occurrences=st.integers(1, 3),
    onset=st.integers(-50, 0),
)


@given(st.lists(versions, min_size=1, max_size=8))
def test_merging_never_goes_back(stream):
    """Whatever versions come in whatever order: time, occurrences, cost and, once it is open, onset only move
    one way."""
    stored, opened = stream[0], False
    for version in stream[1:]:
        opened = opened or stored.status != "suspected"
        after = merge(held(stored, opened=opened), version)
        if after is None:
            continue
        assert after.id == stored.id
        assert after.as_of >= stored.as_of
        assert after.occurrences >= stored.occurrences
        assert after.onset <= stored.onset or not opened
        assert (after.gpu_hours_lost or 0) >= (stored.gpu_hours_lost or 0)
        assert (after.resolved_at is None) == (after.status in LIVE)
        assert not (stored.status == "open" and after.status == "suspected")
        assert merge(held(after, opened=opened), after) in (None, after)
        stored = after


@pytest.mark.parametrize(
    ("as_of", "status", "newer"),
    [
        (9, "resolved", False),
        (10, "suspected", False),
        (10, "open", True),
        (10, "resolved", True),
        (11, "open", True),
    ],
)
def test_the_newer_version_wins_and_of_one_moment_the_one_that_got_further(as_of, status, newer):
    """What was heard earlier is dropped, and at the same event time what stands earlier in the life cycle."""
    after = merge(held(finding(as_of=10)), finding(as_of=as_of, status=status))
    assert (after is not None) == newer


@pytest.mark.parametrize(("last_seen", "resolved", "time"), [(1, None, 2.0), (7, None, 7.0), (7, 9.0, 9.0)])
def test_a_version_that_names_no_time_is_as_old_as_the_last_thing_it_tells(last_seen, resolved, time):
    """Its detection, the last that was heard of it, or its end, whichever is latest."""
    version = replace(finding(), last_seen_at=last_seen, resolved_at=resolved, as_of=None)
    assert version_time(version) == time
    assert version_time(replace(version, as_of=3.0)) == 3.0


@given(st.floats(1e9, 4e9))
def test_the_time_of_a_version_is_stored_as_it_is(ts):
    """PostgreSQL keeps whole microseconds: a version read back is as old as it was."""
    for made in (finding(as_of=ts), replace(finding(), as_of=None, last_seen_at=ts)):
        assert datetime.fromtimestamp(version_time(made), UTC).timestamp() == version_time(made)


@pytest.mark.parametrize(
    ("before", "onset", "occurrences", "expected"),
    [
        (finding(status="resolved", occurrences=2), -5, 1, 3),
        (finding(status="expired", occurrences=2), -5, 2, 3),
        (finding(status="resolved", occurrences=2), -5, 4, 4),
        (finding(status="resolved", occurrences=2), 0, 2, 2),
        (finding(status="open", occurrences=2), -5, 1, 2),
        (finding(status="open", occurrences=2), 0, 3, 3),
    ],
)
def test_a_worker_without_memory_raises_what_had_ended_once_more(before, onset, occurrences, expected):
    """Under an id of its own it counts from one; what was over and is open again is one occurrence more."""
    after = merged(before, finding(as_of=1, onset=onset, occurrences=occurrences))
    assert (after.id, after.status, after.occurrences) == (before.id, "open", expected)


def test_a_suspicion_without_memory_is_no_occurrence():
    """Only what is open again has occurred again."""
    before = finding(status="resolved", occurrences=2)
    after = merged(before, finding(as_of=1, onset=-5, status="suspected"))
    assert (after.status, after.occurrences) == ("suspected", 2)


@pytest.mark.parametrize(
    ("status", "occurrences", "expected"),
    [
        ("open", 1, "acknowledged"),
        ("suspected", 1, "acknowledged"),
        ("open", 2, "open"),
        ("resolved", 1, "resolved"),
    ],
)
def test_an_acknowledgement_lasts_as_long_as_its_occurrence(status, occurrences, expected):
    """What people know of stays acknowledged until it ends or comes again."""
    after = merged(finding(status="acknowledged"), finding(as_of=1, status=status, occurrences=occurrences))
    assert after.status == expected


@pytest.mark.parametrize(("occurrences", "status", "resolved_at"), [(1, "resolved", 5.0), (2, "open", None)])
def test_what_a_person_closed_stays_closed_until_it_comes_again(occurrences, status, resolved_at):
    """The detector that still sees it does not open it; a relapse does."""
    before = finding(status="resolved", as_of=1)
    after = merged(before, finding(as_of=2, occurrences=occurrences), closed_at=5.0, closed_occurrence=1)
    assert (after.status, after.resolved_at) == (status, resolved_at)


@pytest.mark.parametrize(("ended", "closed", "kept"), [(0.0, 5.0, 0.0), (None, 5.0, 5.0), (None, None, 1.0)])
def test_the_end_is_that_of_the_detector_then_of_the_person_then_the_known_one(ended, closed, kept):
    """The first that is known counts, and zero is a time."""
    after = replace(finding(as_of=2, status="resolved"), resolved_at=ended)
    assert merged(finding(as_of=1, status="resolved"), after, closed_at=closed).resolved_at == kept


@pytest.mark.parametrize(
    ("status", "opened", "incoming", "detected_at"),
    [
        ("suspected", False, "open", 30.0),
        ("expired", False, "open", 30.0),
        ("suspected", False, "suspected", 2.0),
        ("suspected", True, "open", 2.0),
        ("open", True, "open", 2.0),
    ],
)
def test_it_was_detected_when_it_first_opened(status, opened, incoming, detected_at):
    """Until then the time is that of the suspicion; later versions and relapses do not move it."""
    before = finding(status=status)
    after = replace(finding(as_of=30, status=incoming), detected_at=30.0)
    assert merged(before, after, opened=opened).detected_at == detected_at


@pytest.mark.parametrize(
    ("status", "opened", "same_id", "onset"),
    [
        ("suspected", False, True, 20),
        ("expired", False, True, 20),
        ("suspected", False, False, 0),
        ("suspected", True, True, 0),
        ("open", True, True, 0),
    ],
)
def test_a_suspicion_that_was_over_does_not_date_the_finding(status, opened, same_id, onset):
    """Where the same worker dates it anew before it was ever open, the onset is the new one."""
    before, after = finding(status=status), finding(as_of=30, onset=20)
    stored = merged(before, replace(after, id=before.id) if same_id else after, opened=opened)
    assert (stored.onset, stored.onset_lo, stored.onset_hi) == (onset, onset - 1, onset + 1)


def test_what_was_known_of_its_cost_and_onset_is_kept():
    """A worker that remembers less takes back neither the flaps, the GPU-hours nor the earliest onset."""
    before = replace(finding(as_of=6, onset=-9), flaps=4)
    after = replace(finding(as_of=8), gpu_hours_lost=None)
    stored = merged(before, after)
    assert (stored.flaps, stored.gpu_hours_lost) == (4, 6.0)
    assert (stored.onset, stored.onset_lo, stored.onset_hi) == (-9, -10, -8)
    assert merged(finding(), after).gpu_hours_lost is None
