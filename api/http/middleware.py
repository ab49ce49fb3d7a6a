"""ASGI middleware around every route: request id, Host check, body limits, headers, metrics."""

import asyncio
import re
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.client_address import Network, canonical, client_address
from api.http.problems import Problem

_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")
# Responses are JSON or text: a browser may neither load resources for them nor frame them.
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
# HEAD is served by GET's route, and this one does not end.
ENDLESS = "/api/v1/events/stream"
# Probes use pod addresses as Host; their responses need no protection against DNS rebinding.
PROBES = frozenset({"/healthz", "/readyz", "/metrics"})

Observe = Callable[[str, str, int, float], None]


@dataclass(slots=True)
class OuterLayer:
    """The outermost ASGI layer.

    ``observe(method, route, status, seconds)`` is called for every response. ``body_limits`` maps a path to
    the bytes of its request body, ``max_body`` applies to the others (chosen: the largest JSON body is a
    silence with 16 matchers, some 20 kB); ``body_seconds`` bounds the time in which a body must arrive (as
    nginx's client_body_timeout, 60 s).
    """

    app: ASGIApp
    allowed_hosts: frozenset[str]
    observe: Observe
    max_body: int = 64 * 1024
    body_seconds: float = 60.0
    body_limits: dict[str, int] = field(default_factory=dict)
    trusted: Sequence[Network] = ()
    """Proxies whose ``X-Forwarded-For`` is used."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD" and scope["path"] != ENDLESS:
            # GET's route serves HEAD; its body is dropped.
            scope, send = {**scope, "method": "GET"}, _without_body(send)
        scope = {**scope, "client": self._client(scope)}
        request = Request(scope)
        request.state.request_id = _request_id(request)
        started, status = time.monotonic(), 500

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name.lower() for name, _ in message["headers"]}
                quota: dict[str, str] = getattr(request.state, "quota", {})
                named = {"x-request-id": request.state.request_id, **quota}
                extra = (*_HEADERS, *((n.encode(), v.encode()) for n, v in named.items()))
                message["headers"] = [*message["headers"], *((n, v) for n, v in extra if n not in present)]
            await send(message)

        try:
            refusal = self._refusal(request)
            if refusal is not None:
                await (await self._answer(request, refusal))(scope, receive, send_marked)
            else:
                await self.app(scope, self._bounded(request, receive), send_marked)
        finally:
            # The route template: with paths, every id would make a time series.
            route = getattr(scope.get("route"), "path_format", "unmatched")
            self.observe(scope["method"], route, status, time.monotonic() - started)

    def _client(self, scope: Scope) -> tuple[str, int] | None:
        """Return the client address for rate limits and the audit log; None if there is none."""
        peer, port = scope.get("client") or ("", 0)
        headers = scope["headers"]
        forwarded = [value.decode("latin-1") for name, value in headers if name == b"x-forwarded-for"]
        address = client_address(peer, forwarded, self.trusted)
        return (address, port if address == canonical(peer) else 0) if address else None

    def _refusal(self, request: Request) -> Problem | None:
        # DNS rebinding: a web page whose name resolves to this address is recognised by its Host.
        host = _host(request.headers.get("host", ""))
        if (
            request.url.path not in PROBES
            and "*" not in self.allowed_hosts
            and host not in self.allowed_hosts
        ):
            return Problem(
                421, "unknown-host", "this Host is not accepted; add it to SLOWRANK_API_ALLOWED_HOSTS"
            )
        length = request.headers.get("content-length", "0")
        # 18 digits exceed every limit already, and int() raises beyond 4,300 digits.
        if not length.isdigit() or int(length[:18]) > self._limit(request):
            return _too_large(self._limit(request))
        return None

    async def _answer(self, request: Request, problem: Problem) -> Response:
        handler = request.app.exception_handlers[HTTPException]
        response: Response = await handler(request, problem)
        return response

    def _limit(self, request: Request) -> int:
        return self.body_limits.get(request.url.path, self.max_body)

    def _bounded(self, request: Request, receive: Receive) -> Receive:
        read, whole = 0, False
        until = asyncio.get_running_loop().time() + self.body_seconds

        async def bounded() -> Message:
            nonlocal read, whole
            # After the body a route may wait here without limit for the client to disconnect.
            try:
                async with asyncio.timeout_at(None if whole else until):
                    message = await receive()
            except TimeoutError as error:
                raise _too_slow(self.body_seconds) from error
            read += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if read > self._limit(request):
                raise _too_large(self._limit(request))
            return message

        return bounded


def _without_body(send: Send) -> Send:
    async def send_head(message: Message) -> None:
        await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

    return send_head


def _too_large(limit: int) -> Problem:
    return Problem(
        413, "too-large", f"the body of this request may have at most {limit} bytes; send less at once"
    )


def _too_slow(seconds: float) -> Problem:
    detail = f"the request's body did not arrive within {seconds:g} s; send it again"
    return Problem(408, "request-timeout", detail, headers={"connection": "close"})


def _request_id(request: Request) -> str:
    # It is returned in a header and written to the audit log: only characters that are harmless in both.
    given = request.headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _host(header: str) -> str:
    name, _, port = header.rpartition(":")
    return (name if name and port.isdigit() else header).lower()
