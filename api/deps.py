"""What the routes are given: one ``Services`` per app, made in ``create_app`` and nowhere else."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry
from psycopg_pool import ConnectionPool

from api.cursors import Cursors
from api.ingest import Sink
from api.limits import Limiter
from api.metrics import ApiMetrics
from api.ssrf import Policy
from api.times import utc_now
from slowrank.settings import Settings

# A probe of readyz: returns what it saw, raises OSError with why it is not well.
Probe = Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything a route may use; ``sink`` is None where nothing takes telemetry."""

    settings: Settings
    pool: ConnectionPool[Any]
    policy: Policy
    registry: CollectorRegistry
    metrics: ApiMetrics
    cursors: Cursors
    limiter: Limiter = field(default_factory=Limiter)
    sink: Sink | None = None
    probes: Mapping[str, Probe] = field(default_factory=dict)
    streams: Counter[str] = field(default_factory=Counter)
    now: Callable[[], datetime] = utc_now
    monotonic: Callable[[], float] = time.monotonic


def services(request: Request) -> Services:
    """Return the services of the app that serves ``request``."""
    found: Services = request.app.state.services
    return found


ServicesDep = Annotated[Services, Depends(services)]
