"""Kill the notifier again and again while findings open, escalate and end; judge what receivers got.

Every format has a receiver on loopback, over HTTP or SMTP, that takes every event; some answers are lost on
purpose. ``slowrank notifier run`` is killed (SIGKILL) at random moments and started again. In the end
each receiver must show each finding as it is; it must have got the events of a finding in order, and what it
got twice under the same ``webhook-id`` with the same body. The database is one of the run's own on the server
of SLOWRANK_TEST_DSN, else on an embedded PostgreSQL.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from psycopg_pool import ConnectionPool

from api.security.signing import new_secret
from benchmarks.database import own_database
from benchmarks.delivery.feed import Feed, plan
from benchmarks.delivery.killing import Lease, NotifierProcess, kill_at_random
from benchmarks.delivery.receivers import OPSGENIE_KEY, PAGERDUTY_KEY, SLACK_TOKEN, Receivers, served
from benchmarks.delivery.states import RECEIVERS
from benchmarks.delivery.verdict import Verdict, events_of, states_of, verdict
from store.findings import webhooks
from store.findings.webhooks import Webhook
from store.pool import open_pool

EVENTS = ("opened", "updated", "escalated", "acknowledged", "resolved", "reopened")
TEMPLATE = {name: f"{{{{ finding.{name} }}}}" for name in ("id", "status", "severity")}
ISSUED = {"opsgenie": OPSGENIE_KEY, "pagerduty": PAGERDUTY_KEY, "slack_bot": SLACK_TOKEN}

# The shortest that the settings allow: after a kill the deliveries it cut off wait that long.
LEASE_SECONDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run does; ``seconds``: within which the findings go through their lives."""

    findings: int
    kills: int
    seconds: float
    fault: float
    drain_seconds: float
    seed: int
    receivers: Sequence[str] = RECEIVERS


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a run; ``cut_off``: deliveries between lease and result, for each kill."""

    verdicts: list[Verdict]
    events: int
    cut_off: list[int]
    deliveries: dict[str, int]
    seconds: float

    @property
    def broken(self) -> list[str]:
        """Every promise that was not kept."""
        open_ = {state: n for state, n in self.deliveries.items() if state not in ("delivered", "superseded")}
        left = [f"{count} deliveries are {state}" for state, count in open_.items()]
        return left + [f"{one.receiver}: {text}" for one in self.verdicts for text in one.broken]


def main(argv: list[str]) -> int:
    """Print the figures of each receiver; return 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks delivery", description=__doc__)
    parser.add_argument("--findings", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=180.0, help="length of the findings' lives")
    parser.add_argument("--fault", type=float, default=0.02, help="share of answers that are lost")
    parser.add_argument("--drain-seconds", type=float, default=240.0, help="longest wait for the rest")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args(argv)
    with own_database() as dsn:
        result = run(dsn, Run(**vars(options)))
    _print(options, result)
    return int(bool(result.broken))


def run(dsn: str, what: Run) -> Result:
    """Run once on an empty, migrated database. Raises ``RuntimeError`` when the notifier ends by itself."""
    began = time.monotonic()
    receivers = Receivers(fault=what.fault, seed=what.seed)
    with (
        open_pool(dsn, name="benchmark") as pool,
        served(receivers),
        tempfile.TemporaryDirectory(prefix="slowrank-delivery-") as folder,
    ):
        _register(pool, receivers, what.receivers)
        feed = Feed(pool)
        notifier = NotifierProcess(_settings(dsn, receivers), Path(folder) / "notifier.log")
        cut_off = _disturbed(what, pool, feed, notifier, receivers)
        with pool.connection() as conn:
            events, deliveries = events_of(conn), states_of(conn)
    verdicts = [
        verdict(name, [a for a in receivers.arrivals if a.receiver == name], events, feed.truth)
        for name in what.receivers
    ]
    return Result(verdicts, len(events), cut_off, deliveries, time.monotonic() - began)


def _disturbed(
    what: Run, pool: ConnectionPool[Any], feed: Feed, notifier: NotifierProcess, receivers: Receivers
) -> list[int]:
    """Feed the findings and kill the notifier meanwhile; then let one deliver the rest."""
    chance = random.Random(what.seed)
    steps = plan(what.findings, what.seconds, chance)
    stopped = threading.Event()
    failed: list[Exception] = []

    def feeding() -> None:
        try:
            feed.run(steps, stopped.is_set)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=feeding)
    thread.start()
    try:
        cut_off = kill_at_random(
            notifier,
            what.kills,
            seconds=2 * max(0.5, what.seconds / what.kills - 2.5),
            chance=chance,
            arrived=lambda: len(receivers.arrivals),
            leases=lambda: _leases(pool),
        )
        notifier.start()
        thread.join()
        if failed:
            raise failed[0]
        _drain(pool, notifier, what.drain_seconds)
    finally:
        stopped.set()
        thread.join()
        notifier.stop()
    return cut_off


def _drain(pool: ConnectionPool[Any], notifier: NotifierProcess, seconds: float) -> None:
    """Wait until nothing is left to be delivered, or for ``seconds``."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        notifier.check()
        with pool.connection() as conn:
            row = conn.execute("SELECT count(*) FROM deliveries WHERE state = 'pending'").fetchone()
        if row == (0,):
            return
        time.sleep(0.5)


def _leases(pool: ConnectionPool[Any]) -> set[Lease]:
    with pool.connection() as conn:
        return set(conn.execute("SELECT id, leased_until FROM deliveries WHERE leased_until > now()"))


def _register(pool: ConnectionPool[Any], receivers: Receivers, names: Sequence[str]) -> None:
    """Store a webhook of each format that takes every event of findings."""
    now = datetime.now(UTC)
    for name in names:
        webhook = Webhook(
            id=f"whk_{name}",
            name=name,
            url=receivers.url(name),
            format=name,
            events=tuple(f"finding.{event}" for event in EVENTS),
            template=TEMPLATE if name == "template" else None,
            # A finding about a receiver that failed three times in a row is none of those that are counted.
            kinds=("straggler",),
            created_by="benchmark",
            created_at=now,
            updated_at=now,
        )
        secret = ISSUED.get(name) or new_secret()
        with pool.connection() as conn:
            webhooks.create(conn, webhook, secret)


def _settings(dsn: str, receivers: Receivers) -> dict[str, str]:
    return {
        "SLOWRANK_DATABASE_URL": dsn,
        "SLOWRANK_WEBHOOK_ALLOW_HTTP": '["127.0.0.1"]',
        "SLOWRANK_WEBHOOK_ALLOW_PRIVATE": '["127.0.0.0/8"]',
        "SLOWRANK_WEBHOOK_ALLOW_PORTS": f"[{receivers.port}]",
        "SLOWRANK_SMTP_HOST": "127.0.0.1",
        "SLOWRANK_SMTP_PORT": str(receivers.mail_port),
        "SLOWRANK_SMTP_SECURITY": "none",
        "SLOWRANK_SMTP_FROM": "slowrank@example.org",
        "SLOWRANK_NOTIFIER_LEASE_SECONDS": str(LEASE_SECONDS),
        "SLOWRANK_NOTIFIER_POLL_SECONDS": "1",
        "SLOWRANK_NOTIFIER_METRICS_PORT": "0",
    }


def _print(options: argparse.Namespace, result: Result) -> None:
    hit = sum(1 for count in result.cut_off if count)
    print(
        f"{options.findings} findings, {result.events} events; {options.kills} kills, {hit} of which cut off "
        f"{sum(result.cut_off)} deliveries; {result.seconds:.0f} s"
    )
    print("deliveries: " + ", ".join(f"{count} {state}" for state, count in result.deliveries.items()))
    print("receiver            requests   events   repeated   broken promises")
    for one in result.verdicts:
        figures = f"{one.requests:8d} {one.events:8d} {one.repeated:10d} {len(one.broken):17d}"
        print(f"{one.receiver:18} {figures}")
    for text in result.broken[:20]:
        print(text, file=sys.stderr)
