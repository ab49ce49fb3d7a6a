"""``Idempotency-Key`` on POST (draft-ietf-httpapi-idempotency-key-header): sent again, it is answered again.

The same key with the same request is answered as the first time, with another request is a 422, and while the
first is carried out a 409. A request that failed is forgotten and may be sent again. Answers that hold a
secret are stored nowhere: their repetition is a 409 that names what was made.
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
from fastapi.routing import APIRoute

from api.auth import AnyKey
from api.deps import Services, ServicesDep, services
from api.problems import Problem, invalid
from store import requests
from store.requests import Claim, Earlier

log = logging.getLogger(__name__)

# The draft's form is a string in quotes; most clients leave them out.
_NAME = re.compile(r'"?([!#-~]{1,255})"?')
# Answers to POST have some hundred bytes, of a body with 20 bad lines 6 kB.
MAX_BODY = 16 * 1024


class Repeated(Exception):
    """This request was carried out before; ``response`` is what came of it."""

    def __init__(self, response: Response) -> None:
        super().__init__("answered before")
        self.response = response


async def claimed(request: Request, services: ServicesDep, principal: AnyKey) -> None:
    """Take the request's ``Idempotency-Key``, if it has one, before the route runs.

    Raises ``Repeated`` with the answer of the first time, and the problems of a key that cannot be taken.
    """
    given = request.headers.get("idempotency-key")
    if request.method != "POST" or given is None:
        return
    name = _NAME.fullmatch(given)
    if name is None:
        raise invalid("#/header/idempotency-key", "an Idempotency-Key is 1 to 255 visible ASCII characters")
    claim, mark = Claim(principal.key_id, name[1]), _fingerprint(request, await request.body())

    def take() -> Earlier | None:
        with services.pool.connection() as conn:
            return requests.take(conn, claim, mark, services.now())

    earlier = await run_in_threadpool(take)
    if earlier is not None:
        raise Repeated(_answer(earlier, mark))
    request.state.claim = claim


class IdempotentRoute(APIRoute):
    """A route that keeps its answer under the request's ``Idempotency-Key``, and none of a failure."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the framework's handler within the key's life."""
        handle = super().get_route_handler()

        async def idempotent(request: Request) -> Response:
            response = None
            try:
                response = await handle(request)
            except Repeated as repeated:
                return repeated.response
            finally:
                claim: Claim | None = getattr(request.state, "claim", None)
                if claim is not None:
                    await run_in_threadpool(_settle, services(request), claim, response)
            return response

        return idempotent


def _fingerprint(request: Request, body: bytes) -> bytes:
    url = request.url
    what = json.dumps([request.method, url.path, url.query, request.headers.get("content-encoding", "")])
    return hashlib.sha256(what.encode() + b"\0" + body).digest()


def _answer(earlier: Earlier, mark: bytes) -> Response:
    if earlier.fingerprint != mark:
        detail = "this Idempotency-Key was used for another request; take a new one"
        raise Problem(422, "idempotency-key-reused", detail)
    if earlier.status is None:
        detail = "the request with this Idempotency-Key is being carried out; ask again"
        raise Problem(409, "request-in-progress", detail, headers={"retry-after": "1"})
    if earlier.body is None:
        detail = (
            "this request was carried out, and its answer, which held a secret, is not kept; "
            "list what there is, remove what was made, and send it with a new Idempotency-Key"
        )
        raise Problem(409, "already-carried-out", detail)
    headers = {"idempotency-replayed": "true"}
    return Response(earlier.body, earlier.status, headers, media_type=earlier.media_type)


def _settle(services: Services, claim: Claim, response: Response | None) -> None:
    try:
        with services.pool.connection() as conn:
            if response is None or not 200 <= response.status_code < 300:
                requests.give_back(conn, claim)
                return
            secret = "no-store" in response.headers.get("cache-control", "")
            kept = not secret and len(response.body) <= MAX_BODY
            body = bytes(response.body).decode() if kept else None
            requests.complete(
                conn, claim, response.status_code, response.headers.get("content-type", ""), body
            )
    except psycopg.OperationalError as error:
        # The asker gets the true answer all the same; only its repetition is a 409 for some minutes.
        log.warning("what came of a request with an Idempotency-Key is not kept: %s", type(error).__name__)
