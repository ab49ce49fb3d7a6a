"""Nodes and GPUs that became unlike the others of their job as it slowed down, where no step rows are sent.

A job's own nodes do the same work, so that each is compared with them, and with what it was beside them
before (``detectors.node.peer_departure``). A machine is named where, in each of four minutes,

* the job is slower than before: its traffic, tensor activity or power fell on the median node, beyond what it
  did so far, but not to a standstill (which ``hang_attribution`` explains), and none of its rates rose;
* exactly one node has departed from the others, itself or one of its GPUs from the node's other GPUs, by
  what was alike before: a spare node does not follow its job.

What departs without any harm to the job names nobody: other roles, cron jobs, warmer places.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from detectors.node.low_clock import LEAST_OTHERS
from detectors.node.peer_departure import LEAST_PAST, WINDOW, departures
from detectors.robust import Reals, nan_median
from slowrank.telemetry import Evidence, MinuteMeans, Peers, StepsReported, Suspicion, encode
from slowrank.telemetry.records import Family
from streams.cluster.stuck_jobs import STEPS_SECONDS
from streams.columns import FloatArray
from streams.debounce import State
from streams.gray_features import LARGEST, OF_GPUS, WINDOW_SECONDS, due
from streams.suspicions import Claim, Location

# Minutes of a job that are kept. Chosen: half an hour holds several evaluations and checkpoints, in 5 kB a
# node.
PAST = 30

# So long after its last minute a job is over, or sends no more.
FORGET_SECONDS = 300.0

# What is so far ahead of event time is dropped (chosen: it bounds what wrong clocks keep in memory, and for
# how long a job counts as one with step rows).
_EARLIEST_SECONDS = 3600.0

# Natural logarithms, of the job's median node: the least fall that counts as slower, and from where on the
# job stands still, by its rates and by the level of its power (a GPU that spins takes a third to two thirds
# of its power at work). Chosen; 3 % is what a restart on other machines may be worth within the day.
_SLOWER, _STANDSTILL_RATE, _STANDSTILL_LEVEL = 0.03, math.log(0.25), math.log(0.65)

# Share of the change of the whole job by which machines may differ beyond the floors: one that takes more
# power than the others changes it by more (chosen: ten times the 1 % by which they do).
_SHARE_OF_CHANGE = 0.1

# By which a usual reading of the work of a node or GPU may differ from the others' (half as much again; of
# ratios, as a difference): what differs by more does other work, as a spare, and need not follow the job as
# it becomes slower. Chosen: pipeline stages differ by less in power.
_SAME_WORK = math.log(1.5)

# The departure of any other node must be below this share of the largest, and what was raised is over below
# this share of the threshold. Chosen.
_HALF = 0.5

# Windows in a row in which nothing lasted that end what was raised. Chosen: one minute as usual, as in a
# pause of the whole job, is in as many windows as it is long, so that it takes two.
_CLEAR = WINDOW + 1

# Features listed as evidence, the farthest first; log-odds, as of a low clock of the whole node. Chosen.
_NAMED, _WEIGHT = 3, 2.0


@dataclass(frozen=True, slots=True)
class _Feature:
    """What is compared: in its unit, or with an ``offset`` as log(reading + offset), so that the offset is
    what is near nothing. ``floor`` is the least departure that matters, ``bad`` the direction (0: both)."""

    metric: str
    unit: str
    floor: float
    offset: float | None = None
    bad: int = 0
    kind: str = "gray.node"
    family: Family = "clocks"

    def scaled(self, reading: float) -> float:
        """Return a reading as it is compared."""
        if not abs(reading) <= LARGEST:
            return math.nan
        return reading if self.offset is None else math.log(max(reading, 0.0) + self.offset)

    def unscaled(self, values: FloatArray) -> FloatArray:
        """Return the readings of what is compared."""
        return values if self.offset is None else np.exp(values) - self.offset


_CPU, _MEMORY = "host.cpu_contention", "host.memory_pressure"

# Share of the host's memory that is free to use.
_FREE = "host.memory.available_ratio"

# Floors are chosen: what slows a job by a few percent. One GPU of eight that takes a quarter less power moves
# its node by 3 %; while a host has CPUs free, what else runs there slows nothing, so that it takes a quarter
# of them, or twice the load.
_OF_NODE = (
    _Feature("gpu.utilization_ratio", "1", 0.05),
    _Feature("gpu.tensor_active_ratio", "1", 0.05, 0.01),
    _Feature("gpu.dram_active_ratio", "1", 0.05, 0.01),
    _Feature("gpu.power_watts", "W", 0.03, 1.0),
    _Feature("gpu.pcie.tx_bytes_per_second", "By/s", 0.3, 1e6, family="nvlink_pcie"),
    _Feature("gpu.pcie.rx_bytes_per_second", "By/s", 0.3, 1e6, family="nvlink_pcie"),
    _Feature("nic.port.tx_bytes_total", "By/s", 0.1, 1e6, family="nic"),
    _Feature("nic.port.rx_bytes_total", "By/s", 0.1, 1e6, family="nic"),
    _Feature("nic.port.xmit_wait_ticks_total", "1/s", 0.7, 1e4, 1, family="nic"),
    _Feature("host.cpu.utilization_ratio", "1", 0.25, None, 1, _CPU, "host"),
    _Feature("host.load1", "1", 0.7, 1.0, 1, _CPU, "host"),
    _Feature("host.run_queue", "1", 0.7, 1.0, 1, _CPU, "host"),
    _Feature("host.cpu.steal_ratio", "1", 0.05, None, 1, _CPU, "host"),
    _Feature("host.pressure.cpu_some_ratio", "1", 0.1, None, 1, _CPU, "host"),
    _Feature("host.cpu.iowait_ratio", "1", 0.05, None, 1, family="host"),
    _Feature("host.pressure.io_some_ratio", "1", 0.1, None, 1, family="host"),
    _Feature("host.pressure.memory_some_ratio", "1", 0.1, None, 1, _MEMORY, "host"),
    _Feature(_FREE, "1", 0.1, None, -1, _MEMORY, "host"),
)
_OF_GPU = tuple(feature for metric in OF_GPUS for feature in _OF_NODE if feature.metric == metric)

# By which a job is seen to be slower: rates of its work, and how hard its GPUs work.
_RATES = [n for n, f in enumerate(_OF_NODE) if f.unit == "By/s" or f.metric.endswith("active_ratio")]
_LEVELS = [n for n, f in enumerate(_OF_NODE) if f.metric in ("gpu.power_watts", "gpu.utilization_ratio")]
_WORK = [*_RATES, *_LEVELS]

_OF_WORK = np.isin(np.arange(len(_OF_NODE)), _WORK)
_LOG_GPU = np.array([f.offset is not None and f.metric.startswith("gpu.") for f in _OF_NODE])
_FLOORS, _BAD = np.array([f.floor for f in _OF_NODE]), np.array([f.bad for f in _OF_NODE])
# The columns of nodes that are those of GPUs.
_COLUMNS = [_OF_NODE.index(feature) for feature in _OF_GPU]

_Unit = tuple[str, tuple[str, ...]]
"""A node with the GPUs that it reads: with others of them it is a new one, without a past."""


@dataclass(frozen=True, slots=True)
class _Minute:
    """One minute of a job: ``median`` [features] of its nodes, and by how much each node is above it, [nodes,
    features], and each GPU above the median of its node, [nodes, gpus, features]."""

    start: float
    units: tuple[_Unit, ...]
    median: FloatArray
    nodes: Reals
    gpus: Reals


@dataclass(slots=True)
class _Job:
    """The minutes of a job; what is raised, since ``onset``, and in how many windows nothing lasted since."""

    past: list[_Minute] = field(default_factory=list)
    recent: list[_Minute] = field(default_factory=list)
    raised: Claim | None = None
    onset: float = 0.0
    well: int = 0

    def take(self, minute: _Minute) -> None:
        """Add a minute; what leaves the recent window is past, but while a machine is raised."""
        self.recent.append(minute)
        if len(self.recent) > WINDOW:
            oldest = self.recent.pop(0)
            if self.raised is None:
                self.past = [*self.past[1 - PAST :], oldest]

    @property
    def whole(self) -> bool:
        """Whether the last minutes are a window without a gap."""
        seconds = self.recent[-1].start - self.recent[0].start
        return len(self.recent) == WINDOW and seconds == (WINDOW - 1) * WINDOW_SECONDS

    @property
    def comparable(self) -> bool:
        """Whether enough of the nodes have enough of a past: of one that was kept beside new ones it is not
        known which of them differ."""
        read = Counter(unit for minute in self.past for unit in minute.units)
        return sum(read[unit] >= LEAST_PAST for unit in self.recent[-1].units) > LEAST_OTHERS


@dataclass(frozen=True, slots=True)
class _Scores:
    """How far the nodes [nodes, features] of a job departed, and their GPUs [nodes, gpus, features]."""

    nodes: FloatArray
    gpus: FloatArray

    @property
    def largest(self) -> FloatArray:
        """The largest of each node, its own or of one of its GPUs."""
        of_gpus = self.gpus.reshape(len(self.nodes), -1)
        found: FloatArray = np.abs(np.concatenate((self.nodes, of_gpus), axis=1)).max(axis=1)
        return found


class JobPeers:
    """The minutes of the nodes of jobs; the order in which those of one minute come changes nothing."""

    def __init__(self) -> None:
        self._open: dict[tuple[float, str, str], dict[str, MinuteMeans]] = {}
        self._jobs: dict[tuple[str, str], _Job] = {}
        self._with_steps: dict[tuple[str, str], float] = {}
        self._now = -math.inf

    def update(self, message: MinuteMeans | StepsReported) -> None:
        """Take a node's minute, of two the one of more samples; one that is late or far ahead changes
        nothing. A job that sends step rows is judged by them."""
        at = message.ts if isinstance(message, StepsReported) else message.start
        if math.isfinite(self._now) and at > self._now + _EARLIEST_SECONDS:
            return
        if isinstance(message, StepsReported):
            job = (message.cluster, message.job_id)
            self._with_steps[job] = max(self._with_steps.get(job, -math.inf), message.ts + STEPS_SECONDS)
            return
        if not message.job_id or message.start % WINDOW_SECONDS or due(message.start) <= self._now:
            return
        nodes = self._open.setdefault((message.start, message.cluster, message.job_id), {})
        known = nodes.get(message.node)
        if known is None or _order(message) > _order(known):
            nodes[message.node] = message

    def due(self, now: float) -> Iterator[Suspicion]:
        """Yield what follows from the minutes that are due by the event time ``now``."""
        self._now = max(self._now, now)
        for key in sorted(key for key in self._open if due(key[0]) <= self._now):
            nodes = self._open.pop(key)
            yield from self._judged(key[1:], [nodes[name] for name in sorted(nodes)])
        for name, job in sorted(self._jobs.items()):
            if (at := due(job.recent[-1].start) + FORGET_SECONDS) <= self._now:
                del self._jobs[name]
                yield from _over(job, at)
        if any(until <= self._now for until in self._with_steps.values()):
            self._with_steps = {job: until for job, until in self._with_steps.items() if until > self._now}

    def _judged(self, name: tuple[str, str], minutes: Sequence[MinuteMeans]) -> Iterator[Suspicion]:
        if name in self._with_steps:
            if (job := self._jobs.pop(name, None)) is not None:
                yield from _over(job, minutes[0].ts)
            return
        job = self._jobs.setdefault(name, _Job())
        job.take(_minute(minutes))
        if job.whole and job.raised is not None:
            yield from _followed(job, minutes)
        elif job.whole and job.comparable:
            yield from _raised(job, minutes)


def _order(minute: MinuteMeans) -> tuple[int, bytes]:
    """Return by what one of two minutes of a node is taken, whichever comes first."""
    return minute.samples, encode(minute)


def _minute(minutes: Sequence[MinuteMeans]) -> _Minute:
    nodes = np.array([[f.scaled(_reading(m, f.metric)) for f in _OF_NODE] for m in minutes])
    gpus = np.full((len(minutes), max(len(m.gpus) for m in minutes), len(_OF_GPU)), np.nan)
    for k, minute in enumerate(minutes):
        for column, feature in enumerate(_OF_GPU):
            each = [feature.scaled(x) for x in minute.of_gpus.get(feature.metric, ())]
            gpus[k, : len(each), column] = each
    median = nan_median(nodes)
    return _Minute(
        minutes[0].start,
        tuple((m.node, m.gpus) for m in minutes),
        median,
        # Half the memory; far finer than any floor.
        (nodes - median).astype(np.float32),
        (gpus - nan_median(gpus, axis=1)[:, None]).astype(np.float32),
    )


def _reading(minute: MinuteMeans, metric: str) -> float:
    if metric != _FREE:
        return minute.means.get(metric, math.nan)
    total = minute.means.get("host.memory.total_bytes", 0.0)
    return minute.means.get("host.memory.available_bytes", math.nan) / total if total > 0 else math.nan


def _raised(job: _Job, minutes: Sequence[MinuteMeans]) -> Iterator[Suspicion]:
    """Yield the one node of a job that departed from the others as the job became slower."""
    slower = _slower(job)
    if slower is None:
        return
    column, change = slower
    scores = _scores(job, change)
    largest = scores.largest
    second, first = np.sort(largest)[-2:].tolist()
    if first >= 1.0 and second < min(1.0, _HALF * first):
        job.onset, job.well = job.recent[0].start, 0
        of_job = _of_job(job, column)
        job.raised = _claim(minutes, scores, int(np.argmax(largest)), of_job)
        yield _suspicion(job, "raise", minutes[0].ts)


def _followed(job: _Job, minutes: Sequence[MinuteMeans]) -> Iterator[Suspicion]:
    """Yield whether what was raised lasts; the job may do other work meanwhile."""
    assert job.raised is not None
    names = [minute.node for minute in minutes]
    node = job.raised.subject.node
    score = float(_scores(job, 0.0).largest[names.index(node)]) if node in names else 0.0
    job.well = job.well + 1 if score < _HALF else 0
    if job.well >= _CLEAR:
        yield from _over(job, minutes[0].ts)
    elif score >= 1.0:
        job.raised = replace(job.raised, score=score)
        yield _suspicion(job, "update", minutes[0].ts)


def _slower(job: _Job) -> tuple[int, float] | None:
    """Return the feature by which a job is slower than before, and the largest change of how its GPUs work;
    None where it is not, or stands still."""
    past, recent = (np.stack([m.median for m in some]) for some in (job.past, job.recent))
    scores = departures(past[:, None], recent[:, None], np.full(len(_OF_NODE), _SLOWER))[0]
    change = nan_median(recent - nan_median(past))
    stands = (change[_RATES] < _STANDSTILL_RATE).any() or (change[_LEVELS] < _STANDSTILL_LEVEL).any()
    fallen = np.fmin(scores[_WORK], 0.0)
    # With other sequences or batches some rates fall and others rise.
    other_work = (change[_RATES] > _SLOWER).any()
    if stands or other_work or not fallen.min() <= -1.0:
        return None
    largest = float(np.fmax.reduce(np.abs(change[_WORK])))
    return _WORK[int(fallen.argmin())], largest


def _scores(job: _Job, change: float) -> _Scores:
    """Return how far each node of a job's last minute departed over the window, in which the work of the
    whole job changed by so much."""
    units = job.recent[-1].units
    floors = _FLOORS + np.where(_LOG_GPU, _SHARE_OF_CHANGE * change, 0.0)
    gpus = max(minute.gpus.shape[1] for minute in job.recent)
    place = {unit: n for n, unit in enumerate(units)}
    minutes = [*job.past, *job.recent]
    nodes = np.full((len(minutes), len(units), len(_OF_NODE)), np.nan)
    each = np.full((len(minutes), len(units), gpus, len(_OF_GPU)), np.nan)
    for n, minute in enumerate(minutes):
        here = [(k, place[unit]) for k, unit in enumerate(minute.units) if unit in place]
        theirs, ours = [k for k, _ in here], [k for _, k in here]
        nodes[n, ours] = minute.nodes[theirs]
        width = min(gpus, minute.gpus.shape[1])
        each[n, ours, :width] = minute.gpus[theirs, :width]
    before = len(job.past)
    of_nodes = departures(nodes[:before], nodes[before:], floors)
    flat = each.reshape(len(minutes), -1, len(_OF_GPU))
    of_gpus = departures(flat[:before], flat[before:], floors[_COLUMNS]).reshape(each.shape[1:])
    wrong = (_BAD == 0) | (np.sign(of_nodes) == _BAD)
    other = np.abs(nan_median(nodes[:before])) > np.where(_OF_WORK, _SAME_WORK, np.inf)
    of_gpus[np.abs(nan_median(each[:before])) > _SAME_WORK] = 0.0
    return _Scores(np.nan_to_num(np.where(wrong & ~other, of_nodes, 0.0)), np.nan_to_num(of_gpus))


def _claim(minutes: Sequence[MinuteMeans], scores: _Scores, node: int, of_job: Evidence) -> Claim:
    minute = minutes[node]
    far = [
        (abs(float(score)), n, None)
        for n, score in enumerate(scores.nodes[node].tolist())
        if abs(score) >= 1.0
    ]
    of_gpus = [
        (abs(float(scores.gpus[node, gpu, k])), _COLUMNS[k], gpu)
        for gpu, k in np.argwhere(np.abs(scores.gpus[node]) >= 1.0).tolist()
    ]
    named = sorted([*far, *of_gpus], key=lambda one: (-one[0], one[1], -1 if one[2] is None else one[2]))
    # What is wrong with the host is the cause of what its GPUs show.
    kind, family = next(
        ((_OF_NODE[n].kind, _OF_NODE[n].family) for _, n, _ in named if _OF_NODE[n].kind != "gray.node"),
        (_OF_NODE[named[0][1]].kind, _OF_NODE[named[0][1]].family),
    )
    named.sort(key=lambda one: _OF_NODE[one[1]].kind != kind)
    departed = {gpu for _, _, gpu in of_gpus}
    at = Location(minute.cluster, minute.node, minute.job_id, minute.rack, minute.switch)
    alone = not far and len(departed) == 1
    return Claim(
        detector="job_peers",
        catalogue_id="job_peers",
        family=family,
        kind=kind,
        subject=at.gpu(minute.gpus[departed.pop()]) if alone else at.whole_node(),
        weight=_WEIGHT,
        score=named[0][0],
        overwhelming=True,
        evidence=(*(_evidence(minutes, node, n, gpu) for _, n, gpu in named[:_NAMED]), of_job),
        severity="warning",
        note="unlike its peers since the job became slower",
    )


def _evidence(minutes: Sequence[MinuteMeans], node: int, column: int, gpu: int | None) -> Evidence:
    """Return a reading of a node, or of one of its GPUs, beside those of the others."""
    metric, minute = _OF_NODE[column].metric, minutes[node]
    if gpu is None:
        values, place, group = [_reading(m, metric) for m in minutes], node, f"nodes of job {minute.job_id}"
    else:
        values, place, group = list(minute.of_gpus[metric]), gpu, f"GPUs of {minute.node}"
    others = np.array([x for n, x in enumerate(values) if n != place and math.isfinite(x)])
    low, median, high = np.quantile(others, (0.05, 0.5, 0.95)).tolist()
    return Evidence(
        metric=metric,
        unit=_OF_NODE[column].unit,
        detector="job_peers",
        value=values[place],
        peers=Peers(
            group=group,
            n=len(others),
            p05=low,
            median=median,
            p95=high,
            rank_of_subject=1 + int((others < values[place]).sum()),
        ),
        note="mean of a minute; beside these peers it was as usual before the job became slower",
    )


def _of_job(job: _Job, column: int) -> Evidence:
    """Return by what the job is seen to be slower."""
    feature = _OF_NODE[column]
    before, now = (
        float(np.median(feature.unscaled(np.array([m.median[column] for m in some]))))
        for some in (job.past, job.recent)
    )
    return Evidence(
        metric=feature.metric,
        unit=feature.unit,
        detector="job_peers",
        value=now,
        note=f"of the job's median node; {before:.4g} before it became slower",
    )


def _over(job: _Job, ts: float) -> Iterator[Suspicion]:
    if job.raised is not None:
        yield _suspicion(job, "clear", ts)
        job.raised = None


def _suspicion(job: _Job, state: State, ts: float) -> Suspicion:
    assert job.raised is not None
    interval = (job.onset, job.onset + WINDOW_SECONDS)
    return job.raised.suspicion(state, ts=ts, onset=job.onset, interval=interval)
