"""The event time of a key group, robust against single clocks that are off."""

import math
from collections import deque

# The second smallest of the last five times. Chosen: few records of delay, and one clock that is off is
# ignored.
WINDOW = 5
RANK = 1

# Largest jump in ticks: ten minutes. Chosen: bounds the work after a gap.
MAX_TICKS = 600


class Watermark:
    """Follows the second smallest time of the last five records, and never goes back.

    One node whose clock is ahead does not make the others look late; one that drains an old spool holds
    event time back only while its records outnumber the rest. A lone source is followed three records
    behind.

    ``passed_again``: the last record advanced the records' own time by a whole second that lies, in part at
    least, in what ``reach`` had passed without records.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._of_records = -math.inf
        self.time = -math.inf
        self.passed_again = False

    @property
    def latest(self) -> float:
        """The second latest time of the last records: where a lone source that goes on has arrived."""
        return sorted(self._recent)[-2] if len(self._recent) == WINDOW else self.time

    def advance(self, ts: float) -> range:
        """Process a record's time; return the whole seconds (Unix) by which event time has advanced."""
        self._recent.append(ts)
        # Before that a single record, perhaps of a clock that is days ahead, would set the time.
        if len(self._recent) < WINDOW:
            return range(0)
        time, before = sorted(self._recent)[RANK], self._of_records
        if time <= before:
            self.passed_again = False
            return range(0)
        self._of_records = time
        second = math.isinf(before) or math.floor(time) > math.floor(before)
        self.passed_again = second and before < self.time
        return self.reach(time)

    def reach(self, time: float) -> range:
        """Advance event time to ``time``; return the whole seconds passed.

        A jump longer than ``MAX_TICKS`` is cut to its last seconds: outputs are dated by their own deadlines.
        """
        if not time > self.time:
            return range(0)
        before, self.time = self.time, time
        last = math.floor(time)
        first = last if math.isinf(before) else math.floor(before) + 1
        return range(max(first, last - MAX_TICKS + 1), last + 1)
