"""What carries a delivery to its endpoint: ``WebhookClient``, ``MailClient``, ``SlackClient`` and
``SequenceClient``."""

from collections.abc import Mapping
from typing import Protocol

from api.delivery.retry import Answer


class Sender(Protocol):
    """Sends one body to one endpoint."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, /) -> Answer:
        """Return the answer; raises nothing for errors of the receiver or the network."""
        ...
