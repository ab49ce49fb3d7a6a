"""How far event time may move on although no record comes, measured by the time spent listening.

Event time follows the records, so that a file gives the same findings as the live run. When every sender of a
source stops, no record is left to move it, and the silence would never be reported. Here receive time is
counted: only while the inputs were read, so that a late pipeline is never mistaken for silent machines. The
clock comes in as an argument, and nothing of this runs for a recorded file.
"""

from collections import deque
from dataclasses import dataclass, field

QUIET_SECONDS = 30.0
"""Longer than an exporter needs to come back to brokers that were away: it tries every ten seconds at most,
and then has to connect. Also what makes one node silent where others still report (streams.node.liveness)."""

FIRST_SECONDS = 300.0
"""After a single burst of messages nobody knows when the next is due. By then a node's silence is certain."""

# As many usual pauses must be missed as reports of a node before it counts as silent (streams.silence).
MISSED = 4
# A pause that is no ordinary distance between messages, and for how many of its own lengths it is remembered.
PAUSE_SECONDS = 1.0
REMEMBERED = 10.0
LONGEST_QUIET_SECONDS = 600.0

LONGEST_ROUND_SECONDS = 2.0
"""Twice the second between two looks. What is beyond was spent asleep: a suspended laptop, a stopped
process."""


@dataclass(slots=True)
class ReceiveTime:
    """The seconds listened to a source since its last message; all times are in seconds.

    A source whose messages come in bursts, a minute's samples at once, is quiet only after four such pauses.
    """

    _passed: float = 0.0
    _looked: float | None = None
    _received_at: float = 0.0
    _bursts: int = 0
    _new: bool = False
    _pauses: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=8))

    def received(self) -> None:
        """Take that a message came."""
        pause, self._received_at = self._passed - self._received_at, self._passed
        self._new = True
        if pause > PAUSE_SECONDS:
            self._pauses.append((self._passed, pause))

    def look(self, now: float, *, listening: bool) -> float:
        """Let the clock reach ``now``; return by how many seconds event time may be past the last message.

        It is 0 until the source has been quiet for long enough. ``listening``: everything that was sent has
        been read. If not, the wait begins anew: whatever held up the reading may hold up the senders, too.
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
        quiet = self._passed - self._received_at
        return quiet if quiet > self._patience() else 0.0

    def _patience(self) -> float:
        if self._bursts == 1:
            return FIRST_SECONDS
        longest = max((pause for _, pause in self._pauses), default=0.0)
        return max(QUIET_SECONDS, min(MISSED * longest, LONGEST_QUIET_SECONDS))
