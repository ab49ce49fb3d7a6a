"""Standard Webhooks 1.0.0: ``{type, timestamp, data}``, where ``data`` is the finding."""

from api.delivery.receivers.receiver import Notification, Receiver


def _render(notification: Notification, public_url: str) -> object:
    return {
        "type": notification.type,
        "timestamp": notification.timestamp,
        "data": notification.finding,
    }


RECEIVER = Receiver("standard", "application/json", _render)
