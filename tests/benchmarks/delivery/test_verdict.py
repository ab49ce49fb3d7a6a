"""What receivers took is held against what happened: each way to break a promise is found."""

import json

import pytest

from benchmarks.delivery.receivers import Arrival
from benchmarks.delivery.states import Truth
from benchmarks.delivery.verdict import Event, verdict

EVENTS = {"msg_1": Event(1, "fnd_a"), "msg_2": Event(2, "fnd_a"), "msg_3": Event(3, "fnd_b")}
ENDED = Truth("fnd_a", "a is slow", "resolved", "error")
OPEN = Truth("fnd_b", "b is slow", "acknowledged", "critical")


def sent(id_, finding, status, severity):
    data = {"id": finding, "status": status, "severity": severity}
    return Arrival("standard", "/hook", id_, json.dumps({"data": data}).encode())


FIRST, SECOND = sent("msg_1", "fnd_a", "open", "error"), sent("msg_2", "fnd_a", "resolved", "error")
OTHER = sent("msg_3", "fnd_b", "open", "critical")


def test_promises_that_are_kept():
    """Two events of one finding in order, one of them twice, and one of another."""
    found = verdict("standard", [FIRST, OTHER, FIRST, SECOND], EVENTS, [ENDED, OPEN])
    assert (found.requests, found.events, found.repeated, found.broken) == (4, 3, 1, [])


@pytest.mark.parametrize(
    ("arrivals", "broken"),
    [
        ([FIRST, SECOND], "fnd_b is shown as nothing and is critical"),
        ([FIRST, OTHER], "fnd_a is shown as error and is ended"),
        ([FIRST, SECOND, sent("msg_3", "fnd_b", "open", "error")], "fnd_b is shown as error and is critical"),
        ([SECOND, FIRST, SECOND, OTHER], "msg_1 of fnd_a came after a newer event"),
        ([FIRST, sent("msg_9", "fnd_a", "resolved", ""), OTHER], "webhook-id msg_9 is of no event"),
        ([FIRST, SECOND, sent("msg_2", "fnd_a", "resolved", ""), OTHER], "msg_2 came with two bodies"),
    ],
    ids=["lost", "end lost", "stale", "order", "other id", "other body"],
)
def test_promises_that_are_broken(arrivals, broken):
    """Nothing, an old state, the wrong order, another id for the same event, another body for the same id."""
    assert verdict("standard", arrivals, EVENTS, [ENDED, OPEN]).broken == [broken]


def alert(severity, **ends):
    return {"labels": {"finding_id": "fnd_a", "severity": severity}} | ends


def slack(text):
    return {"text": text, "channel": "C01"}


OVER = {"endsAt": "2026-11-20T07:46:12Z"}


@pytest.mark.parametrize(
    ("receiver", "bodies", "shown"),
    [
        ("alertmanager_push", [[alert("error")], [alert("critical"), alert("error", **OVER)]], "critical"),
        ("alertmanager_push", [[alert("error")], [alert("critical")]], "error+critical"),
        ("alertmanager_push", [[alert("error")], [alert("error", **OVER)]], "ended"),
        (
            "pagerduty",
            [
                {"dedup_key": "fnd_a", "event_action": "trigger", "payload": {"severity": "error"}},
                {"dedup_key": "fnd_a", "event_action": "acknowledge"},
            ],
            "error",
        ),
        ("pagerduty", [{"dedup_key": "fnd_a", "event_action": "resolve"}], "ended"),
        ("slack", [slack("ERROR a is slow"), slack("Escalated: CRITICAL a is slow")], "critical"),
        ("slack", [slack("ERROR a is slow"), slack("Resolved: a is slow")], "ended"),
        ("slack_bot", [slack("Resolved: a is slow"), slack("x") | {"thread_ts": "1"}], "ended"),
    ],
)
def test_what_each_receiver_shows(receiver, bodies, shown):
    """Alertmanager has alerts by labels, PagerDuty by key; of Slack the last message counts."""
    arrivals = [Arrival(receiver, "/", f"msg_{i}", json.dumps(b).encode()) for i, b in enumerate(bodies)]
    events = {f"msg_{i}": Event(i, "fnd_a") for i in range(len(bodies))}
    [broken] = verdict(receiver, arrivals, events, [Truth("fnd_a", "a is slow", "open", "info")]).broken
    assert broken == f"fnd_a is shown as {shown} and is info"


CREATED = {"alias": "fnd_a-error", "priority": "P2"}
WORSE = {"alias": "fnd_a-critical", "priority": "P1"}


@pytest.mark.parametrize(
    ("requests", "shown"),
    [
        ([("", CREATED)], "error"),
        ([("", CREATED), ("", CREATED | {"priority": "P1"})], "error"),
        ([("", CREATED), ("", WORSE)], "error+critical"),
        ([("", CREATED), ("", WORSE), ("/fnd_a-error/close", {})], "critical"),
        ([("", CREATED), ("/fnd_a-error/acknowledge", {})], "error"),
        ([("", CREATED), ("/fnd_a-error/close", {})], "ended"),
    ],
)
def test_what_opsgenie_shows(requests, shown):
    """Alerts by alias: an open one keeps its priority, whatever is created under its alias."""
    arrivals = [
        Arrival("opsgenie", f"/v2/alerts{path}?identifierType=alias", f"msg_{i}", json.dumps(body).encode())
        for i, (path, body) in enumerate(requests)
    ]
    events = {f"msg_{i}": Event(i, "fnd_a") for i in range(len(requests))}
    [broken] = verdict("opsgenie", arrivals, events, [Truth("fnd_a", "a is slow", "open", "info")]).broken
    assert broken == f"fnd_a is shown as {shown} and is info"
