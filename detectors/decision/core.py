"""The decision core of hypotheses: which units explain the ranks' excesses.

Per step and channel (``channels``): what reported work explains is taken out (``work``), the rest is compared
with the role, and a ladder of windows is weighed for every atom of every family against the noise of its
family (``ladder``, ``noise``); what has been so since the start is weighed apart (``since_start``). A
crossing is explained by the fewest units that do (``explain``), which are held slow until they recover
(``watch``). No rank is judged by a gate of its own.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detectors.decision import figures, history, since_start
from detectors.decision.channels import Roles, columns_reported, measured, usual_step
from detectors.decision.families import MACHINES, Layout
from detectors.decision.figures import Log, comparisons, dates, job_ratio, waits_least
from detectors.decision.watch import Held, Watch
from detectors.decision.work import WorkFit, log_amounts
from detectors.peers.ratios import StepTimes
from detectors.peers.shared_work import SharedWork
from detectors.robust import nan_median
from detectors.straggler.core import (
    TIMINGS,
    Explanation,
    HeldSlow,
    Mates,
    SlowGroup,
    SlowRank,
    StepResult,
    Timing,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

LEAST: dict[Timing, float] = {"compute": math.log(1.02), "rest": math.log(1.03), "data": math.log(1.03)}
"""Least effects, in logs: healthy ranks of recorded jobs differ by 1-2 % for a while (the H100 runs of
docs/detection-quality.md)."""

_EVERY: dict[Timing, int] = {"compute": 1, "rest": 4, "data": 2}
"""Steps between two looks at the ladder. Chosen: loading and the rest stall for some steps at a time, and a
look at either costs as much as one at compute."""

_FIRST = 3
"""Steps seen before roles are made: which columns ranks report, and the usual step, are known from them."""

_USUAL = 8
"""Steps that make what is usual for a rank without peers in its role (``since_start`` takes as many)."""

_CERTAIN = 0.9
"""Probability of hardware from which a finding needs no second kind of evidence."""

_SAME_TIME = 20
"""Steps within which a longer rest belongs to a unit found slow in what it reports: others wait for it there
(chosen)."""

_CLOCKS = 0.02
"""Variation of step times over ranks from which they share no clock (``detectors.peers.ratios``)."""


@dataclass(slots=True)
class _Channel:
    """A channel with its roles; ``usual`` [ranks] of small roles, from ``first`` values until it is known."""

    roles: Roles
    watch: Watch
    first: list[Floats]
    usual: Floats | None = None

    def relative(self, values: Floats) -> Floats:
        """Return values relative to the role; NaN where the role is small and nothing is usual yet."""
        if self.usual is None and self.roles.small.any():
            self.first.append(values)
            if len(self.first) == _USUAL:
                early = np.stack(self.first)
                self.usual = nan_median(early - nan_median(early, axis=1)[:, None])
            unknown = np.full_like(values, np.nan)
            return self.roles.relative(values, unknown)
        return self.roles.relative(values, np.zeros_like(values) if self.usual is None else self.usual)


def rank_bytes() -> int:
    """Return the bytes that the steps held of a job take for each of its ranks, at most."""
    return len(TIMINGS) * (history.rank_bytes() + since_start.rank_bytes()) + figures.rank_bytes()


class HypothesisCore:
    """A decision core (``detectors.straggler.core``) for the ranks of ``layout``.

    ``tensor_groups`` [ranks] number the tensor-parallel groups (-1: none). ``held_units`` are the units slow
    now, with all hypotheses about each.
    """

    def __init__(self, layout: Layout, *, tensor_groups: Ints | None = None) -> None:
        self._layout = layout
        self._tensor_groups = tensor_groups
        self._first: list[StepTimes] = []
        self._channels: dict[Timing, _Channel] = {}
        self._usual_step = 1.0
        self._work = WorkFit()
        nodes = np.arange(layout.ranks) if layout.nodes is None else layout.nodes
        self._shared_work = SharedWork.from_coords(layout.coords, nodes)
        self._log = Log(layout.ranks)
        self._resumed: list[HeldSlow] = []
        self._reported: list[tuple[Timing, Held]] = []

    @property
    def held_units(self) -> tuple[tuple[Timing, Held], ...]:
        """The units slow now, by channel, whether or not they are laid to hardware."""
        return tuple((t, h) for t, channel in self._channels.items() for h in channel.watch.held)

    @property
    def asynchronous(self) -> bool:
        """Whether the ranks share no wall clock."""
        steps = self._log.last("step", _USUAL)
        middle = nan_median(steps, axis=1)[:, None]
        return bool(len(steps) and nan_median(np.abs(steps / middle - 1.0).ravel()) > _CLOCKS)

    @property
    def nbytes(self) -> int:
        """Bytes of the steps held."""
        return self._log.nbytes + sum(c.watch.history.nbytes for c in self._channels.values())

    @property
    def pace_spread(self) -> float:
        """Robust sd of lasting log ratios among the ranks, on the safe side."""
        paces = self.paces(np.arange(self._layout.ranks), least=1)
        known = paces[np.isfinite(paces)]
        if not known.size:
            return 0.0
        spread = 1.4826 * float(np.median(np.abs(known - np.median(known))))
        return spread * (1.0 + 2.0 / math.sqrt(self._layout.ranks))

    def update(self, times: StepTimes) -> StepResult:
        """Take the next step; return what is new."""
        if len(self._first) < _FIRST:
            self._first.append(times)
            if len(self._first) < _FIRST:
                return StepResult()
            self._begin()
            results = [self._step(first) for first in self._first]
            return results[-1]
        return self._step(times)

    def describe(self, timing: Timing, rank: int) -> SlowRank | None:
        """Return a slow rank with the figures of this step."""
        held = self._held(timing, rank)
        return None if held is None else self._slow_rank(timing, held, rank)

    def explain(self, slow: SlowRank) -> Explanation:
        """Return what a slow rank of this step rests on."""
        held, role = self._held(slow.timing, slow.rank), self._role(slow.timing, slow.rank)
        group, mates = self._mates(slow)
        work_possible = slow.timing == "compute" and self._shared_work.may_explain(
            slow.rank, self._channels["compute"].watch.slow, batch_known=self._work.known
        )
        return Explanation(
            comparisons=comparisons(self._log, slow, role),
            offline=None,
            role=role if self._layout.coords else None,
            believed=slow.alone,
            work="fixed",
            work_known=self._work.known,
            work_possible=work_possible,
            since_start=held is not None and held.start,
            ruled_out=() if held is None else self._ruled_out(held, work_possible=work_possible),
            tensor_group=group,
            mates=mates,
        )

    def is_alone(self, timing: Timing, rank: int) -> bool:
        """Whether the evidence against a slow rank suffices without a second kind."""
        held = self._held(timing, rank)
        return held is not None and held.explained.machine >= _CERTAIN

    def is_intermittent(self, rank: int) -> bool:
        """Whether a rank was slow for a moment lately: each time is an occurrence of its own here."""
        return False

    def paces(self, ranks: Ints, *, least: int) -> Floats:
        """Return the usual log ratio of some ranks to their role, [len(ranks)]; NaN where unknown."""
        channel = self._channels.get("compute")
        if channel is None or channel.watch.history.steps < least:
            return np.full(len(ranks), np.nan)
        paces = channel.watch.pace()
        return np.where(channel.roles.small[ranks], np.nan, paces[ranks])

    def is_part(self, timing: Timing, rank: int) -> bool:
        """Whether a slow rank is a part of a group's finding: here each has a finding of its own."""
        return False

    def slow_groups(self) -> tuple[tuple[str, Ints], ...]:
        """Return the groups that are slow as one: none here."""
        return ()

    def describe_group(self, family: str, members: Ints) -> SlowGroup | None:
        """Return a group that is slow as one: none here."""
        return None

    def held(self) -> list[HeldSlow]:
        """Return the ranks that are slow now."""
        return [
            HeldSlow(timing, int(rank), float(effect))
            for timing, held in self._reported
            for rank, effect in zip(held.ranks, held.effects, strict=True)
        ]

    def resume(self, held: Iterable[HeldSlow]) -> None:
        """Take ranks as slow that were found so before the core was made, until they recover."""
        self._resumed += held

    def _begin(self) -> None:
        """Make roles and channels from the first steps."""
        self._usual_step = usual_step(np.stack([t.step for t in self._first]))
        reported = np.max([columns_reported(t) for t in self._first], axis=0)
        models = self._layout.models if self._layout.models is not None else np.zeros_like(reported)
        rows = np.stack([self._layout.stage(), models, reported], axis=1)
        labels: Ints = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
        for timing in TIMINGS:
            values = np.stack([measured(t, self._usual_step)[timing] for t in self._first])
            present = np.isfinite(values).any(axis=0) & (reported >= 0)
            if present.sum() >= 2:
                roles = Roles(labels, present)
                # The part of the step that one rank alone spends from the start, for saving and logging, is
                # no fault.
                watch = Watch(
                    self._layout,
                    present,
                    roles,
                    least=LEAST[timing],
                    every=_EVERY[timing],
                    start=timing != "rest",
                )
                self._channels[timing] = _Channel(roles, watch, [])
        for slow in self._resumed:
            channel = self._channels.get(slow.timing)
            if channel is not None:
                held = channel.watch.resume(slow.rank, max(slow.size, LEAST["rest"]))
                self._reported.append((slow.timing, held))

    def _step(self, times: StepTimes) -> StepResult:
        self._log.push_times(times)
        values = measured(times, self._usual_step)
        pace = math.log(max(float(nan_median(times.step)), 1e-9)) if np.isfinite(times.step).any() else 0.0
        slow: list[SlowRank] = []
        recovered: list[tuple[Timing, int]] = []
        for timing, channel in self._channels.items():
            row = values[timing]
            own = self._beyond_work(channel, row, times) if timing == "compute" else row
            changes = channel.watch.update(channel.relative(own), own, pace=pace)
            for held in changes.recovered:
                recovered += self._let_go(timing, held)
            for held in changes.found:
                slow += self._report(timing, held)
        return StepResult(slow=tuple(slow), recovered=tuple(recovered))

    def _beyond_work(self, channel: _Channel, row: Floats, times: StepTimes) -> Floats:
        """Return log times less what the reported work explains."""
        amounts = log_amounts(times.tokens, times.squares)
        if not np.isfinite(amounts).any():
            return row
        relative = channel.roles.relative(np.vstack([row, amounts]), np.zeros_like(row))
        aside = channel.watch.slow
        self._work.update(np.where(aside, np.nan, relative[0]), relative[1:])
        less: Floats = row - self._work.explained(amounts - nan_median(amounts, axis=1)[:, None])
        return less

    def _report(self, timing: Timing, held: Held) -> list[SlowRank]:
        if held.explained.unit not in MACHINES or (timing == "rest" and self._waits(held)):
            return []
        self._reported = [r for r in self._reported if r[1] is not held]
        self._reported.append((timing, held))
        return [self._slow_rank(timing, held, int(rank)) for rank in held.ranks]

    def _waits(self, held: Held) -> bool:
        """Return whether a longer rest may be waiting: somebody else became slow in what ranks report, or the
        unit waits no less than others."""
        for timing, channel in self._channels.items():
            others = channel.watch.held if timing != "rest" else ()
            if any(abs(other.since - held.since) <= _SAME_TIME for other in others):
                return True
        seen = self._channels["rest"].watch.history.seen
        return any(waits_least(self._log, int(r), max(2, seen - held.since)) is False for r in held.ranks)

    def _let_go(self, timing: Timing, held: Held) -> list[tuple[Timing, int]]:
        ours = [r for r in self._reported if r[0] == timing and np.array_equal(r[1].ranks, held.ranks)]
        self._reported = [r for r in self._reported if not any(r is o for o in ours)]
        return [(timing, int(rank)) for _, unit in ours for rank in unit.ranks]

    def _held(self, timing: Timing, rank: int) -> Held | None:
        return next((h for t, h in self._reported if t == timing and rank in h.ranks), None)

    def _slow_rank(self, timing: Timing, held: Held, rank: int) -> SlowRank:
        channel = self._channels[timing]
        steps = min(max(1, channel.watch.history.seen - held.since), self._log.steps)
        at, lo, hi = dates(self._log, rank, steps, start=held.start)
        others = ~channel.watch.slow
        return SlowRank(
            rank=rank,
            timing=timing,
            lasting=held.start,
            onset=at,
            onset_lo=lo,
            onset_hi=hi,
            steps=steps,
            score=1.0 + max(0.0, held.evidence) / 15.5,
            alone=held.explained.machine >= _CERTAIN,
            ratio=math.exp(float(held.effects[np.flatnonzero(held.ranks == rank)[0]])),
            job_ratio=job_ratio(self._log, timing, rank, steps, others),
            peers=len(self._role(timing, rank)) - 1,
            waits_least=waits_least(self._log, rank, steps),
        )

    def _role(self, timing: Timing, rank: int) -> Ints:
        roles = self._channels[timing].roles
        number = int(roles.of[rank])
        if number >= 0:
            return roles.groups[number]
        alone: Ints = np.array([rank])
        return next((group for group in roles.small_groups if rank in group), alone)

    def _ruled_out(self, held: Held, *, work_possible: bool) -> tuple[str, ...]:
        names = {"stage": "imbalance.stage", "expert": "imbalance.workload", "ring": "network"}
        names_out = {names.get(unit, unit) for unit in held.explained.ruled_out}
        return tuple(sorted(names_out - ({"imbalance.workload"} if work_possible else set())))

    def _mates(self, slow: SlowRank) -> tuple[int, Mates]:
        groups = self._tensor_groups
        if groups is None or slow.timing != "compute" or groups[slow.rank] < 0:
            return 0, ""
        group = np.flatnonzero(groups == groups[slow.rank])
        held = self._channels["compute"].watch.slow[group]
        return len(group), "as_slow" if held.all() else ""
