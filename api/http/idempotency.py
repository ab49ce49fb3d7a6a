"""``Idempotency-Key`` on POST (draft-ietf-httpapi-idempotency-key-header): a repetition is not carried out.

The same key with the same request returns the first response, with another request a 422, and while the first
is in progress a 409. A request that failed may be sent again. Responses that hold a secret are not stored:
their repetition is a 409.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Coroutine
from typing import Any

import psycopg
from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from api.deps import Services, ServicesDep, services
from api.http.problems import Problem, invalid
from api.security.auth import AnyKey, require_key
from store.access import requests
from store.access.requests import EarlierRequest, RequestKey

log = logging.getLogger(__name__)

# The draft's syntax is a string in quotes, which most clients omit.
_NAME = re.compile(r'"?([!#-~]{1,255})"?')
# Responses to POST have some hundred bytes; ingest's with 20 explained lines has 6 kB.
MAX_BODY = 16 * 1024


class Repeated(Exception):
    """The request was carried out before; ``response`` is its stored response."""

    def __init__(self, response: Response) -> None:
        super().__init__("the request was carried out before")
        self.response = response


async def reserve_idempotency_key(request: Request, services: ServicesDep, principal: AnyKey) -> None:
    """Reserve the request's ``Idempotency-Key``, if it has one, before the route runs.

    Raises ``Repeated`` with the stored response, and the 409 and 422 problems of a key that is in use.
    """
    given = request.headers.get("idempotency-key")
    if request.method != "POST" or given is None:
        return
    name = _NAME.fullmatch(given)
    if name is None:
        raise invalid("#/header/idempotency-key", "an Idempotency-Key is 1 to 255 visible ASCII characters")
    key, mark = RequestKey(principal.key_id, name[1]), _fingerprint(request, await request.body())

    def take() -> EarlierRequest | None:
        with services.pool.connection() as conn:
            return requests.reserve(conn, key, mark, services.now())

    earlier = await run_in_threadpool(take)
    if earlier is not None:
        raise Repeated(_answer(earlier, mark))
    request.state.key = key


class IdempotentRoute(APIRoute):
    """A route that stores its successful response under the request's ``Idempotency-Key``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the framework's handler, wrapped to complete or release the key."""
        handle = super().get_route_handler()

        async def idempotent(request: Request) -> Response:
            response = None
            try:
                response = await handle(request)
            except Repeated as repeated:
                return repeated.response
            except (RequestValidationError, HTTPException) as error:
                # The framework reads a body as JSON before it asks for a key.
                if not isinstance(error, Problem) and getattr(request.state, "key_id", None) is None:
                    await require_key(request)
                raise
            finally:
                key: RequestKey | None = getattr(request.state, "key", None)
                if key is not None:
                    await run_in_threadpool(_settle, services(request), key, response)
            return response

        return idempotent


def _fingerprint(request: Request, body: bytes) -> bytes:
    url = request.url
    what = json.dumps([request.method, url.path, url.query, request.headers.get("content-encoding", "")])
    return hashlib.sha256(what.encode() + b"\0" + body).digest()


def _answer(earlier: EarlierRequest, mark: bytes) -> Response:
    if earlier.fingerprint != mark:
        detail = "this Idempotency-Key was used for another request; use a new one"
        raise Problem(422, "idempotency-key-reused", detail)
    if earlier.status is None:
        detail = "the first request with this Idempotency-Key is still in progress; try again"
        raise Problem(409, "request-in-progress", detail, headers={"retry-after": "1"})
    if earlier.body is None:
        detail = (
            "this request was carried out, and its answer is not stored because it held a secret; "
            "list what exists, delete what was created, and send the request with a new Idempotency-Key"
        )
        raise Problem(409, "already-carried-out", detail)
    headers = {"idempotency-replayed": "true"}
    return Response(earlier.body, earlier.status, headers, media_type=earlier.media_type)


def _settle(services: Services, key: RequestKey, response: Response | None) -> None:
    try:
        with services.pool.connection() as conn:
            if response is None or not 200 <= response.status_code < 300:
                requests.release(conn, key)
                return
            secret = "no-store" in response.headers.get("cache-control", "")
            kept = not secret and len(response.body) <= MAX_BODY
            body = bytes(response.body).decode() if kept else None
            requests.complete(conn, key, response.status_code, response.headers.get("content-type", ""), body)
    except psycopg.OperationalError as error:
        # The client gets its response all the same; repetitions are a 409 until the row is abandoned.
        log.warning("the response under an Idempotency-Key cannot be stored: %s", type(error).__name__)
