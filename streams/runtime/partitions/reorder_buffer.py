"""Records put back in order of event time after an outage let them pile up at their senders.

While the brokers are away every exporter spools; when they are back, the spools drain one after the other.
Taken as they come, the first would make the others look silent, and their ranks missing. A record that took
longer to the log than its sender's records are wont to therefore starts a pause in which all are held back.
"""

import math
from typing import Generic, TypeVar

LATE_SECONDS = 3.0
# An exporter tries again after ten seconds at most, and then needs some to connect.
PATIENCE_SECONDS = 20.0
LONGEST_SECONDS = 60.0
# Nodes of a container platform may have new names each day: the delays of those long gone are dropped.
FORGET_SECONDS = 86_400.0
MANY_SENDERS = 4096
# Records of one partition in memory; with more the pause ends.
MOST = 50_000

T = TypeVar("T")


class Reorder(Generic[T]):
    """Holds back the records of one partition for as long as old ones may still come.

    Whatever is decided follows from the log alone, so that a partition read again is ordered the same. Needs
    topics whose time stamps are those of the log (``LogAppendTime``): a sender's own tell nothing of a delay.
    """

    def __init__(self) -> None:
        self._usual: dict[str, tuple[float, float]] = {}
        self._most = MANY_SENDERS
        self._held: list[tuple[float, T]] = []
        self._began = self._until = -math.inf

    def holds(self, logged: float) -> bool:
        """Return whether anything is held back, or would be if it came at ``logged``."""
        return bool(self._held) or logged < self._until

    def take(self, item: T, *, sender: str, ts: float, logged: float) -> list[T]:
        """Return what is in order now: ``item``, it and what was held back before it, or nothing yet.

        ``ts`` is when ``item`` was made and ``logged`` when it came into the log, both in Unix seconds.
        """
        delay = logged - ts
        usual, _ = self._usual.get(sender, (delay, logged))
        # The least delay a sender ever had holds the offset of its clock; what is above it is waiting.
        self._usual[sender] = (min(delay, usual), logged)
        if len(self._usual) > self._most:
            self._forget(logged - FORGET_SECONDS)
        if delay > usual + LATE_SECONDS:
            self._began = self._began if self._held else logged
            self._until = min(logged + PATIENCE_SECONDS, self._began + LONGEST_SECONDS)
        elif not self._held and logged >= self._until:
            return [item]
        self._held.append((ts, item))
        return self.reach(logged)

    def pause(self, logged: float) -> None:
        """Hold back all that comes from ``logged`` on, for as long as old records may still come."""
        self._began, self._until = logged, logged + PATIENCE_SECONDS

    def _forget(self, oldest: float) -> None:
        """Drop senders without a record since then; look again when there are twice as many as are left."""
        self._usual = {sender: usual for sender, usual in self._usual.items() if usual[1] >= oldest}
        self._most = max(MANY_SENDERS, 2 * len(self._usual))

    def reach(self, logged: float) -> list[T]:
        """Return, in order, what was held back, once the log's time says that no more will come."""
        if not self._held or (logged < self._until and len(self._held) < MOST):
            return []
        if self._until - self._began >= LONGEST_SECONDS:
            # Late for so long is a clock that was set back, or a spool that takes hours: no reason to wait.
            self._usual.clear()
        # Sorting is stable: records of one time keep the order of the log.
        self._until = -math.inf
        held, self._held = sorted(self._held, key=lambda pair: pair[0]), []
        return [item for _, item in held]
