"""The page of one finding, for a session, a key, or the link of an alert."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from alerts.report.explanation import explanation
from alerts.silence import labels, muting
from api.deps import Services, ServicesDep
from api.http.limits import READ
from api.http.problems import Problem, not_found
from api.pages.access import Visit, visit
from api.pages.finding_view import LIVE, shown
from api.pages.formats import ago
from api.pages.freshness import warning
from api.pages.render import page
from api.pages.route import PageRoute
from api.routes.dashboard.nodes import SILENT
from api.routes.dashboard.ranges import milliseconds
from api.routes.findings import FindingId
from api.security import links
from api.security.auth import CredentialsDep, Requires, authenticated
from api.security.sessions import token_of
from api.silent_jobs import no_steps
from store.access import sessions
from store.access.link_key import link_key
from store.dashboard.fleet import node_counts
from store.evidence.freeze import evidence_of
from store.findings import findings, silences

router = APIRouter(include_in_schema=False, route_class=PageRoute)

_DONE = {
    "acknowledge": "Acknowledged.",
    "resolve": "Resolved. It opens again when its cause comes back.",
    "silence": "Silenced: nothing more of it is sent until the silence ends.",
    "feedback": "Thank you: the verdict is stored with the finding.",
    "false_positive": "Thank you: the verdict is stored with the finding. If this is likely to come back, "
    "silence the kind on this node for a week: the form below is filled in.",
}
SCOPES = (
    ("finding", "this finding"),
    ("kind", "this kind on this node"),
    ("node", "everything on this node"),
)
SPANS = ((1, "1 hour"), (4, "4 hours"), (24, "1 day"), (168, "7 days"))
VERDICTS = (
    ("true_positive", "yes, it was right"),
    ("false_positive", "no, nothing was wrong"),
    ("benign", "true, but it did not matter"),
    ("duplicate", "a duplicate of another finding"),
)


@router.get("/findings/{finding_id}")
def show_finding(
    finding_id: FindingId,
    request: Request,
    services: ServicesDep,
    credentials: CredentialsDep,
    token: Annotated[str, Query(alias="t")] = "",
    done: str = "",
) -> Response:
    """Show a finding to a signed link or to a key that may read it."""
    seen = _visit(request, services, credentials, finding_id=finding_id, token=token)
    now = services.now()
    with services.pool.connection() as conn:
        stored = findings.get(conn, finding_id)
        if stored is None or (seen is not None and not seen.principal.may_see(stored.cluster)):
            raise not_found("finding", finding_id)
        steps = findings.history(conn, finding_id)
        newest = node_counts(conn, (stored.cluster,), now - SILENT)["newest"]
        others = findings.titles(conn, stored.cluster, _same_cause(stored.doc))
        silence = muting(silences.current(conn, now), labels(stored.doc), now)
        stopped = no_steps(conn, [stored.doc], now)[0]
    finding = shown(stored.doc | stopped)
    false_alarm = done == "false_positive"
    return page(
        request,
        "finding.html",
        viewer=seen.viewer if seen else None,
        finding=finding,
        live=stored.status in LIVE,
        history=steps,
        silence=silence,
        others=others,
        now=now,
        lasted=_lasted(finding["onset"], finding["resolved_at"]),
        done=_DONE.get(done, ""),
        # Without nodes there are step times alone, whose age the finding itself shows.
        stale=warning(milliseconds(newest), now) if newest and stored.status in LIVE else "",
        scopes=SCOPES if finding["subject"].get("node") else SCOPES[:1],
        spans=SPANS,
        verdicts=VERDICTS,
        preset={
            "what": "kind" if false_alarm else "finding",
            "hours": 168 if false_alarm else 4,
            "comment": "false alarm" if false_alarm else "",
        },
        explanation=explanation(finding),
        public_url=services.settings.public_url.rstrip("/"),
    )


@router.get("/findings/{finding_id}/evidence.json")
def read_evidence(
    finding_id: FindingId,
    request: Request,
    services: ServicesDep,
    credentials: CredentialsDep,
    token: Annotated[str, Query(alias="t")] = "",
) -> Response:
    """Return what the plots of the page show, to whoever may open the page."""
    seen = _visit(request, services, credentials, finding_id=finding_id, token=token)
    with services.pool.connection() as conn:
        stored = findings.get(conn, finding_id)
        if stored is None or (seen is not None and not seen.principal.may_see(stored.cluster)):
            raise not_found("finding", finding_id)
        found = evidence_of(conn, finding_id)
    return JSONResponse(found, headers={"cache-control": "private, no-store"})


def _same_cause(doc: Mapping[str, Any]) -> list[str]:
    return list((doc.get("blast_radius") or {}).get("other_findings") or ())


def _lasted(onset: str, resolved_at: str | None) -> str:
    return "" if resolved_at is None else ago(onset, datetime.fromisoformat(resolved_at))


def _visit(
    request: Request, services: Services, credentials: CredentialsDep, *, finding_id: str, token: str
) -> Visit | None:
    """Return the visit of a key, or None for a valid link. Raises the 401, 403 or 429 problem."""
    if token and credentials is None and not _signed_in(request, services):
        with services.pool.connection() as conn:
            key = link_key(conn)
        state = links.opens(token, finding_id, key=key, now=services.now())
        if state == "yes":
            _count(services, finding_id)
            return None
        if state == "expired":
            detail = "this link has expired; sign in, or `slowrank findings show ID` prints the finding"
            raise Problem(401, "link-expired", detail)
    # A wrong token counts as a failed attempt of its address, as a wrong key does.
    return visit(request, Requires("findings:read")(authenticated(request, services, credentials)))


def _signed_in(request: Request, services: Services) -> bool:
    token = token_of(request)
    if not token:
        return False
    with services.pool.connection() as conn:
        return sessions.key_of(conn, token, services.now()) is not None


def _count(services: Services, finding_id: str) -> None:
    wait = services.limiter.take(f"link:{finding_id}", READ, services.monotonic())
    if wait:
        headers = {"retry-after": str(int(wait) + 1)}
        detail = "this link is opened too often; see Retry-After"
        raise Problem(429, "too-many-requests", detail, headers=headers)
