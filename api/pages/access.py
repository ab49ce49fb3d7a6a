"""Who may open a page and send its forms: a session or a key, its scope, and the CSRF token of a session."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from api.deps import Services, ServicesDep
from api.http.problems import Problem
from api.pages.forms import Fields
from api.pages.render import Viewer
from api.security import sessions as cookies
from api.security.auth import (
    CredentialsDep,
    FindingsReader,
    Principal,
    Requires,
    Scope,
    admitted,
    authenticated,
)
from store.access import sessions


@dataclass(frozen=True, slots=True)
class Visit:
    """A request to a page: what its key may see, and what the page shows of it."""

    principal: Principal
    viewer: Viewer


def visit(request: Request, principal: Principal) -> Visit:
    """Return the visit of a principal; with a session it may send forms."""
    token = cookies.token_of(request)
    csrf = cookies.csrf_token(token) if token else ""
    viewer = Viewer(principal.author, principal.scopes, csrf)
    # For the page of a problem, which keeps the navigation of who is signed in.
    request.state.viewer = viewer
    return Visit(principal, viewer)


def _findings(request: Request, principal: FindingsReader) -> Visit:
    return visit(request, principal)


@dataclass(frozen=True, slots=True)
class FormRequires:
    """The dependency of a form: a session with its CSRF token, or a key, with ``scope``."""

    scope: Scope

    def __call__(
        self, request: Request, services: ServicesDep, credentials: CredentialsDep, fields: Fields
    ) -> Visit:
        """Return the visit. Raises the 401, 403 or 429 problem."""
        if credentials is not None:
            principal = authenticated(request, services, credentials)
        else:
            principal = _of_session(request, services, fields)
        return visit(request, Requires(self.scope)(principal))


FindingsVisit = Annotated[Visit, Depends(_findings)]
FindingsForm = Annotated[Visit, Depends(FormRequires("findings:write"))]


def _of_session(request: Request, services: Services, fields: dict[str, str]) -> Principal:
    token = cookies.token_of(request)
    with services.pool.connection() as conn:
        key = sessions.key_of(conn, token, services.now()) if token else None
    principal = admitted(request, services, key)
    if not cookies.is_from_our_form(token, fields):
        detail = "this form belongs to another session; go back, reload the page and send it again"
        raise Problem(403, "form-expired", detail)
    return principal
