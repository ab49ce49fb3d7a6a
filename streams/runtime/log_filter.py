"""Limits the log of Faust and aiokafka: warnings only, and repeated lines at most every ten seconds.

While the brokers are away aiokafka logs the same lines hundreds of times a second.
"""

import logging
import re
from collections.abc import Callable

LOGGERS = ("aiokafka", "aiokafka.conn", "aiokafka.consumer.fetcher", "aiokafka.consumer.group_coordinator")
CHATTY = ("faust", "mode", "aiokafka")

# Between two equal lines. Chosen: six lines a minute show that a problem lasts.
EVERY_SECONDS = 10.0
# Lines remembered at once. Chosen: bounds memory, as their text comes from servers.
MOST = 256

_NUMBERS = re.compile(r"\d+")


class RateLimitFilter(logging.Filter):
    """Lets a line through once in ten seconds; lines that differ in numbers alone are the same."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._logged: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the line."""
        now, line = self._clock(), _NUMBERS.sub("#", record.getMessage())
        if now - self._logged.get(line, -EVERY_SECONDS) < EVERY_SECONDS:
            return False
        if len(self._logged) >= MOST:
            self._logged.clear()
        self._logged[line] = now
        return True


def limit_log_rates(clock: Callable[[], float]) -> None:
    """Rate-limit ``LOGGERS``, and set those of ``CHATTY`` to warnings; ``clock`` in seconds, any zero."""
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    limited = RateLimitFilter(clock)
    for name in LOGGERS:
        logging.getLogger(name).addFilter(limited)
