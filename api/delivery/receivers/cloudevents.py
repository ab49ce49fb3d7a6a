"""CloudEvents 1.0 in structured content mode."""

from api.delivery.receivers.finding_text import subject_path
from api.delivery.receivers.receiver import Notification, Receiver


def _render(notification: Notification, public_url: str) -> object:
    subject = notification.finding.get("subject", {})
    return {
        "specversion": "1.0",
        "id": notification.id,
        "source": f"//slowrank/{subject.get('cluster', 'default')}",
        "type": f"io.slowrank.{notification.type}.v1",
        "subject": subject_path(subject),
        "time": notification.timestamp,
        "datacontenttype": "application/json",
        "dataschema": f"{public_url}/api/v1/schemas/finding.v1.json",
        "data": notification.finding,
    }


RECEIVER = Receiver("cloudevents", "application/cloudevents+json", _render)
