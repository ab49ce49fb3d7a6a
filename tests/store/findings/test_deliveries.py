"""Deliveries: leased once, tried again, logged, and lost by nobody."""

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from alerts.config import FindingConfig
from store import retention
from store.findings import deliveries, leases, outbox, webhooks
from store.findings.deliveries import Attempt
from store.findings.outbox import OutboxEvent, event_id
from store.findings.webhooks import Webhook

NOW = datetime(2026, 11, 20, 8, 0, tzinfo=UTC)


def default_config(cluster):
    return FindingConfig()


def at(seconds):
    return NOW + timedelta(seconds=seconds)


@pytest.fixture
def hook(conn):
    """One endpoint."""
    made = Webhook(
        id="whk_1", name="ops", url="https://x.example/", created_by="k", created_at=NOW, updated_at=NOW
    )
    webhooks.create(conn, made, "whsec_1")
    return made


def get(conn, id_):
    return deliveries.get(conn, id_)


def endpoint(conn, id_):
    return webhooks.get(conn, id_)


def queue(conn, name="a"):
    event = OutboxEvent(
        id=event_id(name, NOW), seq=0, type="delivery.test", finding_id=None, at=NOW, body={"name": name}
    )
    queued = deliveries.test(conn, "whk_1", event)
    conn.execute("UPDATE deliveries SET next_attempt_at = %s WHERE id = %s", (NOW, queued))
    return queued


def test_leased_to_one_notifier(conn, store_dsn, hook):
    """What one notifier holds, another does not get, until the lease runs out."""
    queue(conn)
    with psycopg.connect(store_dsn, autocommit=True) as other:
        first = leases.lease_due(conn, now=at(0), lease_seconds=60)
        assert leases.lease_due(other, now=at(59), lease_seconds=60) == []
        second = leases.lease_due(other, now=at(60), lease_seconds=60)
    assert [d.event.id for d in first] == [d.event.id for d in second]
    assert (first[0].attempt, second[0].attempt) == (1, 2)
    assert first[0].event.body == {"name": "a"}
    assert first[0].webhook == hook


def test_rows_locked_by_another_are_skipped(conn, store_dsn, hook):
    """A notifier does not wait for the rows another is taking at that moment."""
    queue(conn, "a")
    with psycopg.connect(store_dsn) as other:
        assert len(leases.lease_due(other, now=at(0), limit=1)) == 1
        queue(conn, "b")
        assert [d.event.body["name"] for d in leases.lease_due(conn, now=at(0))] == ["b"]


def queue_state(conn, type_, version):
    """Queue an event of one finding, as a worker would, due at once."""
    # Without the finding itself: what is tested here goes by the event.
    conn.execute("SET session_replication_role = replica")
    event = OutboxEvent(
        id=event_id(f"fnd_1/{type_}", NOW),
        seq=0,
        type=type_,
        finding_id="fnd_1",
        at=NOW,
        body={"id": "fnd_1"},
    )
    outbox.emit(conn, event, version=version)
    conn.execute("SET session_replication_role = origin")
    queued = deliveries.delivery_id(event.id, "whk_1")
    conn.execute("UPDATE deliveries SET next_attempt_at = %s WHERE id = %s", (NOW, queued))


def test_no_state_is_leased_beside_an_older_one_that_is_being_leased(conn, store_dsn, hook):
    """Opened is leased but not committed when resolved comes: nobody gets resolved until opened is done."""
    queue_state(conn, "finding.opened", 1)
    with psycopg.connect(store_dsn) as other:
        (opened,) = leases.lease_due(other, now=at(0))
        queue_state(conn, "finding.resolved", 2)
        assert leases.lease_due(conn, now=at(1)) == []
        other.commit()
    assert leases.lease_due(conn, now=at(2)) == []
    deliveries.mark_failed(conn, opened, Attempt(at=at(3), status=500), again_at=at(10))
    assert leases.next_due(conn) == NOW
    (resolved,) = leases.lease_due(conn, now=at(3))
    assert resolved.event.type == "finding.resolved"
    assert get(conn, opened.id).state == "superseded"
    assert leases.lease_due(conn, now=at(20)) == []


def test_delivered_is_done(conn, hook):
    """A delivered one is never due again, and its log says how it went."""
    queued = queue(conn)
    leased = leases.lease_due(conn, now=at(0))[0]
    deliveries.mark_delivered(conn, leased, Attempt(at=at(1), status=204, seconds=0.3))
    assert leases.lease_due(conn, now=at(1e6)) == []
    done = get(conn, queued)
    assert (done.state, done.attempts, done.last_status, done.delivered_at) == ("delivered", 1, 204, at(1))
    assert deliveries.attempts(conn, queued) == [Attempt(at=at(1), status=204, seconds=0.3)]


def test_failed_is_tried_again_then_given_up_then_retried_by_hand(conn, hook):
    """A failure is due at its next time; without one it is given up; a person can ask for one more try."""
    queued = queue(conn)
    leased = leases.lease_due(conn, now=at(0))[0]
    deliveries.mark_failed(conn, leased, Attempt(at=at(1), status=500, error="e" * 5000), again_at=at(10))
    assert leases.lease_due(conn, now=at(9)) == []
    leased = leases.lease_due(conn, now=at(10))[0]
    deliveries.mark_failed(conn, leased, Attempt(at=at(11), error="timeout"), again_at=None)
    assert get(conn, queued).state == "failed"
    assert leases.lease_due(conn, now=at(1e6)) == []
    assert deliveries.retry(conn, queued, at(20))
    assert leases.lease_due(conn, now=at(20))[0].attempt == 3
    assert [a.error[:7] for a in deliveries.attempts(conn, queued)] == ["eeeeeee", "timeout"]


def test_late_failure_does_not_undo_a_delivery(conn, hook):
    """When two notifiers held it and one delivered, the other's failure changes nothing."""
    queued = queue(conn)
    slow = leases.lease_due(conn, now=at(0))[0]
    quick = leases.lease_due(conn, now=at(100))[0]
    deliveries.mark_delivered(conn, quick, Attempt(at=at(101), status=200))
    deliveries.mark_failed(conn, slow, Attempt(at=at(102), error="timeout"), again_at=at(110))
    assert get(conn, queued).state == "delivered"


def test_disabled_endpoint_gets_nothing(conn, hook):
    """Deliveries of a disabled endpoint wait until it is enabled."""
    queue(conn)
    webhooks.disable_gone(conn, hook.id, "410 Gone", at(0))
    assert leases.lease_due(conn, now=at(1)) == []
    assert endpoint(conn, hook.id).disabled_reason == "410 Gone"
    webhooks.update(conn, hook)
    assert endpoint(conn, hook.id).disabled_reason == ""
    assert len(leases.lease_due(conn, now=at(1))) == 1


def test_age_of_the_queue(conn, hook):
    """The oldest due delivery and the next one to come are known without leasing them."""
    assert (leases.oldest_due(conn, at(5)), leases.next_due(conn)) == (None, None)
    queue(conn)
    assert (leases.oldest_due(conn, at(5)), leases.next_due(conn)) == (NOW, NOW)


def test_pages_of_the_log(conn, hook):
    """The log of an endpoint can be read page by page."""
    queued = {queue(conn, str(i)) for i in range(5)}
    first = deliveries.listed(conn, hook.id, limit=3)
    rest = deliveries.listed(conn, hook.id, limit=3, after=(first[-1].created_at, first[-1].id))
    assert {d.id for d in first} | {d.id for d in rest} == queued
    assert len(first) + len(rest) == 5


def test_secrets_rotate(conn, hook):
    """While rotating, both secrets sign, the new one first; then only the new one."""
    webhooks.rotate(conn, hook.id, "whsec_2", now=at(10), old_until=at(100))
    assert webhooks.secrets(conn, hook.id, at(50)) == ["whsec_2", "whsec_1"]
    assert webhooks.secrets(conn, hook.id, at(100)) == ["whsec_2"]


def test_the_third_failure_in_a_row_makes_it_failing(conn, hook):
    """It has been so since the first; taking a delivery ends it, which is news once."""
    told = [webhooks.record_failure(conn, hook.id, at(i)) for i in range(4)]
    assert [each and (each.failing, each.failing_since) for each in told] == [
        (False, at(0)),
        (False, at(0)),
        (True, at(0)),
        (True, at(0)),
    ]
    assert [webhooks.record_success(conn, hook.id) for _ in range(2)] == [True, False]
    assert (endpoint(conn, hook.id).failing, endpoint(conn, hook.id).failing_since) == (False, None)
    assert webhooks.record_failure(conn, "whk_removed", at(0)) is None


def test_deleted_with_all_that_belongs_to_it(conn, hook):
    """Deleting an endpoint removes its secret and its queue."""
    queue(conn)
    assert webhooks.delete(conn, hook.id)
    assert webhooks.listed(conn) == []
    assert webhooks.secrets(conn, hook.id, at(0)) == []
    assert leases.lease_due(conn, now=at(1)) == []


def test_old_events_are_pruned_when_nothing_waits(conn, hook):
    """Old events go with their log; one that still waits to be delivered stays."""
    queue(conn, "told")
    deliveries.mark_delivered(conn, leases.lease_due(conn, now=at(0))[0], Attempt(at=at(1), status=200))
    queue(conn, "waiting")
    later = datetime.now(UTC) + timedelta(days=31)
    assert retention.prune_events(conn, now=later, days=30) == 1
    assert [e.body["name"] for e in outbox.after(conn, 0)] == ["waiting"]


def test_events_are_pruned_in_small_transactions(conn, hook, monkeypatch):
    """No transaction removes more than a batch, so that none holds its locks for long."""
    for name in ("a", "b", "c", "d", "e"):
        queue(conn, name)
    conn.execute("UPDATE deliveries SET state = 'failed'")
    conn.execute(
        "CREATE TEMPORARY TABLE batches AS SELECT txid_current() AS transaction, 0::bigint AS rows LIMIT 0"
    )
    conn.execute(
        "CREATE FUNCTION pg_temp.count_batch() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN INSERT INTO batches SELECT txid_current(), count(*) FROM gone; RETURN NULL; END'"
    )
    conn.execute(
        "CREATE TRIGGER count_batch AFTER DELETE ON events REFERENCING OLD TABLE AS gone "
        "FOR EACH STATEMENT EXECUTE FUNCTION pg_temp.count_batch()"
    )
    monkeypatch.setattr(retention, "EVENT_BATCH", 2)
    try:
        assert retention.prune_events(conn, now=datetime.now(UTC) + timedelta(days=8), days=7) == 5
    finally:
        conn.execute("DROP TRIGGER count_batch ON events")
    removed = conn.execute("SELECT sum(rows)::int FROM batches GROUP BY transaction ORDER BY 1").fetchall()
    assert removed == [(0,), (1,), (2,), (2,)]


def test_events_are_pruned_in_one_place(conn, store_dsn, hook):
    """While one process removes events, another leaves it alone; roll-ups may go at the same time."""
    queue(conn)
    conn.execute("UPDATE deliveries SET state = 'failed'")
    later = datetime.now(UTC) + timedelta(days=8)
    with psycopg.connect(store_dsn, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(%s)", (retention._EVENTS_LOCK,))
        assert retention.prune_events(conn, now=later, days=7) is None
        assert (
            retention.prune_telemetry(
                conn, now=later, days=7, pace_days=35, config_of=lambda _: FindingConfig()
            )
            is not None
        )
        other.execute("SELECT pg_advisory_unlock(%s)", (retention._EVENTS_LOCK,))
        assert retention.prune_events(conn, now=later, days=7) == 1
        # Given back with the session.
        assert retention.prune_events(other, now=later, days=7) == 0


def test_a_secret_that_signs_nothing_any_more_is_removed(conn, hook):
    """One that still signs along stays until its time is over; the newest has none."""
    webhooks.rotate(conn, hook.id, "whsec_new", now=at(10), old_until=at(60))
    held = "SELECT count(*) FROM webhook_secrets WHERE webhook_id = %s"
    assert retention.prune_secrets(conn, now=at(59)) == 0
    assert conn.execute(held, (hook.id,)).fetchone() == (2,)
    assert retention.prune_secrets(conn, now=at(60)) == 1
    assert webhooks.secrets(conn, hook.id, at(61)) == ["whsec_new"]
