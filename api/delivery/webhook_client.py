"""Sends one webhook request under the rules of ``ssrf``: resolve once, connect to a checked address.

``retry`` decides when to try again.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import certifi
import httpx

from api.delivery.retry import Answer, retry_after
from api.security.ssrf import Policy, Refused, Target, check_addresses, checked_url, unreachable
from slowrank import __version__
from slowrank.settings import WEBHOOK_ATTEMPT_SECONDS
from store.findings.attempt_errors import REFUSED

log = logging.getLogger(__name__)

# Bounds of what a receiver may use: seconds, bytes read, and characters in the delivery log. Chosen:
# receivers are to answer at once and work afterwards; Standard Webhooks recommends 15 to 30 s.
CONNECT_SECONDS = 5.0
TOTAL_SECONDS = WEBHOOK_ATTEMPT_SECONDS
MAX_READ = 64 * 1024
EXCERPT = 500

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return all addresses of ``host`` in the system's order of preference. Raises ``OSError``."""
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(info[4][0]) for info in infos))


def tls_context() -> ssl.SSLContext:
    """Return a verifying context with the certificate authorities of the system and of certifi."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


@dataclass(frozen=True, slots=True)
class WebhookClient:
    """Posts bodies to checked destinations; keeps no connection and no cookie between requests."""

    policy: Policy
    tls: ssl.SSLContext
    resolve: Resolve = resolve
    total_seconds: float = TOTAL_SECONDS

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, /) -> Answer:
        """Send one request and return the answer; never raises for errors of the receiver or the network."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(self.total_seconds):
                answer = await self._attempt(url, headers, body)
        except Refused as refusal:
            log.warning("a delivery was refused: %s", refusal.why)
            answer = Answer(error=f"{REFUSED}: {refusal}")
        except TimeoutError:
            answer = Answer(error=f"timeout: no complete answer within {self.total_seconds:g} s")
        except (httpx.HTTPError, OSError) as error:
            answer = Answer(error=f"{type(error).__name__}: {str(error)[:300]}")
        return _timed(answer, time.monotonic() - started)

    async def _attempt(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        target = checked_url(url, self.policy)
        addresses = await self._addresses(target)
        async with httpx.AsyncClient(
            verify=self.tls,
            # A proxy would resolve the name again, a redirect could lead anywhere: both bypass the check.
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(self.total_seconds, connect=CONNECT_SECONDS),
        ) as client:
            for address in addresses[:-1]:
                try:
                    return await _exchange(client, _request(client, target, address, headers, body))
                # Nothing was sent yet; after any other failure the receiver may have got the delivery.
                except httpx.ConnectError:
                    continue
            return await _exchange(client, _request(client, target, addresses[-1], headers, body))

    async def _addresses(self, target: Target) -> Sequence[str]:
        try:
            addresses = await self.resolve(target.host, target.port)
        except (OSError, UnicodeError) as error:
            raise unreachable(target.host, f"{target.host} does not resolve: {error}") from error
        check_addresses(target, addresses, self.policy)
        return addresses


def _request(
    client: httpx.AsyncClient, target: Target, address: str, headers: Mapping[str, str], body: bytes
) -> httpx.Request:
    host = target.url.netloc.decode("ascii")
    # Connects to the checked address; Host and SNI keep the name for the receiver and its certificate.
    return client.build_request(
        "POST",
        target.url.copy_with(host=address, port=target.port),
        content=body,
        headers={"user-agent": f"slowrank/{__version__}", **headers, "host": host},
        extensions={"sni_hostname": target.host},
    )


async def _exchange(client: httpx.AsyncClient, request: httpx.Request) -> Answer:
    response = await client.send(request, stream=True)
    try:
        read = b""
        # Raw: decompression could exceed the bound.
        async for chunk in response.aiter_raw(8192):
            read += chunk
            if len(read) >= MAX_READ:
                break
    finally:
        await response.aclose()
    return Answer(
        status=response.status_code,
        excerpt=_printable(read[:EXCERPT]),
        body=read,
        retry_after_seconds=retry_after(response.headers.get("retry-after"), datetime.now(UTC)),
    )


def _printable(data: bytes) -> str:
    return "".join(c if c.isprintable() else " " for c in data.decode("utf-8", errors="replace"))


def _timed(answer: Answer, seconds: float) -> Answer:
    return replace(answer, seconds=round(seconds, 3))
