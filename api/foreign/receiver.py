"""Receives measurements of other systems: keeps them until their round is complete, then hands records on."""

import logging
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from api.foreign import ticks
from api.foreign.measurement import Decoded
from api.foreign.ticks import SendingNode, Ticks, WriteScope
from api.ingest import Sink
from slowrank.telemetry import Record

log = logging.getLogger(__name__)

# Time between two log lines about nodes that are refused (chosen).
_WARN_SECONDS = 60.0

# Records kept while the sink is unavailable, from which no more are taken. Chosen: some 15 MB.
MAX_UNSENT = 10_000


class Full(Exception):
    """Too many measurements wait for the rest of their rounds: the request is to be sent again."""


@dataclass(frozen=True, slots=True)
class Unused:
    """Measurements that fill no column since the process began: by reason, and unknown names."""

    reasons: Mapping[str, int]
    names: Mapping[str, int]


@dataclass(slots=True)
class ForeignReceiver:
    """One for a process; thread-safe."""

    _ticks: Ticks = field(default_factory=Ticks)
    _unsent: list[Record] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _warned: float = 0.0

    def take(self, decoded: Decoded, sender: WriteScope, sink: Sink, now: float) -> Counter[str]:
        """Take the measurements of a request at ``now`` (Unix s); return the refused ones by reason.

        Complete rounds go to ``sink``. Raises ``SinkUnavailable`` when it accepts none now: they are kept and
        tried again with the next request, of which nothing is taken once ``MAX_UNSENT`` are kept. Raises
        ``Full`` and takes nothing while too many measurements wait already.
        """
        with self._lock:
            more = len(decoded.measurements)
            if self._is_full(more) or len(self._unsent) > MAX_UNSENT:
                self._forward(sink, now)
            if self._is_full(more):
                raise Full(
                    f"{self._ticks.waiting:,} measurements wait for the rest of their rounds, at most "
                    f"{ticks.MAX_WAITING_IN_ALL:,} may: send again later, or some nodes to another process"
                )
            refused = decoded.refused + self._ticks.add(decoded.measurements, sender, now)
            self._warn(refused["too_many_nodes"], now)
            self._forward(sink, now)
        return refused

    def settle(self, sink: Sink, now: float) -> None:
        """Hand the rounds that are complete by ``now`` to ``sink``: their sender may not come again.

        Raises ``SinkUnavailable`` as ``take`` does.
        """
        with self._lock:
            self._forward(sink, now)

    def nodes(self) -> Sequence[SendingNode]:
        """Return the nodes that send."""
        with self._lock:
            return self._ticks.nodes()

    def unused(self) -> Unused:
        """Return what fills no column."""
        with self._lock:
            return Unused(dict(self._ticks.unused), dict(self._ticks.unknown))

    def waiting(self) -> int:
        """Return how many measurements wait for the rest of their rounds."""
        # Without the lock, which a request holds while the sink takes records: one number is read whole.
        return self._ticks.waiting

    def _warn(self, count: int, now: float) -> None:
        if count and not 0 <= now - self._warned < _WARN_SECONDS:
            self._warned = now
            log.warning(
                "%d measurements of new nodes were refused: at most %d nodes may send to one process, and %d "
                "begin to in one request; `GET /api/v1/ingest/sources` lists them, wrong `node` labels too",
                count,
                ticks.MAX_NODES,
                ticks.MAX_NEW_NODES,
            )

    def _is_full(self, more: int) -> bool:
        # A request that never fits is taken where nothing waits: it could never be sent otherwise.
        return 0 < self._ticks.waiting > ticks.MAX_WAITING_IN_ALL - more

    def _forward(self, sink: Sink, now: float) -> None:
        ready, refused = self._ticks.ready(now)
        # Of rounds: their requests have been answered already.
        self._ticks.unused += refused
        self._unsent += ready
        if not self._unsent:
            return
        bad_records = sink.accept(self._unsent)
        self._ticks.unused += Counter(bad.reason for bad in bad_records.values())
        self._unsent = []
