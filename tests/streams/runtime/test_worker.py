"""What the storing worker hands to the store, over a real database; it asks no broker for it."""

import asyncio
import time
from dataclasses import replace

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from alerts.finding import Action
from slowrank.settings import Settings
from slowrank.telemetry import Subject
from store.migrate import migrate
from streams.config.settings import Layer, Tuning
from streams.runtime.monitoring.health import Health
from streams.runtime.monitoring.metrics import SinkMetrics
from streams.runtime.sink_store import SinkStore
from tests.streams.files.test_finding_diff import T0, finding

pytestmark = pytest.mark.integration

HOUR = 3600.0


def told(cluster, hours, status="open"):
    """A version of a finding that began so many hours after a time 20 hours ago."""
    key, onset = f"{cluster}/node/n/node.silent", time.time() - T0 + (hours - 20) * HOUR
    made = finding(key, onset, subject=Subject(type="node", cluster=cluster, node="n"), status=status)
    ended = made.last_seen_at if status == "resolved" else None
    return replace(made, action=Action("WATCH", "Look at it."), resolved_at=ended)


def test_the_store_goes_by_what_the_operator_set(database, tmp_path):
    """When a relapse reopens, and when a silent finding expires, its cluster's settings say."""
    migrate(database)
    quick = {"finding": {"reopen_within_seconds": HOUR, "open_expires_after_seconds": 6 * HOUR}}
    tuning = Tuning([Layer(where='clusters."quick"', cluster="quick", knobs=quick)])
    settings = Settings(database_url=SecretStr(database), streams_runtime_dir=tmp_path)

    async def work():
        health, metrics = Health("sink", time.monotonic), SinkMetrics(CollectorRegistry())
        store = SinkStore(settings, tuning.finding, health, metrics)
        for cluster in ("quick", "usual"):
            store.save(told(cluster, 0))
            store.save(told(cluster, 1, "resolved"))
            store.save_own(told(cluster, 5))
        await store.prune()
        store.close()

    asyncio.run(work())
    with psycopg.connect(database) as conn:
        rows = conn.execute("SELECT cluster, status FROM findings ORDER BY cluster, onset").fetchall()
    assert rows == [("quick", "resolved"), ("quick", "expired"), ("usual", "open")]
