"""The interface of a decision core: step times in, explanations out.

A core decides which ranks of one job are slow. Everything outside of this package uses these types alone, so
that another core can be fed with the same steps and compared with it (docs/decisions/0028).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from detectors.changepoint.offline_segmentation import OfflineCheck
from detectors.job.job_wide import JobWide
from detectors.job.waits.flapping import Flapping
from detectors.job.waits.slow_network import SlowNetwork
from detectors.peers.job_kind import Kind
from detectors.peers.places.attempt_before import AttemptBefore
from detectors.peers.step_times import StepTimes

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

Timing = Literal["compute", "data", "rest"]
"""Timings that are compared; ``rest`` is what is left of a step beside work, loading, saving and waiting."""

TIMINGS: tuple[Timing, ...] = get_args(Timing)

Mates = Literal["", "as_slow", "less_slow"]
"""How slow the others of a rank's tensor-parallel group are meanwhile; empty: not all of them are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """One rank is slow: since when (event time and number of steps), by how much, and how surely.

    ``ratio`` is its time over that of its peers, ``job_ratio`` the job's step over what it would be without
    the rank's excess, ``waits_least`` whether its waits confirm it (None = no waits known), ``peers`` how
    many ranks it was compared with. ``score`` is evidence over its threshold, ``alone`` whether the evidence
    needs no second kind. ``excursions`` counts the times it was slow, where it is slow on and off, for
    ``stalled`` seconds where that was in single steps (0: not).
    """

    rank: int
    timing: Timing
    lasting: bool
    onset: float
    onset_lo: float
    onset_hi: float
    steps: int
    score: float
    alone: bool
    ratio: float
    job_ratio: float
    peers: int
    waits_least: bool | None
    excursions: int = 0
    stalled: float = 0.0


@dataclass(frozen=True, slots=True)
class HeldSlow:
    """A rank that is slow until it recovers: by ``size`` (log ratio, or share of the work) when it was found.

    ``job_pace``: what a step took per second of the peers' work before that; ``onset``: since when it is slow
    [Unix s]; NaN where they are not known. ``together``: it loads slowly together with ranks of other
    machines.
    """

    timing: Timing
    rank: int
    size: float = 0.0
    job_pace: float = math.nan
    onset: float = math.nan
    together: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowGroup:
    """Ranks of one parallel group over several machines that are slow as one.

    ``family`` says in which coordinate its ``members`` [ranks] differ, or that they are a ``replica``.
    ``likely`` [ranks] is how likely each is the one that the others wait for, as far as steps show.
    ``middle`` has the figures of the rank in the middle of those found slow.
    """

    family: str
    members: Ints
    likely: Floats
    middle: SlowRank


@dataclass(frozen=True, slots=True)
class PeerFigures:
    """Seconds of the ``n`` other ranks compared with, and the ``place`` of the slow one among all (1 =
    quickest)."""

    n: int
    p05: float
    median: float
    p95: float
    place: int


@dataclass(frozen=True, slots=True)
class PastFigures:
    """Median and median absolute deviation (``mad``) of ``n`` steps before the onset."""

    median: float
    mad: float
    n: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Median ``value`` [s] of a slow rank in a ``metric`` since its onset, beside its peers and its past."""

    metric: str
    value: float
    past: PastFigures | None
    peers: PeerFigures | None


@dataclass(frozen=True, slots=True)
class OfflineEvidence:
    """Offline segmentation of a slow rank's last ratios: the ``check``, ratios ``after`` and before
    (``past``), and the event time of the change where it is confirmed (``change_at``)."""

    check: OfflineCheck
    metric: str
    after: float
    past: PastFigures
    change_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What the finding of a slow rank rests on, and which other explanations were looked at.

    ``role`` [members] are the ranks that do the same work, None where roles are unknown. ``believed``: the
    evidence has sufficed alone since the rank was found. ``work_known``: the ranks' amounts of work are taken
    out of their times. ``work_possible``: all who get work together are as slow, so that more work explains
    it as well. ``by_turns``: others were as slow before it, one after the other, and are not any more, as
    where work moves. ``since_start``: slow in the first step seen. ``tensor_group``: number of ranks of its
    tensor-parallel group, ``mates`` how slow these are.
    """

    comparisons: tuple[Comparison, ...]
    offline: OfflineEvidence | None
    role: Ints | None
    believed: bool
    work: Kind
    work_known: bool
    work_possible: bool
    by_turns: bool
    since_start: bool
    ruled_out: tuple[str, ...]
    tensor_group: int
    mates: Mates


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step gave rise to: ranks newly ``slow``, ranks slow on and off (``intermittent``, repeated
    while so), slowness that has ended (``recovered``: timing and rank), ranks whose slowness in compute has
    turned out to be work that wanders (``excused``, in the next step recovered), what is unequal in the job
    as a whole, whether its ``network``, or the ``rings`` of a part of its ranks, became slow or recovered,
    and whether its transfers are ``flapping`` (repeated while so)."""

    slow: tuple[SlowRank, ...] = ()
    intermittent: tuple[SlowRank, ...] = ()
    recovered: tuple[tuple[Timing, int], ...] = ()
    excused: tuple[int, ...] = ()
    job_wide: JobWide = field(default_factory=JobWide)
    network: SlowNetwork | None = None
    network_recovered: bool = False
    rings: SlowNetwork | None = None
    rings_recovered: bool = False
    flapping: Flapping | None = None


class DecisionCore(Protocol):
    """Decides for one job with a fixed set of ranks; ranks are places 0 … n-1."""

    @property
    def asynchronous(self) -> bool:
        """Whether the ranks share no wall clock: no rank waits for another."""
        ...

    @property
    def alike(self) -> bool:
        """Whether all ranks do the same work, as far as is known: a step lasts as long as its last rank."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of the steps held."""
        ...

    def update(self, times: StepTimes) -> StepResult:
        """Take the next step; return what is new."""
        ...

    def describe(self, timing: Timing, rank: int) -> SlowRank | None:
        """Return a slow rank with the figures of this step; None while it shows no slowness."""
        ...

    def explain(self, slow: SlowRank) -> Explanation:
        """Return what a slow rank of this step rests on; costly, called when it is reported."""
        ...

    def is_alone(self, timing: Timing, rank: int) -> bool:
        """Whether the evidence against a slow rank suffices without a second kind."""
        ...

    def is_slow_still(self, timing: Timing, rank: int) -> bool:
        """Whether the last steps show a slow rank at half of what it was slow by when found, or more."""
        ...

    def is_intermittent(self, rank: int) -> bool:
        """Whether a rank was slow for a moment lately."""
        ...

    def paces(self, ranks: Ints, *, least: int) -> Floats:
        """Return the usual log ratio of some ranks to their role, [len(ranks)]; NaN where it means nothing,
        or is known from fewer than ``least`` steps."""
        ...

    @property
    def pace_spread(self) -> float:
        """Robust sd of lasting log ratios among the ranks, on the safe side."""
        ...

    def is_part(self, timing: Timing, rank: int) -> bool:
        """Whether a slow rank is so as a part of a group that is slow as one, or loads slowly together with
        ranks of other machines, and not by itself."""
        ...

    @property
    def loading_together(self) -> Ints:
        """The ranks of several machines that load slowly since the same moment; none where there are no such
        machines."""
        ...

    def slow_groups(self) -> Iterable[tuple[str, Ints]]:
        """Return family and members of the groups that are slow as one and are not led by one rank."""
        ...

    def describe_group(self, family: str, members: Ints) -> SlowGroup | None:
        """Return a group that is slow as one with the figures of this step; None while it shows none."""
        ...

    def held(self) -> Iterable[HeldSlow]:
        """Return the ranks that are slow now, for a core of another set of ranks to go on with."""
        ...

    def resume(self, held: Iterable[HeldSlow]) -> None:
        """Take ranks as slow that were found so before the core was made, until they recover."""
        ...

    def learnt(self) -> AttemptBefore | None:
        """Return what the steps show of ranks, for the core of the next attempt; None while too few do."""
        ...

    def take_before(self, before: AttemptBefore) -> None:
        """Take what the attempt before showed of the ranks, before the first step."""
        ...
