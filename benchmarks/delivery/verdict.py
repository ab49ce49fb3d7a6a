"""Holds what receivers took against what happened: the last state, the order, the identity of duplicates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg import Connection

from benchmarks.delivery.receivers import Arrival
from benchmarks.delivery.states import Truth, name_of, state_after


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the outbox: its number, and the finding it is of."""

    seq: int
    finding_id: str


@dataclass(slots=True)
class Verdict:
    """Figures of one receiver and every promise that was broken, as texts.

    ``repeated``: requests that had come before.
    """

    receiver: str
    requests: int
    events: int
    repeated: int
    broken: list[str] = field(default_factory=list)


def verdict(
    receiver: str, arrivals: Sequence[Arrival], events: Mapping[str, Event], truth: Iterable[Truth]
) -> Verdict:
    """Judge one receiver by its requests in order of arrival. ``events`` are those of the outbox, by id."""
    ids = {arrival.webhook_id for arrival in arrivals}
    calls = {_call(arrival) for arrival in arrivals}
    found = Verdict(receiver, len(arrivals), len(ids), len(arrivals) - len(calls))
    found.broken += [f"webhook-id {id_} is of no event" for id_ in ids - events.keys()]
    found.broken += _changed_bodies(arrivals)
    found.broken += _out_of_order(arrivals, events)
    found.broken += _wrong_in_the_end(receiver, arrivals, truth)
    return found


Call = tuple[str, str, bool]


def _call(arrival: Arrival) -> Call:
    """Identify a request. A delivery is up to two to one path: an update and a reply (Slack), or, to
    PagerDuty, a ``trigger`` and an ``acknowledge``; those to Opsgenie have different paths."""
    second = any(mark in arrival.body for mark in (b'"thread_ts"', b'"event_action":"acknowledge"'))
    return arrival.webhook_id, arrival.path, second


def _changed_bodies(arrivals: Iterable[Arrival]) -> list[str]:
    """The same id is the same message, byte for byte."""
    bodies: dict[Call, bytes] = {}
    return [
        f"{arrival.webhook_id} came with two bodies"
        for arrival in arrivals
        if bodies.setdefault(_call(arrival), arrival.body) != arrival.body
    ]


def _out_of_order(arrivals: Iterable[Arrival], events: Mapping[str, Event]) -> list[str]:
    last: dict[str, int] = {}
    broken = []
    for arrival in arrivals:
        event = events.get(arrival.webhook_id)
        if event is None:
            continue
        if event.seq < last.get(event.finding_id, 0):
            broken.append(f"{arrival.webhook_id} of {event.finding_id} came after a newer event")
        last[event.finding_id] = event.seq
    return broken


def _wrong_in_the_end(receiver: str, arrivals: Iterable[Arrival], truth: Iterable[Truth]) -> list[str]:
    shown = state_after(receiver, arrivals)
    return [
        f"{finding.id} is shown as {state} and is {finding.shown}"
        for finding in truth
        if (state := shown.get(name_of(receiver, finding), "nothing")) != finding.shown
    ]


def events_of(conn: Connection[Any]) -> dict[str, Event]:
    """Return the events of the outbox by id."""
    rows = conn.execute("SELECT id, seq, finding_id FROM events").fetchall()
    return {id_: Event(seq, finding) for id_, seq, finding in rows}


def states_of(conn: Connection[Any]) -> dict[str, int]:
    """Return how many deliveries are in each state in the end."""
    return dict(conn.execute("SELECT state, count(*) FROM deliveries GROUP BY state").fetchall())
