"""Times that recur weekly, by the clock on the wall of a time zone: maintenance windows."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
WEEKDAYS: tuple[Weekday, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

# Longest occurrence: longer ones of one weekday would overlap.
MAX_SECONDS = 7 * 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """Begins on each of the weekdays at the hour of the first occurrence in a time zone, and lasts so long.

    Where clocks are put forward over that hour it begins an hour later by the new time; the length is of time
    that passes. Raises ``ValueError`` for a time zone that is not in this machine's tz database.
    """

    weekdays: tuple[Weekday, ...]
    duration_seconds: int
    time_zone: str = "UTC"

    def __post_init__(self) -> None:
        self._zone()

    def occurrence(self, first: datetime, now: datetime) -> tuple[datetime, datetime] | None:
        """Return the latest occurrence that has begun by ``now`` if it has not ended, as UTC times, or None.

        ``first`` is when the first one begins. Its hour is every occurrence's.

        >>> first = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)  # a Friday
        >>> nightly = Recurrence(weekdays=("fri", "sat"), duration_seconds=4 * 3600)
        >>> nightly.occurrence(first, datetime(2026, 11, 29, 1, 0, tzinfo=UTC))  # in the night to Sunday
        (datetime.datetime(2026, 11, 28, 22, 0, tzinfo=datetime.timezone.utc), \
datetime.datetime(2026, 11, 29, 2, 0, tzinfo=datetime.timezone.utc))
        """
        zone = self._zone()
        hour, today = first.astimezone(zone).time(), now.astimezone(zone).date()
        for days_ago in range(MAX_SECONDS // 86400 + 1):
            day = today - timedelta(days=days_ago)
            begins = datetime.combine(day, hour, tzinfo=zone).astimezone(UTC)
            ends = begins + timedelta(seconds=self.duration_seconds)
            if WEEKDAYS[day.weekday()] in self.weekdays and first <= begins <= now:
                return (begins, ends) if now < ends else None
        return None

    def _zone(self) -> tzinfo:
        if self.time_zone == "UTC":
            return UTC
        try:
            return ZoneInfo(self.time_zone)
        # A name with a NUL or of a folder: zoneinfo opens a file of that name.
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(
                f"{self.time_zone[:40]!r} is no time zone: write Europe/Berlin or UTC"
            ) from error
