"""When the heartbeats of a worker's lanes go out.

The finding stage waits for the slowest lane it has heard of. Where there is much to read, at a first start or
after an outage, a consumer brings one partition after the other: told as they come, the heartbeats of the
first would let time pass before the stage has heard of the second.
"""

from collections.abc import Collection, Sequence

from slowrank.telemetry import Heartbeat, StageMessage

PATIENCE_SECONDS = 60.0
"""For a partition that has something to read and from which nothing comes."""


class HeartbeatGate:
    """Holds heartbeats back while the time of a lane that has something to read is not known.

    Nothing is known before the first ``look``.
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
        """Return what may go out now: all that is no heartbeat, and heartbeats unless they are held back."""
        if self._open:
            return messages
        self._held += [m for m in messages if isinstance(m, Heartbeat)]
        return [m for m in messages if not isinstance(m, Heartbeat)]

    def look(self, untold: Collection[object], now: float) -> list[Heartbeat]:
        """Take which lanes are still to tell their time at ``now`` (seconds); return what may go out at last.

        Those come in order of event time, so that the stage hears of every lane before it passes one.
        """
        if not untold:
            self._closed_at = None
        elif self._closed_at is None:
            self._closed_at = now
        self._open = self._closed_at is None or now - self._closed_at >= PATIENCE_SECONDS
        if not self._open:
            return []
        held, self._held = sorted(self._held, key=lambda beat: (beat.ts, beat.partition, beat.cluster)), []
        return held
