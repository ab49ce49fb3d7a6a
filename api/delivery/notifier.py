"""The notifier: leases due deliveries, sends each, and records the result.

At least once: a delivery is leased before it is sent and completed after the answer, both durably. A process
killed in between leaves a lease that expires, and another one sends it again under the same ``webhook-id``.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool

from alerts.config import FindingConfig
from api.delivery import webhook_health
from api.delivery.outgoing import Request, request_of
from api.delivery.receivers.registry import receiver_named, repeat_seconds
from api.delivery.retry import Answer, next_attempt, verdict
from api.delivery.sample_event import TYPE as TEST
from api.delivery.sender import Sender
from api.delivery.sequence_client import SequenceClient
from api.delivery.slack_client import SlackClient
from api.http.times import utc_now
from api.metrics import NotifierMetrics
from store import retention
from store.error_classes import UNAVAILABLE
from store.findings import deliveries, leases, outbox, repeats, webhooks
from store.findings.attempt_errors import NOT_BUILT
from store.findings.deliveries import Attempt
from store.findings.leases import Due
from store.heartbeats import Heartbeat, beat

log = logging.getLogger(__name__)

# /readyz reports a process without a heartbeat for 60 s (routes.health.STALE) as missing.
BEAT_SECONDS = 10.0
# How often findings about endpoints that a person disabled or removed are resolved.
LOOK_SECONDS = 10.0
PRUNE_SECONDS = 3600.0
# Pause between attempts while the database is unavailable.
AWAY_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Deliveries at once, seconds of a lease, seconds between polls without a notification."""

    concurrency: int = 8
    lease_seconds: float = 60.0
    poll_seconds: float = 5.0


@dataclass(slots=True, kw_only=True)
class Notifier:
    """Delivers from the outbox; one delivery per endpoint is in progress at a time."""

    pool: ConnectionPool[Any]
    client: Sender
    metrics: NotifierMetrics
    public_url: str
    instance: str
    mail: Sender | None = None
    limits: Limits = Limits()
    finding_config: FindingConfig = webhook_health.CONFIG
    now: Callable[[], datetime] = utc_now
    chance: Callable[[], float] = random.random
    _running: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver until ``stop`` is set, then finish what is in progress. Survives database outages."""
        woken = asyncio.Event()
        work = (
            self._listen(woken),
            self._repeat(self._leave_beat, BEAT_SECONDS),
            self._repeat(self._end_recovered, LOOK_SECONDS),
            self._repeat(self._prune, PRUNE_SECONDS),
        )
        helpers = [asyncio.create_task(helper) for helper in work]
        try:
            while not stop.is_set():
                # Cleared before the lease, so that a notification that comes meanwhile is not lost.
                woken.clear()
                if not await self._start_next():
                    await self._idle(stop, woken)
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, *self._running.values(), return_exceptions=True)

    async def drain(self) -> int:
        """Deliver everything that is due now; return the number of attempts."""
        tries = 0
        while await self._start_next() or self._running:
            if self._running:
                await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)
                tries += 1
                # A callback frees the slot in the next turn of the loop.
                await asyncio.sleep(0)
        return tries

    async def _start_next(self) -> bool:
        """Lease one delivery and start it; return False when there is none to start now."""
        if len(self._running) >= self.limits.concurrency:
            return False
        try:
            leased = await asyncio.to_thread(self._lease)
        except UNAVAILABLE as error:
            log.warning("the database is unavailable, trying again: %s", error)
            await asyncio.sleep(AWAY_SECONDS)
            return False
        for due in leased:
            task = asyncio.create_task(self._deliver(due))
            self._running[due.webhook.id] = task
            task.add_done_callback(partial(self._done, due.webhook.id))
        return bool(leased)

    def _lease(self) -> list[Due]:
        now = self.now()
        with self.pool.connection() as conn:
            oldest = leases.oldest_due(conn, now)
            self.metrics.oldest.set(0.0 if oldest is None else (now - oldest).total_seconds())
            # One at a time: a second one might be for the endpoint that the first makes busy.
            seconds, busy = self.limits.lease_seconds, list(self._running)
            return leases.lease_due(
                conn, now=now, limit=1, lease_seconds=seconds, busy=busy
            ) or repeats.lease_repeats(
                conn, repeat_seconds(), now=now, limit=1, lease_seconds=seconds, busy=busy
            )

    def _done(self, endpoint: str, task: asyncio.Task[None]) -> None:
        del self._running[endpoint]
        if not task.cancelled() and task.exception() is not None:
            log.error("a delivery to %s failed with an unexpected error", endpoint, exc_info=task.exception())

    async def _deliver(self, due: Due) -> None:
        now = self.now()
        try:
            try:
                sender = self._sender(due)
                headers, body = await asyncio.to_thread(self._request, due, now)
            except ValueError as error:
                answer = Answer(error=f"{NOT_BUILT}: {error}")
            else:
                # Another notifier may hold the lease and have sent a newer event.
                if self.now() >= due.leased_until:
                    log.warning("delivery %s is left to another notifier: its lease has expired", due.id)
                    return
                answer = await sender.post(due.webhook.url, headers, body)
            await asyncio.to_thread(self._finish, due, now, answer)
        except UNAVAILABLE as error:
            log.warning("delivery %s is sent again after its lease: %s", due.id, error)

    def _request(self, due: Due, now: datetime) -> Request:
        with self.pool.connection() as conn:
            return request_of(conn, due, now=now, public_url=self.public_url)

    def _sender(self, due: Due) -> Sender:
        match receiver_named(due.webhook.format).transport:
            case "http":
                return self.client
            case "slack":
                return SlackClient(self.client)
            case "sequence":
                return SequenceClient(self.client)
        if self.mail is None:
            raise ValueError("there is no mail server: set SLOWRANK_SMTP_HOST and _FROM for the notifier")
        return self.mail

    def _finish(self, due: Due, started: datetime, answer: Answer) -> None:
        what = verdict(answer)
        error = answer.error or ("" if what == "delivered" else f"HTTP {answer.status}")
        attempt = Attempt(
            at=started, status=answer.status, error=error, excerpt=answer.excerpt, seconds=answer.seconds
        )
        self.metrics.seconds.observe(answer.seconds)
        self.metrics.deliveries.labels(due.webhook.id, what).inc()
        with self.pool.connection() as conn, conn.transaction():
            if answer.receipt:
                deliveries.keep_receipt(conn, due, answer.receipt)
            if due.repeat:
                deliveries.mark_repeated(conn, due, attempt, delivered=what == "delivered")
            elif what == "delivered":
                deliveries.mark_delivered(conn, due, attempt)
            if what == "delivered":
                if webhooks.record_success(conn, due.webhook.id):
                    if due.webhook.failing:
                        deliveries.make_due(conn, due.webhook.id, self.now())
                    webhook_health.end_recovered(conn, self.now(), self.finding_config)
            else:
                self._failed(conn, due, attempt, answer)

    def _failed(self, conn: psycopg.Connection[Any], due: Due, attempt: Attempt, answer: Answer) -> None:
        if verdict(answer) == "gone":
            deliveries.mark_failed(conn, due, attempt, again_at=None)
            log.error("webhook %s is disabled: its receiver answered 410 Gone", due.webhook.id)
            webhook = webhooks.disable_gone(
                conn, due.webhook.id, "the receiver answered 410 Gone", self.now()
            )
        else:
            # A test is attempted once, as a person waits for the result; a repetition is due again anyway.
            once = due.repeat or due.event.type == TEST
            urgent = due.event.body.get("severity") == "critical"
            again_at = (
                None if once else next_attempt(due.attempt, self.now(), answer, self.chance(), urgent=urgent)
            )
            deliveries.mark_failed(conn, due, attempt, again_at=again_at)
            if again_at is None and not once:
                log.error(
                    "webhook %s: no more attempts for event %s: %s",
                    due.webhook.id,
                    due.event.id,
                    attempt.error,
                )
            webhook = webhooks.record_failure(conn, due.webhook.id, attempt.at)
        if webhook is not None and webhook.failing:
            webhook_health.report_failing(conn, webhook, due, attempt, self.finding_config)

    async def _idle(self, stop: asyncio.Event, woken: asyncio.Event) -> None:
        """Sleep until something may be due: a notification, a free slot, the end of the poll interval."""
        waits = [asyncio.create_task(stop.wait()), asyncio.create_task(woken.wait())]
        try:
            await asyncio.wait(
                [*waits, *self._running.values()],
                timeout=await self._pause(),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for wait in waits:
                wait.cancel()

    async def _pause(self) -> float:
        try:
            due_at = await asyncio.to_thread(self._next_due)
        except UNAVAILABLE:
            return AWAY_SECONDS
        if due_at is None:
            return self.limits.poll_seconds
        # A delivery that is due waits for its busy endpoint: the end of that one wakes the loop.
        at_least = 0.5 if self._running else 0.05
        return min(self.limits.poll_seconds, max(at_least, (due_at - self.now()).total_seconds()))

    def _next_due(self) -> datetime | None:
        with self.pool.connection() as conn:
            return leases.next_due(conn)

    async def _listen(self, woken: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        closing = False

        def listen() -> None:
            with self.pool.connection() as conn:
                outbox.listen(conn)
                while not closing:
                    # A thread cannot be cancelled: it checks every second whether it should end.
                    if outbox.wait(conn, 1.0):
                        loop.call_soon_threadsafe(woken.set)
                outbox.unlisten(conn)

        try:
            while True:
                try:
                    await asyncio.to_thread(listen)
                except UNAVAILABLE:
                    await asyncio.sleep(AWAY_SECONDS)
        finally:
            closing = True

    async def _repeat(self, work: Callable[[], None], seconds: float) -> None:
        while True:
            with contextlib.suppress(*UNAVAILABLE):
                await asyncio.to_thread(work)
            await asyncio.sleep(seconds)

    def _end_recovered(self) -> None:
        with self.pool.connection() as conn:
            webhook_health.end_recovered(conn, self.now(), self.finding_config)

    def _prune(self) -> None:
        """Remove old events, secrets and answers; only the notifier's database role may."""
        with self.pool.connection() as conn:
            retention.prune_as_notifier(conn, now=self.now())

    def _leave_beat(self) -> None:
        with self.pool.connection() as conn:
            beat(conn, Heartbeat("notifier", self.instance, self.now(), {"running": len(self._running)}))
