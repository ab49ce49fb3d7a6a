"""The retry schedule and the meaning of a receiver's answer. Pure: time and randomness are arguments."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Literal

# Seconds before attempt 1, 2, …. Chosen: dense at first for whoever is on call, 33 h in all for an outage
# over a night (Standard Webhooks recommends several days).
SCHEDULE = (0, 2, 10, 30, 120, 600, 1800, 7200, 21600, 86400)
# That of critical findings, for as long in all. Chosen: whoever is on call gets them within a minute or so of
# their receiver's return, as from Alertmanager; after two hours of an outage within five.
URGENT_SCHEDULE = (0, 2, 10, 30, *[60] * 120, *[300] * 368)
JITTER = 0.2
# Longest Retry-After that is respected: the last pause of the schedule.
MAX_RETRY_AFTER_SECONDS = 86400.0
# Retry-After is respected with these statuses only.
_THROTTLED = frozenset({429, 502, 503, 504})

Verdict = Literal["delivered", "retry", "gone"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A receiver's answer: an HTTP status, or ``error`` when there was none.

    ``body`` is what was read of it, ``receipt`` what the next delivery of the finding to this endpoint needs.
    """

    status: int | None = None
    error: str = ""
    excerpt: str = ""
    retry_after_seconds: float | None = None
    seconds: float = 0.0
    receipt: str = ""
    body: bytes = field(default=b"", repr=False)


def verdict(answer: Answer) -> Verdict:
    """Return what to do: 2xx is delivered, 410 disables the endpoint, everything else is retried."""
    if answer.status is not None and 200 <= answer.status < 300:
        return "delivered"
    return "gone" if answer.status == 410 else "retry"


def next_attempt(
    attempts: int, now: datetime, answer: Answer, chance: float, *, urgent: bool = False
) -> datetime | None:
    """Return the time of the next attempt after ``attempts`` failed ones, or None after the last one.

    ``chance`` is uniform in [0, 1) and spreads the delay by ±20 %; ``Retry-After`` can only lengthen it.
    ``urgent``: of a critical finding.
    """
    schedule = URGENT_SCHEDULE if urgent else SCHEDULE
    if attempts >= len(schedule):
        return None
    delay = schedule[attempts] * (1 + JITTER * (2 * chance - 1))
    if answer.status in _THROTTLED and answer.retry_after_seconds is not None:
        delay = max(delay, answer.retry_after_seconds)
    return now + timedelta(seconds=delay)


def retry_after(header: str | None, now: datetime) -> float | None:
    """Return the seconds a ``Retry-After`` header asks for (number or HTTP date), at most a day."""
    if not header:
        return None
    header = header.strip()
    if header.isascii() and header.isdigit():
        return min(float(header[:12]), MAX_RETRY_AFTER_SECONDS)
    try:
        wanted = parsedate_to_datetime(header)
        seconds = (wanted - now).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS)
