"""Times as people write them in a query: RFC 3339 with an offset, or ``-1h`` before now."""

import re
from datetime import UTC, datetime, timedelta

_AGO = re.compile(r"-(\d{1,6})(s|m|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def utc_now() -> datetime:
    """Return the time of day."""
    return datetime.now(UTC)


def parse_time(text: str, now: datetime) -> datetime:
    """Return an aware UTC time. Raises ``ValueError`` naming the accepted forms."""
    ago = _AGO.fullmatch(text)
    try:
        if ago:
            return now - timedelta(seconds=int(ago[1]) * _SECONDS[ago[2]])
        # In a query an unescaped + arrives as a space.
        moment = datetime.fromisoformat(text.replace(" ", "+"))
        if moment.tzinfo is None:
            raise ValueError("no offset")
        return moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text[:40]!r} is no time: write 2026-11-20T07:32:40Z or -1h") from error


def rfc3339(moment: datetime) -> str:
    """Return an aware time as RFC 3339 UTC with milliseconds where there are any."""
    utc = moment.astimezone(UTC)
    spec = "milliseconds" if utc.microsecond >= 1000 else "seconds"
    return utc.isoformat(timespec=spec).replace("+00:00", "Z")
