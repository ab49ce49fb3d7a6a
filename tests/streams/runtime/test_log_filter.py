import logging

import pytest

from streams.runtime.log_filter import CHATTY, EVERY_SECONDS, LOGGERS, RateLimitFilter, limit_log_rates


@pytest.fixture
def loggers():
    """The loggers of the process are as they were, afterwards."""
    held = [logging.getLogger(name) for name in {*CHATTY, *LOGGERS}]
    before = [(log.level, list(log.filters)) for log in held]
    yield
    for log, (level, filters) in zip(held, before, strict=True):
        log.setLevel(level)
        log.filters[:] = filters


def line(text, *args):
    return logging.LogRecord("aiokafka", logging.ERROR, __file__, 1, text, args, None)


def test_the_same_line_passes_once_in_ten_seconds():
    """What a library repeats is said once; numbers in it do not make it another line."""
    now = [100.0]
    quiet = RateLimitFilter(lambda: now[0])
    assert quiet.filter(line("Unable connect to node with id %s", 1))
    assert not quiet.filter(line("Unable connect to node with id %s", 2))
    assert quiet.filter(line("Heartbeat failed"))
    now[0] += EVERY_SECONDS
    assert quiet.filter(line("Unable connect to node with id %s", 1))


@pytest.mark.usefixtures("loggers")
def test_what_tells_of_its_steps_only_warns():
    """Faust's pages of starting and stopping are left out; what goes wrong, and our own lines, are not."""
    limit_log_rates(lambda: 0.0)
    for name in ("faust.app.base", "mode.worker", "aiokafka.conn"):
        assert not logging.getLogger(name).isEnabledFor(logging.INFO)
        assert logging.getLogger(name).isEnabledFor(logging.WARNING)
    assert logging.getLogger("streams.runtime.partitions.partition_table").level == logging.NOTSET
