"""The form of the demo that breaks something else; elsewhere it does not exist."""

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from api.deps import ServicesDep
from api.http.problems import Problem, not_found
from api.pages.access import FindingsForm
from api.pages.forms import Fields
from api.pages.route import PageRoute

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.post("/demo/break")
def break_something(services: ServicesDep, seen: FindingsForm, fields: Fields) -> Response:
    """Break what the form names in the simulated cluster, and show the fleet again."""
    del seen  # Checked: the session's CSRF token and the scope.
    if services.breakable is None:
        raise not_found("page", "/demo/break")
    try:
        services.breakable.begin(fields.get("what", ""))
    except ValueError as error:
        raise Problem(409, "conflict", str(error)) from error
    return RedirectResponse("/#break", 303)
