"""When to look at many times at all: a bound no time is below, so that nothing can be due before it."""

import math
from collections.abc import Iterable


class NextDeadline:
    """Bounds a set of times from below; times may move later, go, or come by ``note``, without a look.

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
        """Take a time that is new, or that has moved."""
        if time < self._bound:
            self._bound = time

    def reached(self, now: float) -> bool:
        """Return whether a time may be ``now`` or before: then all are to be looked at, and counted anew."""
        return self._bound <= now

    def counted(self, times: Iterable[float]) -> None:
        """Take all times there are."""
        self._bound = min(times, default=math.inf)
