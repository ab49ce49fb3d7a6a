"""Low clocks that all GPUs of a node share: seen beside the job's other nodes only, minute by minute.

Together with slow steps they name the cause. A clock far below those of the others is a finding without step
times, too, where neither heavier work, nor another model of GPU, nor a setting that several nodes have in
common may explain it. Where samples name no job, the nodes of the cluster that name none are compared, which
may do other work: that is never more than evidence.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from detectors.node.low_clock import CAPPED, FAR, LOW, LOW_LIMIT, Comparison, compare
from slowrank.telemetry import Evidence, LoadedMinute, Peers, Suspicion
from slowrank.telemetry.messages import HeldBy
from streams.columns import FloatArray
from streams.debounce import State
from streams.gray_features import WINDOW_SECONDS, due
from streams.suspicions import Claim

# Minutes in a row in which a clock must be low to be evidence, and far below to be a finding by itself; and
# in which it must be as usual to be over. Chosen: longer than a checkpoint, and as long as for a clock far
# below those of the node's other GPUs (``FAR_LOW_HOLD_SECONDS`` of ``streams.node.rules.state_rules``).
HOLD, FAR_HOLD, CLEAR = 2, 3, 2

# Without a minute that could be compared for so long, nothing is known of a node any more. Chosen: longer
# than an evaluation.
FORGET_SECONDS = 300.0

# A minute so far ahead of event time is dropped (chosen: it bounds what wrong clocks keep in memory).
_EARLIEST_SECONDS = 3600.0

# Kinds by what holds the clocks down.
_KINDS: dict[HeldBy, str] = {
    "thermal": "throttle.thermal",
    "power_brake": "throttle.power",
    "slowdown": "throttle.hw_slowdown",
    "power_cap": "throttle.power",
    "nothing": "clock.low",
    "unknown": "clock.low",
}
_LOWER_LIMIT = "throttle.power_limit"

# What someone may have set on purpose, also for a class of nodes. Heat and a power brake nobody sets.
_SETTINGS = (_LOWER_LIMIT, "clock.low")

# Log-odds, as of a low clock of a single GPU (``streams.node.rules.state_rules``).
_WEIGHT = 2.0

_Group = tuple[float, str, str, str, bool]
"""Start of the minute, cluster, job, model of GPU, and whether the detector is on trial."""


@dataclass(frozen=True, slots=True)
class _Low:
    """What is low in one minute of a node: the kind that explains it, and whether by far."""

    kind: str
    far: bool
    share: float
    evidence: tuple[Evidence, ...]


@dataclass(slots=True)
class _Node:
    """The last minutes of a node in a job: how many in a row it was low, far below and well."""

    job_id: str | None
    last: float
    onset: float = 0.0
    low: int = 0
    far: int = 0
    well: int = 0
    raised: Claim | None = None


class SharedClocks:
    """The minutes of nodes that are not due yet, and what is low; their order changes nothing."""

    def __init__(self) -> None:
        self._open: dict[_Group, dict[str, LoadedMinute]] = {}
        self._nodes: dict[tuple[str, str, bool], _Node] = {}
        self._now = -math.inf

    def update(self, minute: LoadedMinute) -> None:
        """Take a node's minute; one that is late, or far ahead, changes nothing."""
        ahead = math.isfinite(self._now) and minute.start > self._now + _EARLIEST_SECONDS
        if minute.start % WINDOW_SECONDS or due(minute.start) <= self._now or ahead:
            return
        group = (minute.start, minute.cluster, minute.job_id or "", minute.model, minute.shadow)
        self._open.setdefault(group, {})[minute.node] = minute

    def due(self, now: float) -> Iterator[Suspicion]:
        """Yield what follows from the minutes that are due by the event time ``now``."""
        self._now = max(self._now, now)
        for group in sorted(group for group in self._open if due(group[0]) <= self._now):
            nodes = self._open.pop(group)
            yield from self._compared([nodes[name] for name in sorted(nodes)])
        for key, node in sorted(self._nodes.items()):
            if (at := due(node.last) + FORGET_SECONDS) <= self._now:
                del self._nodes[key]
                yield from _over(node, at, shadow=key[2])

    def _compared(self, minutes: Sequence[LoadedMinute]) -> Iterator[Suspicion]:
        """Yield what one minute shows of a job's nodes on one model of GPU."""
        clock = np.array([m.clock_hz for m in minutes])
        limit = np.array([m.limit_watts or math.nan for m in minutes])
        found = compare(clock, limit, np.array([m.utilization_ratio for m in minutes]))
        if found is None:
            return
        lows = _of_single_nodes([_low(minutes, i, clock, found) for i in range(len(minutes))])
        for minute, low in zip(minutes, lows, strict=True):
            key = minute.cluster, minute.node, minute.shadow
            node = self._nodes.get(key)
            if node is not None and node.job_id != minute.job_id:
                yield from _over(self._nodes.pop(key), minute.ts, shadow=minute.shadow)
                node = None
            # Nearly all nodes are well, and nothing is kept of them.
            if node is None and low is not None:
                node = self._nodes[key] = _Node(minute.job_id, minute.start)
            if node is not None:
                node.last = minute.start
                yield from _follow(node, minute, low)
                if node.well >= CLEAR:
                    del self._nodes[key]


def _low(minutes: Sequence[LoadedMinute], i: int, clock: FloatArray, found: Comparison) -> _Low | None:
    minute, usual = minutes[i], float(found.usual_clock[i])
    share = minute.clock_hz / usual
    less = bool(minute.limit_watts < LOW_LIMIT * found.usual_limit[i])
    by_limit = less and minute.held_by in ("power_cap", "nothing", "unknown")
    capped = minute.held_by == "power_cap" and not by_limit
    if not found.works[i] or not share < (CAPPED if capped else LOW):
        return None
    # Heavier work lowers a clock at the same power limit, and an unknown reason may be that.
    by_work = capped or (minute.held_by == "unknown" and not by_limit)
    if minute.job_id is None and (by_work or not minute.model):
        return None
    explained = by_work or not minute.model or minute.job_id is None
    evidence = [_evidence("gpu.clock.sm_hz", "Hz", clock, i, usual, minute)]
    if by_limit:
        limits = np.array([m.limit_watts for m in minutes])
        usual_limit = float(found.usual_limit[i])
        evidence.append(_evidence("gpu.power_limit_watts", "W", limits, i, usual_limit, minute))
    kind = _LOWER_LIMIT if by_limit else _KINDS[minute.held_by]
    return _Low(kind, share < FAR and not explained, share, tuple(evidence))


def _of_single_nodes(lows: Sequence[_Low | None]) -> list[_Low | None]:
    """Return what is low; a setting that several nodes have in common may be meant, and is evidence only."""
    nodes = Counter(low.kind for low in lows if low is not None)
    common = {kind for kind in _SETTINGS if nodes[kind] > 1}
    return [replace(low, far=False) if low and low.kind in common else low for low in lows]


def _evidence(
    metric: str, unit: str, values: FloatArray, i: int, usual: float, minute: LoadedMinute
) -> Evidence:
    others = np.delete(values, i)
    return Evidence(
        metric=metric,
        unit=unit,
        detector="node_clocks",
        value=float(values[i]),
        peers=Peers(
            group="nodes" if minute.job_id is None else f"nodes of job {minute.job_id}",
            n=len(others),
            p05=float(np.quantile(others, 0.05)),
            median=usual,
            p95=float(np.quantile(others, 0.95)),
            rank_of_subject=1 + int((others < values[i]).sum()),
        ),
        note="of the median GPU of the node, under load",
    )


def _follow(node: _Node, minute: LoadedMinute, low: _Low | None) -> Iterator[Suspicion]:
    """Yield what a node's next minute changes."""
    if low is None:
        node.low, node.far, node.well = 0, 0, node.well + 1
        if node.well >= CLEAR:
            yield from _over(node, minute.ts, shadow=minute.shadow)
        return
    if node.raised is None and node.low == 0:
        node.onset = minute.since
    node.low, node.far, node.well = node.low + 1, node.far + 1 if low.far else 0, 0
    if node.low < HOLD:
        return
    state: State = "raise" if node.raised is None else "update"
    # What was found to be the cause stays so while it lasts: the power cap comes and goes.
    kind = low.kind if node.raised is None else node.raised.kind
    node.raised = Claim(
        detector="node_clocks",
        catalogue_id="node_clocks",
        family="clocks",
        kind=kind,
        subject=minute.subject,
        weight=_WEIGHT,
        score=1.0 / low.share,
        overwhelming=node.far >= FAR_HOLD,
        evidence=low.evidence,
        severity="warning",
        note=f"clocks of the node at {low.share:.0%} of those of the other nodes",
    )
    yield _suspicion(node, state, minute.ts, shadow=minute.shadow)


def _over(node: _Node, ts: float, *, shadow: bool) -> Iterator[Suspicion]:
    if node.raised is not None:
        yield _suspicion(node, "clear", ts, shadow=shadow)
        node.raised = None


def _suspicion(node: _Node, state: State, ts: float, *, shadow: bool) -> Suspicion:
    assert node.raised is not None
    interval = (node.onset, node.onset + WINDOW_SECONDS)
    found = node.raised.suspicion(state, ts=ts, onset=node.onset, interval=interval)
    return msgspec.structs.replace(found, shadow=shadow) if shadow else found
