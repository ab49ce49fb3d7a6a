"""Single values of rows of files."""

import math
from datetime import UTC, datetime

import pytest

from slowrank.telemetry import BadRecord
from slowrank.telemetry.schema import MISSING_INT
from streams.files.value_parsing import EARLIEST_SECONDS, integer_of, lacks_zone, number_of, text_of, time_of


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        (1795160472.25, 1795160472.25),
        ("1795160472.25", 1795160472.25),
        ("2026-11-20T07:41:12Z", 1795160472.0),
        (datetime.fromisoformat("2026-11-20T07:41:12"), 1795160472.0),
        (datetime(2026, 11, 20, 7, 41, 12, tzinfo=UTC), 1795160472.0),
        ("2026/11/20 07:41:12.000", 1795160472.0),
        (0, EARLIEST_SECONDS),
    ],
)
def test_times(told, seconds):
    """Unix seconds and RFC 3339 mean the same; without a zone it is UTC; 0 is moved to the first moment."""
    assert time_of(told) == seconds


@pytest.mark.parametrize(
    ("told", "lacks"),
    [
        (1795160472.25, False),
        ("1795160472.25", False),
        ("2026-11-20T07:41:12Z", False),
        ("2026-11-20T07:41:12+01:00", False),
        ("2026-11-20 07:41:12.5", True),
        ("2026/11/20 07:41:12.500", True),
        (datetime.fromisoformat("2026-11-20T07:41:12"), True),
        (datetime(2026, 11, 20, 7, 41, 12, tzinfo=UTC), False),
        ("at 7:41", False),
        (None, False),
    ],
)
def test_a_time_of_day_without_a_zone_is_noticed(told, lacks):
    """Seconds since the epoch need none, and what is no time lacks more than a zone."""
    assert lacks_zone(told) == lacks


@pytest.mark.parametrize("told", [None, True, "soon", math.nan, -1.0, 1795160472250.0])
def test_what_is_no_time(told):
    """Milliseconds are told from seconds, for they would put everything into the far future."""
    with pytest.raises(BadRecord) as caught:
        time_of(told)
    assert caught.value.reason == "bad_time"


@pytest.mark.parametrize("told", ["N/A", "[N/A]", "[Not Supported]", "-", " ", "null"])
def test_what_tables_write_for_no_number_is_missing(told):
    """As nvidia-smi does for what a GPU does not have: the rest of the row counts."""
    assert math.isnan(number_of({"temp": told}, "temp"))
    assert integer_of({"gpu_index": told}, "gpu_index") == MISSING_INT


@pytest.mark.parametrize("read", [number_of, integer_of])
def test_true_is_no_number(read):
    """JSON's true is not 1: a rank would be named for a second that nobody measured."""
    with pytest.raises(BadRecord, match="True, not a number"):
        read({"step": True}, "step")


def test_numbers_that_overflow():
    """A loss may overflow and says so; a time that does was not read."""
    assert number_of({"loss": "1e300"}, "loss") == math.inf
    assert math.isnan(number_of({"step_seconds": 1e300}, "step_seconds"))
    assert math.isnan(number_of({}, "loss"))


def test_whole_numbers_keep_all_their_digits():
    """Text of more than 53 bits is read exactly, 7.0 is 7, and a fraction is refused."""
    assert integer_of({"step": "9007199254740993"}, "step") == 9007199254740993
    assert integer_of({"step": 7.0}, "step") == 7
    assert integer_of({}, "step") == MISSING_INT
    with pytest.raises(BadRecord):
        integer_of({"step": 7.5}, "step")


def test_names_of_data_frames():
    """A node called 7 stays 7 where the column was turned into floats."""
    assert text_of({"node": 7.0}, "node", "") == "7"
    assert text_of({"node": ""}, "node", "unknown") == "unknown"
