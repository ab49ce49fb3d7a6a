"""Slack's Web API as documented: messages of channels, their threads, and the limits of Block Kit."""

import json
from dataclasses import dataclass, field
from typing import Any

TOKEN = "xoxb-0123456789-abcdefghij"


def units(text):
    """Return the length of a text in JavaScript."""
    return len(text.encode("utf-16-le")) // 2


def refusal(message):
    """Return the error of Slack's reference for a message beyond its limits, "" for one within them.

    https://docs.slack.dev/reference/block-kit/blocks and the reference of chat.postMessage.
    """
    if not message.get("text") or units(message["text"]) > 4000:
        return "msg_too_long"
    blocks = message.get("blocks", [])
    fits = len(blocks) <= 50 and all(_fits(block) for block in blocks)
    return "" if fits else "invalid_blocks"


def _fits(block):
    match block:
        case {"type": "header", "text": {"type": "plain_text", "text": text}}:
            return 0 < units(text) <= 150
        case {"type": "section", "fields": fields}:
            return 0 < len(fields) <= 10 and all(0 < units(f["text"]) <= 2000 for f in fields)
        case {"type": "section", "text": {"type": "mrkdwn", "text": text}}:
            return 0 < units(text) <= 3000
        case {"type": "actions", "elements": elements}:
            return 0 < len(elements) <= 25 and all(_button(e) for e in elements)
    return False


def _button(element):
    return (
        element["type"] == "button" and units(element["text"]["text"]) <= 75 and units(element["url"]) <= 3000
    )


@dataclass
class Slack:
    """What a workspace has: messages by channel and time; ``refusing`` is an error for the next call."""

    messages: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    refusing: list[str] = field(default_factory=list)

    def answer(self, got):
        """Return the JSON body for a request as a receiver of ``conftest`` got it."""
        method = got.path.rpartition("/")[2]
        self.calls.append(method)
        return json.dumps(self._answered(method, got)).encode()

    def _answered(self, method, got):
        if got.headers["authorization"] != f"Bearer {TOKEN}":
            return {"ok": False, "error": "invalid_auth"}
        asked = json.loads(got.body)
        error = self.refusing.pop(0) if self.refusing else refusal(asked)
        place = (asked["channel"], asked.get("ts") or f"1795160042.{len(self.messages):06}")
        if method == "chat.update" and place not in self.messages:
            error = error or "message_not_found"
        if error:
            return {"ok": False, "error": error}
        self.messages[place] = asked
        # With the message, which is long.
        return {"ok": True, "channel": place[0], "ts": place[1], "message": asked}

    def shown(self):
        """Return (text, text of its parent or None, whether it stands in the channel too) of each message."""
        return [
            (
                message["text"],
                self.messages[channel, message["thread_ts"]]["text"] if "thread_ts" in message else None,
                "thread_ts" not in message or message["reply_broadcast"],
            )
            for (channel, _), message in self.messages.items()
        ]
