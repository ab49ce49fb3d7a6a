"""Clocks of nodes that are off by more than a minute: the offset is measured, and the records are corrected.

A record that arrives an hour old was kept in a spool, or made by a clock that is an hour behind. The pace
separates the two: a spool empties faster or slower than time passes, while the records of a clock that is off
arrive second by second. Both are measured by the log's time stamps, so that a log that is read again gives
the same result.
"""

import math
import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from slowrank.telemetry import JobSteps, NodeEvent, NodeSample, Record, Suspicion
from slowrank.telemetry.columns import read
from slowrank.telemetry.schema import SAMPLE_SCHEMAS, STEP_SCHEMAS
from streams.clock_error import OFFSET
from streams.node.detectors.exporter_health import skewed
from streams.suspicions import Location

# Chosen: well above what a network, a batch or a training step delays a record by. For smaller offsets a node
# measures its own clock (``streams.node.detectors.exporter_health``).
FAR_SECONDS = 60.0

# How long the pace is measured. Chosen: less than the ten seconds after which a node's exporter is stale.
SETTLE_SECONDS = 8.0

# Difference of pace that shows a spool. Chosen: above the jitter of a tick.
PACE_SECONDS = 2.0
# Records of a node that wait for the decision. Chosen: more in ``SETTLE_SECONDS`` come from a spool.
MOST_HELD = 200

# Senders without a record for an hour are dropped whenever so many were added. Chosen: bounds memory.
FORGET_EVERY = 4096
FORGOTTEN_SECONDS = 3600.0

T = TypeVar("T")

Node = tuple[str, str]
"""Cluster and name of a node."""


@dataclass(slots=True)
class _Sender(Generic[T]):
    """One kind of record of one node; ``first`` is (logged, event time) of the first record that is far off.

    ``least`` is the smallest delay since ``first``: the offset of the clock; what is above it is transport.
    Records in ``held`` wait for the decision; ``near_at`` and ``far_at`` are when a record last was within
    ``FAR_SECONDS`` and beyond.
    """

    first: tuple[float, float] | None = None
    least: float = math.inf
    holding: bool = True
    held: list[tuple[Record, T]] = field(default_factory=list)
    near_at: float = -math.inf
    far_at: float = -math.inf


class ClockCorrector(Generic[T]):
    """Corrects the records of nodes whose clock is off, in one partition of the log.

    ``take`` returns records in the time of the log: at once, or after some seconds together with those that
    were held back meanwhile. Each comes with an ``item`` of the caller's, which is returned with it.
    ``behind`` is shared by the partitions of one process: the seconds by which each clock is behind.
    """

    def __init__(self, behind: dict[Node, float] | None = None) -> None:
        self._senders: dict[tuple[str, str, type], _Sender[T]] = {}
        self._behind: dict[Node, float] = {} if behind is None else behind
        self._reported: dict[Node, float] = {}
        self._found: deque[Suspicion] = deque(maxlen=1000)

    def take(
        self, record: Record, item: T, *, logged: float, fits: bool = True, sent_on: bool = False
    ) -> list[tuple[Record, T]]:
        """Process a record logged at ``logged`` (Unix seconds); return the records that are ready.

        ``fits``: its time is within the limits of the codec; if not, it is returned only if it is corrected.
        ``sent_on``: a worker put it into this partition, so that ``logged`` measures no clock.
        """
        delay, node = logged - record.ts, (record.cluster, record.node)
        behind = self._behind.get(node, 0.0)
        if behind and abs(delay) > FAR_SECONDS and abs(delay - behind) <= FAR_SECONDS:
            self._report(record, behind)
            return [(shifted(record, behind), item)]
        as_it_is = [(record, item)] if fits else []
        if isinstance(record, NodeEvent) or sent_on:
            # Events are too rare to measure a clock.
            return as_it_is
        sender = self._senders.get((*node, type(record)))
        if sender is None:
            sender = self._add((*node, type(record)), logged)
        if abs(delay) <= FAR_SECONDS:
            sender.near_at = logged
            self._behind.pop(node, None)
            self._report(record, 0.0)
            return [*self._release(sender), *as_it_is] if sender.first is not None else as_it_is
        return self._far(sender, record, (logged, item), as_it_is)

    def reach(self, logged: float) -> list[tuple[Record, T]]:
        """Return the records held back of senders that have stopped before a decision."""
        late = [s for s in self._senders.values() if s.held and s.far_at < logged - SETTLE_SECONDS]
        return [ready for sender in late for ready in self._release(sender)]

    def suspicions(self) -> list[Suspicion]:
        """Return the suspicions about clocks since the last call."""
        found = list(self._found)
        self._found.clear()
        return found

    @property
    def holding(self) -> bool:
        """Whether anything is held back."""
        return any(sender.held for sender in self._senders.values())

    def own_offsets(self) -> dict[Node, float]:
        """Return the offsets of the clocks of this partition's senders."""
        nodes = {(cluster, node) for cluster, node, _ in self._senders} | self._reported.keys()
        return {node: behind for node, behind in self._behind.items() if node in nodes}

    def share(self, behind: dict[Node, float]) -> None:
        """Take the offsets that the partitions of a process share, and add those of this one to them."""
        for node, seconds in self.own_offsets().items():
            behind.setdefault(node, seconds)
        self._behind = behind

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_behind": self.own_offsets()}

    def _add(self, key: tuple[str, str, type], logged: float) -> _Sender[T]:
        if len(self._senders) % FORGET_EVERY == FORGET_EVERY - 1:
            oldest = logged - FORGOTTEN_SECONDS
            known = self._senders.items()
            self._senders = {k: s for k, s in known if max(s.near_at, s.far_at) > oldest}
        sender = self._senders[key] = _Sender()
        return sender

    def _far(
        self, sender: _Sender[T], record: Record, came: tuple[float, T], as_it_is: list[tuple[Record, T]]
    ) -> list[tuple[Record, T]]:
        logged, _ = came
        sender.far_at = logged
        if sender.first is None:
            sender.first, sender.least = (logged, record.ts), math.inf
        sender.least = min(sender.least, logged - record.ts)
        passed, moved = logged - sender.first[0], record.ts - sender.first[1]
        # By a clock that is off, time passes as it does by the log's; a spool is sent as fast as it can be.
        if abs(moved - passed) > PACE_SECONDS or len(sender.held) >= MOST_HELD:
            # A spool that drains: nothing is held back any more; the pace is measured anew from here.
            ready = self._release(sender)
            sender.first, sender.least, sender.holding = (logged, record.ts), logged - record.ts, False
            return ready + as_it_is
        if sender.holding:
            sender.held += as_it_is
        if passed < SETTLE_SECONDS:
            return [] if sender.holding else as_it_is
        if self._is_recording(logged):
            holding = sender.holding
            ready = self._release(sender)
            sender.first, sender.holding = (logged, record.ts), False
            return ready if holding else ready + as_it_is
        # The smallest delay is the one with the least transport in it.
        behind = sender.least
        ready = sender.held if sender.holding and as_it_is else [*sender.held, (record, came[1])]
        sender.held, sender.first, sender.holding = [], None, True
        self._behind[record.cluster, record.node] = behind
        self._report(record, behind)
        return [(shifted(kept, behind), item) for kept, item in ready]

    def _release(self, sender: _Sender[T]) -> list[tuple[Record, T]]:
        held, sender.held, sender.first, sender.holding = sender.held, [], None, True
        return held

    def _is_recording(self, logged: float) -> bool:
        """Return whether most senders are far off: then a recording is being played, and no clock is off."""
        since = logged - FAR_SECONDS
        far = sum(s.far_at > since for s in self._senders.values())
        return far > 1 and far > sum(s.near_at > since for s in self._senders.values())

    def _report(self, record: Record, behind: float) -> None:
        """Raise the suspicion that a node's clock is ``behind`` seconds behind, or clear it where that is
        0."""
        node = (record.cluster, record.node)
        before = self._reported.get(node, 0.0)
        if not isinstance(record, NodeSample) or bool(behind) == bool(before):
            return
        self._reported[node] = behind
        claim, ts = skewed(Location.of(record), -(behind or before)), record.ts + behind
        self._found.append(claim.suspicion("raise" if behind else "clear", ts=ts, onset=ts))


def shifted(record: Record, seconds: float) -> Record:
    """Return a record with all its times moved by ``seconds``."""
    if isinstance(record, JobSteps):
        rows, data = STEP_SCHEMAS[record.schema].rows, bytearray(record.rows)
        (times,) = read(rows, record.rows, ["ts"]).values()
        struct.pack_into(
            f"<{len(times)}d", data, rows.offsets["ts"][0] * len(times), *(t + seconds for t in times)
        )
        return replace(record, ts=record.ts + seconds, rows=bytes(data))
    if isinstance(record, NodeSample) and record.host:
        # The offset that the node measured itself is included in the shift.
        host = bytearray(record.host)
        struct.pack_into("<f", host, SAMPLE_SCHEMAS[record.schema].host.offsets[OFFSET][0], math.nan)
        return replace(record, ts=record.ts + seconds, host=bytes(host))
    return replace(record, ts=record.ts + seconds)
