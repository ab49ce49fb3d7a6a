"""Watches a job for slowness that no rank causes: since when it shows, and when it is gone."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from detectors.job.imbalance import (
    MIN_JOB_SLOWDOWN,
    MIN_STAGE_RATIO,
    slowdown,
    stage_imbalance,
    stage_ratio,
    workload_imbalance,
)
from detectors.job.slowed_machines import STEPS as SLOWED_STEPS
from detectors.job.slowed_machines import SlowedMachinesWatch
from detectors.job.waits.shared_wait import SharedWait, SharedWaitWatch, Wait, shared_seconds
from detectors.peers.job_kind import VARIABLE_DISPERSION, classify
from detectors.peers.peers import PeerGroups, group_median
from detectors.peers.ratios import Ratios
from detectors.robust import nan_max, nan_mean, nan_median

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

Slowness = Literal[
    "stage", "context", "position", "machines", "workload", "wandering", "input", "unmeasured", "between"
]
"""More work in one stage, for one part of a sequence (context), or since some step at one position of the
layers; most machines that became slow; work that differs by chance, from step to step or for some steps at
one rank after the other (wandering); or a wait of all ranks, be it between their steps."""

# Steps slowness must have lasted, and between two looks at it. Chosen: what lasts may be found five steps
# late, for a fifth of the cost.
_STEPS = 20
_STEPS_APART = 5

# Chosen: steps that the seconds shown of a slow stage are the median of.
_STAGE_STEPS = 50

# Fewest and most steps the spread of the work is judged over: those of ``job_kind.classify``.
_WORKLOAD_STEPS = (30, 50)

# How often in a row it must not show to be gone. Chosen: for about as long as it takes to show, 20 to 40
# steps.
_LOOKS_GONE: dict[Slowness, int] = {
    "stage": 4,
    "context": 4,
    "position": 4,
    "machines": 4,
    "workload": 8,
    "wandering": 4,
    "input": 4,
    "unmeasured": 4,
    "between": 4,
}

# Chosen: a position that usually is half as slow as one that is reported is looked at.
_HINT = 1.05

# Of what a job must lose for machines to be found, what is enough for them to last. Chosen, as for a stage.
_LASTS = 0.5

# Of the steps since then, for slowness to date back to one. Chosen: single quick steps do not end it.
_SHARE_HIGH = 0.9


@dataclass(frozen=True, slots=True)
class SlowStage:
    """A stage with more work, or part of a sequence: its number ``group``, ``members`` (places of ranks),
    ``ratio`` of its time to the mean of the others, and the usual compute ``seconds`` of its ranks."""

    group: int
    members: Ints
    ratio: float
    seconds: float


@dataclass(frozen=True, slots=True)
class JobSlowness:
    """Slowness of a job as a whole: the job's ``slowdown``, the ``stage`` or position that has more work, the
    ``wait`` where all ranks wait longer, how many ranks wandering work has ``visited``, the ``dispersion`` of
    the work (relative sd over ranks) otherwise.

    The first of the steps that show it ran from ``onset_lo`` to ``onset``, in event time.
    """

    kind: Slowness
    slowdown: float
    onset_lo: float
    onset: float
    stage: SlowStage | None = None
    wait: SharedWait | None = None
    dispersion: float = float("nan")
    visited: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWide:
    """What is ``present`` in the last steps, and which kinds have been ``gone`` for several looks;
    ``between`` is how long no rank was in a step before the last one [s], NaN where that is not known."""

    present: tuple[JobSlowness, ...] = ()
    gone: tuple[Slowness, ...] = ()
    between: float = float("nan")


class JobWideWatch:
    """Looks at the last steps of a job every few steps, at most ``capacity``."""

    def __init__(self, capacity: int) -> None:
        self._absent = dict.fromkeys(_LOOKS_GONE, 0)
        # What was found of these kinds, until it is gone.
        self._before: dict[Slowness, JobSlowness | None] = dict.fromkeys(
            ("stage", "context", "position", "machines")
        )
        self._waits: dict[Wait, SharedWaitWatch] = {
            wait: SharedWaitWatch(wait, capacity) for wait in ("input", "unmeasured", "between")
        }
        self._machines = SlowedMachinesWatch()

    def look(self, ratios: Ratios, slow: Bools, suspected: Bools, *, visited: Sequence[int] = ()) -> JobWide:
        """Take the step that ``ratios`` took last; return what is slow in the job as a whole.

        ``slow`` [ranks] are slow by themselves and left out; ``suspected`` became slow, be it with others;
        ``visited`` are those that wandering work has made slow.
        """
        for watch in self._waits.values():
            watch.update(ratios)
        between = shared_seconds(ratios, "between")
        if ratios.settled < _STEPS or ratios.settled % _STEPS_APART or ratios.asynchronous:
            return JobWide(between=between)
        looks: dict[Slowness, JobSlowness | None] = {}
        # Of all else only the ranks' own work shows whose it is.
        if ratios.source == "compute":
            looks = self._within_steps(ratios, slow, suspected, visited)
        looks["between"] = _waiting(ratios, "between", self._waits["between"])
        for kind, found in looks.items():
            self._absent[kind] = 0 if found else self._absent[kind] + 1
        for kind in self._before.keys() & looks.keys():
            if looks[kind] or self._absent[kind] >= _LOOKS_GONE[kind]:
                self._before[kind] = looks[kind]
        return JobWide(
            present=tuple(found for found in looks.values() if found),
            gone=tuple(kind for kind in looks if self._absent[kind] >= _LOOKS_GONE[kind]),
            between=between,
        )

    def _within_steps(
        self, ratios: Ratios, slow: Bools, suspected: Bools, visited: Sequence[int]
    ) -> dict[Slowness, JobSlowness | None]:
        """Return what the last steps show of each kind that was looked for within them."""
        looks: dict[Slowness, JobSlowness | None] = {"position": None}
        looks["stage"] = _stage(ratios, slow, before=self._before["stage"])
        looks["context"] = _context(ratios, slow, before=self._before["context"])
        looks["machines"] = self._most_machines(ratios, slow)
        looks["wandering"] = _wandering(ratios, slow, visited) if len(visited) else None
        if (suspected & ~slow).any():
            looks["position"] = _slow_position(ratios, slow, before=self._before["position"])
        looks["input"], looks["unmeasured"] = (
            _waiting(ratios, wait, self._waits[wait]) for wait in ("input", "unmeasured")
        )
        if ratios.settled >= _WORKLOAD_STEPS[0]:
            looks["workload"] = _workload(ratios, slow)
        return looks

    def _most_machines(self, ratios: Ratios, slow: Bools) -> JobSlowness | None:
        """Return the machines that became slow at one moment, where they are most."""
        if ratios.kind.kind == "variable":
            return None
        v = ratios.history.last("v", min(SLOWED_STEPS, ratios.settled))
        found = self._machines.look(v, ratios.nodes, slow, roles=_roles(ratios))
        if found is None:
            return None
        before, members = self._before["machines"], np.flatnonzero(found.ranks)
        usual = float(nan_median(ratios.history.last("compute", _STEPS)[:, members].ravel()))
        step = nan_median(ratios.history.last("step", _STEPS), axis=1)
        costs = float(nan_median(slowdown(step, usual * -math.expm1(-found.effect))))
        stage = SlowStage(-1, members, math.exp(found.effect), usual)
        if before is not None and before.stage is not None and np.array_equal(before.stage.members, members):
            still = costs >= 1.0 + _LASTS * (MIN_JOB_SLOWDOWN - 1.0)
            return replace(before, slowdown=costs, stage=stage) if still else None
        if costs < MIN_JOB_SLOWDOWN:
            return None
        began = _since(ratios, found.high(v, ratios.nodes))
        return JobSlowness("machines", costs, *began, stage=stage)


def _roles(ratios: Ratios) -> Ints | None:
    """Return who does the same work, [ranks], None where that is not known."""
    return ratios.comparison.groups.index if ratios.roles_known else None


def _slow_position(ratios: Ratios, slow: Bools, *, before: JobSlowness | None) -> JobSlowness | None:
    """Return the position of the layers that has become slow as a whole, on all machines alike.

    One that was so in all steps held is how the layers were cut, and nothing that happened; ``before`` is
    what was found already. Without coordinates a replica may look the same.
    """
    if ratios.shards is not None:
        cuts = ratios.shards.cuts
    else:
        # Where amounts of work show who is a replica, a slow one is found as such.
        cuts = () if ratios.batches is not None else ratios.positions.cuts
    # Without coordinates there are many cuts: what is usual of ranks is asked first, which costs little.
    ranks = nan_median(_of_roles(ratios, _STEPS)) if cuts else np.empty(0)
    read = np.isfinite(ranks)
    for cut in cuts:
        # A cut by rank numbers may have places that no rank of the job is at.
        at_place = np.bincount(cut[read])
        usual = np.bincount(cut[read], weights=ranks[read])[at_place > 0] / at_place[at_place > 0]
        if usual.size > 1 and usual.max() >= _HINT * np.delete(usual, usual.argmax()).mean():
            found = _judged(ratios, slow, PeerGroups.of(cut), before)
            if found is not None:
                return found
    return None


def _judged(
    ratios: Ratios, slow: Bools, positions: PeerGroups, before: JobSlowness | None
) -> JobSlowness | None:
    seconds = np.where(slow, np.nan, _of_roles(ratios, _STEPS))
    step = nan_median(ratios.history.last("step", _STEPS), axis=1)
    found = stage_imbalance(step, seconds, positions, dispersion=ratios.kind.dispersion)
    if found is None:
        return None
    members = positions.members[found.group]
    members = members[members >= 0]
    if before is not None and before.stage is not None and np.array_equal(before.stage.members, members):
        onset_lo, onset = before.onset_lo, before.onset
    else:
        ratio = stage_ratio(_of_roles(ratios, ratios.settled), positions, found.group)
        if np.count_nonzero(ratio < MIN_STAGE_RATIO) < _STEPS:
            return None
        onset_lo, onset = _since(ratios, ratio >= MIN_STAGE_RATIO)
    usual = float(nan_median(ratios.history.last("compute", _STAGE_STEPS)[:, members].ravel()))
    stage = SlowStage(found.group, members, found.ratio, usual)
    return JobSlowness("position", found.job_slowdown, onset_lo, onset, stage=stage)


def _of_roles(ratios: Ratios, steps: int) -> Floats:
    """Return the compute of the last steps over the mean of its role, in seconds of the mean role: of the
    ranks that were read."""
    compute, roles = ratios.history.last("compute", steps), ratios.comparison.stages
    means = nan_mean(roles.gather(compute), axis=-1)
    means = np.where(means > 0, means, np.nan)
    seconds: Floats = compute * roles.spread_out(nan_mean(means, axis=1)[:, None] / means)
    return seconds


def _number_of(members: Ints, groups: PeerGroups) -> int | None:
    """Return the group of these ``members``, None if it is none any more: groups may be learnt anew."""
    same = (g for g, own in enumerate(groups.members) if np.array_equal(own[own >= 0], members))
    return next(same, None)


def _stage(ratios: Ratios, slow: Bools, *, before: JobSlowness | None) -> JobSlowness | None:
    """Return the stage that has more work; ``before`` is what was found already."""
    comparison = ratios.comparison
    seconds_of = _compute if comparison.cut is None else _of_parts
    return _with_more_work("stage", ratios, slow, comparison.stages, seconds_of, before)


def _context(ratios: Ratios, slow: Bools, *, before: JobSlowness | None) -> JobSlowness | None:
    """Return the part of a sequence that has more work; ``before`` is what was found already."""
    cut = ratios.comparison.cut
    if cut is None:
        return None
    return _with_more_work("context", ratios, slow, PeerGroups.of(cut), _of_roles, before)


def _compute(ratios: Ratios, steps: int) -> Floats:
    return ratios.history.last("compute", steps)


def _of_parts(ratios: Ratios, steps: int) -> Floats:
    """Return the compute of the last steps over what is usual for its part of a sequence, in seconds of the
    mean part."""
    compute, cut = ratios.history.last("compute", steps), ratios.comparison.cut
    parts = PeerGroups.of(cut) if cut is not None else ratios.comparison.everyone
    usual = group_median(compute, parts)
    seconds: Floats = compute * parts.spread_out(nan_mean(usual, axis=1)[:, None] / usual)
    return seconds


def _with_more_work(
    kind: Slowness,
    ratios: Ratios,
    slow: Bools,
    groups: PeerGroups,
    seconds_of: Callable[[Ratios, int], Floats],
    before: JobSlowness | None,
) -> JobSlowness | None:
    """Return the one of the ``groups`` that has more work by the seconds of the last steps."""
    step = nan_median(ratios.history.last("step", _STEPS), axis=1)
    latest = np.where(slow, np.nan, seconds_of(ratios, _STEPS))
    number = None if before is None or before.stage is None else _number_of(before.stage.members, groups)
    found = stage_imbalance(step, latest, groups, dispersion=ratios.kind.dispersion, found=number)
    if found is None:
        return None
    seconds = np.where(slow, np.nan, seconds_of(ratios, ratios.settled))
    high = stage_ratio(seconds, groups, found.group) >= MIN_STAGE_RATIO
    same = before is not None and number == found.group
    began = (before.onset_lo, before.onset) if before is not None and same else _since(ratios, high)
    members = groups.members[found.group]
    members = members[members >= 0]
    usual = float(nan_median(ratios.history.last("compute", _STAGE_STEPS)[:, members].ravel()))
    stage = SlowStage(found.group, members, found.ratio, usual)
    return JobSlowness(kind, found.job_slowdown, *began, stage=stage)


def _workload(ratios: Ratios, slow: Bools) -> JobSlowness | None:
    n = min(ratios.settled, _WORKLOAD_STEPS[1])
    raw = np.where(slow, np.nan, ratios.raw_role(n))
    if classify(raw).kind != "variable":
        return None
    seconds = np.where(slow, np.nan, ratios.history.last("compute", n))
    step = nan_median(ratios.history.last("step", n), axis=1)
    costs = workload_imbalance(step, seconds, raw)
    if costs is None:
        return None
    every = np.where(slow, np.nan, ratios.raw_role(ratios.settled))
    spread = 1.4826 * nan_median(np.abs(every), axis=1)
    return JobSlowness(
        "workload",
        costs,
        *_since(ratios, spread > VARIABLE_DISPERSION / 2),
        dispersion=ratios.kind.dispersion,
    )


def _wandering(ratios: Ratios, slow: Bools, visited: Sequence[int]) -> JobSlowness | None:
    """Return what the job loses to work that makes one rank after the other slow: in each step what the
    slowest of those ``visited`` takes longer than its peers, on average over the steps held."""
    ranks = [rank for rank in visited if not slow[rank]]
    if not ranks:
        return None
    seconds, x = (ratios.history.last(series, ratios.settled)[:, ranks] for series in ("compute", "x"))
    step = nan_median(ratios.history.last("step", ratios.settled), axis=1)
    lost = nan_max(seconds * -np.expm1(-x), axis=1)
    high = lost >= (MIN_JOB_SLOWDOWN - 1.0) * step
    if not high.any():
        return None
    first = int(np.flatnonzero(high)[0])
    ratio = float(slowdown(np.nansum(step[first:]), np.nansum(lost[first:][high[first:]])))
    end, took = (float(nan_median(ratios.history.last(s, len(high))[first])) for s in ("ts", "step"))
    return JobSlowness("wandering", ratio, end - took, end, visited=len(visited))


def _waiting(ratios: Ratios, wait: Wait, watch: SharedWaitWatch) -> JobSlowness | None:
    found = watch.look(ratios)
    if found is None:
        return None
    onset_lo, onset = _since(ratios, found.high)
    # What is read for a step ahead of it is missed in the next one first.
    return JobSlowness(wait, found.job_slowdown, 2 * onset_lo - onset, onset, wait=found)


def _since(ratios: Ratios, high: Bools) -> tuple[float, float]:
    """Return start and end of the first step of the longest run up to now with nearly all steps ``high``."""
    share = np.cumsum(high[::-1])[::-1] / np.arange(len(high), 0, -1)
    runs = np.flatnonzero(high & (share >= _SHARE_HIGH))
    first = int(runs[0]) if runs.size else len(high) - 1
    if first == 0 and len(high) == ratios.settled:
        return ratios.started, ratios.first_ts
    end, seconds = (float(nan_median(ratios.history.last(s, len(high))[first])) for s in ("ts", "step"))
    return end - seconds, end
