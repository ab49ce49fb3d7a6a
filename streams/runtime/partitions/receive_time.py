"""How far event time advances while no record arrives, by the receive time spent with all inputs read.

Event time follows the records, so that a file gives the same findings as the live run. When every sender of a
source stops, no record is left to advance it, and the missing nodes would never be reported. Receive time
counts only while the inputs were read to their end, so that a slow pipeline is not taken for silent machines.
The clock is an argument, and none of this runs for a recorded file.
"""

from collections import deque
from dataclasses import dataclass, field

# Chosen: longer than an exporter needs to reconnect to brokers that were away, which it tries every ten
# seconds at most. Also what makes one node silent where others still report (``streams.silent_nodes``).
IDLE_SECONDS = 30.0

# After a single burst of messages the next may be due at any time. As ``SilenceConfig.certain``.
FIRST_SECONDS = 300.0

# Usual pauses that must be missed: as many as reports of a node (``streams.node.liveness``).
MISSED = 4
# Shortest pause between bursts: a tick. Shorter ones are the distance between messages.
PAUSE_SECONDS = 1.0
# A pause counts for so many of its own lengths. Chosen: soon after a source is back to ticks.
REMEMBERED = 10.0
# Longest patience, however long the pauses. As ``SilenceConfig.expected``.
LONGEST_IDLE_SECONDS = 600.0

# Twice the second between two looks. A longer one was spent suspended: a laptop asleep, a stopped process.
LONGEST_ROUND_SECONDS = 2.0


@dataclass(slots=True)
class ReceiveTime:
    """The seconds since the last message in which all inputs were read; all times are in seconds.

    A source whose messages arrive in bursts, a minute's samples at once, is idle only after four such pauses.
    """

    _passed: float = 0.0
    _looked: float | None = None
    _received_at: float = 0.0
    _bursts: int = 0
    _new: bool = False
    _pauses: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=8))

    def received(self) -> None:
        """Record the arrival of a message."""
        pause, self._received_at = self._passed - self._received_at, self._passed
        self._new = True
        if pause > PAUSE_SECONDS:
            self._pauses.append((self._passed, pause))

    def look(self, now: float, *, listening: bool) -> float:
        """Advance the clock to ``now``; return how many seconds event time may be past the last message.

        That is 0 until the source has been idle for long enough. ``listening``: everything that was sent has
        been read. If not, the wait begins anew: what delays the reading may delay the senders, too.
        """
        round_ = 0.0 if self._looked is None else now - self._looked
        self._looked = now
        self._bursts += self._new
        self._new = False
        if not listening:
            self._received_at = self._passed
            return 0.0
        self._passed += min(max(0.0, round_), LONGEST_ROUND_SECONDS)
        while self._pauses and self._passed - self._pauses[0][0] > REMEMBERED * self._pauses[0][1]:
            self._pauses.popleft()
        idle = self._passed - self._received_at
        return idle if idle > self._patience() else 0.0

    def _patience(self) -> float:
        if self._bursts == 1:
            return FIRST_SECONDS
        longest = max((pause for _, pause in self._pauses), default=0.0)
        return max(IDLE_SECONDS, min(MISSED * longest, LONGEST_IDLE_SECONDS))
