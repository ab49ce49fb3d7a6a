"""Slack incoming webhooks: fallback text, four facts, the action and a link as Block Kit."""

import itertools

from api.delivery.receivers.finding_text import escaped, facts, has_ended
from api.delivery.receivers.receiver import Finding, Notification, Receiver

# Limits of Block Kit's reference, in characters as JavaScript counts them: a header 150, a field 2,000, a
# text 3,000. Chosen, below them: what is read at a glance, and a body of 20 kB in any script.
_HEADER = 150
_TITLE = 300
_FACT = 600
_ACTION = 1500
_PLOT = 1400

# Distinguishes these events from another opening in a channel that subscribes to them.
PREFIXES = {
    "finding.acknowledged": "Acknowledged: ",
    "finding.feedback": "Feedback: ",
    "finding.escalated": "Escalated: ",
    "finding.reopened": "Back again: ",
}


def _render(notification: Notification, public_url: str) -> object:
    if has_ended(notification.finding):
        return {"text": f"Resolved: {title(notification.finding)}"}
    return message(notification, PREFIXES.get(notification.type, ""))


def message(notification: Notification, prefix: str) -> dict[str, object]:
    """Return text and blocks of a message about a finding, its title after ``prefix``."""
    finding = notification.finding
    shown = [f"*{name}*\n{escaped(text, _FACT)}" for name, text in facts(finding)]
    blocks: list[dict[str, object]] = [
        {"type": "header", "text": {"type": "plain_text", "text": headline(finding, prefix)}},
        {"type": "section", "fields": [{"type": "mrkdwn", "text": fact} for fact in shown]},
    ]
    if not has_ended(finding):
        action = escaped(finding.get("action", {}).get("text", ""), _ACTION)
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": f"*Do:* {action}"}})
    if notification.plot:
        # As text: Slack shows no SVG, and fetches images from public addresses only.
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": _drawn(notification.plot)}})
    text = {"type": "plain_text", "text": "Open finding"}
    blocks.append(
        {"type": "actions", "elements": [{"type": "button", "text": text, "url": notification.link}]}
    )
    severity = "" if has_ended(finding) else f"{escaped(finding.get('severity', 'info'), 20).upper()} "
    return {"text": f"{prefix}{severity}{title(finding)}", "blocks": blocks}


def _drawn(plot: str) -> str:
    """Return lines of text as a block of code."""
    # A backtick would end it. Only whole lines, so that the last plot is drawn to its end.
    lines = [escaped(line, _FACT) for line in plot.replace("`", "'").split("\n")]
    ends = itertools.accumulate(len(line) + 1 for line in lines)
    return "```" + "\n".join(line for line, end in zip(lines, ends, strict=True) if end <= _PLOT) + "```"


def headline(finding: Finding, prefix: str) -> str:
    """Return the title after ``prefix`` as the text of a header block."""
    return prefix + escaped(finding.get("title") or "finding", _HEADER - len(prefix))


def title(finding: Finding) -> str:
    """Return the title for Slack's markup."""
    return escaped(finding.get("title", ""), _TITLE)


RECEIVER = Receiver("slack", "application/json", _render, plot="text")
