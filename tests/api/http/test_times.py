"""Times in queries: RFC 3339 with an offset, or so long ago."""

from datetime import UTC, datetime, timedelta

import pytest

from api.http.times import parse_time, rfc3339

NOW = datetime(2026, 11, 20, 7, 41, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-90s", NOW - timedelta(seconds=90)),
        ("-1h", NOW - timedelta(hours=1)),
        ("-2w", NOW - timedelta(weeks=2)),
        ("2026-11-20T07:41:12Z", NOW),
        ("2026-11-20T08:41:12+01:00", NOW),
        ("2026-11-20T08:41:12 01:00", NOW),
    ],
)
def test_accepted_forms(text, expected):
    """An unescaped plus arrives as a space and is still meant as one."""
    assert parse_time(text, NOW) == expected


@pytest.mark.parametrize(
    "text", ["", "now", "1h", "-1y", "2026-11-20", "2026-11-20T07:41:12", "-999999w", "-1h\n"]
)
def test_refused_forms(text):
    """What has no offset or no unit is refused with the forms that are accepted."""
    with pytest.raises(ValueError, match="write 2026"):
        parse_time(text, NOW)


def test_written_form():
    """Times are written in UTC, with milliseconds only where there are any."""
    assert rfc3339(NOW) == "2026-11-20T07:41:12Z"
    assert rfc3339(NOW + timedelta(milliseconds=250)) == "2026-11-20T07:41:12.250Z"
