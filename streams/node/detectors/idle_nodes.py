"""Votes of single nodes on a hang of their job: for it from idle nodes, against it from nodes the job has
left.

The latter are needed because in the steps alone the end of a job looks like a hang.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from alerts.reasoning.hang import CLOCK
from detectors.node.idle_node import IdleNodeBank, IdleResult, NodeReading
from slowrank.telemetry import Evidence, HangVote, Suspicion
from slowrank.telemetry.records import Family
from slowrank.telemetry.schema import Owner
from streams.clock_error import clock_error
from streams.columns import FloatArray, Rows
from streams.debounce import ConditionBank, Debounce, Key, State
from streams.node.batch import Batch, Shape
from streams.node.config import NodeConfig
from streams.node.counters import Increase
from streams.node.detector import Found, Increases, Origin
from streams.node.detectors.watched_metrics import metrics_of
from streams.suspicions import HangClaim, Location

# Idle time that makes a vote certain. Chosen: longer than a first checkpoint or evaluation that is not
# declared.
CERTAIN_SECONDS = 300.0

SPINNING = "gpu.spinning_ratio"

# Weights (log likelihood ratios) of a node that is proven idle, and of one whose GPUs stand idle, which a
# data stall explains as well. Chosen: the second decides nothing alone.
PROOF, HINT = 3.0, 0.5

_IDLE = Debounce()
# A single sample of a working GPU ends it: the job is back. Hold chosen: three ticks.
_LEFT = Debounce(hold=3.0, refresh=300.0, clear=0.0)
_END: Key = (0, "")


Numbers = npt.NDArray[np.intp]


@dataclass(slots=True)
class _Raised:
    onset: float
    earliest: float
    claim: HangClaim
    emitted: float

    def suspicion(self, state: State, ts: float) -> Suspicion:
        self.emitted = ts
        certain = ts - self.onset >= CERTAIN_SECONDS
        interval = (self.earliest, self.onset)
        return replace(self.claim, certain=certain).suspicion(
            state, ts=ts, onset=self.onset, interval=interval
        )


class IdleNodes:
    """Raises nodes that are idle in a job as votes for a hang of that job.

    Only nodes that name their job are tested; the usual values are learned anew with every job.
    """

    counters: Mapping[Owner, tuple[str, ...]] = {"nic": metrics_of("nic")}

    def __init__(self, shape: Shape, nodes: int, config: NodeConfig) -> None:
        self._bank = IdleNodeBank(nodes, shape.gpus)
        self._raised: dict[int, _Raised] = {}
        # The keys of ``_raised`` as an array.
        self._is_raised = np.zeros(nodes, np.bool_)
        self._used = np.zeros(nodes, np.bool_)
        self._read_at = np.full(nodes, np.nan)
        self._left = ConditionBank(nodes)
        # Of nodes without a job, the one that they had last, and since when its processes have left: it may
        # wait for its next attempt.
        self._last_job: dict[int, tuple[str, float]] = {}

    def update(self, batch: Batch, increases: Increases) -> Found:
        """Test the nodes of the batch that are in a job; yield the votes that change."""
        for k, before in batch.left_jobs.items():
            found = self._taken(batch, k) if before is None else self._withdraw(batch, k, before)
            yield from ((k, s) for s in found)
        with_job = np.flatnonzero(batch.in_job)
        if len(with_job) == len(batch):
            yield from self._test(batch, with_job, batch.rows, _reading(batch, increases["nic"], slice(None)))
        elif len(with_job):
            reading = _reading(batch, increases["nic"], with_job)
            yield from self._test(batch, with_job, batch.index[with_job], reading)

    def restart(self, node: int) -> None:
        """Learn a node anew; its next sample clears what was raised."""
        self._bank.reset(np.array([node]))

    def forget(self, node: int) -> None:
        """Drop what was raised, and whether the job used the GPUs."""
        self._raised.pop(node, None)
        self._used[node], self._is_raised[node] = False, False
        self._left.forget(node)
        self._last_job.pop(node, None)

    def carry(self, node: int, source: "IdleNodes", origin: Origin) -> None:
        """Take over what was raised; what is usual is learned anew with other devices."""
        row = origin.row
        self._used[node] = source._used[row]
        if row in source._raised:
            self._raised[node], self._is_raised[node] = source._raised[row], True
        self._left.carry(node, source._left, row)
        if row in source._last_job:
            self._last_job[node] = source._last_job[row]

    def _withdraw(self, batch: Batch, k: int, job: str) -> list[Suspicion]:
        """Clear the vote on the job that a node has left, and vote against its hang if it used the GPUs."""
        node, ts = int(batch.index[k]), float(batch.ts[k])
        self._bank.reset(np.array([node]))
        left_since = self._left.since(node, _END)
        since = ts if left_since is None else left_since
        self._left.forget(node)
        found = [self._cleared(node, ts)] if node in self._raised else []
        used, self._used[node] = bool(self._used[node]), False
        if not used:
            return found
        location = batch.location(k)
        if location.job_id is None:
            self._last_job[node] = job, since
        return [*found, _released(location, job, ts, since)]

    def _taken(self, batch: Batch, k: int) -> list[Suspicion]:
        """Return what a node without a job reports about its last one when it has a job again."""
        last, location = self._last_job.pop(int(batch.index[k]), None), batch.location(k)
        if last is None or last[0] == location.job_id:
            return []
        job, since = last
        return [_released(location, job, float(batch.ts[k]), since)]

    def _test(self, batch: Batch, with_job: Numbers, nodes: Rows, reading: NodeReading) -> Found:
        result = self._bank.update(nodes, reading)
        apart = np.nan_to_num(reading.ts - self._read_at[nodes])
        self._read_at[nodes] = reading.ts
        # Unused GPUs mean the start of a job until it has used them, and its end afterwards.
        used = self._used[nodes] = self._used[nodes] | ~result.ended
        ended = result.ended & used
        # What is stuck rests as well.
        shown = result.held | result.idle | np.isfinite(result.resting_since)
        due = shown | ended | self._left.pending(nodes) | self._is_raised[nodes]
        for i in np.flatnonzero(due).tolist():
            k = int(with_job[i])
            found = [
                *self._observe_end(batch, k, ended=bool(ended[i])),
                *self._follow(batch, k, _NodeResult(result, reading, i, float(apart[i]))),
            ]
            yield from ((k, s) for s in found)

    def _observe_end(self, batch: Batch, k: int, *, ended: bool) -> list[Suspicion]:
        ts, location = float(batch.ts[k]), batch.location(k)

        def make(state: State, onset: float) -> Suspicion:
            return _left(location, state, ts, onset)

        return self._left.observe(int(batch.index[k]), _END, ended, ts, debounce=_LEFT, make=make)

    def _follow(self, batch: Batch, k: int, seen: "_NodeResult") -> list[Suspicion]:
        node = int(batch.index[k])
        raised = self._raised.get(node)
        if not (seen.held or seen.idle or seen.resting):
            return [] if raised is None else [self._cleared(node, seen.ts)]
        if raised is None:
            shares = self._bank.shares(np.array([node]), seen.reading)[:, 0]
            claim = seen.claim(batch.gpu.ids[k], batch.location(k), shares, clock_error(batch.samples[k]))
            raised = _Raised(seen.since, seen.since - seen.apart, claim, seen.ts)
            self._raised[node], self._is_raised[node] = raised, True
            return [raised.suspicion("raise", seen.ts)]
        claim = replace(
            raised.claim,
            # Proof lasts until the vote is cleared.
            weight=max(seen.weight, raised.claim.weight),
            score=seen.score,
            both_signs=seen.both_signs,
            lasting=seen.lasting,
            stuck_since=seen.stuck_since,
            resting=seen.resting,
        )
        changed, raised.claim = claim != raised.claim, claim
        due = changed or seen.ts - raised.emitted >= _IDLE.refresh
        return [raised.suspicion("update", seen.ts)] if due else []

    def _cleared(self, node: int, ts: float) -> Suspicion:
        self._is_raised[node] = False
        return self._raised.pop(node).suspicion("clear", ts)


class _NodeResult:
    """The idle-node test of one sample of a batch, ``apart`` seconds after the one before."""

    def __init__(self, quiet: IdleResult, reading: NodeReading, i: int, apart: float) -> None:
        self.apart = apart
        self.ts = float(reading.ts[i])
        self.held, self.idle = bool(quiet.held[i]), bool(quiet.idle[i])
        since = quiet.since if self.held or self.idle else quiet.resting_since
        self.since = float(since[i])
        self.lasting = bool(quiet.lasting[i])
        self.resting = bool(np.isfinite(quiet.resting_since[i]))
        self.stuck_since = float(np.nan_to_num(quiet.stuck_since[i]))
        self.weight = PROOF if self.held or self.stuck_since else HINT
        self.both_signs = self.lasting or bool(quiet.both[i])
        self.score = 1.0 + self.both_signs + self.lasting
        self.not_working, self.spinning = bool(quiet.not_working[i]), quiet.spinning[i]
        one = slice(i, i + 1)
        self.reading = NodeReading(**{f.name: getattr(reading, f.name)[one] for f in fields(reading)})

    def claim(self, ids: tuple[str, ...], location: Location, shares: FloatArray, ahead: float) -> HangClaim:
        """Return the vote for a hang; ``ahead`` is the error of the node's clock in seconds, 0 where it is
        right.

        The caller keeps it: a clear must be of the same family as its raise.
        """
        others = ", ".join(name for name, spins in zip(ids, self.spinning, strict=True) if not spins)
        family: Family = "clocks" if self.not_working else "nic"
        evidence = (
            _share("nic.port.bytes_share", float(shares[0]), "of the bytes a second usual on this node"),
            _share("gpu.power_share", float(shares[1]), "of the power usual on this node"),
            _share(SPINNING, float(self.spinning.mean()), f"all but GPU {others}" if others else "all GPUs"),
            *([Evidence(metric=CLOCK, unit="s", detector="clock", value=round(ahead, 4))] if ahead else ()),
        )
        return HangClaim(
            signal="idle",
            both_signs=self.both_signs,
            lasting=self.lasting,
            detector="quiet",
            family=family,
            subject=location.whole_node(),
            weight=self.weight,
            score=self.score,
            stuck_since=self.stuck_since,
            resting=self.resting,
            evidence=tuple(e for e in evidence if np.isfinite(e.value)),
            note="this node does not work for its job",
        )


def _released(location: Location, job: str, ts: float, since: float) -> HangVote:
    """Return a vote against a hang of ``job``: the node has another one, or none.

    That it names the job no more is news of now; the processes may have left it long ``since``, before the
    others stopped for them.
    """
    reused = location.job_id is not None
    claim = _claim_of_end(replace(location, job_id=job), released=True, reused=reused)
    return claim.suspicion("raise", ts=ts, onset=ts, interval=(since, ts))


def _left(location: Location, state: State, ts: float, onset: float) -> HangVote:
    """Return a vote against a hang: the processes of the job have left the node."""
    return _claim_of_end(location).suspicion(state, ts=ts, onset=onset)


def _claim_of_end(location: Location, *, released: bool = False, reused: bool = False) -> HangClaim:
    return HangClaim(
        signal="left",
        released=released,
        reused=reused,
        detector="quiet.ended",
        score=2.0 if released else 1.0,
        family="host",
        subject=location.whole_node(),
        weight=-4.0,
        note="no process of the job is left on the GPUs of this node",
    )


def _share(metric: str, value: float, note: str) -> Evidence:
    return Evidence(metric=metric, unit="1", detector="quiet", value=round(value, 4), note=note)


def _reading(batch: Batch, ports: Increase, which: Rows) -> NodeReading:
    def of(metric: str) -> FloatArray:
        return np.asarray(batch.gpu[metric][which], np.float64)

    rates = np.concatenate([ports.rate(metric)[which] for metric in metrics_of("nic")], axis=1)
    read = np.isfinite(rates)
    total = of("gpu.memory.total_bytes")
    return NodeReading(
        ts=batch.ts[which],
        nic=np.where(read.any(axis=1), np.where(read, rates, 0.0).sum(axis=1), np.nan),
        power=of("gpu.power_watts"),
        utilization=of("gpu.utilization_ratio"),
        tensor=of("gpu.tensor_active_ratio"),
        memory=of("gpu.memory.used_bytes") / np.where(total > 0, total, np.nan),
    )
