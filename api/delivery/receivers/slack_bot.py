"""Slack with the token of a bot: one message a finding, updated as the finding changes, with a thread.

The body is what ``api.delivery.slack_client`` makes calls of Slack's Web API of.
"""

from api.delivery.receivers.finding_text import has_ended
from api.delivery.receivers.receiver import Credential, Finding, Notification, Receiver, UrlForm
from api.delivery.receivers.slack import PREFIXES, message, title

# An update of a message notifies nobody: what asks somebody to act is shown in the channel as well.
_TO_CHANNEL = frozenset({"finding.escalated", "finding.reopened"})
# A new cause or action is seen in the message itself.
_NO_REPLY = frozenset({"finding.updated"})


def _render(notification: Notification, public_url: str) -> object:
    return {
        "token": notification.credential,
        "receipt": notification.receipt,
        "message": message(notification, _state(notification.finding)),
        "reply": _reply(notification),
    }


def _state(finding: Finding) -> str:
    """Return the state of a finding as the beginning of its message."""
    states = {"acknowledged": "Acknowledged: ", "resolved": "Resolved: ", "expired": "Expired: "}
    return states.get(str(finding.get("status")), "")


def _reply(notification: Notification) -> object:
    """Return what the thread of an earlier message gets, None for nothing."""
    finding, happened = notification.finding, notification.type
    if happened in _NO_REPLY:
        return None
    prefix = _state(finding) if has_ended(finding) else PREFIXES.get(happened, "")
    severity = "" if has_ended(finding) else f"{str(finding.get('severity', 'info')).upper()[:20]} "
    text = f"{prefix}{severity}{title(finding)}"
    return {"text": text, "reply_broadcast": happened in _TO_CHANNEL and not has_ended(finding)}


RECEIVER = Receiver(
    "slack_bot",
    "application/json",
    _render,
    Credential(
        "bot token of Slack", "xoxb- and 10 to 240 letters, digits or hyphens", r"xoxb-[0-9A-Za-z-]{10,240}"
    ),
    transport="slack",
    plot="text",
    url_form=UrlForm(
        "https://slack.com/api/chat.postMessage?channel=C0123456789",
        r"https?://[^?#]+/chat\.postMessage\?channel=[CDG][0-9A-Z]{2,30}",
    ),
)
