"""Dependencies of the routes: one ``Services`` per app, made in ``create_app``."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry
from psycopg_pool import ConnectionPool

from api.delivery.recipients import Recipients
from api.event_hub import EventHub
from api.foreign.receiver import ForeignReceiver
from api.http.cursors import Cursors
from api.http.limits import Limiter
from api.http.times import utc_now
from api.ingest import Sink
from api.metrics import ApiMetrics
from api.pages.breakable import Breakable
from api.security.ssrf import Policy
from slowrank.settings import Settings

# A check of /readyz: returns a description, raises OSError with the reason when it fails.
Probe = Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything a route may use.

    ``sink`` is None where telemetry is not ingested, ``recipients`` where there is no mail server,
    ``breakable`` where the cluster is none of a demo. ``runs_backtests``: a runner is beside the API.
    ``one_process``: detectors and notifier run in the process of the API.
    """

    settings: Settings
    pool: ConnectionPool[Any]
    hub: EventHub
    policy: Policy
    recipients: Recipients | None = None
    registry: CollectorRegistry
    metrics: ApiMetrics
    cursors: Cursors
    limiter: Limiter = field(default_factory=Limiter)
    sink: Sink | None = None
    breakable: Breakable | None = None
    runs_backtests: bool = False
    one_process: bool = False
    foreign: ForeignReceiver = field(default_factory=ForeignReceiver)
    probes: Mapping[str, Probe] = field(default_factory=dict)
    streams: Counter[str] = field(default_factory=Counter)
    now: Callable[[], datetime] = utc_now
    monotonic: Callable[[], float] = time.monotonic


def services(request: Request) -> Services:
    """Return the services of the app that serves ``request``."""
    found: Services = request.app.state.services
    return found


ServicesDep = Annotated[Services, Depends(services)]
