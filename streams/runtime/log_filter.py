"""Keeps a log readable: what Faust says of each of its parts is left out, and repetitions are.

While the brokers are away aiokafka says the same hundreds of times a second.
"""

import logging
import re
from collections.abc import Callable

LOGGERS = ("aiokafka", "aiokafka.conn", "aiokafka.consumer.fetcher", "aiokafka.consumer.group_coordinator")
CHATTY = ("faust", "mode", "aiokafka")
EVERY_SECONDS = 10.0
# Lines remembered at once: their text comes from servers, and must not fill the memory.
MOST = 256

_NUMBERS = re.compile(r"\d+")


class RateLimitFilter(logging.Filter):
    """Lets a line through once in ten seconds; lines that differ in numbers alone are the same."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is news."""
        now, line = self._clock(), _NUMBERS.sub("#", record.getMessage())
        if now - self._said.get(line, -EVERY_SECONDS) < EVERY_SECONDS:
            return False
        if len(self._said) >= MOST:
            self._said.clear()
        self._said[line] = now
        return True


def hush(clock: Callable[[], float]) -> None:
    """Apply it to what repeats itself, and let through warnings alone of what tells of its every step.

    ``clock`` in seconds, any zero.
    """
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    quiet = RateLimitFilter(clock)
    for name in LOGGERS:
        logging.getLogger(name).addFilter(quiet)
