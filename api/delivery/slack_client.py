"""Posts and updates messages by Slack's Web API: ``chat.postMessage``, ``chat.update``.

https://docs.slack.dev/reference/methods/chat.postMessage. Slack answers 200 to what it refuses, too: ``ok``
in the body counts.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from api.delivery.retry import Answer
from api.delivery.sender import Sender
from slowrank.settings import WEBHOOK_ATTEMPT_SECONDS

_POST, _UPDATE = "chat.postMessage", "chat.update"
# The message is no longer there or may not be changed any more: another one is posted.
_LOST = frozenset({"message_not_found", "cant_update_message", "edit_window_closed", "channel_not_found"})


class Delivery(msgspec.Struct, frozen=True):
    """A delivery as ``receivers.slack_bot`` renders it."""

    token: str
    receipt: str
    message: dict[str, Any]
    reply: dict[str, Any] | None = None


class Posted(msgspec.Struct, frozen=True):
    """The message of a finding: where it was asked to stand, Slack's channel and time of it."""

    to: str
    channel: str
    ts: str


class _Answered(msgspec.Struct, frozen=True):
    ok: bool
    error: str = ""
    channel: str = ""
    ts: str = ""


@dataclass(frozen=True, slots=True)
class SlackClient:
    """Carries a delivery in one call, or two: an update, and a reply in the thread of the message."""

    client: Sender
    total_seconds: float = WEBHOOK_ATTEMPT_SECONDS

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, /) -> Answer:
        """Post the message of a finding, or update it and reply to it.

        A message that is there no more is posted anew. The answer is that of the last call.
        """
        asked = msgspec.json.decode(body, type=Delivery)
        base, _, channel = url.partition(f"{_POST}?channel=")
        call = _Calls(self.client, base, {**headers, "authorization": f"Bearer {asked.token}"})
        try:
            async with asyncio.timeout(self.total_seconds):
                return await self._updated(asked, channel, call) or await self._posted(asked, channel, call)
        except TimeoutError:
            return Answer(error=f"timeout: no complete answer within {self.total_seconds:g} s")

    async def _posted(self, asked: Delivery, channel: str, call: "_Calls") -> Answer:
        answer, answered = await call(_POST, asked.message | {"channel": channel})
        if answered is None or not answered.ok:
            return answer
        receipt = Posted(channel, answered.channel or channel, answered.ts)
        return replace(answer, receipt=msgspec.json.encode(receipt).decode())

    async def _updated(self, asked: Delivery, channel: str, call: "_Calls") -> Answer | None:
        """Update the message and reply to it; None where there is none that can be updated."""
        posted = _posted(asked.receipt)
        if posted is None or posted.to != channel:
            return None
        place = {"channel": posted.channel, "ts": posted.ts}
        answer, answered = await call(_UPDATE, asked.message | place)
        if answered is not None and answered.error in _LOST:
            return None
        if answered is None or not answered.ok or asked.reply is None:
            return answer
        reply = asked.reply | {"channel": posted.channel, "thread_ts": posted.ts}
        return replace((await call(_POST, reply))[0], receipt=asked.receipt)


@dataclass(frozen=True, slots=True)
class _Calls:
    client: Sender
    base: str
    headers: Mapping[str, str]

    async def __call__(self, method: str, arguments: Mapping[str, Any]) -> tuple[Answer, _Answered | None]:
        """Return the answer, an error where Slack refused, and what Slack answered, None without HTTP 200."""
        # Links are not to be unfurled: Slack would fetch the page of the finding.
        body = msgspec.json.encode({"unfurl_links": False, **arguments} if method == _POST else arguments)
        headers = {**self.headers, "content-type": "application/json; charset=utf-8"}
        answer = await self.client.post(f"{self.base}{method}", headers, body)
        if answer.status != 200:
            return answer, None
        try:
            answered = msgspec.json.decode(answer.body, type=_Answered)
        except msgspec.DecodeError:
            return replace(answer, status=None, error="the answer is not that of Slack's Web API"), None
        if answered.ok:
            return answer, answered
        # Without the status, as a 200 means that it was delivered.
        return replace(answer, status=None, error=f"Slack: {method} {answered.error[:100]}"), answered


def _posted(receipt: str) -> Posted | None:
    try:
        return msgspec.json.decode(receipt, type=Posted)
    except msgspec.DecodeError:
        return None
