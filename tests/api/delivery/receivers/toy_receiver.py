"""A receiver that is not shipped: the whole of what somebody writes to add one."""

from api.delivery.receivers.finding_text import subject_path
from api.delivery.receivers.receiver import Notification, Receiver


def _render(notification: Notification, public_url: str) -> object:
    finding = notification.finding
    return {"what": finding["title"], "where": subject_path(finding["subject"]), "link": notification.link}


RECEIVER = Receiver("toy", "application/json", _render)
