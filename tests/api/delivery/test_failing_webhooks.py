"""A receiver that takes nothing: known after three failures in a row, by everybody but itself."""

import asyncio
import json
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from api.delivery.from_settings import notifier_of
from api.delivery.retry import SCHEDULE
from api.delivery.webhook_health import KIND
from api.metrics import new_registry
from store.findings import search

FIRST_THREE = sum(SCHEDULE[:3]) * 1.3


@pytest.fixture
def dead(start_receiver):
    """A receiver that answers 503 until the test switches it."""
    return start_receiver(answers=[(503, {}, b"")])


def drain(made):
    return asyncio.run(made[0].drain())


def shown(client, webhook):
    return client.get(f"/api/v1/webhooks/{webhook.id}").json()


def own(pool):
    """Return kind and status of the findings about slowrank itself."""
    with pool.connection() as conn:
        found = search.find(conn, search.FindingFilter(kinds=("self",))).items
    return [(each.doc["kind"], each.status) for each in found]


def scrape(pool, settings):
    registry: CollectorRegistry = new_registry()
    notifier_of(settings, pool, registry, instance="test")
    return generate_latest(registry).decode()


def fail(made, clock, times):
    """Let so many attempts of what is due take place, one retry after the other."""
    for delay in SCHEDULE[:times]:
        clock.ahead += timedelta(seconds=1.3 * delay)
        drain(made)


def test_three_failures_in_a_row_are_reported_within_seconds(
    client, pool, settings, dead, start_receiver, add_webhook, save_finding, notifier, clock
):
    """In the API, in the metrics, and as a finding that goes to the other webhooks; one success ends it."""
    alive = start_receiver()
    webhook, _ = add_webhook(dead.url, name="pager")
    other, _ = add_webhook(alive.url, kinds=("self",))
    made = notifier(dead, alive)
    save_finding()
    fail(made, clock, 2)
    assert (shown(client, webhook)["status"], own(pool)) == ("active", [])

    fail(made, clock, 3)
    assert clock.ahead < timedelta(seconds=2 * FIRST_THREE)
    assert (shown(client, webhook)["status"], shown(client, other)["status"]) == ("failing", "active")
    assert "failing_since" in shown(client, webhook)
    assert own(pool) == [(KIND, "open")]
    page = scrape(pool, settings)
    assert f'slowrank_webhook_failing{{endpoint="{webhook.id}"}} 1.0' in page
    assert f'slowrank_webhook_failing{{endpoint="{other.id}"}} 0.0' in page
    (told,) = [json.loads(got.body) for got in alive.got]
    assert (told["type"], told["data"]["kind"]) == ("finding.opened", KIND)
    assert "pager" in told["data"]["title"]
    assert "503" in told["data"]["title"]

    dead.answers = [(200, {}, b"")]
    clock.ahead += timedelta(days=1)
    drain(made)
    assert (shown(client, webhook)["status"], own(pool)) == ("active", [(KIND, "resolved")])
    assert f'slowrank_webhook_failing{{endpoint="{webhook.id}"}} 0.0' in scrape(pool, settings)
    assert [json.loads(got.body)["type"] for got in alive.got] == ["finding.opened", "finding.resolved"]
    assert {json.loads(got.body)["data"]["kind"] for got in dead.got} == {"straggler.fail_slow"}


@pytest.mark.parametrize("answer", [503, 429])
def test_what_waits_is_sent_once_its_receiver_is_back(
    client, pool, dead, add_webhook, save_finding, notifier, clock, answer
):
    """Any delivery that it takes shows that, as a test does; what it asked to have later waits."""
    dead.answers = [(answer, {"retry-after": "600"} if answer == 429 else {}, b"")]
    webhook, _ = add_webhook(dead.url, kinds=("straggler",))
    made = notifier(dead)
    for node, severity in (("a", "critical"), ("b", "error"), ("c", "warning")):
        save_finding(node=node, severity=severity)
    for _ in range(5):
        drain(made)
        clock.ahead += timedelta(minutes=11)
    drain(made)
    before = len(dead.got)
    assert shown(client, webhook)["status"] == "failing"
    dead.answers = [(200, {}, b"")]
    client.post(f"/api/v1/webhooks/{webhook.id}/test")
    drain(made)
    nodes = {json.loads(got.body)["data"]["subject"]["node"] for got in dead.got[before + 1 :]}
    assert nodes == ({"a", "b", "c"} if answer == 503 else set())


def test_a_critical_finding_reaches_its_receiver_a_minute_after_its_return(
    dead, add_webhook, save_finding, notifier, clock
):
    """Without any other delivery, after an hour without it."""
    add_webhook(dead.url, kinds=("straggler",))
    save_finding()
    save_finding(node="b", severity="error")
    made = notifier(dead)
    for _ in range(60):
        drain(made)
        clock.ahead += timedelta(minutes=1.3)
    before = len(dead.got)
    dead.answers = [(200, {}, b"")]
    drain(made)
    nodes = [json.loads(got.body)["data"]["subject"]["node"] for got in dead.got[before:]]
    assert nodes == ["gpu-0423", "b"]


def test_failures_of_different_deliveries_count_together(
    client, pool, dead, add_webhook, save_finding, notifier
):
    """Three findings, each refused once."""
    webhook, _ = add_webhook(dead.url, kinds=("straggler",))
    for node in ("a", "b", "c"):
        save_finding(node=node)
    drain(notifier(dead))
    assert (len(dead.got), shown(client, webhook)["status"]) == (3, "failing")
    assert shown(client, webhook)["failures_in_a_row"] == 3


def test_a_success_between_failures_is_no_row(
    client, pool, start_receiver, add_webhook, save_finding, notifier
):
    """Two failures, a success, two failures: well."""
    receiver = start_receiver(answers=[(status, {}, b"") for status in (503, 503, 200, 503, 503)])
    webhook, _ = add_webhook(receiver.url)
    for node in "abcde":
        save_finding(node=node)
    drain(notifier(receiver))
    assert (len(receiver.got), shown(client, webhook)["status"], own(pool)) == (5, "active", [])


def test_two_dead_receivers_make_two_findings_and_no_more(
    pool, start_receiver, add_webhook, save_finding, notifier, clock
):
    """Each receives the notice of the other's failure and fails at it too; no further notice follows."""
    both = [start_receiver(answers=[(503, {}, b"")]) for _ in range(2)]
    for receiver in both:
        add_webhook(receiver.url)
    save_finding()
    made = notifier(*both)
    fail(made, clock, 10)
    fail(made, clock, 10)
    assert own(pool) == [(KIND, "open")] * 2
    for receiver in both:
        assert len({got.headers["webhook-id"] for got in receiver.got}) == 2


def test_one_endpoint_that_fails_is_one_finding_whatever_the_cluster(
    client, pool, dead, add_webhook, save_finding, notifier, clock
):
    """It stays in the cluster of the delivery by which it began, and ends with the first success."""
    add_webhook(dead.url, kinds=("straggler",))
    made = notifier(dead)
    save_finding()
    fail(made, clock, 3)
    save_finding(cluster="prod-b")
    fail(made, clock, 3)
    with pool.connection() as conn:
        (finding,) = search.find(conn, search.FindingFilter(kinds=(KIND,))).items
    assert (finding.cluster, finding.status) == ("prod-a", "open")
    dead.answers = [(200, {}, b"")]
    clock.ahead += timedelta(hours=1)
    drain(made)
    assert own(pool) == [(KIND, "resolved")]


def test_a_receiver_that_answers_gone_is_reported_to_the_others(
    client, pool, start_receiver, add_webhook, save_finding, notifier
):
    """410 switches the webhook off at once, and shows it until a person enables or deletes it."""
    gone, alive = start_receiver(answers=[(410, {}, b"")]), start_receiver()
    webhook, _ = add_webhook(gone.url)
    add_webhook(alive.url, kinds=("self",))
    save_finding()
    made = notifier(gone, alive)
    drain(made)
    assert (shown(client, webhook)["status"], own(pool)) == ("disabled", [(KIND, "open")])
    drain(made)
    assert "410" in json.loads(alive.got[0].body)["data"]["title"]
    made[0]._end_recovered()
    assert own(pool) == [(KIND, "open")]
    client.patch(f"/api/v1/webhooks/{webhook.id}", json={"enabled": False})
    made[0]._end_recovered()
    assert own(pool) == [(KIND, "resolved")]


@pytest.mark.parametrize(
    ("change", "status"),
    [({"name": "pager"}, "failing"), ({"min_severity": "error"}, "failing"), ({"enabled": True}, "active")],
)
def test_another_name_does_not_make_it_well(
    client, dead, add_webhook, save_finding, notifier, change, status
):
    """Only enabling it, or another URL, takes it back."""
    webhook, _ = add_webhook(dead.url, kinds=("straggler",))
    for node in "abc":
        save_finding(node=node)
    drain(notifier(dead))
    assert client.patch(f"/api/v1/webhooks/{webhook.id}", json=change).json()["status"] == status
