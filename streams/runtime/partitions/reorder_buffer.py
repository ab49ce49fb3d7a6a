"""Puts the records of a partition in order of event time after an outage.

While the brokers are away every exporter spools; when they are back, the spools drain one after the other.
Processed as they arrive, the first would make the others look silent, and their ranks missing. A record that
took longer to the log than is usual for its sender therefore starts a pause in which all are held back.
"""

import math
from typing import Generic, TypeVar

# Delay above a sender's least that starts a pause. Chosen: above usual jitter.
LATE_SECONDS = 3.0
# Length of the pause after the last late record. Chosen: an exporter retries after ten seconds at most, and
# then has to connect.
PATIENCE_SECONDS = 20.0
# Of one pause. Chosen: the delay that an outage adds to findings is bounded by a minute.
LONGEST_SECONDS = 60.0

# With more senders than this, those without a record for a day are dropped: containers get new names daily.
FORGET_SECONDS = 86_400.0
MANY_SENDERS = 4096
# Records of one partition in memory; with more the pause ends. Chosen: bounds memory.
MOST = 50_000

T = TypeVar("T")


class ReorderBuffer(Generic[T]):
    """Holds back the records of one partition for as long as older ones may still arrive.

    The order follows from the log alone, so that a partition read again is ordered the same. Needs topics
    with ``LogAppendTime``: with the senders' time stamps there is no delay to measure.
    """

    def __init__(self) -> None:
        self._usual: dict[str, tuple[float, float]] = {}
        self._most = MANY_SENDERS
        self._held: list[tuple[float, T]] = []
        self._began = self._until = -math.inf

    def holds(self, logged: float) -> bool:
        """Return whether anything is held back, or would be if it was logged at ``logged``."""
        return bool(self._held) or logged < self._until

    def take(self, item: T, *, sender: str, ts: float, logged: float) -> list[T]:
        """Return the items that are in order now: ``item``, all that were held back, or none yet.

        ``ts`` is the event time of ``item`` and ``logged`` the time of its log entry, both in Unix seconds.
        """
        delay = logged - ts
        usual, _ = self._usual.get(sender, (delay, logged))
        # The least delay of a sender is the offset of its clock; what is above it is waiting.
        self._usual[sender] = (min(delay, usual), logged)
        if len(self._usual) > self._most:
            self._forget(logged - FORGET_SECONDS)
        if delay > usual + LATE_SECONDS:
            self._began = self._began if self.holds(logged) else logged
            until = min(logged + PATIENCE_SECONDS, self._began + LONGEST_SECONDS)
            # Not back: where the log is read again, records came late before the reader's own pause.
            self._until = max(self._until, until)
        elif not self._held and logged >= self._until:
            return [item]
        self._held.append((ts, item))
        return self.reach(logged)

    def pause(self, logged: float) -> None:
        """Hold back all records from ``logged`` on, for as long as older ones may still arrive."""
        self._began, self._until = logged, logged + PATIENCE_SECONDS

    def _forget(self, oldest: float) -> None:
        """Drop senders without a record since then; look again when there are twice as many as are left."""
        self._usual = {sender: usual for sender, usual in self._usual.items() if usual[1] >= oldest}
        self._most = max(MANY_SENDERS, 2 * len(self._usual))

    def reach(self, logged: float) -> list[T]:
        """Return the items held back, in order, once the pause is over by the log's time."""
        if not self._held or (logged < self._until and len(self._held) < MOST):
            return []
        if self._until - self._began >= LONGEST_SECONDS:
            # Late for so long is a clock that was set back, or a spool that takes hours: do not wait for it.
            self._usual.clear()
        # Sorting is stable: records of one time keep the order of the log.
        self._until = -math.inf
        held, self._held = sorted(self._held, key=lambda pair: pair[0]), []
        return [item for _, item in held]
