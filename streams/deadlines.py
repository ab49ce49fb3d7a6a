"""A lower bound of many deadlines, to skip looking at them while none can be due."""

import math
from collections.abc import Iterable


class NextDeadline:
    """Bounds a set of times from below. Times may be removed or moved later without a call.

    >>> due = NextDeadline()
    >>> due.note(30.0)
    >>> due.reached(29.0), due.reached(30.0)
    (False, True)
    >>> due.counted([45.0, 60.0])
    >>> due.reached(44.0)
    False
    """

    def __init__(self) -> None:
        self._bound = math.inf

    def note(self, time: float) -> None:
        """Add a time, or one that has moved earlier."""
        if time < self._bound:
            self._bound = time

    def reached(self, now: float) -> bool:
        """Return whether a time may be ``now`` or before: then check all, and call ``counted``."""
        return self._bound <= now

    def counted(self, times: Iterable[float]) -> None:
        """Set the bound from all times."""
        self._bound = min(times, default=math.inf)
