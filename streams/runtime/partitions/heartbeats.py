"""When the heartbeats of a worker's partitions are sent.

The finding stage waits for the slowest partition that has sent a heartbeat. Where there is much to read, at a
first start or after an outage, a consumer returns one partition after the other: the heartbeats of the first,
sent at once, would advance event time before the stage has any heartbeat of the second.
"""

from collections.abc import Collection, Sequence

from slowrank.telemetry import Heartbeat, StageMessage

# Longest wait for a partition with unread messages and no event time. Chosen: above a usual rebuild.
PATIENCE_SECONDS = 60.0


class HeartbeatGate:
    """Holds heartbeats back while a partition that has messages to read has no event time yet.

    All are held back before the first ``look``.
    """

    def __init__(self) -> None:
        self._open = False
        self._closed_at: float | None = None
        self._held: list[Heartbeat] = []

    @property
    def held(self) -> bool:
        """Whether heartbeats are held back."""
        return not self._open

    def pass_on(self, messages: Sequence[StageMessage]) -> Sequence[StageMessage]:
        """Return the messages to send now: all but heartbeats that are held back."""
        if self._open:
            return messages
        self._held += [m for m in messages if isinstance(m, Heartbeat)]
        return [m for m in messages if not isinstance(m, Heartbeat)]

    def look(self, timeless: Collection[object], now: float) -> list[Heartbeat]:
        """Return the heartbeats to release at ``now`` (seconds), in order of event time.

        ``timeless`` are the partitions that have messages to read and no event time yet. The order lets the
        stage count every partition before its time passes one.
        """
        if not timeless:
            self._closed_at = None
        elif self._closed_at is None:
            self._closed_at = now
        self._open = self._closed_at is None or now - self._closed_at >= PATIENCE_SECONDS
        if not self._open:
            return []
        held, self._held = sorted(self._held, key=lambda beat: (beat.ts, beat.partition, beat.cluster)), []
        return held
