"""Detects a worker that has messages to process and makes no progress."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from streams.runtime.kafka.message import PartitionId
from streams.runtime.monitoring.health import Health


@dataclass(slots=True)
class Watchdog:
    """Seconds without a message, or without a commit, after which a worker with messages to read is stuck.

    A worker without partitions may be a spare one, or may have dropped out of the group: it is stuck when no
    worker of the group takes messages for ``orphaned`` seconds. The worker sets all three as multiples of
    ``streams_stall_seconds``.
    """

    health: Health
    no_event: float = 30.0
    no_commit: float = 60.0
    orphaned: float = 120.0
    _committed: dict[PartitionId, int] = field(default_factory=dict)
    _moved: float = 0.0
    _idle: float = 0.0
    _settled: float = 0.0

    def note_committed(self, committed: Mapping[PartitionId, int]) -> None:
        """Record the offsets that the group has committed."""
        if committed != self._committed:
            self._committed = dict(committed)
            self._moved = self.health.clock()
            self.health.committed()

    def verdict(self, lag: int, *, assigned: bool) -> str | None:
        """Return why the worker is stuck, or None; ``lag`` is how many messages it has not read.

        Waiting for a server that is away is no stall, and neither is an empty log.
        """
        health, now = self.health, self.health.clock()
        # After a pause, time without a commit counts from the first message, not from the last before it.
        if health.last_event <= health.last_commit:
            self._settled = now
        if health.waits or lag == 0:
            self._idle = now
            return None
        if not assigned:
            left = now - max(self._moved, health.started, self._idle)
            return (
                f"{lag} messages wait and the group took none for {left:.0f} s"
                if left > self.orphaned
                else None
            )
        quiet = now - max(health.last_event, self._idle)
        uncommitted = now - max(health.last_commit, self._settled)
        if quiet > self.no_event:
            return f"{lag} messages wait and none was taken for {quiet:.0f} s"
        # Where nothing was taken since the last commit there is nothing to commit.
        if health.last_event > health.last_commit and uncommitted > self.no_commit:
            return f"messages are taken but none was committed for {uncommitted:.0f} s"
        return None
