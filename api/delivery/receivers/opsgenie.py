"""Opsgenie and Jira Service Management Operations: a finding is an alert, which is closed with it.

Both have this API, at different URLs: https://docs.opsgenie.com/docs/alert-api, which ends on 2027-04-05, and
"Integration events" of Jira's reference. An alert is routed by its priority once, when it is created, and
Jira's reference has no request that changes one. Therefore the alias of an alert, by which it is
deduplicated, is the id of the finding and its severity: with another severity the finding gets another alert,
then the former is closed. The finding's own ``dedup_key`` would not do: it changes with the kind. The body is
what ``api.delivery.sequence_client`` posts.
"""

from collections.abc import Iterator, Mapping

from api.delivery.receivers.finding_text import escaped, facts, has_ended, subject_path
from api.delivery.receivers.receiver import Credential, Finding, Notification, Receiver, UrlForm

# Severities as priorities: critical, high, moderate and informational in the words of that API.
_PRIORITIES = {"critical": "P1", "error": "P2", "warning": "P3", "info": "P5"}
# Limits of the API's documentation, in characters: a message, an alias, an entity, a tag, a name of a user.
_MESSAGE, _ENTITY, _TAG, _USER = 130, 512, 50, 100
# Chosen, below the 15,000 of a description, 8,000 of all details and 25,000 of a note: a fact, the action or
# a command, and as many commands as a person reads; and so that a body has less than 20 kB.
_FACT, _LINE, _COMMANDS = 600, 1000, 8
_API_KEY = r"[0-9A-Za-z_-]{20,200}"
# Receipt of an end; that of an open alert is its severity.
_ENDED = "ended"
# Before these there was no delivery of the finding.
_FIRST = frozenset({"finding.opened", "delivery.test"})
# Events that are about new trouble, also where a person has acknowledged the finding.
_NEW_TROUBLE = frozenset({"finding.opened", "finding.reopened", "finding.escalated"})

_Request = Mapping[str, object]


def _render(notification: Notification, public_url: str) -> object:
    state = _ENDED if has_ended(notification.finding) else str(notification.finding.get("severity", "info"))
    return {
        "requests": list(_requests(notification, state)),
        "headers": {"authorization": f"GenieKey {notification.credential}"},
        "receipt": state,
    }


def _requests(notification: Notification, state: str) -> Iterator[_Request]:
    """Return what makes the alerts of the finding ``state``, whatever was accepted of earlier deliveries.

    To close or acknowledge what is not open changes nothing there. The new alert comes before the end of the
    former: in between there are two, and never none.
    """
    finding, changed = notification.finding, notification.receipt != state
    if state != _ENDED:
        acknowledged = finding.get("status") == "acknowledged" and notification.type not in _NEW_TROUBLE
        if changed or not acknowledged:
            yield {"body": _alert(notification, state)}
        if acknowledged:
            yield _action(finding, state, "acknowledge", _by(finding))
        elif not changed and notification.type not in _NEW_TROUBLE:
            # An alert that is open keeps its texts and counts: what is new stands in a note.
            yield _action(finding, state, "notes", {"note": _description(notification)})
    if state == _ENDED or (changed and notification.type not in _FIRST):
        why = str(finding.get("status")) if state == _ENDED else f"now {state}"
        for severity in _PRIORITIES:
            if severity != state:
                yield _action(finding, severity, "close", {"note": f"The finding is {why}."})


def _alert(notification: Notification, severity: str) -> Mapping[str, object]:
    finding = notification.finding
    kind, cluster = str(finding.get("kind", "")), str(finding.get("subject", {}).get("cluster", ""))
    return {
        "message": escaped(finding.get("title") or kind or "finding", _MESSAGE),
        "alias": _alias(finding, severity),
        "description": _description(notification),
        "tags": [escaped(tag, _TAG) for tag in ("slowrank", severity, kind, cluster) if tag],
        "details": _details(finding),
        "entity": escaped(subject_path(finding.get("subject", {})), _ENTITY),
        "source": "slowrank",
        "priority": _PRIORITIES.get(severity, "P5"),
    }


def _alias(finding: Finding, severity: str) -> str:
    return f"{finding.get('id', '')}-{severity}"


def _action(finding: Finding, severity: str, name: str, body: Mapping[str, str]) -> _Request:
    path = f"/{_alias(finding, severity)}/{name}?identifierType=alias"
    return {"path": path, "body": {"source": "slowrank", **body}}


def _by(finding: Finding) -> dict[str, str]:
    person = (finding.get("acknowledged") or {}).get("by")
    return {"user": escaped(person, _USER)} if person else {}


def _description(notification: Notification) -> str:
    """Return title, facts, what to do and the links, a line each; the API shows HTML."""
    finding = notification.finding
    action = finding.get("action", {})
    lines = [escaped(finding.get("title", ""), _FACT)]
    lines += [f"{name}: {escaped(text, _FACT)}" for name, text in facts(finding)]
    lines += [f"Do: {escaped(action.get('text', ''), _LINE)}"]
    lines += [escaped(command, _LINE) for command in action.get("commands", ())[:_COMMANDS]]
    links = (("Finding", notification.link), ("Runbook", action.get("runbook_url")))
    lines += [f"{name}: {escaped(url, _LINE)}" for name, url in links if url]
    return "\n".join(lines)


def _details(finding: Finding) -> Mapping[str, str]:
    more = {
        "Finding": finding.get("id"),
        "Severity": finding.get("severity"),
        "Kind": finding.get("kind"),
        "Job": finding.get("subject", {}).get("job_id"),
        "Node": finding.get("subject", {}).get("node"),
        "Slowdown": finding.get("slowdown_ratio"),
        "Confidence": finding.get("confidence"),
    }
    texts = dict(facts(finding)) | {name: value for name, value in more.items() if value is not None}
    return {name: escaped(text, _FACT) for name, text in texts.items()}


RECEIVER = Receiver(
    "opsgenie",
    "application/json",
    _render,
    Credential(
        "API key of Opsgenie or Jira Service Management",
        "20 to 200 letters, digits, hyphens or underscores",
        _API_KEY,
    ),
    transport="sequence",
    url_form=UrlForm("https://api.opsgenie.com/v2/alerts", r"https?://[^?#]+/v2/alerts"),
)
