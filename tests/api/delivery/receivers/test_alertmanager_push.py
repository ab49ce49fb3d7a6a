"""``--format alertmanager_push`` against a real Alertmanager: what it shows equals the findings, always."""

import asyncio
import time
from dataclasses import replace

import httpx
import pytest
from servers.alertmanager import Alertmanager

from alerts.config import FindingConfig
from alerts.notify import DEFAULT_EVENTS
from api.delivery.receivers.alertmanager_push import RECEIVER, REPEAT_SECONDS
from store.findings import findings
from tests.conftest import running


@pytest.fixture
def resolve_timeout():
    """Seconds after which an alert ends that is not posted again: longer than a test takes."""
    return 300.0


@pytest.fixture
def alertmanager(resolve_timeout):
    """A real Alertmanager."""
    with running(Alertmanager(resolve_timeout=f"{resolve_timeout:g}s")) as server:
        yield server


@pytest.fixture
def firing(alertmanager):
    """Return severity and kind of every alert that fires, by GPU; at most one a finding."""

    def read():
        listed = httpx.get(f"{alertmanager.url}/api/v2/alerts", trust_env=False).raise_for_status().json()
        shown = {alert["labels"]["gpu"]: alert for alert in listed}
        assert len(shown) == len(listed)
        return {gpu: (a["labels"]["severity"], a["labels"]["kind"]) for gpu, a in shown.items()}

    return read


@pytest.fixture
def hook(alertmanager, add_webhook):
    """A webhook straight to the Alertmanager."""
    events = (*DEFAULT_EVENTS, *RECEIVER.more_events)
    return add_webhook(f"{alertmanager.url}/api/v2/alerts", format=RECEIVER.name, events=events)[0]


@pytest.fixture
def save(pool):
    """Store the next version of a finding."""

    def store(finding, seconds, **changes):
        version = replace(finding, last_seen_at=finding.onset + seconds, **changes)
        with pool.connection() as conn:
            findings.save(conn, version, FindingConfig())
        return version

    return store


def test_alerts_follow_their_findings(alertmanager, hook, firing, notifier, save_finding, save):
    """Two GPUs of one job; one escalates, changes its kind, ends and comes back; labels carry it all."""
    sender = notifier(alertmanager)[0]

    def drain():
        asyncio.run(sender.drain())
        return firing()

    one, two = (save_finding(gpu=gpu, severity="warning") for gpu in (1, 2))
    mild = ("warning", "straggler.fail_slow")
    assert drain() == {"1": mild, "2": mild}
    one = save(one, 40, severity="critical")
    assert drain() == {"1": ("critical", "straggler.fail_slow"), "2": mild}
    one = save(one, 50, kind="hardware.gpu_fault", severity="critical")
    assert drain() == {"1": ("critical", "hardware.gpu_fault"), "2": mild}
    one = save(one, 55, severity="error")
    assert drain() == {"1": ("error", "hardware.gpu_fault"), "2": mild}
    one = save(one, 60, status="resolved", resolved_at=one.onset + 60)
    assert drain() == {"2": mild}
    one = save(one, 90, status="open", resolved_at=None, occurrences=2, severity="warning")
    assert set(drain()) == {"1", "2"}
    save(two, 60, status="resolved", resolved_at=two.onset + 60)
    assert set(drain()) == {"1"}


@pytest.mark.slow
@pytest.mark.parametrize("resolve_timeout", [6.0])
def test_an_open_finding_is_posted_again_in_time(
    alertmanager, resolve_timeout, hook, firing, notifier, save_finding, save, clock, pool
):
    """Past ``resolve_timeout`` it still fires, without new lines in the log; not repeated, it ends."""
    sender = notifier(alertmanager)[0]
    finding = save_finding()

    def drain():
        return asyncio.run(sender.drain())

    assert (drain(), drain()) == (1, 0)
    for _ in range(3):
        time.sleep(resolve_timeout / 2)
        clock.ahead += type(clock.ahead)(seconds=REPEAT_SECONDS)
        assert (drain(), drain()) == (1, 0)
        assert set(firing()) == {"5"}
    with pool.connection() as conn:
        assert conn.execute("SELECT count(*) FROM delivery_attempts").fetchone() == (1,)
    time.sleep(resolve_timeout + 1)
    assert firing() == {}

    clock.ahead += type(clock.ahead)(seconds=REPEAT_SECONDS)
    assert (drain(), set(firing())) == (1, {"5"})
    save(finding, 60, status="resolved", resolved_at=finding.onset + 60)
    assert (drain(), firing()) == (1, {})
