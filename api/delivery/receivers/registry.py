"""The receivers there are. The API, its OpenAPI document, the command line and the notifier read this list.

A new receiver is a module of this folder and a line of ``RECEIVERS``; CONTRIBUTING.md shows one.
"""

from api.delivery.receivers import (
    alertmanager,
    alertmanager_push,
    cloudevents,
    email,
    opsgenie,
    pagerduty,
    slack,
    slack_bot,
    standard,
    template,
)
from api.delivery.receivers.receiver import Receiver

RECEIVERS: tuple[Receiver, ...] = (
    standard.RECEIVER,
    cloudevents.RECEIVER,
    alertmanager.RECEIVER,
    alertmanager_push.RECEIVER,
    email.RECEIVER,
    slack_bot.RECEIVER,
    slack.RECEIVER,
    opsgenie.RECEIVER,
    pagerduty.RECEIVER,
    template.RECEIVER,
)


def names() -> list[str]:
    """Return the names of all receivers; the first is the default."""
    return [receiver.name for receiver in RECEIVERS]


def repeat_seconds() -> dict[str, float]:
    """Return after how long an open finding is sent again, by the name of each receiver that needs it."""
    return {receiver.name: receiver.repeat_seconds for receiver in RECEIVERS if receiver.repeat_seconds}


def receiver_named(name: str) -> Receiver:
    """Return the receiver with this name. Raises ``ValueError`` that lists the names there are."""
    for receiver in RECEIVERS:
        if receiver.name == name:
            return receiver
    raise ValueError(f"no receiver has the name {name!r}; choose one of {', '.join(names())}")
