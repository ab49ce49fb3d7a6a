"""Signing a browser in, by an API key or a one-time link, and out."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from api.audit import record
from api.deps import Services, ServicesDep
from api.http.problems import Problem
from api.pages.forms import Fields, safe_path
from api.pages.route import PageRoute
from api.pages.routes import sign_in_form
from api.security import sessions as cookies
from api.security.auth import admitted, key_of_token
from store.access import sessions
from store.access.keys import ApiKey

router = APIRouter(include_in_schema=False, route_class=PageRoute)

_WRONG_KEY = "this key is not valid: it may be mistyped, revoked or expired"
_USED_LINK = "this link has been used or has expired"


@router.get("/sign-in")
def show_form(request: Request) -> Response:
    """Ask for a key."""
    return sign_in_form.ask_to_sign_in(request, "", status=200)


@router.post("/sign-in")
def sign_in(request: Request, services: ServicesDep, fields: Fields) -> Response:
    """Give a browser with a valid key a session."""
    if not sign_in_form.matches(request, fields):
        raise Problem(403, "form-expired", "this form has expired; open /sign-in and send it again")
    return _begin(
        request, services, key_of_token(services, fields.get("key", "").strip()), fields, _WRONG_KEY
    )


@router.get("/sign-in/{token}")
def redeem(token: str, request: Request, services: ServicesDep, next: str = "/") -> Response:
    """Give the first browser that opens a one-time link a session."""
    with services.pool.connection() as conn:
        key = sessions.redeem(conn, token, services.now())
        here = cookies.token_of(request)
        if key is None and here and sessions.key_of(conn, here, services.now()) is not None:
            # Opened again in the browser that it has signed in.
            return RedirectResponse(safe_path(next), 303)
    return _begin(request, services, key, {"next": next}, _USED_LINK)


@router.post("/sign-out")
def sign_out(request: Request, services: ServicesDep, fields: Fields) -> Response:
    """End the session."""
    token = cookies.token_of(request)
    if token and not cookies.is_from_our_form(token, fields):
        raise Problem(403, "form-expired", "this form belongs to another session; reload the page")
    with services.pool.connection() as conn:
        sessions.end(conn, token)
    answer = RedirectResponse("/", 303)
    cookies.delete_cookie(answer, secure=sign_in_form.is_secure(request))
    return answer


def _begin(
    request: Request, services: Services, key: ApiKey | None, fields: dict[str, str], refusal: str
) -> Response:
    try:
        admitted(request, services, key)
    except Problem as problem:
        if problem.status_code == 401:
            raise Problem(401, "sign-in-failed", refusal, headers=problem.headers) from problem
        raise
    assert key is not None
    with services.pool.connection() as conn, conn.transaction():
        token = sessions.create(conn, key.id, "session", services.now())
        record(conn, request, "session.create", key.id, {})
    answer = RedirectResponse(safe_path(fields.get("next", "/")), 303)
    cookies.set_cookie(answer, token, secure=sign_in_form.is_secure(request))
    return answer
