"""The bodies of ``--format alertmanager`` in a real Alertmanager: one alert a finding, which ends with it."""

import asyncio
import json
import time
from dataclasses import replace
from datetime import UTC, datetime

import httpx
import pytest

from alerts.config import FindingConfig
from api.delivery.from_settings import webhook_client_of
from api.delivery.notifier import Notifier
from api.metrics import NotifierMetrics, new_registry
from store.findings import findings, webhooks
from store.findings.webhooks import Webhook

POSTED = ("labels", "annotations", "startsAt", "endsAt", "generatorURL")


@pytest.fixture
def alertmanager(private_alertmanager):
    """URL of the alerts of a real Alertmanager."""
    return f"{private_alertmanager.url}/api/v2/alerts"


@pytest.fixture
def deliver(alertmanager, pool, settings, start_receiver):
    """Deliver what is due; a receiver hands each alert on to Alertmanager, as it came."""
    bodies = []

    def hand_on(got):
        bodies.append(json.loads(got.body))
        alerts = [{name: alert[name] for name in POSTED} for alert in bodies[-1]["alerts"]]
        httpx.post(alertmanager, json=alerts, trust_env=False).raise_for_status()

    receiver, now = start_receiver(before_answer=hand_on), datetime.now(UTC)
    made = Webhook(
        id="whk_am",
        name="am",
        url=receiver.url,
        format="alertmanager",
        created_by="test",
        created_at=now,
        updated_at=now,
    )
    with pool.connection() as conn:
        webhooks.create(conn, made, "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")
    notifier = Notifier(
        pool=pool,
        client=webhook_client_of(settings.model_copy(update={"webhook_allow_ports": (receiver.port,)})),
        metrics=NotifierMetrics(new_registry()),
        public_url="http://slowrank.example.org",
        instance="test",
    )

    def run():
        asyncio.run(notifier.drain())
        return bodies[-1]

    return run


def test_a_finding_is_one_alert_for_life(alertmanager, deliver, pool, save_finding):
    """Of two GPUs one escalates and changes its kind: two alerts throughout; each ends with its finding."""
    onset = round(time.time() - 600, 3)
    found = {gpu: save_finding(gpu=gpu, onset=onset, severity="warning") for gpu in (1, 2)}
    deliver()

    def save(gpu, seconds, **changes):
        found[gpu] = replace(found[gpu], last_seen_at=onset + seconds, **changes)
        with pool.connection() as conn:
            findings.save(conn, found[gpu], FindingConfig())
        return deliver()

    def firing():
        listed = httpx.get(alertmanager, trust_env=False).raise_for_status().json()
        known = [(alert["labels"] | alert["annotations"], alert["fingerprint"]) for alert in listed]
        shown = {a["gpu"]: (a["severity"], a["kind"], fingerprint) for a, fingerprint in known}
        assert len(shown) == len(listed), "one alert a finding"
        return shown

    (slow, one), (_, two) = firing()["1"][1:], firing()["2"][1:]
    assert one != two
    assert save(1, 40, severity="error")["alerts"][0]["fingerprint"] == one
    assert firing() == {"1": ("error", slow, one), "2": ("warning", slow, two)}
    save(1, 50, severity="critical", kind="hardware.gpu_fault")
    assert firing() == {"1": ("critical", "hardware.gpu_fault", one), "2": ("warning", slow, two)}

    ended = save(1, 60, status="resolved", resolved_at=onset + 60)
    assert (ended["status"], ended["notification_reason"]) == ("resolved", "all alerts resolved")
    assert firing() == {"2": ("warning", slow, two)}
    save(2, 60, status="resolved", resolved_at=onset + 60)
    assert firing() == {}
    save(2, 90, status="open", resolved_at=None, occurrences=2)
    assert firing() == {"2": ("warning", slow, two)}
