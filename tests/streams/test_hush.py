import logging

from streams.hush import EVERY_SECONDS, Hush


def line(text, *args):
    return logging.LogRecord("aiokafka", logging.ERROR, __file__, 1, text, args, None)


def test_the_same_line_passes_once_in_ten_seconds():
    """What a library repeats is said once; numbers in it do not make it another line."""
    now = [100.0]
    quiet = Hush(lambda: now[0])
    assert quiet.filter(line("Unable connect to node with id %s", 1))
    assert not quiet.filter(line("Unable connect to node with id %s", 2))
    assert quiet.filter(line("Heartbeat failed"))
    now[0] += EVERY_SECONDS
    assert quiet.filter(line("Unable connect to node with id %s", 1))
