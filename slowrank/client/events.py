"""The stream of events: server-sent events (WHATWG HTML, section 9.2.6), without the network."""

import json
from dataclasses import dataclass

from slowrank.client.objects import Finding

PATH = "/events/stream"

# Pause before a lost stream is opened again: the ``retry`` that the API sends.
RECONNECT_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Event:
    """A change of a finding: ``type`` is such as ``finding.opened``, ``finding`` its state at that time."""

    id: str
    type: str
    timestamp: str
    finding: Finding


class Reader:
    """Makes events of the lines of one stream after another; ``last_id`` is where the next one resumes."""

    def __init__(self, last_id: str = "") -> None:
        self.last_id = last_id
        self.opened = False
        self._data: list[str] = []

    def open(self) -> None:
        """Begin a new stream: what an earlier one left unfinished is dropped."""
        self.opened = True
        self._data.clear()

    def headers(self) -> dict[str, str]:
        """Return the header fields of the request for the next stream."""
        return {"last-event-id": self.last_id} if self.last_id else {}

    def event_at(self, line: str) -> Event | None:
        """Return the event that a line ends, or None; ``line`` without its newline."""
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            self.last_id = value
        elif name == "data":
            self._data.append(value)
        elif not line and self._data:
            body = json.loads("\n".join(self._data))
            self._data.clear()
            return Event(self.last_id, body["type"], body["timestamp"], body["data"])
        return None
