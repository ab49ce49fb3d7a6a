"""HTML pages for people: the finding that a link in an alert leads to, and an index."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from api.deps import Services, ServicesDep
from api.finding_html import HEADERS, finding_page, html_page, paragraph
from api.http.limits import READ
from api.http.problems import Problem, not_found
from api.routes.findings import FindingId
from api.security import links
from api.security.auth import CredentialsDep, authenticated, require
from slowrank import __version__
from store.access.link_key import link_key
from store.findings import findings

# Not in the OpenAPI document, which describes the interface for programs.
router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

_CLOSED = (
    "This page opens by the link of an alert, for "
    f"{links.LIFE.days} days, or with an API key in the Authorization header.",
    "`slowrank findings show ID` prints the finding for as long as it is kept.",
)


@router.get("/")
def index() -> HTMLResponse:
    """Describe this address and where to go from it."""
    texts = (
        f"This is the HTTP API of slowrank {__version__}.",
        "Links in alerts lead to single findings. `slowrank findings list` lists them; programs ask "
        "/api/v1/findings with an API key, which `slowrank key create` makes.",
        "/readyz shows whether all parts work.",
    )
    return HTMLResponse(html_page("slowrank", *map(paragraph, texts)), headers=HEADERS)


@router.get("/findings/{finding_id}")
def show_finding(
    finding_id: FindingId,
    request: Request,
    services: ServicesDep,
    credentials: CredentialsDep,
    token: Annotated[str, Query(alias="t")] = "",
) -> HTMLResponse:
    """Show a finding to a signed link or a key that may read it."""
    try:
        clusters = _clusters(request, services, credentials, finding_id=finding_id, token=token)
        with services.pool.connection() as conn:
            stored = findings.get(conn, finding_id)
        if stored is None or (clusters and stored.cluster not in clusters):
            raise not_found("finding", finding_id)
    except Problem as problem:
        # HTML for browsers only: programs get the problem as JSON.
        if "text/html" not in request.headers.get("accept", ""):
            raise
        texts = (problem.detail, *(_CLOSED if problem.status_code == 401 else ()))
        title = problem.slug.replace("-", " ").capitalize()
        answer = html_page(title, *map(paragraph, texts))
        return HTMLResponse(answer, problem.status_code, headers={**(problem.headers or {}), **HEADERS})
    return HTMLResponse(finding_page(stored.doc), headers=HEADERS)


def _clusters(
    request: Request, services: Services, credentials: CredentialsDep, *, finding_id: str, token: str
) -> tuple[str, ...]:
    """Return the clusters that may be read, none for all. Raises the 401, 403 or 429 problem."""
    with services.pool.connection() as conn:
        key = link_key(conn)
    state = links.opens(token, finding_id, key=key, now=services.now()) if token else "no"
    if state == "yes":
        wait = services.limiter.take(f"link:{finding_id}", READ, services.monotonic())
        if wait:
            raise Problem(
                429,
                "too-many-requests",
                "this link is opened too often; see Retry-After",
                headers={"retry-after": str(int(wait) + 1)},
            )
        return ()
    if state == "expired":
        raise Problem(
            401, "link-expired", "this link has expired; `slowrank findings show ID` prints the finding"
        )
    # A wrong token counts as a failed attempt of its address, as a wrong key does.
    return require("findings:read")(authenticated(request, services, credentials)).clusters
