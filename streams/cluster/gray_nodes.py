"""Comparisons of nodes by the minute: with the other nodes of their job (``job_peers``), and with a healthy
region for several weak signs that agree, against the other nodes of the cluster.

The latter corroborates other evidence and opens no finding alone.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from detectors.node.gray_envelope import Envelope
from slowrank.telemetry import Evidence, MinuteMeans, StepsReported, Subject, Suspicion
from streams.cluster.gray_model import fingerprint
from streams.cluster.gray_windows import Window, Windows
from streams.cluster.job_peers import JobPeers
from streams.columns import FloatArray
from streams.debounce import State
from streams.gray_features import FEATURES, WINDOW_SECONDS, due
from streams.stage import Input, Output, Restorable, Stage
from streams.suspicions import Claim

# Windows outside the healthy region, of so many, that raise a node; none of so many clears it (chosen: one or
# two minutes outside are load, and a node that is on and off is not cleared in between).
OUTSIDE, OF = 3, 5

# A node is forgotten so long after its last window: as much of the log is read again after a restart.
FORGET_SECONDS = 3600.0

# Features listed as evidence, the largest share of the distance first (chosen).
_NAMED = 3
# Log-odds (chosen: the smallest vote, which completes other evidence and opens nothing alone).
_WEIGHT = 1.0


@dataclass(slots=True)
class _Node:
    """The last windows of a node (start, whether it was outside), and what is raised about it."""

    recent: deque[tuple[float, bool]] = field(default_factory=lambda: deque(maxlen=OF))
    raised: Claim | None = None
    onset: float = 0.0

    @property
    def outside(self) -> list[float]:
        """When the windows began in which it was outside."""
        return [start for start, outside in self.recent if outside]


class GrayNodes:
    """A stage around the finding stage: takes the minutes of a cluster's nodes out of its messages, and
    adds the suspicions that follow from them under the cluster's healthy region (``region_of``).

    Keyed by cluster. The same minutes, in any order until they are due, give the same suspicions. ``judged``
    applies the modes of detectors: it returns a suspicion, marked as one in shadow, or None.
    """

    def __init__(
        self,
        inner: Stage,
        *,
        region_of: Callable[[str], Envelope | None],
        judged: Callable[[Suspicion], Output | None],
    ) -> None:
        self._inner = inner
        self._region_of = region_of
        self._judged_by_mode = judged
        self._windows = Windows()
        self._nodes: dict[str, dict[str, _Node]] = {}
        self._peers = JobPeers()

    @property
    def ignored(self) -> Counter[str]:
        """Minutes of nodes that changed nothing, by reason; read by tests only."""
        return self._windows.ignored

    def process(self, record: Input) -> Sequence[Output]:
        """Keep a node's minute until it is due; hand anything else on."""
        if isinstance(record, MinuteMeans | StepsReported):
            self._peers.update(record)
        if not isinstance(record, MinuteMeans):
            return self._inner.process(record)
        if self._region_of(record.cluster) is not None:
            self._windows.add(record)
        return ()

    def tick(self, event_time: float) -> Sequence[Output]:
        """Judge the windows that are due, so that what they show is weighed with all else of this time."""
        out: list[Output] = []
        for suspicion in (*self._weak_signs(event_time), *self._peers.due(event_time)):
            judged = self._judged_by_mode(suspicion)
            out += () if not isinstance(judged, Suspicion) else self._inner.process(judged)
        return [*out, *self._inner.tick(event_time)]

    def snapshot(self) -> Any:
        """Return the windows and nodes, and the state of the stage inside."""
        inner = self._restorable().snapshot()
        own = {"windows": self._windows, "nodes": self._nodes, "peers": self._peers}
        return {"inner": inner, **own}

    def restore(self, kept: Any) -> None:
        """Take what ``snapshot`` returned."""
        self._restorable().restore(kept["inner"])
        self._windows, self._nodes, self._peers = kept["windows"], kept["nodes"], kept["peers"]

    def _restorable(self) -> Restorable:
        if not isinstance(self._inner, Restorable):
            raise TypeError("the stage inside gives no snapshots")
        return self._inner

    def _weak_signs(self, event_time: float) -> Iterator[Suspicion]:
        for window in self._windows.due(event_time):
            if (region := self._region_of(window.cluster)) is not None:
                yield from self._judged(window, region)

    def _judged(self, window: Window, region: Envelope) -> Iterator[Suspicion]:
        nodes = self._nodes.setdefault(window.cluster, {})
        oldest = window.start - FORGET_SECONDS
        for name in [n for n, node in nodes.items() if not node.outside or node.recent[-1][0] < oldest]:
            del nodes[name]
        z = window.z[:, [FEATURES.index(name) for name in region.features]]
        for subject, row, distance in zip(window.nodes, z, region.distances(z).tolist(), strict=True):
            name, outside = subject.node or "", distance > region.threshold
            # Nearly all nodes are inside, and nothing is known of them.
            if outside or name in nodes:
                node = nodes.setdefault(name, _Node())
                node.recent.append((window.start, outside))
                yield from _suspicions(node, subject, row, distance / region.threshold, region)


def _suspicions(
    node: _Node, subject: Subject, z: FloatArray, score: float, region: Envelope
) -> Iterator[Suspicion]:
    """Yield what a node's last window, ``score`` times as far out as is healthy, gives rise to."""
    start, outside = node.recent[-1]
    since = node.outside
    if node.raised is not None and not since:
        yield node.raised.suspicion("clear", ts=due(start), onset=node.onset)
    elif outside and len(since) >= OUTSIDE:
        state: State = "raise" if node.raised is None else "update"
        if state == "raise":
            node.onset = since[0]
        node.raised = _claim(subject, z, score, region)
        interval = (node.onset, node.onset + WINDOW_SECONDS)
        yield node.raised.suspicion(state, ts=due(start), onset=node.onset, interval=interval)


def _claim(subject: Subject, z: FloatArray, score: float, region: Envelope) -> Claim:
    top = region.contributions(z)[:_NAMED]
    model = fingerprint(region)
    evidence = tuple(
        Evidence(
            metric=name,
            unit="1",
            detector="gray",
            value=round(float(z[region.features.index(name)]), 3),
            note=f"robust z against the other nodes; {share:.0%} of the distance; model {model}",
        )
        for name, share in top
    )
    return Claim(
        detector="gray",
        catalogue_id="gray",
        family="host" if top[0][0].startswith("host.") else "clocks",
        kind="gray.node",
        subject=subject,
        weight=_WEIGHT,
        score=score,
        evidence=evidence,
        severity="warning",
    )
