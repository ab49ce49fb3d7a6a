"""The front page: the state of the fleet in numbers, and what costs most now."""

from fastapi import APIRouter, Request, Response

from api.deps import ServicesDep
from api.pages.access import visit
from api.pages.findings import Filters, listed
from api.pages.render import page
from api.pages.route import PageRoute
from api.pages.sign_in_form import ask_to_sign_in
from api.security.auth import CredentialsDep, authenticated, require
from api.security.sessions import token_of

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.get("/")
def show_fleet(request: Request, services: ServicesDep, credentials: CredentialsDep) -> Response:
    """Show the fleet, or the form to sign in to those who have not."""
    if credentials is None and not token_of(request):
        # No failed attempt: it is where people land by the address alone.
        return ask_to_sign_in(request, "", status=200)
    seen = visit(request, require("findings:read")(authenticated(request, services, credentials)))
    now = services.now()
    found = listed(services, seen, Filters())
    return page(
        request,
        "fleet.html",
        viewer=seen.viewer,
        findings=found.findings,
        total=found.total,
        critical=sum(f["severity"] == "critical" for f in found.findings),
        losing=sum(f["gpu_hours_lost_per_hour"] or 0 for f in found.findings),
        filtered=False,
        now=now,
    )
