"""What every receiver of notifications has in common: a name, a content type, a function to a body."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

import msgspec

# Bytes of a body: the upper limit that Standard Webhooks 1.0.0 recommends.
MAX_BODY = 20_000

# Bytes of the finding in it; the remaining 6 kB are for what a receiver writes around it.
_FINDING_BUDGET = 14_000

Finding = Mapping[str, Any]
Transport = Literal["http", "smtp", "slack", "sequence"]
PlotForm = Literal["svg", "text"]


@dataclass(frozen=True, slots=True)
class Notification:
    """An event of a finding as receivers get it: ``finding`` is a ``finding.v1`` object.

    ``id`` is the same on every attempt; ``link`` is the web page of the finding for people; ``credential`` is
    the secret of a receiver that has a ``Credential``, otherwise empty; ``earlier`` is, for a receiver with
    ``repeat_seconds``, the finding as it was sent before, newest first. ``receipt`` is what the receiver
    answered to the last delivery of the finding that it needs for this one; ``plot`` the evidence, drawn in
    the form that the receiver has as ``plot``; ``template`` the body of the format of that name.
    """

    id: str
    type: str
    at: datetime
    finding: Finding
    link: str = ""
    credential: str = ""
    earlier: Sequence[Finding] = ()
    receipt: str = ""
    plot: str = ""
    template: Any = None

    @property
    def timestamp(self) -> str:
        """Time of the event as RFC 3339 UTC."""
        return self.at.isoformat(timespec="seconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Credential:
    """A secret that the receiver issues, in place of the one that slowrank makes and signs with.

    ``label`` and ``form`` say to people what it is and how it looks; ``pattern`` is a regular expression of
    the whole secret.
    """

    label: str
    form: str
    pattern: str


@dataclass(frozen=True, slots=True)
class UrlForm:
    """The form that the URLs of a receiver have: an example, and a regular expression of the whole URL."""

    example: str
    pattern: str


@dataclass(frozen=True, slots=True)
class Receiver:
    """A kind of webhook receiver.

    ``name`` is what people choose with ``--format`` and what the database stores. ``render`` takes a
    notification and the public URL of the API (no slash at its end) and returns a JSON-ready value. It is
    pure, accepts any text in the finding, and needs at most 6 kB beside the finding. With a ``credential``
    deliveries are not signed: ``render`` puts the notification's ``credential`` where the receiver wants it.
    With ``repeat_seconds`` a finding that is open is sent again that long after the last time. A new
    webhook that names no types of events gets ``more_events`` beside the default ones. ``transport`` is what
    carries the body, at most ``max_body`` bytes, to the endpoint, whose URL has the ``url_form``. ``plot`` is
    the form in which the evidence is drawn for it, None for no drawing.
    """

    name: str
    content_type: str
    render: Callable[[Notification, str], object]
    credential: Credential | None = None
    repeat_seconds: float | None = None
    more_events: Sequence[str] = ()
    transport: Transport = "http"
    max_body: int = MAX_BODY
    plot: PlotForm | None = None
    url_form: UrlForm | None = None

    @property
    def is_signed(self) -> bool:
        """Whether deliveries carry signatures that the receiver can verify with a secret made here."""
        return self.credential is None and self.transport == "http"

    def body(self, notification: Notification, public_url: str) -> bytes:
        """Return the body to send, at most ``max_body`` bytes: the same for the same notification."""
        fitted = replace(notification, finding=fit(notification.finding))
        return msgspec.json.encode(self.render(fitted, public_url.rstrip("/")))


def fit(finding: Finding) -> Finding:
    """Return the finding cut to the size of a body: the last evidence goes first, then long texts are cut."""
    small = dict(finding)
    while small.get("evidence") and len(msgspec.json.encode(small)) > _FINDING_BUDGET:
        small["evidence"] = small["evidence"][:-1]
        small["truncated"] = True
    if len(msgspec.json.encode(small)) > _FINDING_BUDGET:
        small = {key: _cut(value, 300) for key, value in small.items() if key in _CORE}
        small["truncated"] = True
    return small


def _cut(value: Any, limit: int) -> Any:
    if isinstance(value, str):
        return value[:limit]
    if isinstance(value, Mapping):
        return {str(k)[:64]: _cut(v, 120) for k, v in list(value.items())[:20]}
    if isinstance(value, list | tuple):
        return [_cut(v, 120) for v in value[:4]]
    return value


_CORE = frozenset(
    {"id", "schema", "dedup_key", "kind", "title", "severity", "status", "subject", "onset"}
    | {"onset_interval", "detected_at", "last_seen_at", "resolved_at", "detection_delay_seconds"}
    | {"slowdown_ratio", "job_slowdown_ratio", "gpu_hours_lost", "gpu_hours_lost_per_hour"}
    | {"cost_per_hour", "confidence", "score", "detector", "action"}
)
