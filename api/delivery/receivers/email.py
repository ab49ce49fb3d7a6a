"""E-mail: a text, the same as HTML, and the plots of the finding; all mails of a finding are one thread.

The body is what ``api.delivery.mail_message`` makes a message of. Mail programs form threads by the ids that
a mail refers to and some by the subject too, so every mail of a finding has the subject of the first.
"""

from collections.abc import Iterator
from html import escape

import msgspec

from api.delivery.receivers.finding_text import facts, has_ended
from api.delivery.receivers.receiver import Finding, Notification, Receiver

# Bytes of a body. Chosen: the plots of a finding take some 20 kB, and mail servers take 10 MB and more.
MAX_MAIL = 256_000
# Characters of the plots beyond which a mail goes without them: what leaves room for the texts.
_MAX_PLOT = 160_000
# Characters. RFC 5322 limits a line to 998; a subject is read in a list of some 80.
_MAX_SUBJECT = 160
_MAX_TEXT = 1000
_MAX_COMMANDS = 5

_HEADINGS = {
    "finding.acknowledged": "Acknowledged",
    "finding.escalated": "Escalated",
    "finding.feedback": "Feedback",
    "finding.reopened": "Back again",
    "finding.updated": "Changed",
}


class Thread(msgspec.Struct, frozen=True):
    """The first mail of a finding to an endpoint: its id, and the subject that all later ones have."""

    id: str
    subject: str


def _render(notification: Notification, public_url: str) -> object:
    finding = notification.finding
    thread = thread_of(notification.receipt)
    plot = notification.plot
    return {
        "id": notification.id,
        "at": notification.timestamp,
        "thread": None if thread is None else {"id": thread.id, "subject": thread.subject},
        "subject": f"[slowrank] {_subject(finding)}",
        "urgent": finding.get("severity") == "critical" and not has_ended(finding),
        "text": "\n".join(_text(notification)),
        "html": _html(notification),
        "plot": plot if len(plot) <= _MAX_PLOT else "",
    }


def thread_of(receipt: str) -> Thread | None:
    """Return the thread that a receipt names; None without one, or for one of another receiver."""
    try:
        return msgspec.json.decode(receipt, type=Thread)
    except msgspec.DecodeError:
        return None


def one_line(text: object, limit: int) -> str:
    """Return at most ``limit`` characters of text with blanks for what cannot be printed, line ends too."""
    return "".join(c if c.isprintable() else " " for c in str(text)[:limit])


def _subject(finding: Finding) -> str:
    # What looks like an encoded word (RFC 2047) would be decoded, into line ends for instance.
    return one_line(finding.get("title", ""), _MAX_SUBJECT).replace("=?", "= ?").strip()


def _heading(notification: Notification) -> str:
    finding = notification.finding
    if has_ended(finding):
        return "Resolved" if finding.get("status") == "resolved" else "Expired"
    severity = one_line(finding.get("severity", "info"), 20).upper()
    what = _HEADINGS.get(notification.type)
    return severity if what is None else f"{what}: {severity}"


def _rows(finding: Finding) -> list[tuple[str, str]]:
    rows = [(name, one_line(text, _MAX_TEXT)) for name, text in facts(finding)]
    if has_ended(finding) and finding.get("resolved_at"):
        rows.insert(1, ("Until", one_line(finding["resolved_at"], 40)))
    return rows


def _to_do(finding: Finding) -> tuple[str, list[str]]:
    """Return the action as text and its commands; nothing is to be done about what has ended."""
    if has_ended(finding):
        return "", []
    action = finding.get("action", {})
    commands = [one_line(command, _MAX_TEXT) for command in action.get("commands", ())[:_MAX_COMMANDS]]
    return one_line(action.get("text", ""), _MAX_TEXT), commands


def _text(notification: Notification) -> Iterator[str]:
    finding = notification.finding
    yield _heading(notification)
    yield one_line(finding.get("title", ""), _MAX_TEXT)
    yield ""
    for name, text in _rows(finding):
        yield f"{name}: {text}"
    action, commands = _to_do(finding)
    if action:
        yield ""
        yield f"Do: {action}"
        yield from (f"    {command}" for command in commands)
    yield ""
    yield notification.link


def _html(notification: Notification) -> str:
    finding = notification.finding
    action, commands = _to_do(finding)
    rows = "".join(
        f'<tr><th align="left" valign="top">{escape(name)}</th><td>{escape(text)}</td></tr>'
        for name, text in _rows(finding)
    )
    do = f"<p><b>Do:</b> {escape(action)}</p>" if action else ""
    listed = f"<pre>{escape(chr(10).join(commands))}</pre>" if commands else ""
    return (
        '<!doctype html><html><body style="font-family: sans-serif">'
        f"<p><b>{escape(_heading(notification))}</b></p>"
        f"<h2>{escape(one_line(finding.get('title', ''), _MAX_TEXT))}</h2>"
        f'<table cellpadding="4">{rows}</table>{do}{listed}'
        f'<p><a href="{escape(notification.link)}">Open finding</a></p></body></html>'
    )


RECEIVER = Receiver("email", "application/json", _render, transport="smtp", max_body=MAX_MAIL, plot="svg")
