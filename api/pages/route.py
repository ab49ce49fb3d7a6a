"""A route that answers browsers with a page where it fails, and programs with the problem as JSON."""

from collections.abc import Callable, Coroutine
from typing import Any

import psycopg
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from api.http.cursors import BadCursor
from api.http.problems import Problem
from api.pages.render import page
from api.pages.routes.sign_in_form import ask_to_sign_in


class PageRoute(APIRoute):
    """A route of a page."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the framework's handler, with problems shown as pages."""
        handle = super().get_route_handler()

        async def shown(request: Request) -> Response:
            if "text/html" not in request.headers.get("accept", ""):
                return await handle(request)
            try:
                return await handle(request)
            except Problem as problem:
                return problem_page(request, problem)
            except RequestValidationError as error:
                return problem_page(request, _of_address(error))
            except BadCursor as error:
                return problem_page(request, Problem(409, "contradiction", str(error)))
            except psycopg.OperationalError:
                return problem_page(request, Problem(503, "database-unavailable", _NO_DATABASE))

        return shown


_NO_DATABASE = "the database does not answer; try again, and see /readyz"


def _of_address(error: RequestValidationError) -> Problem:
    """Return the problem of an address, or of a form, by the first of its parts that is wrong."""
    first = error.errors()[0]
    place, name = first["loc"][0], first["loc"][-1]
    if place == "path":
        detail = f"the address has no valid {str(name).replace('_', ' ')}: was it cut off when it was copied?"
        return Problem(404, "not-found", detail)
    wrong = (
        f"lacks {name!r}" if first["type"] == "missing" else f"has a {name!r} that this page does not take"
    )
    return Problem(422, "invalid-parameter", f"the address {wrong}; go back and follow a link instead")


def problem_page(request: Request, problem: Problem) -> Response:
    """Return a problem as a page; one of a missing key asks to sign in."""
    if problem.status_code == 401:
        # The detail of the plain one is for programs.
        detail = "" if problem.slug == "unauthorized" else str(problem.detail)
        return ask_to_sign_in(request, detail, problem.headers or {})
    title = problem.slug.replace("-", " ").capitalize()
    return page(
        request,
        "problem.html",
        viewer=getattr(request.state, "viewer", None),
        status=problem.status_code,
        headers=problem.headers,
        title=title,
        detail=str(problem.detail),
    )
