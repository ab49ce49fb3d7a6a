"""``GET /api/v2/alerts`` and ``/alerts/groups``: live findings as Alertmanager lists alerts, read-only."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import groupby
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response, Security
from pydantic import BaseModel, Field

from alerts.silence import Silence
from alerts.silence import labels as silence_labels
from api.alertmanager.matchers import Filters, parsed
from api.alertmanager.status import RECEIVER, Receiver
from api.delivery.receivers.alertmanager import annotations, fingerprint
from api.delivery.receivers.alertmanager_push import routing_labels
from api.deps import Services, ServicesDep
from api.http import conditional
from api.http.problems import Problem
from api.http.times import rfc3339
from api.security.auth import PASSWORD, FindingsReader, Principal
from store.findings import silences
from store.findings.rows import StoredFinding
from store.findings.search import FindingFilter, find

router = APIRouter(prefix="/api/v2/alerts", tags=["alertmanager"], dependencies=[Security(PASSWORD)])

# Alerts of an answer: the API has no pages. Chosen: some 10 MB; whoever has more filters by cluster.
MOST = 5000
# Limit of the time for filters and silences. Chosen: a hundred times what 16 regexes take for ``MOST``
# alerts.
MATCHING_SECONDS = 5.0
# As Alertmanager shows alerts without an end by default (resolve_timeout).
_ENDS_AFTER = timedelta(minutes=5)


class AlertStatus(BaseModel):
    """Whether notifications about an alert are held back, and by which silences."""

    state: Literal["unprocessed", "active", "suppressed"]
    silencedBy: list[str]
    inhibitedBy: list[str]
    mutedBy: list[str]


class Alert(BaseModel):
    """A live finding as Alertmanager's ``gettableAlert``."""

    labels: dict[str, str]
    annotations: dict[str, str]
    receivers: list[Receiver]
    fingerprint: str
    startsAt: str = Field(description="The onset.")
    endsAt: str = Field(description="At least five minutes ahead while the finding is live.")
    updatedAt: str
    generatorURL: str = Field(description="The page of the finding.")
    status: AlertStatus


class AlertGroup(BaseModel):
    """The alerts of a cluster."""

    labels: dict[str, str]
    receiver: Receiver
    alerts: list[Alert]


class Wanted(BaseModel, extra="forbid"):
    """Which alerts to list; no alert of slowrank is unprocessed, inhibited or muted by time."""

    active: bool = Field(default=True, description="Those that no silence mutes.")
    silenced: bool = Field(default=True, description="Those that a silence mutes.")
    inhibited: bool = True
    unprocessed: bool = True
    muted: bool = True
    receiver: str = Field(default="", max_length=256, description="The name of the receiver, `slowrank`.")
    filter: Filters = []


WantedQuery = Annotated[Wanted, Query()]


@router.get("", responses={200: {"model": list[Alert]}, 304: conditional.UNCHANGED})
def read_alerts(
    request: Request, services: ServicesDep, principal: FindingsReader, wanted: WantedQuery
) -> Response:
    """List live findings as alerts, at most 5,000, those with the latest onset first."""
    return conditional.answer(request, _alerts(services, principal, wanted))


@router.get("/groups", responses={200: {"model": list[AlertGroup]}, 304: conditional.UNCHANGED})
def read_alert_groups(
    request: Request, services: ServicesDep, principal: FindingsReader, wanted: WantedQuery
) -> Response:
    """List live findings as alerts, in one group a cluster."""

    def cluster(alert: dict[str, Any]) -> str:
        return str(alert["labels"].get("cluster", ""))

    found = sorted(_alerts(services, principal, wanted), key=cluster)
    groups = [
        {"labels": {"cluster": name}, "receiver": RECEIVER, "alerts": list(alerts)}
        for name, alerts in groupby(found, key=cluster)
    ]
    return conditional.answer(request, groups)


def _alerts(services: Services, principal: Principal, wanted: Wanted) -> list[dict[str, Any]]:
    matchers, now = parsed(wanted.filter), services.now()
    if wanted.receiver not in ("", RECEIVER["name"]):
        return []
    live = FindingFilter(
        status=("open", "acknowledged"), clusters=principal.clusters, sort="onset", limit=MOST
    )
    with services.pool.connection() as conn:
        found, in_force = find(conn, live).items, silences.current(conn, now)
    alerts = (_alert(stored, in_force, services.settings.public_url, now) for stored in found)
    until = services.monotonic() + MATCHING_SECONDS
    fitting = []
    for alert in alerts:
        if services.monotonic() > until:
            detail = "the filters and silences take too long; match a label exactly instead of by a regex"
            raise Problem(503, "query-too-long", detail)
        wanted_state = wanted.active if alert["status"]["state"] == "active" else wanted.silenced
        if wanted_state and all(matcher.matches(alert["labels"]) for matcher in matchers):
            fitting.append(alert)
    return fitting


def _alert(stored: StoredFinding, in_force: Iterable[Silence], url: str, now: datetime) -> dict[str, Any]:
    labels, seen = routing_labels(stored.doc), silence_labels(stored.doc)
    muting = [silence.id for silence in in_force if silence.mutes(seen, now)]
    # In whole minutes, so that an unchanged list keeps its ETag for a minute.
    ends_at = now.replace(second=0, microsecond=0) + timedelta(minutes=1) + _ENDS_AFTER
    return {
        "labels": labels,
        "annotations": annotations(stored.doc),
        "receivers": [RECEIVER],
        "fingerprint": fingerprint(labels),
        "startsAt": stored.doc["onset"],
        "endsAt": rfc3339(ends_at),
        "updatedAt": rfc3339(stored.updated_at),
        "generatorURL": f"{url.rstrip('/')}/findings/{stored.id}",
        "status": {
            "state": "suppressed" if muting else "active",
            "silencedBy": muting,
            "inhibitedBy": [],
            "mutedBy": [],
        },
    }
