"""Posts several requests of one delivery to its endpoint or below it, one after the other."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from api.delivery.retry import Answer, verdict
from api.delivery.sender import Sender
from slowrank.settings import WEBHOOK_ATTEMPT_SECONDS


class Request(msgspec.Struct, frozen=True):
    """One request: ``path`` is what follows the URL of the endpoint."""

    body: msgspec.Raw
    path: str = ""


class Delivery(msgspec.Struct, frozen=True):
    """What a receiver of the transport ``sequence`` renders: the requests, headers and the receipt of all."""

    requests: list[Request]
    headers: dict[str, str] = {}
    receipt: str = ""


@dataclass(frozen=True, slots=True)
class SequenceClient:
    """Carries a delivery in its requests; the first that is not accepted ends it."""

    client: Sender
    total_seconds: float = WEBHOOK_ATTEMPT_SECONDS

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, /) -> Answer:
        """Return the last answer, with the receipt where every request was accepted."""
        asked, answer = msgspec.json.decode(body, type=Delivery), Answer(error="nothing to send")
        try:
            async with asyncio.timeout(self.total_seconds):
                for one in asked.requests:
                    answer = await self.client.post(
                        f"{url}{one.path}", {**headers, **asked.headers}, bytes(one.body)
                    )
                    if verdict(answer) != "delivered":
                        return answer
        except TimeoutError:
            return Answer(error=f"timeout: no complete answer within {self.total_seconds:g} s")
        return replace(answer, receipt=asked.receipt)
