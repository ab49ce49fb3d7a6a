"""Gray nodes: several weak signs that agree, minute by minute, against the other nodes of the cluster.

Needs all nodes in one place, so it runs where a whole cluster's telemetry comes by: in ``slowrank backtest``.
It corroborates other evidence and convicts nobody alone.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from detectors.multivariate import Envelope, fit_envelope
from detectors.peers import peer_scores
from detectors.robust import nan_mean, nan_median
from slowrank.telemetry import Evidence, NodeSample, Record, Suspicion
from slowrank.telemetry.schema import SAMPLE_SCHEMAS
from streams.arrays import FloatArray, as_float, columns
from streams.conditions import State
from streams.stage import Gathering, Output, Stage
from streams.suspicions import Claim, Place

FEATURES = (
    "gpu.utilization_ratio", "gpu.memory_utilization_ratio", "gpu.tensor_active_ratio",
    "gpu.dram_active_ratio", "gpu.clock.sm_hz", "gpu.clock.mem_hz", "gpu.power_watts", "gpu.temp_celsius",
    "gpu.temp.mem_celsius", "gpu.pcie.tx_bytes_per_second", "gpu.pcie.rx_bytes_per_second",
    "gpu.nvml_call_seconds", "host.cpu.utilization_ratio", "host.cpu.iowait_ratio", "host.cpu.steal_ratio",
    "host.load1", "host.run_queue", "host.pressure.cpu_some_ratio", "host.pressure.memory_some_ratio",
    "host.pressure.io_some_ratio",
)  # fmt: skip

WINDOW_SECONDS = 60.0
LATE_SECONDS = 10.0
"""A window is judged so long after its end."""

MIN_NODES = 8
"""With fewer, a median over nodes is moved by the one that is looked for."""

OUTSIDE, OF = 3, 5
"""Windows outside the healthy region, of so many, before anything is said; none of them ends it."""

# The least scatter between nodes that is believed, as a share of the usual reading and in the metric's own
# unit: what reads the same everywhere has none.
_RELATIVE_FLOOR, _ABSOLUTE_FLOOR = 0.01, 1e-3
_NAMED = 3
_WEIGHT = 1.0
"""Log-odds of the least vote: it helps other evidence over the line and never crosses it alone."""


@dataclass(frozen=True, slots=True)
class Window:
    """One minute of a cluster: robust z [nodes, features] of each place against all of them."""

    start: float
    places: tuple[Place, ...]
    z: FloatArray


class Windows:
    """Gathers the samples of each cluster into windows; every node's mean over devices and ticks counts."""

    def __init__(self) -> None:
        self._open: dict[tuple[float, str], dict[str, tuple[Place, list[FloatArray]]]] = {}
        self._closed_to = float("-inf")

    def add(self, sample: NodeSample) -> None:
        """Take a sample; one whose window was judged is too late."""
        start = sample.ts // WINDOW_SECONDS * WINDOW_SECONDS
        if start > self._closed_to:
            nodes = self._open.setdefault((start, sample.cluster), {})
            nodes.setdefault(sample.node, (Place.of(sample), []))[1].append(_features(sample))

    def due(self, event_time: float) -> Iterator[Window]:
        """Yield in order the windows that ended long enough before ``event_time`` and have enough nodes."""
        horizon = event_time - LATE_SECONDS - WINDOW_SECONDS
        for start, cluster in sorted(key for key in self._open if key[0] <= horizon):
            nodes = self._open.pop((start, cluster))
            self._closed_to = max(self._closed_to, start)
            if len(nodes) >= MIN_NODES:
                held = [nodes[name] for name in sorted(nodes)]
                means = np.stack([nan_mean(np.stack(rows)) for _, rows in held])
                yield Window(start, tuple(place for place, _ in held), _peer_z(means))


def fit(records: Iterable[Record]) -> Envelope:
    """Fit the healthy region on recorded telemetry in which nothing is wrong. Raises as ``fit_envelope``."""
    windows, latest = Windows(), 0.0
    for record in records:
        if isinstance(record, NodeSample):
            windows.add(record)
            latest = max(latest, record.ts)
    found = [window.z for window in windows.due(latest + LATE_SECONDS + WINDOW_SECONDS)]
    return fit_envelope(np.concatenate(found) if found else np.zeros((0, len(FEATURES))), FEATURES)


@dataclass(slots=True)
class _Node:
    outside: deque[bool] = field(default_factory=lambda: deque(maxlen=OF))
    since: deque[float] = field(default_factory=lambda: deque(maxlen=OF))
    raised: Claim | None = None
    onset: float = 0.0


class GrayNodes:
    """A stage around the node stage that adds what the healthy region says."""

    def __init__(self, inner: Stage, region: Envelope) -> None:
        self._inner = inner
        self._region = region
        # Told with the evidence: a replay gives the same findings only with the same model.
        self._model = hashlib.sha256(msgspec.json.encode(region)).hexdigest()[:12]
        self._wanted = [FEATURES.index(name) for name in region.features]
        self._windows = Windows()
        self._nodes: dict[tuple[str, str], _Node] = {}

    def process(self, record: Record | Suspicion) -> Sequence[Output]:
        """Hand the record on; what it shows comes with the end of its minute."""
        if isinstance(record, NodeSample):
            self._windows.add(record)
        return self._inner.process(record)

    def tick(self, event_time: float) -> Sequence[Output]:
        """Judge the windows that are over."""
        out = list(self._inner.tick(event_time))
        for window in self._windows.due(event_time):
            z = window.z[:, self._wanted]
            for place, row, distance in zip(window.places, z, self._region.distances(z), strict=True):
                out += self._judge(place, row, float(distance), window.start)
        return out

    def flush(self) -> Sequence[Output]:
        """Let the stage within take what it keeps back."""
        return self._inner.flush() if isinstance(self._inner, Gathering) else ()

    def _judge(self, place: Place, z: FloatArray, distance: float, start: float) -> list[Suspicion]:
        node = self._nodes.setdefault((place.cluster, place.node), _Node())
        node.outside.append(distance > self._region.threshold)
        node.since.append(start)
        at = start + WINDOW_SECONDS
        if node.raised is not None and not any(node.outside):
            claim, node.raised = node.raised, None
            return [claim.suspicion("clear", ts=at, onset=node.onset)]
        if sum(node.outside) < OUTSIDE or not node.outside[-1]:
            return []
        state: State = "raise" if node.raised is None else "update"
        if state == "raise":
            node.onset = next(t for t, out in zip(node.since, node.outside, strict=True) if out)
        node.raised = self._claim(place, z, distance)
        interval = (node.onset, node.onset + WINDOW_SECONDS)
        return [node.raised.suspicion(state, ts=at, onset=node.onset, interval=interval)]

    def _claim(self, place: Place, z: FloatArray, distance: float) -> Claim:
        top = self._region.explain(z)[:_NAMED]
        evidence = tuple(
            Evidence(
                metric=name,
                unit="1",
                detector="gray",
                value=round(float(z[self._region.features.index(name)]), 3),
                note=f"robust z against the other nodes; {share:.0%} of the distance; model {self._model}",
            )
            for name, share in top
        )
        return Claim(
            detector="gray",
            family="host" if top[0][0].startswith("host.") else "clocks",
            kind="gray.node",
            subject=place.whole_node(),
            weight=_WEIGHT,
            score=max(1.0, distance / self._region.threshold),
            evidence=evidence,
            severity="warning",
        )


def _features(sample: NodeSample) -> FloatArray:
    schema = SAMPLE_SCHEMAS[sample.schema]
    held = columns(schema.gpu, sample.gpu) | columns(schema.host, sample.host)
    rows = [as_float(held[name]) if name in held else np.zeros(0) for name in FEATURES]
    return np.array([float(nan_mean(row)) if row.size else np.nan for row in rows])


def _peer_z(means: FloatArray) -> FloatArray:
    """Return the robust z of ``means`` [nodes, features] feature by feature."""
    usual = np.abs(nan_median(means))
    floors = np.nan_to_num(np.maximum(_RELATIVE_FLOOR * usual, _ABSOLUTE_FLOOR), nan=1.0)
    readings = means.T
    return np.asarray(peer_scores(readings, floors=floors).z(readings).T, np.float64)
