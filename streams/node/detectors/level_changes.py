"""Change points of single devices, as opposed to changes of all devices of a node.

A job that starts, pauses or waits changes every GPU of the node at once, which is no fault. A change is
raised when it is for the worse and the distance to the siblings' median changed too, beyond its own noise;
with fewer than three siblings there is no comparison and nothing is raised. GPUs that do not work have no
levels.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from detectors.changepoint.acceptance import Change, ChangeConfig
from detectors.changepoint.detector import ChangeDetectorBank
from slowrank.telemetry import Baseline, Evidence, Subject, Suspicion
from slowrank.telemetry.schema import Owner
from streams.columns import FloatArray
from streams.debounce import Debounce, State
from streams.node.batch import Batch, Shape
from streams.node.config import NodeConfig
from streams.node.counters import Increase
from streams.node.detector import Found, Increases, Origin
from streams.node.detectors.watched_metrics import POWER, USUAL_POWER_LIMIT, WATCHED, metrics_of
from streams.node.rules.state_rules import at_rest
from streams.suspicions import Claim

# A change must hold for the first before it is raised; one that does not stand out within the second is
# dropped. Chosen: ten samples for the comparison, and a minute for siblings that follow.
HOLD_SECONDS = 10.0
PATIENCE_SECONDS = 60.0

# Chosen: the median of fewer is one device's value.
MIN_SIBLINGS = 3

# Smallest shift of the distance to the siblings, in units of the noise floor and of the measured noise.
# Chosen: high, as a fleet has millions of series.
MIN_FLOORS = 3.0
MIN_SIGMAS = 6.0

REFRESH_SECONDS = Debounce().refresh

# Slower ports are not watched. Chosen: they carry management traffic, no collectives.
FAST_PORT_BITS_PER_SECOND = 10e9


@dataclass(slots=True)
class _Pending:
    change: Change
    due: float

    @property
    def tested(self) -> bool:
        """Whether it was compared with the siblings before, and did not stand out."""
        return self.due > self.change.detected_at + HOLD_SECONDS


Due = Sequence[tuple[int, _Pending]]
"""The changes of one node to compare now, with the numbers of their series."""


@dataclass(slots=True)
class _Raised:
    change: Change
    claim: Claim
    last_emitted: float
    better_since: float | None = None


class LevelChanges:
    """The change-point bank of the nodes of a block, and the suspicions of its changes.

    Series of the bank are numbered node by node; within a node they stand metric by metric, in the order of
    ``WATCHED`` and of the devices.
    """

    counters: Mapping[Owner, tuple[str, ...]] = {"nic": metrics_of("nic")}

    def __init__(self, shape: Shape, nodes: int, config: ChangeConfig | None = None) -> None:
        count = {"gpu": shape.gpus, "nic": shape.nics, "host": 1}
        self._columns = [(w, device) for w in WATCHED for device in range(count[w.owner])]
        self._like = [
            [j for j, (other, _) in enumerate(self._columns) if other is w and j != i]
            for i, (w, _) in enumerate(self._columns)
        ]
        self._bad = np.array([w.bad for w, _ in self._columns])
        self._least = MIN_FLOORS * np.array([w.scale.floor for w, _ in self._columns])
        self._bank = ChangeDetectorBank([w.scale for w, _ in self._columns], groups=nodes, config=config)
        self._limit = np.full((nodes, shape.gpus), np.nan)
        self._known = np.zeros((nodes, len(self._columns)), np.bool_)
        self._pending: dict[int, dict[int, _Pending]] = {}
        self._raised: dict[int, dict[int, _Raised]] = {}
        self._look_at = np.full(nodes, np.inf)

    def update(self, batch: Batch, increases: Increases) -> Found:
        """Search the batch for change points; yield the changes that stand out and last."""
        x = self._readings(batch, increases["nic"])
        # Devices that a node lacks, or that were never read, are no siblings.
        self._known[batch.rows] |= x == x
        # A level is compared only later: the siblings' samples of the time after the change must be there.
        for change in self._bank.update_groups(batch.ts, x, batch.rows):
            if change.significant:
                self._note(change)
        look = np.flatnonzero(batch.ts >= self._look_at[batch.index]).tolist()
        nodes = batch.index.tolist()
        due = {k: self._due(nodes[k], float(batch.ts[k])) for k in look}
        moved = self._moved_apart(
            [(nodes[k], i, p.change.onset) for k, pending in due.items() for i, p in pending]
        )
        for k in look:
            node, ts = nodes[k], float(batch.ts[k])
            for s in [*self._compare(batch, k, due[k], moved), *self._follow(node, ts, x[k])]:
                yield k, s
            self._look_at[node] = self._next_look(node)

    def relearn(self, node: int) -> None:
        """Learn every level of a node anew after a planned change; suspicions raised before stay."""
        series = len(self._columns)
        self._bank.reset(np.arange(node * series, (node + 1) * series))
        self._pending.pop(node, None)
        self._look_at[node] = self._next_look(node)

    def restart(self, node: int) -> None:
        """Start a node anew, without clears."""
        self.relearn(node)
        self._limit[node] = np.nan
        self._raised.pop(node, None)
        self._look_at[node] = np.inf

    def forget(self, node: int) -> None:
        """Nothing outlives a restart."""

    def carry(self, node: int, source: "LevelChanges", origin: Origin) -> None:
        """Levels are learned anew with other devices."""

    def _readings(self, batch: Batch, ports: Increase) -> FloatArray:
        """Return the watched values [n, series]; power as a share of its limit, ports in bytes/s."""
        read = np.where(batch.gpu["gpu.power_limit_watts"] > 0, batch.gpu["gpu.power_limit_watts"], np.nan)
        # The first limit read is kept: a cap that is lowered must not look like more power.
        known = self._limit[batch.rows]
        limit = self._limit[batch.rows] = np.where(known == known, known, read)
        gpu = [np.asarray(batch.gpu[m], np.float64) for m in metrics_of("gpu")]
        power = metrics_of("gpu").index(POWER)
        gpu[power] = gpu[power] / np.where(limit == limit, limit, USUAL_POWER_LIMIT)
        # The values of a GPU without work are no levels: siblings pause some samples before it or after.
        idle = at_rest(batch.gpu.columns)
        gpu = [np.where(idle, np.nan, values) for values in gpu]
        fast = batch.nic["nic.port.speed_bits_per_second"] >= FAST_PORT_BITS_PER_SECOND
        rates = [np.where(fast, ports.rate(metric), np.nan) for metric in metrics_of("nic")]
        host = [np.asarray(batch.host[m], np.float64) for m in metrics_of("host")]
        # A host without GPUs and without a job is not judged.
        working = batch.fabric | batch.in_job
        others = np.concatenate([*rates, *host], axis=1)
        return np.concatenate([*gpu, np.where(working[:, None], others, np.nan)], axis=1)

    def _note(self, change: Change) -> None:
        node, i = divmod(change.series, len(self._columns))
        watched = self._columns[i][0]
        if change.sign != watched.bad or i in self._raised.get(node, {}):
            return
        change = self._in_unit(node, i, change)
        worse = change.level_before if watched.bad < 0 else change.level_after
        if worse >= watched.from_level:
            pending = self._pending.setdefault(node, {})
            # A pending change that did not stand out would now do so by this one, with too early an onset.
            if i not in pending or pending[i].tested:
                pending[i] = _Pending(change, change.detected_at + HOLD_SECONDS)
            self._look_at[node] = min(self._look_at[node], pending[i].due)

    def _in_unit(self, node: int, i: int, change: Change) -> Change:
        factor = self._factor(node, i)
        if factor == 1.0:
            return change
        return replace(
            change, level_before=factor * change.level_before, level_after=factor * change.level_after
        )

    def _factor(self, node: int, i: int) -> float:
        """Return the factor from the bank's unit to the unit of the metric."""
        watched, gpu = self._columns[i]
        if watched.metric != POWER:
            return 1.0
        limit = float(self._limit[node, gpu])
        return limit if limit == limit else USUAL_POWER_LIMIT

    def _next_look(self, node: int) -> float:
        """Return when a node is due again: at every sample while something is raised."""
        if self._raised.get(node):
            return -math.inf
        return min((p.due for p in self._pending.get(node, {}).values()), default=math.inf)

    def _due(self, node: int, ts: float) -> Due:
        pending = self._pending.get(node)
        return sorted((i, p) for i, p in pending.items() if ts >= p.due) if pending else []

    def _moved_apart(self, due: Sequence[tuple[int, int, float]]) -> set[tuple[int, int]]:
        """Return which of the changes due (node, series, onset) moved far enough from their siblings.

        A shift of the whole fleet makes thousands of changes in one second; this discards them at low cost.
        """
        apart: set[tuple[int, int]] = set()
        for siblings in {len(self._like[i]) for _, i, _ in due}:
            # Those with equally many siblings: arrays have no ragged rows.
            alike = [change for change in due if len(self._like[change[1]]) == siblings]
            keys = [(node, i) for node, i, _ in alike]
            if siblings:
                nodes, columns = np.array(keys).T
                first, others = nodes * len(self._columns), np.array([self._like[i] for _, i in keys])
                onsets = np.array([onset for *_, onset in alike])
                shifts = self._bank.readings.shifts(first + columns, first[:, None] + others, onsets)
                keys = [keys[k] for k in np.flatnonzero(self._bad[columns] * shifts >= self._least[columns])]
            apart.update(keys)
        return apart

    def _compare(
        self, batch: Batch, k: int, due: Due, moved: Collection[tuple[int, int]]
    ) -> Iterator[Suspicion]:
        node, ts = int(batch.index[k]), float(batch.ts[k])
        for i, pending in due:
            pending.due, change = ts + HOLD_SECONDS, pending.change
            out = (node, i) in moved and self._stands_out(node, i, change)
            if out:
                claim = self._claim(i, change, self._subject(i, batch, k), node)
                self._raised.setdefault(node, {})[i] = _Raised(change, claim, ts)
                yield _suspicion(claim, change, "raise", ts)
            if out or ts - change.detected_at >= PATIENCE_SECONDS:
                del self._pending[node][i]

    def _stands_out(self, node: int, i: int, change: Change) -> bool:
        watched, first = self._columns[i][0], node * len(self._columns)
        if watched.owner == "host":
            return True
        like = [j for j in self._like[i] if self._known[node, j]]
        if len(like) < MIN_SIBLINGS:
            return False
        moved = self._bank.readings.contrast(first + i, [first + j for j in like], change.onset)
        least = MIN_FLOORS * watched.scale.floor
        return (
            moved is not None
            and min(watched.bad * moved.shift / least, watched.bad * moved.sigmas / MIN_SIGMAS) >= 1.0
        )

    def _follow(self, node: int, ts: float, x: FloatArray) -> Iterator[Suspicion]:
        for i, raised in sorted(self._raised.get(node, {}).items()):
            value = float(x[i]) * self._factor(node, i)
            change = raised.change
            half_way = (change.level_before + change.level_after) / 2
            # A value that was not read is on neither side.
            if (value - half_way) * change.sign >= 0:
                raised.better_since = None
            elif not math.isnan(value):
                raised.better_since = ts if raised.better_since is None else raised.better_since
            if raised.better_since is not None and ts - raised.better_since >= HOLD_SECONDS:
                del self._raised[node][i]
                yield _suspicion(raised.claim, change, "clear", ts)
            elif ts - raised.last_emitted >= REFRESH_SECONDS and not math.isnan(value):
                raised.last_emitted = ts
                yield _suspicion(raised.claim, change, "update", ts)

    def _subject(self, i: int, batch: Batch, k: int) -> Subject:
        watched, device = self._columns[i]
        return batch.subject(k, watched.owner, batch.part(watched.owner).ids[k][device])

    def _claim(self, i: int, change: Change, subject: Subject, node: int) -> Claim:
        watched = self._columns[i][0]
        times, past = self._bank.readings.past(node * len(self._columns) + i, change.onset)
        past = past * self._factor(node, i)
        evidence = Evidence(
            metric=watched.metric,
            unit=watched.unit,
            detector=f"bocpd.{change.source}",
            value=change.level_after,
            baseline=_baseline(change, times, past),
            change_at=change.onset,
            change_probability=change.probability,
            z_robust=change.sigmas,
        )
        return Claim(
            detector=f"change.{watched.metric}",
            catalogue_id="level_changes",
            rule_id=f"change.{watched.metric}",
            family=watched.family,
            kind=watched.kind,
            subject=subject,
            weight=watched.weight,
            score=max(1.0, min(10.0, abs(change.sigmas) / 6.0)),
            evidence=(evidence,),
            note=f"{watched.metric} changed by {change.effect:+.1%}",
        )


def level_changes(shape: Shape, nodes: int, config: NodeConfig) -> LevelChanges | None:
    """Return the detector for a block; None where it is switched off, as it takes most of the CPU time."""
    return LevelChanges(shape, nodes, config.change) if config.level_changes else None


def _baseline(change: Change, times: FloatArray, past: FloatArray) -> Baseline:
    if not len(past):
        return Baseline(median=change.level_before, mad=0.0, n=0)
    return Baseline(
        median=change.level_before,
        mad=float(np.median(np.abs(past - np.median(past)))),
        n=len(past),
        from_ts=float(times[0]),
        to_ts=float(times[-1]),
    )


def _suspicion(claim: Claim, change: Change, state: State, ts: float) -> Suspicion:
    interval = (change.onset_lo, change.onset_hi)
    return claim.suspicion(state, ts=ts, onset=change.onset, interval=interval)
