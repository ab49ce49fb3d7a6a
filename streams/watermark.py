"""The event time of a key group: how far the records have come, whatever single clocks say."""

import math
from collections import deque

WINDOW = 5
RANK = 1
"""Of the last five times the second smallest: one stray clock, ahead or behind, moves nothing."""

MAX_TICKS = 600


class Watermark:
    """Follows the second smallest time of the last five records, and never goes back.

    One node whose clock is ahead does not make the others look late; one that drains an old spool holds
    event time back only while its records outnumber the rest. A lone source is followed three records
    behind.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self.time = -math.inf

    def advance(self, ts: float) -> range:
        """Take a record's time; return the whole seconds (Unix) that event time passed because of it."""
        self._recent.append(ts)
        # Until then a single record, perhaps of a clock that is days ahead, would set the time.
        if len(self._recent) < WINDOW:
            return range(0)
        return self.reach(sorted(self._recent)[RANK])

    def reach(self, time: float) -> range:
        """Let event time come to ``time``; return the whole seconds passed.

        A longer jump than ten minutes is cut to its last ten: every deadline is judged by its own time.
        """
        if not time > self.time:
            return range(0)
        before, self.time = self.time, time
        last = math.floor(time)
        first = last if math.isinf(before) else math.floor(before) + 1
        return range(max(first, last - MAX_TICKS + 1), last + 1)
