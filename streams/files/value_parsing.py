"""Parses single values of a row, as the file formats write them, to the types of a record."""

import math
import re
from datetime import UTC, datetime
from typing import Any

from slowrank.telemetry import BadRecord
from slowrank.telemetry.checks import LATEST_SECONDS
from slowrank.telemetry.schema import MISSING_INT
from streams.files.readers import Row

# Replaces a time of 0, from which a trace may count and which records do not allow.
EARLIEST_SECONDS = 1e-3

# Below the largest float32, 3.4e38.
_LARGEST_FLOAT = 3e38

_MAY_DIVERGE = ("loss", "grad_norm")

# What tables of nvidia-smi and data frames hold where there is no number.
_NO_NUMBER = frozenset(("", "-", "n/a", "na", "[n/a]", "[not supported]", "none", "null"))

# A date as nvidia-smi writes it, 2024/04/05.
_SLASHES = re.compile(r"(\d{4})/(\d{2})/(\d{2})(?=\D|$)")


def time_of(value: Any) -> float:
    """Return Unix seconds from Unix seconds, RFC 3339 or a date with slashes (UTC without an offset).

    Raises ``BadRecord``.
    """
    if isinstance(value, bool):
        raise BadRecord("bad_time", f"ts is {value}, no time")
    try:
        ts = float(value) if not isinstance(value, datetime) else _utc(value)
    except (TypeError, ValueError):
        try:
            ts = _utc(_moment(str(value)))
        except ValueError as error:
            raise BadRecord(
                "bad_time", f"ts {str(value)[:40]!r} is neither Unix seconds nor RFC 3339"
            ) from error
    if not math.isfinite(ts) or ts < 0:
        raise BadRecord("bad_time", f"ts {str(value)[:40]!r} is no time")
    if ts > LATEST_SECONDS:
        raise BadRecord("bad_time", f"ts {ts:.0f} looks like milliseconds or finer; Unix seconds are wanted")
    return max(ts, EARLIEST_SECONDS)


def lacks_zone(value: Any) -> bool:
    """Return whether a time of a row is a date and time of day without an offset from UTC."""
    if isinstance(value, str) and ":" in value:
        try:
            value = _moment(value)
        except ValueError:
            return False
    return isinstance(value, datetime) and value.tzinfo is None


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(_SLASHES.sub(r"\1-\2-\3", text.strip(), count=1))


def _utc(moment: datetime) -> float:
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def text_of(row: Row, name: str, default: str) -> str:
    """Return a text; the default where the row has none."""
    value = row.get(name)
    if isinstance(value, float) and value.is_integer():
        # Data frames turn a column of whole numbers with gaps into floats: node 7 must not become "7.0".
        value = int(value)
    return default if value is None or value == "" else str(value)


def number_of(row: Row, name: str) -> float:
    """Return a number, NaN where missing. Raises ``BadRecord`` for other values."""
    value = row.get(name)
    if value is None or (isinstance(value, str) and value.strip().lower() in _NO_NUMBER):
        return math.nan
    if isinstance(value, bool):
        # In Python true is 1; as a duration or a count it is an error.
        raise BadRecord("bad_number", f"{name} is {value}, not a number")
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise BadRecord("bad_number", f"{name} is {str(value)[:40]!r}, not a number") from error
    # Step rows hold float32. A loss that overflows is a finding; a duration that does is invalid.
    if abs(number) <= _LARGEST_FLOAT:
        return number
    return math.inf if name in _MAY_DIVERGE and number > 0 else math.nan


def integer_of(row: Row, name: str, default: int = MISSING_INT) -> int:
    """Return a whole number, the default where missing. Raises ``BadRecord`` for a fraction."""
    value = row.get(name)
    if value is None:
        return default
    number = value if type(value) is int else _exactly(row, name)
    if number != number:
        return default
    if not -(2**62) < number < 2**62 or number != int(number):
        raise BadRecord("bad_number", f"{name} is {str(value)[:40]!r}, not a whole number")
    return int(number)


def _exactly(row: Row, name: str) -> float:
    """Return a number, exact where it is a whole number as text: a float has only 53 bits."""
    value = row[name]
    try:
        return int(value) if isinstance(value, str) else number_of(row, name)
    except ValueError:
        return number_of(row, name)
