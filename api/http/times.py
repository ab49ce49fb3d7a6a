"""Parses times in queries: RFC 3339 with an offset, or relative to now such as ``-1h``."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, Field

# 9,999 weeks (192 years) precede any telemetry and stay within the calendar.
_AGO = re.compile(r"-([0-9]{1,6}[smh]|[0-9]{1,4}[dw])")
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
        # An unescaped + in a query arrives as a space; RFC 3339 allows lower-case t and z.
        moment = datetime.fromisoformat(text.replace(" ", "+").upper())
        if moment.tzinfo is None:
            raise ValueError("no offset")
        return moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text[:40]!r} is not a time: write 2026-11-20T07:32:40Z or -1h") from error


def _checked(text: str) -> str:
    parse_time(text, datetime(2000, 1, 1, tzinfo=UTC))
    return text


Moment = Annotated[
    str,
    Field(
        max_length=40,
        description="RFC 3339, or -1h.",
        json_schema_extra={
            "anyOf": [{"format": "date-time"}, {"pattern": "^-([0-9]{1,6}[smh]|[0-9]{1,4}[dw])$"}]
        },
    ),
    AfterValidator(_checked),
]
"""A time in a query."""


def rfc3339(moment: datetime) -> str:
    """Return an aware time as RFC 3339 UTC with milliseconds where there are any."""
    utc = moment.astimezone(UTC)
    spec = "milliseconds" if utc.microsecond >= 1000 else "seconds"
    return utc.isoformat(timespec=spec).replace("+00:00", "Z")
