"""When a delivery is tried again, and what a receiver's answer means. Pure: time and chance come in."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Literal

# Seconds before attempt 1, 2, …; dense at the head because someone is on call.
SCHEDULE = (0, 2, 10, 30, 120, 600, 1800, 7200, 21600, 86400)
JITTER = 0.2
# No longer than the last pause of the schedule, however long the receiver asks for.
MAX_RETRY_AFTER_SECONDS = 86400.0
# Only these are a request for time; what Retry-After says beside another status is not.
_THROTTLED = frozenset({429, 502, 503, 504})

Verdict = Literal["delivered", "retry", "gone"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: an HTTP status, or ``error`` when there was none."""

    status: int | None = None
    error: str = ""
    excerpt: str = ""
    retry_after_seconds: float | None = None
    seconds: float = 0.0


def verdict(answer: Answer) -> Verdict:
    """Return what to do: 2xx is delivered, 410 ends the endpoint, everything else is tried again."""
    if answer.status is not None and 200 <= answer.status < 300:
        return "delivered"
    return "gone" if answer.status == 410 else "retry"


def next_attempt(attempts: int, now: datetime, answer: Answer, chance: float) -> datetime | None:
    """Return the time of the next try after ``attempts`` failed ones, or None when all are used up.

    ``chance`` is uniform in [0, 1) and spreads the delay by ±20 %; a throttling answer's ``Retry-After``
    can only make the wait longer.
    """
    if attempts >= len(SCHEDULE):
        return None
    delay = SCHEDULE[attempts] * (1 + JITTER * (2 * chance - 1))
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
