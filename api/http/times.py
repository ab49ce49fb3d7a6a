"""Parses times in queries: RFC 3339 with an offset, epoch milliseconds, or relative such as ``-1h``."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, Field

from api.http.text_forms import in_form

# 9,999 weeks (192 years) precede any telemetry and stay within the calendar.
_AGO = re.compile(r"-([0-9]{1,6}[smh]|[0-9]{1,4}[dw])")
# 12 to 14 digits: from 2001 to beyond any telemetry; ten digits would be seconds, which nothing here is in.
_EPOCH = re.compile(r"[0-9]{12,14}")
_SPAN = re.compile(r"[0-9]{1,6}[smh]|[0-9]{1,4}[dw]")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def parse_time(text: str, now: datetime) -> datetime:
    """Return an aware UTC time. Raises ``ValueError`` with the accepted forms."""
    ago = _AGO.fullmatch(text)
    try:
        if ago:
            return now - timedelta(seconds=int(text[1:-1]) * _SECONDS[text[-1]])
        if _EPOCH.fullmatch(text):
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        # An unescaped + in a query arrives as a space; RFC 3339 allows lower-case t and z.
        moment = datetime.fromisoformat(text.replace(" ", "+").upper())
        if moment.tzinfo is None:
            raise ValueError("no offset")
        return moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{text[:40]!r} is not a time: write 2026-11-20T07:32:40Z, -1h or 1795160560000"
        ) from error


def parse_span(text: str) -> timedelta:
    """Return a length of time such as ``2h``. Raises ``ValueError`` with the accepted form."""
    if _SPAN.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is not a length of time: write 30m, 2h or 7d")
    return timedelta(seconds=int(text[:-1]) * _SECONDS[text[-1]])


def _checked(text: str) -> str:
    parse_time(text, datetime(2000, 1, 1, tzinfo=UTC))
    return text


Moment = Annotated[
    str,
    Field(
        max_length=40,
        description="RFC 3339, epoch milliseconds, or -1h.",
        json_schema_extra={
            "anyOf": [
                {"format": "date-time"},
                {"pattern": "^[0-9]{12,14}$"},
                {"pattern": "^-([0-9]{1,6}[smh]|[0-9]{1,4}[dw])$"},
            ]
        },
    ),
    AfterValidator(_checked),
]
"""A time in a query."""

Timestamp = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
"""A time in an answer, as ``rfc3339`` writes it."""

_SPAN_PATTERN = "^([0-9]{1,6}[smh]|[0-9]{1,4}[dw])$"
Span = Annotated[
    str,
    Field(
        max_length=8,
        pattern=_SPAN_PATTERN,
        description="A length of time before the end of the window, such as 2h.",
    ),
    in_form(_SPAN_PATTERN, "write a length of time such as 30m, 2h or 7d"),
]
"""A length of time in a query."""


def rfc3339(moment: datetime) -> str:
    """Return an aware time as RFC 3339 UTC with milliseconds where there are any."""
    utc = moment.astimezone(UTC)
    spec = "milliseconds" if utc.microsecond >= 1000 else "seconds"
    return utc.isoformat(timespec=spec).replace("+00:00", "Z")
