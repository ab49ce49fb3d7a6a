"""What became of findings under another tuning."""

import json

import pytest

from alerts.cases.shadow import SUFFIX
from alerts.finding import Finding, finding_id
from slowrank.telemetry import Subject
from streams.files.finding_diff import compare, differences_ndjson

T0 = 1_795_160_000.0


def finding(key="c/gpu/n:1/straggler.fail_slow", onset=0.0, **changes):
    fields = {
        "id": finding_id(changes.get("dedup_key", key), T0 + onset),
        "dedup_key": key,
        "kind": "straggler.fail_slow",
        "title": "n GPU 1 is slow",
        "severity": "error",
        "status": "open",
        "subject": Subject(type="gpu", cluster="c", node="n", gpu_index=1),
        "onset": T0 + onset,
        "onset_lo": T0 + onset,
        "onset_hi": T0 + onset,
        "detected_at": T0 + onset + 5,
        "last_seen_at": T0 + onset + 9,
        "detector": "peer_step",
    }
    return Finding(**(fields | changes))


def changes(before, after):
    return [(d.change, d.fields) for d in compare(before, after)]


def test_what_is_the_same_is_the_same():
    """Numbers that nobody acts on may differ."""
    assert changes([finding()], [finding(score=9.0)]) == [("same", ())]


def test_what_opens_goes_and_changes():
    """In order of onset, each under its own name."""
    other = "c/gpu/n:2/straggler.fail_slow"
    before = [finding(), finding(other, 50.0)]
    after = [finding(severity="warning"), finding("c/gpu/n:3/straggler.fail_slow", 20.0)]
    assert changes(before, after) == [("changed", ("severity",)), ("opened", ()), ("gone", ())]


def test_an_onset_that_moved_is_a_change_and_not_another_finding():
    """Its id follows from the onset, its cause does not."""
    assert changes([finding()], [finding(onset=3.0)]) == [("changed", ("onset", "detected_at"))]


def test_later_findings_of_one_cause_follow_each_other():
    """The one with the same id is itself; the rest pair in order."""
    before = [finding(), finding(onset=90_000.0)]
    assert changes(before, [finding(onset=90_000.0)]) == [("gone", ()), ("same", ())]


def test_one_that_went_into_shadow_is_the_same_one():
    """It is told as a change, with both sides."""
    key = finding().dedup_key + SUFFIX
    marked = finding(shadow=True, dedup_key=key, id=finding_id(key, T0))
    [difference] = compare([finding()], [marked])
    assert (difference.change, difference.fields) == ("changed", ("shadow",))
    assert "shadow: False -> True" in difference.line()


@pytest.mark.parametrize("side", ["before", "after"])
def test_ndjson_holds_both_sides(side):
    """What is not there is null; what is the same is left out."""
    sides = {"before": [finding("c/k/same")], "after": [finding("c/k/same")]}
    sides[side].append(finding(onset=9.0))
    [line] = [json.loads(text) for text in differences_ndjson(compare(**sides)).splitlines()]
    assert line["change"] == {"before": "gone", "after": "opened"}[side]
    assert line[side]["schema"] == "finding.v1"
    assert line[{"before": "after", "after": "before"}[side]] is None


def test_nothing_twice_is_no_difference():
    """No findings, no lines."""
    assert differences_ndjson(compare([], [])) == b""
