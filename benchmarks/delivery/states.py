"""What a receiver shows of each finding after the requests it took: one small model for each format.

The models are of the receivers' documentation and share no code with what renders the bodies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.delivery.receivers import Arrival

Shown = dict[str, str]
"""What is shown of each finding, by its id (by its title in Slack): ``ended``, or its severity."""

ENDED = "ended"
ALERTMANAGER_FIRING = "0001-01-01T00:00:00Z"
_SLACK = re.compile(
    r"(?P<state>Resolved: |Expired: )?(?:Acknowledged: |Escalated: |Back again: )?"
    r"(?:(?P<severity>CRITICAL|ERROR|WARNING|INFO) )?(?P<title>.*)"
)

_LINK = re.compile(r"/findings/(fnd_[0-9A-Z]{26})")


@dataclass(frozen=True, slots=True)
class Truth:
    """A finding as it is in the end."""

    id: str
    title: str
    status: str
    severity: str

    @property
    def shown(self) -> str:
        """What a receiver has to show of it."""
        return ENDED if self.status in ("resolved", "expired") else self.severity


def state_after(receiver: str, arrivals: Iterable[Arrival]) -> Shown:
    """Return what the receiver of this name shows after these requests, which are in order of arrival."""
    shown: Shown = {}
    model = _MODELS[receiver]()
    for arrival in arrivals:
        shown |= model(arrival.path, json.loads(arrival.body))
    return shown


def name_of(receiver: str, truth: Truth) -> str:
    """Return under which name the receiver shows a finding."""
    return truth.title if receiver in ("slack", "slack_bot") else truth.id


Model = Callable[[str, Any], Mapping[str, str]]


def _finding(finding: Mapping[str, Any]) -> Shown:
    return {finding["id"]: ENDED if finding["status"] in ("resolved", "expired") else finding["severity"]}


def _webhook() -> Model:
    return lambda path, body: _finding(body["data"])


def _template() -> Model:
    return lambda path, body: _finding(body)


def _alertmanager_webhook() -> Model:
    def shown(path: str, body: Any) -> Shown:
        return {
            alert["labels"]["finding_id"]: ENDED
            if alert["status"] == "resolved"
            else alert["annotations"]["severity"]
            for alert in body["alerts"]
        }

    return shown


def _alertmanager() -> Model:
    """Alerts by all of their labels, as Alertmanager has them: a finding shows each that fires."""
    alerts: dict[str, dict[tuple[tuple[str, str], ...], bool]] = {}

    def shown(path: str, body: Any) -> Shown:
        about = set()
        for alert in body:
            finding = alert["labels"]["finding_id"]
            fires = alert.get("endsAt", ALERTMANAGER_FIRING) == ALERTMANAGER_FIRING
            alerts.setdefault(finding, {})[tuple(sorted(alert["labels"].items()))] = fires
            about.add(finding)
        return {finding: "+".join(_severities(alerts[finding])) or ENDED for finding in about}

    return shown


def _severities(alerts: Mapping[tuple[tuple[str, str], ...], bool]) -> list[str]:
    return [dict(labels)["severity"] for labels, fires in alerts.items() if fires]


def _pagerduty() -> Model:
    """Alerts by ``dedup_key``; an ``acknowledge`` or ``resolve`` of one that is not open is dropped."""
    open_: dict[str, str] = {}

    def shown(path: str, body: Any) -> Shown:
        key = body["dedup_key"]
        if body["event_action"] == "trigger":
            open_[key] = body["payload"]["severity"]
        elif body["event_action"] == "resolve":
            open_.pop(key, None)
        return {key: open_.get(key, ENDED)}

    return shown


def _opsgenie() -> Model:
    """Alerts by alias, which begins with the finding; an open one keeps its priority."""
    open_: dict[str, str] = {}
    severities = {"P1": "critical", "P2": "error", "P3": "warning", "P5": "info"}

    def shown(path: str, body: Any) -> Shown:
        alias, _, action = path.removeprefix("/v2/alerts").partition("?")[0].lstrip("/").partition("/")
        alias = alias or body["alias"]
        if not action:
            open_.setdefault(alias, severities[body["priority"]])
        elif action == "close":
            open_.pop(alias, None)
        finding = alias.partition("-")[0]
        of_it = [severity for alias, severity in open_.items() if alias.startswith(finding)]
        return {finding: "+".join(of_it) or ENDED}

    return shown


def _slack(body: Mapping[str, Any]) -> Shown:
    found = _SLACK.fullmatch(body["text"])
    assert found is not None
    return {found["title"]: ENDED if found["state"] else (found["severity"] or "").lower()}


def _slack_webhook() -> Model:
    return lambda path, body: _slack(body)


def _slack_bot() -> Model:
    """Messages of the channel; replies in their threads show nothing that the message itself does not."""
    return lambda path, body: {} if "thread_ts" in body else _slack(body)


def _email() -> Model:
    """The newest mail of a thread says how it stands, in its first line; its link names the finding."""

    def shown(path: str, body: Any) -> Shown:
        heading = body["text"].split("\n", 1)[0].rstrip()
        link = _LINK.search(body["text"])
        assert link is not None
        ended = heading in ("Resolved", "Expired")
        return {link[1]: ENDED if ended else heading.rpartition(": ")[2].lower()}

    return shown


_MODELS: dict[str, Callable[[], Model]] = {
    "standard": _webhook,
    "cloudevents": _webhook,
    "template": _template,
    "alertmanager": _alertmanager_webhook,
    "alertmanager_push": _alertmanager,
    "opsgenie": _opsgenie,
    "pagerduty": _pagerduty,
    "slack": _slack_webhook,
    "slack_bot": _slack_bot,
    "email": _email,
}

# Names of the receivers: of every format.
RECEIVERS = tuple(_MODELS)
