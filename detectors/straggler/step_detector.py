"""Slow ranks of one job, distinguished from slow stages, uneven work and job-wide change.

Arrays per step in, explanations out. Per step, with t_r the compute seconds of rank r and G(r) the ranks that
do the same work:

1. Ratios x_r = ln t_r - median of ln t_q over q in G(r) without r (``detectors.peers.ratios``). Loading and
   the rest of a step are compared as shares of the work instead, (t_r - median) / median compute.
2. Baseline mu_r and noise sigma_r of x_r over the last 100 steps, learnt anew every 20 (``fit_noise``); the
   noise of a step is at least the spread of all ranks in it: where all scatter, it is evidence against
   none.
   Before that is known, ranks far slower than their peers since the first step are found (``since_start``).
3. Evidence: log-likelihood CUSUMs of x_r - mu_r (change) and, in compute, of x_r itself (lasting: slow
   since the first step seen), over the threshold h = ln(ranks * effects / p), p = 1e-6 a step
   (``llr_cusum``).
4. Each rank newly over h is dated and measured (``candidate``, ``onset_time``) and no other
   explanation may hold: none of the moment (``alternatives``), and no work that moves between ranks
   (``moving_slowness``).
   Where work varies, whole machines are tested beside their ranks, and where batches are uneven, whole
   replicas (``slow_sets``). Where most of its machine is as slow as a rank, or all of its tensor-parallel
   group, they are found with it (``mates``).
5. What is confirmed is slow until 20 steps without any evidence; with p = 1e-8 it needs no second kind of
   evidence.

Compute is examined first: a rank that computes slowly is left out of its peers' references from then on, in
the steps held as well. The test is Page's (1954, see ``llr_cusum``); its composition with peers, baselines
and alternatives is ours, measured on recorded and simulated jobs (docs/detection-quality.md).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from detectors.job.job_wide import JobWideWatch
from detectors.job.waits.flapping import FlappingTransfers
from detectors.job.waits.slow_network import NetworkWatch
from detectors.job.waits.slow_rings import RingsWatch
from detectors.job.waits.stalls import Stalls
from detectors.peers.intermittence import AGAIN
from detectors.peers.node_effects import alike
from detectors.peers.places.attempt_before import AttemptBefore
from detectors.peers.places.place_mates import PlaceMates
from detectors.peers.places.positions import Positions
from detectors.peers.ratios import Ratios
from detectors.peers.replicas import Replicas
from detectors.peers.rotating_slowness import ROUND
from detectors.peers.shards import Shards
from detectors.peers.shared_work import SharedWork
from detectors.peers.step_times import StepTimes
from detectors.robust import nan_median
from detectors.straggler.alternatives.confirmation import is_confirmed
from detectors.straggler.batch_mates import BatchMates
from detectors.straggler.candidate import Candidate, beyond, candidate, candidates, deviations, noise_of
from detectors.straggler.config import StragglerConfig
from detectors.straggler.core import (
    TIMINGS,
    Explanation,
    HeldSlow,
    SlowGroup,
    SlowRank,
    StepResult,
    Timing,
)
from detectors.straggler.evidence.timing_channel import TimingChannel
from detectors.straggler.evidence.weighing import Evidence
from detectors.straggler.explanation import explain
from detectors.straggler.loading_together import Began, LoadingTogether, as_slow_elsewhere
from detectors.straggler.mates import TensorGroup, likely_group, slow_with, stands_out, together
from detectors.straggler.moving_slowness import ON_AND_OFF, MovingSlowness
from detectors.straggler.since_start import STEPS, slow_since_start
from detectors.straggler.slow_groups import GroupFamilies, RankGroup, SlowGroups, likelihood
from detectors.straggler.slow_rank_figures import (
    intermittent_rank,
    job_pace_before,
    matters,
    may_pass,
    slow_rank,
    stalling_rank,
)
from detectors.straggler.slow_sets import WholeSets

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

# Steps settled at which roles and baselines are learnt anew. Chosen: often while there is little to go by,
# later seldom, for a fit over 100 steps is costly.
_SOON = (3, 10, 20, 30)
_EVERY = 20

# Chosen, of what a rank was slow by when it was found: from here on it still is (``alternatives``).
_STILL = 0.5

# Chosen: from here on what slows compute is what slows loading too.
_MUCH_MORE = 2.0

# Ranks that are examined in one step. Chosen: of 8,192 ranks each takes some 10 ms, and what slows more than
# eight machines at once is found by those that share it.
_EXAMINED = 64


class StragglerDetector:
    """The decision core (``detectors.straggler.core``) of sequential evidence and other explanations.

    ``roles`` [ranks] number who does the same work, ``replicas`` who works on the same batch, ``shards`` who
    has the same part of a layer, ``nodes`` [ranks] who shares a machine, or likely does (``likely_nodes``),
    ``tensor_groups`` [ranks] the tensor-parallel group (-1: none), ``batch_groups`` [ranks] who is compared
    with whom beside that, where batches vary (``batch_mates``), ``shared_work`` who gets more work
    together, ``families`` the parallel groups over several machines, ``positions`` who may take longer at the
    same steps; None: unknown.

    Per step and timing: ratios to the right peers (``Ratios``), log-likelihood CUSUMs of them
    (``TimingChannel``), other explanations of each rank newly over its threshold (``alternatives``). Compute
    is examined first: a rank that computes slowly is left out of its peers' references from then on.
    """

    def __init__(
        self,
        ranks: int,
        roles: Ints | None,
        config: StragglerConfig | None = None,
        *,
        replicas: Replicas | None = None,
        shards: Shards | None = None,
        nodes: Ints | None = None,
        likely_nodes: bool = False,
        tensor_groups: Ints | None = None,
        batch_groups: Ints | None = None,
        shared_work: SharedWork | None = None,
        families: GroupFamilies | None = None,
        positions: Positions | None = None,
    ) -> None:
        self.ratios = Ratios(ranks, roles, config or StragglerConfig(), replicas, shards, nodes, positions)
        self._evidence = Evidence(self.ratios)
        self._tensor_groups = tensor_groups
        self._together = together(self.ratios.nodes, tensor_groups)
        if shared_work is None:
            shared_work = _unknown_work(self.ratios.nodes.index, alike=roles is not None)
        self._shared_work = shared_work
        self._job_wide = JobWideWatch(self.ratios.config.history)
        self._excused: list[int] = []
        self._families = families
        self._places = PlaceMates(self.ratios.nodes, families, likely=likely_nodes)
        self._batch_groups = batch_groups
        self._begin()

    def _begin(self) -> None:
        """Begin to gather evidence, of which there is none."""
        ratios = self.ratios
        self._evidence.begin()
        self._network, self._rings = NetworkWatch(), RingsWatch()
        self._flapping = FlappingTransfers()
        self._stalls = Stalls(ratios.nodes.index)
        self._moving = MovingSlowness(ratios.ranks, self._shared_work)
        self._groups = SlowGroups(self._families)
        self._loading = LoadingTogether(ratios.nodes.index)
        self._whole = WholeSets(ratios)
        self._mates = BatchMates(ratios.ranks, self._batch_groups)

    @property
    def channels(self) -> Mapping[Timing, TimingChannel]:
        """The evidence of each timing."""
        return self._evidence.channels

    @property
    def pace_spread(self) -> float:
        """How much ranks differ from their peers for good (log ratio), on the safe side."""
        return self._evidence.pace_spread

    @property
    def asynchronous(self) -> bool:
        """Whether the ranks share no wall clock."""
        return self.ratios.asynchronous

    @property
    def alike(self) -> bool:
        """Whether all ranks do the same work, as far as is known."""
        return self.ratios.comparison.groups.narrowest == self.ratios.ranks

    @property
    def nbytes(self) -> int:
        """Bytes of the steps held."""
        return self.ratios.history.nbytes

    def update(self, times: StepTimes) -> StepResult:
        """Take the next step; return what is new."""
        ratios = self.ratios
        self._places.seen[:] = False
        self._mates.recovered = []
        network_gone = rings_gone = False
        if ratios.observe(times):
            network_gone, rings_gone = self._network.shown, self._rings.shown
            held = self.held()
            self._begin()
            self.resume(held)
        if self._families is None and ratios.batches is not None:
            self._families = GroupFamilies.from_batches(ratios.batches)
            self._groups.learn(self._families)
            self._whole, self._batch_groups = WholeSets(ratios), ratios.batches.replica
            self._mates = BatchMates(ratios.ranks, self._batch_groups)
        since_start = self._slow_since_start("compute") + self._slow_since_start("data")
        if not ratios.settled:
            self._follow_loading({})
            return StepResult(slow=since_start, network_recovered=network_gone, rings_recovered=rings_gone)
        if ratios.settled in _SOON or ratios.settled % _EVERY == 0:
            if ratios.learn():
                self.channels["compute"].forget()
                self._whole.forget()
            fit = self._evidence.refit(self._places)
            if fit is not None:
                self._whole.refit(ratios, fit)
                self._mates.refit(ratios, fit)
        # All ranks of a synchronous job take the slowest one's step: without compute times no rank stands
        # out.
        if ratios.common_clock:
            nobody = np.zeros(ratios.ranks, dtype=np.bool_)
            return StepResult(job_wide=self._job_wide.look(ratios, nobody, nobody))
        slow = [*since_start, *(found for name in TIMINGS for found in self._judge(name))]
        recovered = [(name, rank) for name, ch in self.channels.items() for rank in ch.settle()]
        again = self.channels["compute"].raised
        gone = (*self._excused, *self._mates.recovered)
        recovered += [("compute", rank) for rank in gone if not again[rank]]
        self._excused = self._moving.excuse(self.channels["compute"])
        slow += self._follow_groups()
        self._follow_loading({})
        network, rings = self._network.update(ratios), self._rings.update(ratios)
        if not ratios.asynchronous:
            self._flapping.update(times)
        return StepResult(
            slow=tuple(slow),
            intermittent=(*self._intermittent(), *self._stalling(times)),
            recovered=tuple(recovered),
            excused=tuple(self._excused),
            job_wide=self._job_wide.look(
                ratios,
                self.channels["compute"].raised,
                self.channels["compute"].changed,
                visited=self._moving.visited,
            ),
            network=network,
            network_recovered=self._network.gone,
            rings=rings,
            rings_recovered=self._rings.gone,
            flapping=None if ratios.asynchronous else self._flapping.found,
        )

    def is_alone(self, timing: Timing, rank: int) -> bool:
        """Whether the evidence against a slow rank suffices without a second kind."""
        return self.channels[timing].alone(rank)

    def is_slow_still(self, timing: Timing, rank: int) -> bool:
        """Whether the last steps show a slow rank at half of what it was slow by when found, or more."""
        channel = self.channels[timing]
        x = (deviations(self.ratios, channel, timing, _EVERY, lasting=of)[:, rank] for of in (False, True))
        return bool(np.fmax.reduce([nan_median(of) for of in x]) >= _STILL * channel.size[rank] > 0.0)

    def is_intermittent(self, rank: int) -> bool:
        """Whether ``rank`` was slow for a moment lately."""
        stalls = self._stalls.found is not None and rank in self._stalls.found.ranks
        return stalls or bool(self.channels["compute"].intermittence.count[rank])

    def describe(self, timing: Timing, rank: int) -> SlowRank | None:
        """Return a slow rank with the figures of this step; None while it is not slow, or was not in most
        steps since its evidence began.
        """
        channel = self.channels[timing]
        if not self.ratios.settled or channel.scores()[rank] < 1.0:
            return None
        found = candidate(self.ratios, channel, timing, rank)
        half = 0.5 * float(channel.size[rank])
        # Around the least effect the figure varies, and a rank would have to wait until it suffices alone.
        if found.recent < half or found.size < min(half, math.log1p(self.ratios.config.min_effect)):
            return None
        if found.size < min(half, ON_AND_OFF * found.recent):
            return None
        return slow_rank(self.ratios, channel, found, channel.raised)

    def explain(self, slow: SlowRank) -> Explanation:
        """Return what a slow rank of this step rests on."""
        channel, group = self.channels[slow.timing], self._groups.of(slow.rank)
        with_it = group.members if group is not None and self.is_part(slow.timing, slow.rank) else None
        return explain(
            self.ratios,
            channel,
            slow,
            self._tensor_group(slow),
            self._shared_work,
            with_it=with_it,
            by_turns=self._moving.is_by_turns(slow),
        )

    def is_part(self, timing: Timing, rank: int) -> bool:
        """Whether a slow rank is so as a part of its group, or loads slowly together with other machines."""
        if timing == "data":
            return self._loading.holds(rank)
        group = self._groups.of(rank) if timing == "compute" else None
        return group is not None and group.leader != rank

    def slow_groups(self) -> list[tuple[str, Ints]]:
        """Return family and members of the groups that are slow as one and are not led by one rank."""
        return [(g.family, g.members) for g in self._groups.open if g.leader < 0]

    @property
    def loading_together(self) -> Ints:
        """The ranks of several machines that load slowly since the same moment; none where there are no
        such machines."""
        return self._loading.members

    def describe_group(self, family: str, members: Ints) -> SlowGroup | None:
        """Return a group that is slow as one with the figures of this step; None while it shows none."""
        channel, ratios = self.channels["compute"], self.ratios
        group = self._groups.find(family, members)
        if group is None or not group.slow:
            return None
        slow, steps = sorted(group.slow), max(ratios.settled - group.began, 1)
        effects = nan_median(deviations(ratios, channel, "compute", steps, lasting=group.lasting))
        middle = self._middle(sorted(slow, key=lambda rank: effects[rank]))
        if middle is None:
            return None
        error = max(noise_of(ratios, channel, middle.rank) / math.sqrt(steps), ratios.config.spread)
        # Who crossed the threshold last must not make the finding wait for its evidence.
        alone = any(channel.alone(rank) for rank in slow)
        peers = middle.peers - int(ratios.comparison.mates(middle.rank)[members].sum())
        return SlowGroup(
            family=family,
            members=members,
            likely=likelihood(effects[members], error),
            middle=replace(middle, alone=alone, peers=peers),
        )

    def _middle(self, ranks: list[int]) -> SlowRank | None:
        """Return the middle one of ``ranks``, in order, or a neighbour where that shows no slowness."""
        half = (len(ranks) - 1) // 2
        described = (self.describe("compute", rank) for rank in ranks[half : half + 3])
        return next((slow for slow in described if slow is not None), None)

    def paces(self, ranks: Ints, *, least: int) -> Floats:
        """Return the usual log ratio of some ranks to their role, [len(ranks)]; NaN where it means nothing,
        or is known from fewer than ``least`` steps."""
        ratios = self.ratios
        if not ratios.comparison.roles_settled or ratios.common_clock or ratios.asynchronous:
            return np.full(len(ranks), np.nan)
        logs = ratios.history.last("role", min(ratios.settled, ratios.config.history))[:, ranks]
        return np.where(ratios.comparison.small_role[ranks], np.nan, nan_median(logs, least=least))

    def held(self) -> list[HeldSlow]:
        """Return the ranks that are slow now."""
        return [
            HeldSlow(
                timing,
                rank,
                float(channel.size[rank]),
                float(channel.job_pace[rank]),
                float(channel.onset[rank]),
                together=timing == "data" and self._loading.holds(rank),
            )
            for timing, channel in self.channels.items()
            for rank in np.flatnonzero(channel.raised).tolist()
        ]

    def resume(self, held: Iterable[HeldSlow]) -> None:
        """Take ranks as slow that were found so before this detector was made, until they recover."""
        together: list[int] = []
        for slow in held:
            channel = self.channels[slow.timing]
            channel.find(slow.rank, size=slow.size, onset=slow.onset, job_pace=slow.job_pace)
            together += [slow.rank] if slow.together else []
        self._groups.resume(np.flatnonzero(self.channels["compute"].raised))
        self._loading.resume(together)

    def learnt(self) -> AttemptBefore | None:
        """Return what the steps show of ranks, for the next attempt; None while too few do."""
        return self.ratios.learnt()

    def take_before(self, before: AttemptBefore) -> None:
        """Take what the attempt before showed of the ranks, before the first step."""
        self.ratios.before = before

    def _slow_since_start(self, timing: Timing) -> tuple[SlowRank, ...]:
        """Return ranks newly found far slower than their peers in the first steps, before noise is known."""
        if self.ratios.history.count > STEPS:
            return ()
        channel = self.channels[timing]
        candidates = slow_since_start(self.ratios, timing, self._shared_work)
        found = [f for f in candidates if not channel.raised[f.rank]]
        over = channel.raised.copy()
        over[[f.rank for f in found]] = True
        confirmed = [f for f in found if is_confirmed(self.ratios, f, over, self._places)]
        for one in confirmed:
            channel.find(one.rank, size=one.size, onset=one.onset.at)
            channel.take(one.rank, size=one.size, steps=one.steps, lasting=True)
            if timing == "compute":
                self._moving.begin(one, self.ratios.settled, size=one.size)
                self._groups.take(one, self.ratios.settled)
        if timing == "data":
            self._load_elsewhere(confirmed)
            confirmed = [one for one in confirmed if not self._loading.holds(one.rank)]
        return tuple(slow_rank(self.ratios, channel, one, over) for one in confirmed)

    def _tensor_group(self, slow: SlowRank) -> TensorGroup:
        groups = self._tensor_groups
        if slow.timing == "compute" and groups is not None and groups[slow.rank] >= 0:
            return TensorGroup(np.flatnonzero(groups == groups[slow.rank]), known=True)
        if slow.timing == "compute" and not self.ratios.roles_known:
            return likely_group(self.ratios, self.channels["compute"], slow)
        return TensorGroup(np.array([], dtype=np.intp), known=True)

    def _judge(self, timing: Timing) -> list[SlowRank]:
        """Weigh the last step and return who is newly found slow in ``timing``."""
        channel = self.channels[timing]
        if not self._evidence.weigh(timing):
            return []
        # Only ranks newly over the threshold are examined; those found before count beside them.
        due = over = (channel.scores() >= 1.0) & ~channel.raised
        if timing == "compute":
            self._suspect(over)
            due = over & self._moving.due(self.ratios.settled)
        suspected = candidates(self.ratios, channel, timing, self._in_turn(due, channel).tolist())
        over = over | channel.raised
        passed = [found for found in suspected if is_confirmed(self.ratios, found, over, self._places)]
        confirmed = self._confirm(timing, passed, over)
        over[[found.rank for found in confirmed]] = True
        if timing == "data":
            self._load_elsewhere(confirmed)
            confirmed = [found for found in confirmed if not self._loading.holds(found.rank)]
        self._find(channel, confirmed)
        slow = [slow_rank(self.ratios, channel, found, over) for found in confirmed]
        if timing == "compute":
            self._gather(confirmed)
        return slow

    def _suspect(self, over: Bools) -> None:
        """Compare with no machine of ranks that are slow, or ``over`` the threshold by a change."""
        channel = self.channels["compute"]
        # What always was so is no machine's change: a stage may fill a node.
        suspects = channel.raised | (over & channel.changed) | self.ratios.slowed_majority()
        moved = self.ratios.leave_out(suspects)
        if moved is not None:
            channel.move(moved)
            self._evidence.learn_spread()
        self._whole.keep_apart(self.ratios, channel, channel.raised)

    def _confirm(self, timing: Timing, passed: list[Candidate], over: Bools) -> list[Candidate]:
        """Return those of the candidates that ``passed`` who are slow in ``timing`` by themselves, and who is
        so with them."""
        ratios, channel = self.ratios, self.channels[timing]
        if timing == "rest":
            return self._of_machine([found for found in passed if self._stalls_alone(found)])
        large = [found for found in passed if matters(ratios, found, over)]
        if timing == "data":
            confirmed = [found for found in large if not self._computes_slower(found)]
            machines = [kind for kind in self._together if not kind.wait]
            return confirmed + slow_with(ratios, channel, confirmed, machines, [], timing=timing)
        self._moving.update(ratios, channel)
        confirmed = self._moving.unexplained(ratios, channel, [f for f in large if not may_pass(ratios, f)])
        confirmed += self._whole.found(
            ratios, channel, confirmed, self._last_together, smallest_lasting=self._evidence.lasting_effects()
        )
        confirmed += self._mates.found(ratios, channel, confirmed, self._pass_together)
        return confirmed + slow_with(ratios, channel, confirmed, self._together, self._moving.visited)

    def _find(self, channel: TimingChannel, confirmed: Iterable[Candidate]) -> None:
        """Take the ``confirmed`` as slow."""
        for found in confirmed:
            # Another one may have held the job up before already: the pace is that before all of them.
            broken = self._moving.outlasting(channel.raised, self.ratios.settled)
            paces = np.append(channel.job_pace[broken], job_pace_before(self.ratios, found))
            pace = math.nan if found.lasting else float(np.fmin.reduce(paces))
            channel.find(found.rank, size=found.size, onset=found.onset.at, job_pace=pace)

    def _gather(self, confirmed: Iterable[Candidate]) -> None:
        """Take the ``confirmed`` into the groups that become slow as one."""
        for found in confirmed:
            group = self._groups.take(found, self.ratios.settled)
            if group is not None and group.may_wait and group.leader < 0:
                group.leader = self._slowest(group, self.ratios.settled - group.began)

    def _in_turn(self, due: Bools, channel: TimingChannel) -> Ints:
        """Return which of the ranks over the threshold are examined in this step: of very many those with the
        most evidence, and a part of the others, so that all of them are in a few steps."""
        ranks = np.flatnonzero(due)
        if ranks.size <= _EXAMINED:
            return ranks
        turns = math.ceil(ranks.size / _EXAMINED)
        most = np.argsort(-channel.scores()[ranks], kind="stable")[: _EXAMINED // 4]
        return np.union1d(ranks[most], ranks[ranks % turns == self.ratios.settled % turns])

    def _computes_slower(self, found: Candidate) -> bool:
        """Return whether a rank that loads longer has been slower in compute since then, by far more: on a
        host short of processors its loader is slow as well."""
        channel = self.channels["compute"]
        if not channel.rising[found.rank]:
            return False
        x = deviations(self.ratios, channel, "compute", found.steps, lasting=found.lasting)
        return float(nan_median(x[:, found.rank])) >= _MUCH_MORE * found.size

    def _slowest(self, group: RankGroup, steps: int) -> int:
        """Return the rank of a group that is clearly slower than the others for ``steps``, else -1."""
        ranks, channel = group.members, self.channels["compute"]
        x = deviations(self.ratios, channel, "compute", max(steps, 1), lasting=group.lasting)
        worst = stands_out(x[:, ranks], noise_of(self.ratios, channel, int(ranks[0])))
        return -1 if worst is None else int(ranks[worst])

    def _follow_groups(self) -> list[SlowRank]:
        """Return the ranks of slow groups that are slow by themselves now: much slower than the others, or
        still so when most are well."""
        channel, ratios = self.channels["compute"], self.ratios
        for rank in self._groups.settle(channel.raised, ratios.settled):
            # Its evidence stands: it is examined anew in the next step.
            channel.raised[rank] = False
        if ratios.settled % _EVERY:
            return []
        own: list[SlowRank] = []
        for group in self._groups.open:
            rank = self._slowest(group, _EVERY)
            if rank == group.leader or rank not in group.slow:
                continue
            found = beyond(ratios, channel, rank, group.members[group.members != rank])
            # Of a group that is well for a while, somebody is always the slowest.
            if found.size < _STILL * float(channel.size[rank]):
                continue
            if group.may_wait and group.leader < 0 and found.steps >= ratios.settled - group.began - _EVERY:
                group.leader = rank
            else:
                self._groups.release(rank)
            own.append(slow_rank(ratios, channel, found, channel.raised))
        return own

    def _load_elsewhere(self, confirmed: Sequence[Candidate]) -> None:
        """Take that the ``confirmed`` ranks load slowly, and those of other machines that do with the slowest
        of them, on three machines together."""
        if not confirmed:
            return
        channel, compute, now = self.channels["data"], self.channels["compute"], self.ratios.settled
        loads: dict[int, Began] = {}
        slow = as_slow_elsewhere(max(confirmed, key=lambda one: one.size), self.ratios.nodes)
        for one in slow:
            # What loads for others too, or on a host that is slow at all, has another reason.
            if not (channel.raised[one.rank] or channel.exempted[one.rank] or compute.rising[one.rank]):
                channel.take(one.rank, size=one.size, steps=one.steps, lasting=one.lasting)
                channel.find(one.rank, size=one.size)
                loads[one.rank] = (0 if one.lasting else now - one.steps, one.steps)
        for one in confirmed:
            channel.find(one.rank, size=one.size)
            loads[one.rank] = (0 if one.lasting else now - one.steps, one.steps)
        self._follow_loading(loads)

    def _follow_loading(self, found: Mapping[int, Began]) -> None:
        channel = self.channels["data"]
        # The evidence of those that are left stands: they are examined anew in the next step.
        channel.raised[self._loading.update(found, channel.raised, self.ratios.settled)] = False

    def _pass_together(self, ranks: Iterable[Candidate], over: Bools) -> list[Candidate]:
        """Return those of a set's ranks whom no other explanation holds for."""
        passed = [f for f in ranks if is_confirmed(self.ratios, f, over, self._places)]
        large = [f for f in passed if matters(self.ratios, f, over)]
        return self._moving.beyond_rotation(self.ratios, large)

    def _last_together(self, ranks: Iterable[Candidate], over: Bools) -> list[Candidate]:
        """Return those of a machine's ranks that are slow for more than some steps besides."""
        return self._pass_together([f for f in ranks if not may_pass(self.ratios, f)], over)

    def _stalls_alone(self, found: Candidate) -> bool:
        """Whether only the rank, or its whole machine alike, has a longer rest or soon may, and no rank is
        slow in what ranks report, or soon may be by half as much.

        Ranks of a pipeline or a tensor-parallel group wait for the slow one within what they do not report,
        as long as that one is slow by.
        """
        rest, least = self.channels["rest"], _STILL * found.size
        if (rest.rising & ~alike(rest.changed, self.ratios.nodes, found.rank)).any():
            return False
        return not any(
            channel.raised.any() or self._may_be_slow_by(least, timing, found.steps)
            for timing, channel in self.channels.items()
            if channel is not rest
        )

    def _may_be_slow_by(self, least: float, timing: Timing, steps: int) -> bool:
        """Whether a rank with some evidence of slowness was slow by ``least`` in the last ``steps``."""
        channel = self.channels[timing]
        rising = channel.rising
        if not rising.any():
            return False
        effect = nan_median(deviations(self.ratios, channel, timing, steps)[:, rising])
        # Negated: of a rank that was not read nothing is known.
        return not bool((effect < least).all())

    def _of_machine(self, confirmed: list[Candidate]) -> list[Candidate]:
        """Return ``confirmed`` with the ranks of their machine that have as long a rest, where most of it
        has, all dated as the one with the longest: noise decides when each is found, and when it is dated."""
        channel = self.channels["rest"]
        if not confirmed:
            return confirmed
        found = max(confirmed, key=lambda one: one.size)
        still = np.fmin(found.effect, nan_median(found.x[-5:])) >= _STILL * found.size
        mates = alike(channel.changed, self.ratios.nodes, found.rank) & still & ~channel.raised
        ranks = {*np.flatnonzero(mates).tolist(), *(one.rank for one in confirmed)}
        if len(ranks) == 1:
            return confirmed
        return [replace(found, rank=r, sigma=noise_of(self.ratios, channel, r)) for r in sorted(ranks)]

    def _intermittent(self) -> tuple[SlowRank, ...]:
        channel = self.channels["compute"]
        often = channel.intermittence.suspects & ~channel.believed
        # What comes and goes on many ranks at once comes from outside of them.
        if not often.any() or often.sum() > self.ratios.ranks / 3 or self._comes_and_goes_elsewhere():
            return ()
        ranks = (int(rank) for rank in np.flatnonzero(often))
        single = [r for r in ranks if not (self._moving.is_in_rotation(r) or self._groups.holds(r))]
        found = (intermittent_rank(self.ratios, channel, rank, self._places) for rank in single)
        return tuple(slow for slow in found if slow is not None)

    def _stalling(self, times: StepTimes) -> tuple[SlowRank, ...]:
        """Return the ranks that have stalled once more in this step, less those that are slow by
        themselves."""
        if not self._stalls.update(times) or (found := self._stalls.found) is None:
            return ()
        slow = np.any([channel.raised for channel in self.channels.values()], axis=0)
        return tuple(stalling_rank(self.ratios, found, rank) for rank in found.ranks if not slow[rank])

    def _comes_and_goes_elsewhere(self) -> bool:
        """Return whether ranks of as many machines as make a rotation were slow more than once lately."""
        again = self.channels["compute"].intermittence.count >= AGAIN
        return len(np.unique(self.ratios.nodes.index[again])) >= ROUND


def _unknown_work(nodes: Ints, *, alike: bool) -> SharedWork:
    """Return who may get work together where no coordinates tell; nobody if all are known to be ``alike``."""
    return (
        SharedWork.from_coords({}, nodes) if alike else SharedWork.from_numbers(np.arange(nodes.size), nodes)
    )
