"""The retry schedule: dense at first, jittered, throttled on request, finite."""

from datetime import UTC, datetime, timedelta

import pytest

from api.delivery.retry import SCHEDULE, URGENT_SCHEDULE, Answer, next_attempt, retry_after, verdict

NOW = datetime(2026, 11, 20, 7, 41, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (200, "delivered"),
        (204, "delivered"),
        (301, "retry"),
        (307, "retry"),
        (400, "retry"),
        (404, "retry"),
        (410, "gone"),
        (429, "retry"),
        (500, "retry"),
        (None, "retry"),
    ],
)
def test_what_an_answer_means(status, expected):
    """2xx delivers, 410 ends the endpoint, a redirect is a failure like any other."""
    assert expected == verdict(Answer(status=status))


def test_the_schedule_is_walked_to_its_end():
    """Ten attempts with the published delays, then none."""
    delays = [next_attempt(n, NOW, Answer(status=500), 0.5) for n in range(1, 11)]
    assert [NOW + timedelta(seconds=s) for s in SCHEDULE[1:]] + [None] == delays


def test_a_critical_finding_waits_a_minute_at_most_and_is_tried_for_as_long():
    """Five minutes after two hours; a night's outage loses neither."""
    delays = [next_attempt(n, NOW, Answer(), 0.5, urgent=True) for n in range(1, len(URGENT_SCHEDULE) + 1)]
    waits = [(due - NOW).total_seconds() for due in delays if due is not None]
    assert waits == sorted(waits)
    assert waits[:4] == [2, 10, 30, 60]
    assert (waits[122], waits[-1]) == (60, 300)
    assert delays.index(None) == len(delays) - 1
    assert sum(waits) == pytest.approx(sum(SCHEDULE), rel=0.01)


@pytest.mark.parametrize(("chance", "factor"), [(0.0, 0.8), (0.5, 1.0), (0.999999, 1.2)])
def test_jitter_is_twenty_percent(chance, factor):
    """The delay moves by at most a fifth either way."""
    due = next_attempt(4, NOW, Answer(status=500), chance)
    assert due is not None
    assert (due - NOW).total_seconds() == pytest.approx(120 * factor, rel=1e-4)


@pytest.mark.parametrize(
    ("status", "honoured"), [(429, True), (502, True), (503, True), (504, True), (500, False)]
)
def test_retry_after_only_lengthens(status, honoured):
    """A throttling answer's Retry-After is a floor; other answers have none."""
    due = next_attempt(1, NOW, Answer(status=status, retry_after_seconds=90), 0.5)
    assert due == NOW + timedelta(seconds=90 if honoured else 2)
    assert next_attempt(1, NOW, Answer(status=429, retry_after_seconds=0.1), 0.5) == NOW + timedelta(
        seconds=2
    )


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("30", 30.0),
        (" 7 ", 7.0),
        ("99999999999999999999", 86400.0),
        ("Fri, 20 Nov 2026 07:42:12 GMT", 60.0),
        ("Fri, 20 Nov 2020 07:42:12 GMT", 0.0),
        ("soon", None),
        ("-5", None),
        ("²", None),
    ],
)
def test_retry_after_header(header, seconds):
    """Seconds and HTTP dates are read, nonsense is ignored, a day is the most."""
    assert seconds == retry_after(header, NOW)
