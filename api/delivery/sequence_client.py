"""Posts several bodies of one delivery to its endpoint, one after the other."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from api.delivery.retry import Answer, verdict
from api.delivery.sender import Sender
from slowrank.settings import WEBHOOK_ATTEMPT_SECONDS


class Delivery(msgspec.Struct, frozen=True):
    """What a receiver of the transport ``sequence`` renders: the bodies, and the receipt of them all."""

    bodies: list[msgspec.Raw]
    receipt: str = ""


@dataclass(frozen=True, slots=True)
class SequenceClient:
    """Carries a delivery in one request a body; the first that is not accepted ends it."""

    client: Sender
    total_seconds: float = WEBHOOK_ATTEMPT_SECONDS

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, /) -> Answer:
        """Return the last answer, with the receipt where every body was accepted."""
        asked, answer = msgspec.json.decode(body, type=Delivery), Answer(error="nothing to send")
        try:
            async with asyncio.timeout(self.total_seconds):
                for one in asked.bodies:
                    answer = await self.client.post(url, headers, bytes(one))
                    if verdict(answer) != "delivered":
                        return answer
        except TimeoutError:
            return Answer(error=f"timeout: no complete answer within {self.total_seconds:g} s")
        return replace(answer, receipt=asked.receipt)
