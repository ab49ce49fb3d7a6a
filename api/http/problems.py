"""Error responses as RFC 9457 ``application/problem+json``."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import psycopg
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match, Route

from api.http.cursors import BadCursor

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"


class Problem(HTTPException):
    """An error response; ``slug`` is the stable name of its type."""

    def __init__(
        self,
        status: int,
        slug: str,
        detail: str,
        *,
        errors: Sequence[Mapping[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, detail, dict(headers or {}))
        self.slug = slug
        self.errors = list(errors)


def not_found(what: str, name: str) -> Problem:
    """Return the 404 problem of one thing requested by name."""
    return Problem(404, "not-found", f"there is no {what} {name[:80]!r}")


def invalid(pointer: str, detail: str) -> Problem:
    """Return the 422 problem of one parameter, such as ``#/query/from``."""
    return Problem(422, "invalid-parameter", detail, errors=[{"pointer": pointer, "detail": detail}])


def contradiction(pointer: str, detail: str) -> Problem:
    """Return the 409 problem of a well-formed value that contradicts another one, the clock, or a page."""
    return Problem(409, "contradiction", detail, errors=[{"pointer": pointer, "detail": detail}])


def install(
    app: FastAPI,
    public_url: str,
    routes: Sequence[BaseRoute],
    page: Callable[[Request, Problem], Response],
) -> None:
    """Turn every error of ``app`` into a problem, including those of the framework and the database.

    ``routes`` are all routes: a 405 lists the methods of those with the requested path. ``page`` makes the
    answer to a browser at an address outside the API.
    """
    base = public_url.rstrip("/") + "/problems/"

    def handler(problem_of: Callable[[Any], Problem]) -> Callable[[Request, Exception], Awaitable[Response]]:
        async def answer(request: Request, error: Exception) -> Response:
            problem = problem_of(error)
            if problem.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
                problem.headers = {"allow": _allowed(request, routes)}
            # What a route itself refuses, it answers in its own form.
            if not isinstance(error, Problem) and _is_of_browser(request):
                return page(request, problem)
            return _answer(base, request, problem)

        return answer

    for kind, problem_of in _PROBLEM_OF.items():
        app.add_exception_handler(kind, handler(problem_of))


def _is_of_browser(request: Request) -> bool:
    is_api = request.url.path.startswith(("/api/", "/v1/"))
    return not is_api and "text/html" in request.headers.get("accept", "")


def _answer(base: str, request: Request, problem: Problem) -> Response:
    content: dict[str, Any] = {
        "type": base + problem.slug,
        "title": problem.slug.replace("-", " ").capitalize(),
        "status": problem.status_code,
        "detail": problem.detail,
        "instance": request.url.path,
        "request_id": request.scope.get("state", {}).get("request_id", ""),
    }
    if problem.errors:
        content["errors"] = problem.errors
    headers = {"cache-control": "no-store", **(problem.headers or {})}
    # amtool asks for this alone, and shows nothing of an error of another type.
    plain = request.headers.get("accept") == "application/json" and request.url.path.startswith("/api/v2/")
    media_type = "application/json" if plain else MEDIA_TYPE
    return JSONResponse(content, problem.status_code, headers=headers, media_type=media_type)


def _allowed(request: Request, routes: Sequence[BaseRoute]) -> str:
    """Return the methods of all routes with this path; the framework lists those of the first only."""
    methods: set[str] = set()
    for route in routes:
        match, _ = route.matches(request.scope)
        if match is not Match.NONE and isinstance(route, Route):
            methods |= route.methods or set()
    # HEAD is answered wherever GET is (middleware.OuterLayer).
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))


def _of_status(error: HTTPException) -> Problem:
    if isinstance(error, Problem):
        return error
    phrase = HTTPStatus(error.status_code).phrase
    slug = phrase.lower().replace(" ", "-").replace("'", "")
    detail = (
        "there is nothing at this address" if error.detail == phrase == "Not Found" else str(error.detail)
    )
    return Problem(error.status_code, slug, detail, headers=error.headers)


def _of_validation(error: RequestValidationError) -> Problem:
    # Without the input, which may hold a secret.
    errors = [
        {
            "pointer": "#/" + "/".join(str(part) for part in e["loc"]),
            "detail": str(e["msg"]).removeprefix("Value error, ")[:300],
        }
        for e in error.errors()[:20]
    ]
    detail = "; ".join(f"{e['pointer']}: {e['detail']}" for e in errors[:3])
    return Problem(422, "invalid-parameter", detail, errors=errors)


def _of_cursor(error: BadCursor) -> Problem:
    return contradiction("#/query/cursor", str(error))


def _of_database(error: psycopg.OperationalError) -> Problem:
    log.error("database unavailable: %s", type(error).__name__)
    detail = "the database does not answer; try again, and see /readyz"
    return Problem(503, "database-unavailable", detail, headers={"retry-after": "5"})


def _of_timeout(_: psycopg.errors.QueryCanceled) -> Problem:
    detail = "this takes the database too long; ask for a shorter time range or fewer nodes"
    return Problem(503, "query-too-long", detail)


def _of_schema(_: psycopg.ProgrammingError) -> Problem:
    detail = "the database has no (or an old) slowrank schema; run `slowrank migrate`"
    return Problem(503, "database-not-migrated", detail, headers={"retry-after": "5"})


def _of_disconnect(_: ClientDisconnect) -> Problem:
    # Nobody gets it: it keeps what the client did from the log and the metrics as an error of slowrank.
    return Problem(400, "client-disconnected", "the connection ended before the body did; send it again")


def _of_bug(_: Exception) -> Problem:
    return Problem(
        500, "internal-error", "an error in slowrank itself; its log has the details under this request_id"
    )


_PROBLEM_OF: Mapping[type[Exception], Callable[[Any], Problem]] = {
    HTTPException: _of_status,
    RequestValidationError: _of_validation,
    BadCursor: _of_cursor,
    ClientDisconnect: _of_disconnect,
    psycopg.OperationalError: _of_database,
    psycopg.errors.QueryCanceled: _of_timeout,
    psycopg.errors.UndefinedTable: _of_schema,
    psycopg.errors.UndefinedColumn: _of_schema,
    Exception: _of_bug,
}
