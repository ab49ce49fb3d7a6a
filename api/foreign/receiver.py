"""Receives measurements of other systems: keeps them until their round is complete, then hands records on."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from api.foreign.measurement import Decoded
from api.foreign.ticks import NodeState, Sender, Ticks
from api.ingest import Sink, SinkUnavailable
from slowrank.telemetry import Record


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

    def take(self, decoded: Decoded, sender: Sender, sink: Sink, now: float) -> Counter[str]:
        """Take the measurements of a request at ``now`` (Unix s); return the refused ones by reason.

        Complete rounds go to ``sink``. Raises ``SinkUnavailable`` when it accepts none now: they are kept and
        tried again with the next request.
        """
        with self._lock:
            refused = decoded.refused + self._ticks.add(decoded.measurements, sender, now)
            self._forward(sink, now)
        return refused

    def nodes(self) -> Sequence[NodeState]:
        """Return the nodes that send."""
        with self._lock:
            return self._ticks.nodes()

    def unused(self) -> Unused:
        """Return what fills no column."""
        with self._lock:
            return Unused(dict(self._ticks.unused), dict(self._ticks.unknown))

    def _forward(self, sink: Sink, now: float) -> None:
        ready, refused = self._ticks.ready(now)
        # Of rounds: their requests have been answered already.
        self._ticks.unused += refused
        self._unsent += ready
        if not self._unsent:
            return
        try:
            bad_records = sink.accept(self._unsent)
        except SinkUnavailable:
            del self._unsent[:-MAX_UNSENT]
            raise
        self._ticks.unused += Counter(bad.reason for bad in bad_records.values())
        self._unsent = []


MAX_UNSENT = 10_000
"""Records kept while the sink is unavailable, the latest ones. Chosen: some 15 MB."""
