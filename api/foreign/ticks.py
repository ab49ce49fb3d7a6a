"""Gathers measurements of many series into one record of a node and moment.

A sender may split one scrape of a node over several requests, and scrapes several exporters of a node at
different moments of its interval. So the measurements of a node wait here until the round is complete: the
resolution is learned from the times of each series, a round is what comes within one such interval, and it
is closed when nothing of it has come for ``SETTLE_SECONDS``. What waits is lost when the process ends.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from api.foreign.measurement import Measurement
from slowrank.foreign.node_values import NodeValues, Values, Xid
from slowrank.foreign.series import Point, as_name, board_of, job_of, location_of, node_of, points
from slowrank.telemetry import NodeEvent, NodeSample, Record
from slowrank.telemetry.checks import (
    MAX_AGE_SECONDS,
    MAX_AHEAD_SECONDS,
    BadRecord,
    check_event,
    check_sample,
)
from slowrank.telemetry.columns import pack
from slowrank.telemetry.schema import CURRENT_SAMPLE_SCHEMA, SAMPLE_SCHEMAS, Owner

Source = Literal["remote_write", "otlp"]

# Prometheus sends what it has at the latest after 5 s (``batch_send_deadline``), each shard on its own.
SETTLE_SECONDS = 6.0
# How long the first round waits for a second one, which shows the resolution. Chosen: Prometheus' default
# interval, the longest that is usual.
UNKNOWN_SECONDS = 60.0
# Share of the resolution that one round covers: scrapes are jittered by a few per cent.
ROUND = 0.9

# Longest resolution; after a longer gap it is learnt anew. Chosen: Prometheus takes a sample for gone after
# five minutes, so that scrapes are more frequent.
MAX_RESOLUTION_SECONDS = 300.0

# Nodes that may send to one process. Chosen: one with 1,000 series takes 0.4 MB while a round waits.
MAX_NODES = 20_000
# Measurements of one node that wait. Chosen: a quarter of an hour of a collector that catches up, which is 60
# rounds of 1,000 series.
MAX_WAITING = 60_000
# Measurements of all nodes that wait. Chosen: 0.4 GB (measured: 0.4 kB each), a round of 1,000 nodes of 1,000
# series, or 16 nodes that catch up.
MAX_WAITING_IN_ALL = 1_000_000
# Unknown metric names that are counted one by one; the others as ``other``.
MAX_NAMES = 1000
# Nodes that one request may add, so that none takes all the room. Chosen: a request of Prometheus has 2,000
# samples at most.
MAX_NEW_NODES = 2000
# A node without measurements for so long makes room for another. Chosen: three of the longest intervals.
FORGET_SECONDS = 900.0
# One that sent a single round so far does after so long. Chosen: the second comes within the longest interval
# and a minute that senders may take.
FORGET_NEW_SECONDS = MAX_RESOLUTION_SECONDS + 60.0
# Time between two searches for nodes that make room: of one, all nodes are read.
_SEARCH_SECONDS = 1.0

# Gaps of a series of which the shortest is its interval. Chosen: four scrapes in a row may be missed.
_GAPS = 5

_SCHEMA = SAMPLE_SCHEMAS[CURRENT_SAMPLE_SCHEMA]


@dataclass(frozen=True, slots=True)
class _Waiting:
    ts: float
    received: float
    points: Sequence[Point]
    job: str | None


@dataclass(slots=True)
class _Clock:
    """The times of one series of a kind of device, which stands for all of its exporter."""

    series: int
    last: float
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=_GAPS))

    def note(self, series: int, ts: float) -> None:
        """Measure with the time of one series; another takes its place when it has ended."""
        if series == self.series and ts > self.last:
            self.gaps.append(ts - self.last)
            self.last = ts
        elif ts - self.last > MAX_RESOLUTION_SECONDS:
            self.series, self.last = series, ts


@dataclass(slots=True)
class _Node:
    source: Source
    received: float
    values: NodeValues = field(default_factory=NodeValues)
    waiting: dict[tuple[int, float], _Waiting] = field(default_factory=dict)
    clocks: dict[Owner, _Clock] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    boards: dict[str, str] = field(default_factory=dict)
    emitted: float = 0.0
    oldest: float = 0.0

    @property
    def resolution(self) -> float | None:
        """Seconds between the rounds; that of the slowest exporter, as all belong to every round."""
        found = [min(clock.gaps) for clock in self.clocks.values() if clock.gaps]
        return min(max(found), MAX_RESOLUTION_SECONDS) if found else None

    def has_left(self, now: float) -> bool:
        """Return whether it has sent nothing for long: less so for one whose only round is a record."""
        silent = now - self.received
        once = self.resolution is None and not self.waiting
        return silent > (FORGET_NEW_SECONDS if once else FORGET_SECONDS)

    def closed(self, now: float) -> Iterator[list[_Waiting]]:
        """Take the complete rounds, oldest first; yield the last measurement of each series in each."""
        if not self.waiting or now - self.oldest < SETTLE_SECONDS:
            return
        # Sorted once for all rounds: of a node that catches up many are complete.
        keys = sorted(self.waiting, key=_time)
        resolution, begin = self.resolution, 0
        while begin < len(keys):
            end = len(keys)
            if resolution is not None:
                end = bisect_left(keys, _time(keys[begin]) + ROUND * resolution, begin, key=_time)
            received = [self.waiting[key].received for key in keys[begin:end]]
            # A later round has begun, or the next would have by now.
            whole = end < len(keys) or now - min(received) >= (resolution or UNKNOWN_SECONDS)
            if not whole or now - max(received) < SETTLE_SECONDS:
                break
            # In order of time, so that the last measurement of a series stays.
            found = {series: self.waiting.pop((series, ts)) for series, ts in keys[begin:end]}
            self.emitted, begin = _time(keys[end - 1]), end
            yield list(found.values())
        self.oldest = min((held.received for held in self.waiting.values()), default=now)


def _time(key: tuple[int, float]) -> float:
    return key[1]


@dataclass(frozen=True, slots=True)
class WriteScope:
    """What a key may write: into ``clusters`` (none: all); ``cluster`` is that of series without a label."""

    source: Source
    cluster: str
    clusters: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class SendingNode:
    """A node that sends: its resolution in seconds, None while it is unknown, and when it last sent."""

    cluster: str
    node: str
    source: Source
    resolution: float | None
    received: float


class Ticks:
    """The nodes that send measurements. Not thread-safe."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[str, str], _Node] = {}
        self._looked = self._searched = 0.0
        self._added = 0
        self.waiting = 0
        """Measurements that wait for their rounds."""
        self.unknown: Counter[str] = Counter()
        self.unused: Counter[str] = Counter()
        """Measurements that fill no column, by reason: those are no errors of the sender."""

    def add(self, measurements: Iterable[Measurement], sender: WriteScope, now: float) -> Counter[str]:
        """Take measurements received at ``now`` (Unix s); return the count of refused ones by reason."""
        refused: Counter[str] = Counter()
        self._added = 0
        for measurement in measurements:
            found = points(measurement.name, measurement.labels, measurement.value)
            if isinstance(found, str):
                self._count_unused(found, measurement.name)
            elif problem := self._wait(measurement, found, sender, now):
                refused[problem] += 1
        return refused

    def ready(self, now: float) -> tuple[list[Record], Counter[str]]:
        """Return the records of complete rounds in order of time, and the count of rounds that make no valid
        record.

        Of several nodes that catch up, none must be a quarter of an hour late for what another one has sent.
        """
        records: list[Record] = []
        refused: Counter[str] = Counter()
        if now - self._looked < 1.0:
            return records, refused
        self._looked = now
        for key, node in self._nodes.items():
            before = len(node.waiting)
            for held in node.closed(now):
                try:
                    records += self._records(key, node, held)
                except BadRecord as bad:
                    refused[bad.reason] += 1
            self.waiting -= before - len(node.waiting)
        return sorted(records, key=lambda record: record.ts), refused

    def nodes(self) -> list[SendingNode]:
        """Return the nodes that send, by name."""
        return [
            SendingNode(cluster, name, node.source, node.resolution, node.received)
            for (cluster, name), node in sorted(self._nodes.items())
        ]

    def _count_unused(self, reason: str, name: str) -> None:
        self.unused[reason] += 1
        if reason == "unknown_metric":
            known = name in self.unknown or len(self.unknown) < MAX_NAMES
            self.unknown[name[:200] if known else "other"] += 1

    def _wait(self, sent: Measurement, found: Sequence[Point], sender: WriteScope, now: float) -> str:
        """Keep one measurement for its round; return why it is refused, "" if it is not."""
        name = node_of(sent.labels)
        cluster = as_name(sent.labels.get("cluster") or sender.cluster)
        if name is None:
            return "no_node"
        if sender.clusters and cluster not in sender.clusters:
            return "forbidden_cluster"
        if not now - MAX_AGE_SECONDS <= sent.ts <= now + MAX_AHEAD_SECONDS:
            return "bad_time"
        node = self._node((cluster, name), sender.source, now)
        if node is None:
            return "too_many_nodes"
        # Its round has become a record, which cannot be changed.
        if sent.ts <= node.emitted:
            return "late"
        if len(node.waiting) >= MAX_WAITING:
            return "too_many_waiting"
        self._keep(node, sent, found, now)
        return ""

    def _keep(self, node: _Node, sent: Measurement, found: Sequence[Point], now: float) -> None:
        # Not its labels, which may be long. Of 64 bits, no two of a node's thousands are the same by chance.
        series = hash((sent.name, *sent.labels.values()))
        owner = found[0].rule.owner
        node.clocks.setdefault(owner, _Clock(series, sent.ts)).note(series, sent.ts)
        if not node.waiting:
            node.oldest = now
        node.received = now
        self.waiting += (series, sent.ts) not in node.waiting
        node.waiting[series, sent.ts] = _Waiting(sent.ts, now, found, job_of(sent.labels))
        node.labels = location_of(sent.labels) or node.labels
        node.boards |= board_of(found, sent.labels)

    def _node(self, key: tuple[str, str], source: Source, now: float) -> _Node | None:
        node = self._nodes.get(key)
        if node is None and self._added < MAX_NEW_NODES and self._has_room(now):
            node = self._nodes[key] = _Node(source, now)
            self._added += 1
        return node

    def _has_room(self, now: float) -> bool:
        """Return whether another node fits, after those that have left made room."""
        if len(self._nodes) >= MAX_NODES and not 0 <= now - self._searched < _SEARCH_SECONDS:
            self._searched = now
            self._forget(now)
        return len(self._nodes) < MAX_NODES

    def _forget(self, now: float) -> None:
        for key in [key for key, node in self._nodes.items() if node.has_left(now)]:
            self.waiting -= len(self._nodes.pop(key).waiting)

    def _records(self, key: tuple[str, str], node: _Node, held: Sequence[_Waiting]) -> list[Record]:
        ts = node.emitted
        values = node.values.at(ts, [point for waited in held for point in waited.points])
        jobs = {waited.job for waited in held if waited.job is not None}
        # A node that several jobs share belongs to none of them.
        sample = _sample(key, node, ts, values, jobs.pop() if len(jobs) == 1 else None)
        return [check_sample(sample), *(check_event(_event(key, ts, xid)) for xid in values.xids)]


def _sample(key: tuple[str, str], node: _Node, ts: float, values: Values, job: str | None) -> NodeSample:
    return NodeSample(
        schema=_SCHEMA.id,
        cluster=key[0],
        node=key[1],
        # The same over restarts of this process, so that counters go on and a repetition is recognised.
        boot_id=node.source,
        seq=int(ts * 1000),
        ts=ts,
        job_id=job,
        labels=node.labels | node.boards,
        gpu_ids=tuple(values.gpu),
        nic_ids=tuple(values.nic),
        row_bytes=_SCHEMA.row_bytes,
        gpu=pack(_SCHEMA.gpu, list(values.gpu.values())),
        nic=pack(_SCHEMA.nic, list(values.nic.values())),
        host=pack(_SCHEMA.host, [values.host]) if values.host else b"",
    )


def _event(key: tuple[str, str], ts: float, xid: Xid) -> NodeEvent:
    return NodeEvent(
        cluster=key[0],
        node=key[1],
        ts=ts,
        source="dcgm",
        code=xid.code,
        severity=xid.severity,
        subject=xid.subject,
        message=f"dcgm-exporter: the last XID of the GPU became {xid.number}",
    )
