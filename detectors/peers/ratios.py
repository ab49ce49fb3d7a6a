"""Turns step times into ratios to the right peers (``comparison``), and learns who those are.

With v = ln(seconds) [ranks] of a step, less the log of the seconds expected for its work where that is
fitted:

* ``role``, the ratio to the ranks of the same role: v_r - median of v_q over the others of its role;
* ``x``, in which changes are sought: the same where the role has four members and more, otherwise
  u_r - median of u_q over all others of the job, where u = v - (the rank's usual v) compares every rank with
  its own past first;
* ``data_x`` and ``rest_x``: (t_r - median of the others) / median compute, shares of the work, because hidden
  loading takes next to no time and has no useful logarithm. ``rest`` is what a rank does beside what it
  reports, within its step and since the end of the one before.

Unequal work is taken out where it is known and explains a good part of the differences (their spread falls
to 0.7 of what it was): a + b * tokens + c * squared lengths [s] (``workload``, Huber 1964), or what the rest
of the rank's replica deviates by in the step, since all its ranks work on the same batch (``replicas``), if
that changes from step to step, and until all of a replica is slow. Ranks of machines under suspicion serve as
no reference (leave-machine-out).

Learnt after 20 settled steps: whether ranks share a wall clock, from the coefficient of variation of step
times over ranks, and roles, where no coordinates are given, from gaps between the ranks' usual times, or from
the place of each in its replica where amounts of work show who has one batch (``batches``). With coordinates
or batches, parts of a sequence that are more work (``shards``), and classes of machines within roles, too: of
another model, or under a power limit (``machine_classes``). Then and later: positions, whose ranks take
longer at the same steps, as those of a popular expert do (``positions``).

Arrays are [ranks] per step, [steps, ranks] over the window; NaN was not read.
"""

import math

import numpy as np
import numpy.typing as npt

from detectors.peers.batches import Batches
from detectors.peers.clock import is_asynchronous, resolution
from detectors.peers.comparison import Comparison
from detectors.peers.history import History, rows_at_most
from detectors.peers.job_kind import JobKind, classify
from detectors.peers.node_effects import majorities, slowed_majority, suspected
from detectors.peers.peers import MIN_PEERS, PeerGroups, peer_median
from detectors.peers.places.attempt_before import STEPS, AttemptBefore
from detectors.peers.places.machine_classes import SmallClasses, class_from_start
from detectors.peers.places.machine_shifts import MachineShifts
from detectors.peers.places.positions import Positions
from detectors.peers.places.roles import roles_by_place, roles_from_times
from detectors.peers.replicas import Replicas
from detectors.peers.shards import Shards
from detectors.peers.step_times import (
    Source,
    StepTimes,
    busy_between,
    compared,
    logs,
    rest_of,
    seconds_of,
    since_last,
)
from detectors.peers.workload import WorkModel, explains, explains_changes, explains_uneven, fit_work
from detectors.robust import nan_max, nan_median
from detectors.straggler.config import StragglerConfig

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

# Steps seen after which it is looked for who works on one batch. Chosen: as soon as a rank at twice its
# peers' time may be named (``since_start``), and again where rows are missing.
_BATCHES_AT = (3, 5, 10, 20)

# Steps that make a rank's usual time, and steps between two fits of the work. Chosen: a median of ten is
# known to 0.2 % at a noise of 0.5 %; a fit over 200 steps is costly.
_LEVEL_STEPS = 10
_WORK_REFIT = 50

# Steps after which positions are sought, and from one look to the next later on. Chosen: an expert lasts some
# tens of steps, and a look takes as long as ten steps of a large job.
_POSITIONS_SOON, _POSITIONS_AGAIN = (20, 40, 80, 160), 320

# Steps whose median is a rank's usual ratio. Chosen: known to a fifth of the noise of a step.
_SPREAD_STEPS = 50

# Steps, spread over all held, in which replicas are tried. Chosen: they show a spread at a fifth of the cost.
_TRIAL_STEPS = 50

# Steps that must show another part of a step before that is compared. Chosen: some come without their parts,
# as those that save.
_OTHERWISE = 10

SERIES = (
    "v", "x", "role", "data_x", "rest_x", "ts", "step", "compute", "wait", "data", "comm", "rest", "tokens",
    "squares",
)  # fmt: skip

# All but the time of day, of which single precision would leave minutes.
_SINGLE = frozenset(SERIES) - {"ts"}


def window_bytes(config: StragglerConfig) -> int:
    """Return the bytes that the steps held of a job take for each of its ranks, once there are as many as are
    ever held.
    """
    return rows_at_most(config.history) * (8 * (len(SERIES) - len(_SINGLE)) + 4 * len(_SINGLE))


class Ratios:
    """The last steps of a job as comparable numbers; ``roles`` [ranks] or None when coordinates are unknown.

    ``replicas`` holds which ranks work on the same batch, in other stages or shards of the model, on several
    machines, ``shards`` which have the same part of a layer, ``nodes`` [ranks] which share a machine,
    ``positions`` which may take longer together. ``batches`` tell who works on one batch, where there are no
    coordinates and amounts of work show it. ``before`` is what the attempt before the last restart showed of
    ranks, where their layout is the same. ``comparison`` is who each rank is compared with by now.
    ``most_of_job`` has the ranks of the machine with more than half of all, where there is one, and the
    others. ``between`` [ranks] is the time of each between the last two steps, of which neither tells; NaN
    where it is not known. ``settled`` counts the steps since warm-up; the first step seen was ``started``
    and ended at ``first_ts``.
    ``source`` is what is compared; with step times alone, the ranks are ``asynchronous`` when these differ,
    and have a ``common_clock`` when they do not: then ranks cannot be compared. ``cost`` is the last fit of
    time against reported work, ``work`` the one that is taken out, where it explains a good part;
    ``resolution`` the least difference between times, as a share of the usual one: that of a coarse clock.
    """

    def __init__(
        self,
        ranks: int,
        roles: Ints | None,
        config: StragglerConfig,
        replicas: Replicas | None = None,
        shards: Shards | None = None,
        nodes: Ints | None = None,
        positions: Positions | None = None,
    ) -> None:
        self.config = config
        self.ranks = ranks
        self.nodes = PeerGroups.of(np.arange(ranks) if nodes is None else nodes)
        self.comparison = Comparison(self.nodes, roles, replicas)
        self.roles_known = roles is not None
        self.most_of_job = majorities(self.nodes, self.comparison.everyone)
        self.history = History(config.history, ranks, SERIES, single=_SINGLE)
        self.kind = JobKind("between", float("nan"), float("nan"))
        self.source: Source | None = None
        self._otherwise = 0
        self.asynchronous = self.common_clock = False
        self.work: WorkModel | None = None
        self.cost: WorkModel | None = None
        self.resolution = 0.0
        self.shards = shards
        if positions is None:
            none = Positions((), self.nodes.index)
            positions = none if self.roles_known else Positions.from_numbers(np.arange(ranks), none.node)
        self.positions = positions
        self.batches: Batches | None = None
        self.before: AttemptBefore | None = None
        self.machine_shifts = MachineShifts(self.nodes)
        self._by_times: Ints | None = None
        self._has_positions = False
        self.settled = 0
        self.first_number: int | None = None
        self.started = self.first_ts = float("nan")
        self._ended: tuple[int, Floats] | None = None
        self.between: Floats = np.full(ranks, np.nan)
        self._level: Floats | None = None

    def learnt(self) -> AttemptBefore | None:
        """Return what the steps show of ranks, for the next attempt; None where roles are not known by times
        alone, or from too few steps."""
        if self._by_times is None or self.asynchronous or self.source != "compute" or self.settled < STEPS:
            return None
        role = nan_median(self.history.last("role", STEPS))
        return AttemptBefore(self._by_times, nan_median(logs(self.history.last("compute", STEPS))), role)

    def slowed_since_restart(self, slow: Bools, *, size: float) -> bool:
        """Return whether ``slow`` [ranks] are those of one node that was level with its role before the job
        was restarted with the same work: it is no stage."""
        before = self._same_before()
        return before is not None and before.slowed_since(slow, self.nodes, size=size)

    def _same_before(self) -> AttemptBefore | None:
        levels = nan_median(logs(self.history.last("compute", min(self.history.count, self.config.learn))))
        return self.before if self.before is not None and self.before.is_same_work(levels) else None

    def observe(self, t: StepTimes) -> bool:
        """Take the next step; return whether what is compared has changed and all learning starts over."""
        if self.first_number is None:
            self.first_number, self.first_ts = t.number, float(np.nanmin(t.ts))
            self.started = float(np.nanmin(t.ts - np.nan_to_num(t.step)))
        source, seconds = compared(t)
        self._otherwise = 0 if source == self.source else self._otherwise + 1
        if self.source is not None and self.settled and 0 < self._otherwise < _OTHERWISE:
            source, seconds = self.source, seconds_of(self.source, t)
        changed = self.source not in (None, source)
        if changed:
            self.settled, self._level, self.work, self._by_times = 0, None, None, None
            self._has_positions = self.common_clock = False
            self.comparison.reset()
        self.source = source
        self._push(t, seconds)
        if self.history.count in _BATCHES_AT and self.batches is None and not self.roles_known:
            amounts = (self.history.last(name, self.history.count) for name in ("tokens", "squares"))
            self.batches = Batches.from_amounts(self.nodes.index, *amounts)
            if self.batches is not None:
                self.comparison.replicas = Replicas.of(self.batches.replica, self.batches.node)
        if self.settled or self._has_settled(t.number):
            self.settled += 1
        return changed

    def learn(self) -> bool:
        """Learn from the steps so far: levels, job kind, work, asynchrony, roles, positions. Called at times;
        return whether ranks are compared with others from now on."""
        if self._level is None and self.settled >= _LEVEL_STEPS:
            self._level = nan_median(self.history.last("v", _LEVEL_STEPS))
        if self.settled <= self.config.learn or self.settled % _WORK_REFIT == 0:
            self.resolution = resolution(self.history.last("compute", self.config.learn)) or self.resolution
        if self.settled == self.config.learn:
            self._learn_clock()
        if self.settled == self.config.learn or self.settled % _WORK_REFIT == 0:
            self._learn_work()
            self._learn_replicas()
        if self.settled == self.config.learn and not self.comparison.roles_settled:
            self._learn_roles()
        if self.settled == self.config.learn and not self.asynchronous:
            self._learn_cut()
            self._learn_classes()
        look = self.settled in _POSITIONS_SOON or self.settled % _POSITIONS_AGAIN == 0
        regrouped = look and self.settled >= self.config.learn and self._learn_positions()
        self.kind = classify(self._last_ratios())
        return regrouped

    def leave_out(self, suspects: Bools) -> Floats | None:
        """Compare with no rank on the machines that the ``suspects`` [ranks] make suspect, in the steps held
        too; where no machine is suspected, with all again. Return by how much the usual ratio of each rank is
        another one against these peers, [ranks]; None where they are the same.

        Leave-machine-out: a median over a group of which a third is slow lies among the slower of its healthy
        members, and with half of it slow nowhere in particular.
        """
        left_out = suspected(suspects, self.nodes, self.comparison.groups, self.comparison.most_of_roles)
        if (left_out == self.comparison.left_out).all():
            return None
        self.comparison.left_out = left_out
        held = min(self.settled, self.config.history)
        v, before = self.history.last("v", held), self.history.last("x", held)
        self._rewrite(v, self.comparison.role_ratio(v))
        return np.nan_to_num(nan_median(self.history.last("x", held) - before))

    def with_batch(self, steps: int) -> Floats:
        """Return log ratios to role peers in which the batches of replicas still are, [<= steps, ranks]."""
        return self.comparison.with_batch(self.history.last("v", steps))

    def keep_apart(self, slow: Bools) -> bool:
        """Take no batch out of the ratios of replicas that are ``slow`` [ranks] nearly as a whole, in the
        steps held too: what all of their ranks show is no batch. Return whether these are others now."""
        apart = self.comparison.apart
        if self.comparison.replicas is not None and self.comparison.shares_batches:
            apart = self.comparison.replicas.whole(slow)
        if (apart == self.comparison.apart).all():
            return False
        self.comparison.apart = apart
        v = self.history.last("v", min(self.settled, self.config.history))
        self._rewrite(v, self.comparison.role_ratio(v))
        return True

    def slowed_majority(self) -> Bools:
        """Return the ranks of machines with most of a role that slowed by themselves, [ranks]."""
        if self.asynchronous or not (of := self.comparison.most_of_roles):
            return np.zeros(self.ranks, dtype=np.bool_)
        v = self.history.last("v", min(self.settled, self.config.history))
        return slowed_majority(v, of)

    def lasting_spread(self) -> float:
        """Return how much ranks differ from their peers for good: robust sd of their usual log ratios.

        Ranks of one role on hardware shared with others differ by 4 to 9 %, on their own by under 1 %.
        """
        return self.history.once("lasting spread", self._lasting_spread)

    def _lasting_spread(self) -> float:
        usual = nan_median(self._last_ratios())
        return 1.4826 * float(nan_median(np.abs(usual))) if np.isfinite(usual).any() else 0.0

    def spread_without(self, ranks: Bools) -> float:
        """Return how much ranks differ from their peers for good beside some ``ranks`` [ranks], by twice the
        standard error of that on the safe side.

        Where a third of a role is slow, the median of a step is that of its slowest healthy ranks, and all of
        these seem to be quicker by the noise of a step: their usual ratios are compared once more.
        """
        role = self.history.last("role", min(self.settled, _SPREAD_STEPS))
        usual = np.where(ranks | self.comparison.left_out, np.nan, nan_median(role))
        usual = np.abs(usual - peer_median(usual, self.comparison.groups))
        others = np.count_nonzero(np.isfinite(usual))
        return 1.4826 * float(nan_median(usual)) * (1.0 + 2.0 / np.sqrt(others)) if others else math.inf

    def _last_ratios(self) -> Floats:
        """Return log ratios to role peers of those that are compared with, [steps, ranks].

        Where no rank has a peer in its role, those to all ranks' usual times stand for them.
        """
        series = "role" if self.comparison.groups.peers.any() else "x"
        ratios = self.history.last(series, min(self.settled, _SPREAD_STEPS))
        return ratios[:, ~self.comparison.left_out] if self.comparison.left_out.any() else ratios

    def raw_role(self, steps: int) -> Floats:
        """Return log ratios to role peers as measured, with no work taken out, [steps, ranks]."""
        if self.work is None:
            with_batch = self.comparison.shares_batches
            return self.with_batch(steps) if with_batch else self.history.last("role", steps)
        return self.comparison.with_batch(logs(self.history.last("compute", steps)))

    def _push(self, t: StepTimes, seconds: Floats) -> None:
        v = logs(seconds)
        squares = np.full(self.ranks, np.nan) if t.squares is None else t.squares
        if self.work is not None:
            v = v - self.work.log_expected(t.tokens, squares)
        role = self.comparison.role_ratio(v)
        self.between = since_last(self._ended, t)
        rest = rest_of(t) + busy_between(self.between, t)
        self._ended = (t.number, t.ts) if t.numbered else None
        groups, everyone = self.comparison.groups, self.comparison.everyone
        self.history.push(
            v=v,
            x=self.comparison.change_ratio(v, role, self._level),
            role=role,
            data_x=self._loading_excess(t.data, seconds),
            rest_x=_excess(rest, seconds, everyone if groups.narrowest <= MIN_PEERS else groups),
            rest=rest,
            # Ranks that were not read get a time too: onsets are dated by the column of the rank.
            ts=np.where(np.isfinite(t.ts), t.ts, nan_max(t.ts)),
            step=t.step,
            compute=seconds,
            wait=t.wait,
            data=t.data,
            comm=t.comm,
            tokens=t.tokens,
            squares=squares,
        )

    def _loading_excess(self, loading: Floats, seconds: Floats) -> Floats:
        """Return ``_excess`` of loading over all others.

        Ranks of a machine with most of the job are compared with those on others, for the median of all is
        theirs.
        """
        excess = _excess(loading, seconds, self.comparison.everyone)
        for mine, others in self.most_of_job:
            excess[mine] = (loading[mine] - nan_median(loading[others])) / nan_median(seconds)
        return excess

    def _has_settled(self, number: int) -> bool:
        """Whether warm-up is over: late enough in the job, and the job's level has stopped moving."""
        first, warmup = self.first_number or 0, self.config.warmup_steps
        if first < warmup and number < warmup:
            return False
        recent = self.history.last("v", 4)
        if len(recent) < 3:
            return False
        # Some jobs never come to rest: after twice the warm-up they are judged as they are.
        return bool(np.ptp(nan_median(recent, axis=1)) < 0.15 or self.history.count >= 2 * warmup)

    def _learn_clock(self) -> None:
        """Distinguish ranks that wait for each other from ranks whose step times differ as work does."""
        step, compute = (self.history.last(name, self.config.learn) for name in ("step", "compute"))
        self.asynchronous = is_asynchronous(step, None if self.source == "step" else compute)
        if self.source == "step":
            self.common_clock = not self.asynchronous

    def _learn_work(self) -> None:
        """Fit time against the reported work; keep the fit where it explains a good part of the ranks'
        differences."""
        last = self.history.last
        model = fit_work(last("compute", 200), last("tokens", 200), last("squares", 200))
        self.cost = model or self.cost
        if model is None:
            return
        n = min(self.settled, self.config.history)
        expected = model.log_expected(last("tokens", n), last("squares", n))
        v = logs(last("compute", n)) - expected
        role, raw = self.comparison.role_ratio(v), self.raw_role(n)
        over_peers = expected - self.comparison.reference(expected, self.comparison.groups)
        if not (explains(role, raw) or explains_uneven(over_peers, role, raw)):
            return
        if self.work is None:
            # Usual times so far were as measured; from now on times are over the expected ones.
            self._level = nan_median(v[:_LEVEL_STEPS])
            if (small := self.comparison.small_classes) is not None:
                over_roles = v - self.comparison.reference(v, small.roles)
                self._learn_small_classes(over_roles, small.one_class, small.roles)
                role = self.comparison.role_ratio(v)
        self.work = model
        self._rewrite(v, role)

    def _learn_replicas(self) -> None:
        """Compare within the replica from when that explains a good part of the ranks' differences."""
        if self.comparison.replicas is None or self.comparison.shares_batches or self.asynchronous:
            return
        # Where the work is the same, what a replica shares is its machines, and one of them may be slow.
        if classify(self.history.last("role", self.config.learn)).kind == "fixed":
            return
        held = min(self.settled, self.config.history)
        v, some = self.history.last("v", held), slice(None, None, max(held // _TRIAL_STEPS, 1))
        before = self.history.last("role", held)[some]
        # For the trial: `role_ratio` goes by it.
        self.comparison.shares_batches = True
        # Batches change, some after many steps; what stays with a replica are slower machines.
        if not explains_changes(self.comparison.role_ratio(v[some]), before):
            self.comparison.shares_batches = False
        else:
            self._rewrite(v, self.comparison.role_ratio(v))

    def _learn_roles(self) -> None:
        """Without coordinates: ranks whose usual times form classes laid out like a dimension are roles."""
        self.comparison.roles_settled = True
        v = self.history.last("v", self.config.learn)
        if not self.asynchronous:
            roles = None if self.batches is None else roles_by_place(v, self.batches)
            if roles is None:
                found = roles_from_times(v, self.nodes, self.batches, floor=self.config.floor)
                roles = self.positions.regular(found)
                if (before := self._same_before()) is not None:
                    roles = before.unless_one_node(roles, self.nodes)
                self._by_times = roles
            self.comparison.groups = PeerGroups.of(roles)
        self._rewrite(v, self.comparison.role_ratio(v))

    def _learn_positions(self) -> bool:
        """Ranks of one position that take longer at the same steps are a role, if need be a small one."""
        if self._has_positions or self.asynchronous or self.comparison.left_out.any():
            return False
        steps = min(self.settled, self.config.history)
        finer = self.positions.refine(self.history.last("role", steps), self.comparison.groups)
        if finer is None or (self.batches is not None and self.batches.are_within(finer)):
            return False
        self.comparison.groups, self._has_positions, self.comparison.small_classes = finer, True, None
        v = self.history.last("v", steps)
        self._rewrite(v, self.comparison.role_ratio(v))
        return True

    def _learn_cut(self) -> None:
        """Parts of a sequence that are more work from the start are roles of their own."""
        if self.shards is None:
            return
        usual = nan_median(self.history.last("role", self.config.learn))
        cut = self.shards.uneven(usual, self.comparison.groups)
        if cut is not None:
            self.comparison.divide(cut)
            v = self.history.last("v", min(self.settled, self.config.history))
            self._rewrite(v, self.comparison.role_ratio(v))

    def _learn_classes(self) -> None:
        """Machines that are as much slower, or quicker, from the start are roles of their own."""
        role, groups = self.history.last("role", self.config.learn), self.comparison.groups
        one_class = class_from_start(nan_median(role), self.nodes, groups, self.comparison.replicas)
        split = PeerGroups.of(2 * groups.index + one_class)
        if one_class.any() and split.narrowest > MIN_PEERS:
            self._learn_small_classes(role, one_class, groups)
            self.comparison.groups = split
            v = self.history.last("v", min(self.settled, self.config.history))
            self._rewrite(v, self.comparison.role_ratio(v))

    def _learn_small_classes(self, role: Floats, one_class: Bools, roles: PeerGroups) -> None:
        """Learn what is usual of classes from log ratios to whole roles, ``role`` [steps, ranks]."""
        usual = nan_median(role)
        self.comparison.small_classes = SmallClasses.of(usual, self.nodes, one_class=one_class, roles=roles)

    def _rewrite(self, v: Floats, role: Floats) -> None:
        self.history.overwrite(v=v, role=role, x=self.comparison.change_ratio(v, role, self._level))


def _excess(values: Floats, seconds: Floats, groups: PeerGroups) -> Floats:
    """Return how much more each rank takes than its peers, as a share of the work.

    No log ratio: well hidden loading takes next to no time on any rank.
    """
    if not np.isfinite(values).any():
        return values.copy()
    excess: Floats = (values - peer_median(values, groups)) / nan_median(seconds)
    return excess
