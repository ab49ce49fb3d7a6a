"""Slack incoming webhooks: fallback text, four facts, the action and a link as Block Kit."""

from api.delivery.receivers.finding_text import facts, has_ended
from api.delivery.receivers.receiver import Notification, Receiver

# Distinguishes these events from another opening in a channel that subscribes to them.
_PREFIXES = {
    "finding.acknowledged": "Acknowledged: ",
    "finding.feedback": "Feedback: ",
    "finding.escalated": "Escalated: ",
    "finding.reopened": "Back again: ",
}


def _render(notification: Notification, public_url: str) -> object:
    finding = notification.finding
    title, severity = _escaped(finding.get("title", ""), 120), str(finding.get("severity", "info")).upper()
    if has_ended(finding):
        return {"text": f"Resolved: {title}"}
    prefix = _PREFIXES.get(notification.type, "")
    shown = [f"*{name}*\n{_escaped(text, 500)}" for name, text in facts(finding)]
    action = _escaped(finding.get("action", {}).get("text", ""), 1000)
    text = {"type": "plain_text", "text": "Open finding"}
    button = {"type": "button", "text": text, "url": notification.link}
    return {
        "text": f"{prefix}{severity} {title}",
        "blocks": [
            # Slack's limits: 150 characters in a header, 2,000 in a field, 3,000 in a text.
            {"type": "header", "text": {"type": "plain_text", "text": (prefix + title)[:150]}},
            {"type": "section", "fields": [{"type": "mrkdwn", "text": fact} for fact in shown]},
            {"type": "section", "text": {"type": "mrkdwn", "text": f"*Do:* {action}"}},
            {"type": "actions", "elements": [button]},
        ],
    }


def _escaped(text: object, limit: int) -> str:
    """Return at most ``limit`` characters of text with Slack's three control characters escaped."""
    cut = "".join(c if c.isprintable() else " " for c in str(text)[:limit])
    return cut.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


RECEIVER = Receiver("slack", "application/json", _render)
