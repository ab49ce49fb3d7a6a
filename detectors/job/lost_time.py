"""What slow steps cost: the job's own step times less those it would take in good health, step by step.

An account per known cause. Where all ranks do the same and wait for each other, a step lasts as long as its
last rank, and a slow rank costs what it is later than the last of the others. What else makes steps slow
costs what they take longer than the healthy step, learnt from the steps before the first cause began, as step
seconds per second of the ranks' compute: planned changes of the work are no loss. What a step takes longer is
charged once, however many causes are open. Checkpoints and pauses are charged to none.
"""

import itertools
import math
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Generic, TypeVar

from detectors.job.steps_taken import LastRanks, StepsTaken, Taken

K = TypeVar("K", bound=Hashable)

# Steps that make the healthy one, and fewer than which make none. The mean of 300 steps is known to 0.3 %
# where steps scatter by 5 %; with 100, a slowdown of 25 % was charged 4 % too little for want of steps.
REFERENCE_STEPS, _LEAST_STEPS = 300, 10

# Steps before the dated onset that are charged too: a ramp begins before it shows, and while nothing is wrong
# they come to nothing. A ramp of 200 s was dated 8 to 12 steps late (`python -m benchmarks cost`).
LEAD_STEPS = 15

# A step so many times as long as the latest ones' median is a pause that was not declared. Chosen: the gap
# from which ``pauses`` counts one (``PAUSE_GAPS``).
_PAUSE = 3.0

# Of the usual compute, beyond which the first steps of a job compile and allocate besides: one of them weighs
# as several others. Chosen: far beyond the noise of a quantile over ranks.
_WARM_UP = 1.5

# Chosen: enough for a median, and few enough that a change of the work is usual after eight steps.
_LATEST_STEPS = 15

# How far the ratio of a ramp lags, in reports: it is that of some dozen steps. Chosen by
# `python -m benchmarks cost`, where a ramp was charged a tenth too little with 0.
_LAG = 2.0

# What is lost at present is the mean over so long. Chosen: a ramp is followed, and single steps do not show.
RATE_SECONDS = 120.0


# Steps since the onset in which step times may contradict lateness, and by how many standard errors. Chosen:
# three doubt one account in 700 wrongly; later the healthy pace may have drifted, which no rank has done.
_DOUBT_STEPS, _DOUBT_ERRORS = 100, 3.0

# Share of what ranks are late that their steps may be slower by (chosen: the accuracy of other costs).
_NEARLY = 0.1

# Steps of a block within which their noise may be correlated (chosen).
_BLOCK = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """A cause of slow steps: since when, its ``ratio`` to its peers or past, the ``job_ratio`` it alone
    explains. ``of_rank``: one rank that the others wait for; ``changed``: it began some time, so that the
    job's own past shows what it costs; ``believed``: it is certain. ``rank``: whose lateness shows what it
    costs, None if none does; ``with_it``: ranks that may be slow with it, as those of its machine."""

    onset: float
    onset_lo: float
    ratio: float
    job_ratio: float
    of_rank: bool
    changed: bool
    believed: bool
    rank: int | None = None
    with_it: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Cost:
    """GPU-seconds lost so far, and the number of ``gpus`` lost at present (GPU-seconds per second)."""

    gpu_seconds: float
    gpus: float


@dataclass(slots=True)
class _Account:
    """GPU-seconds charged to one cause. ``has_past``: its loss is against the healthy step, otherwise against
    ``job_ratio``; ``excess``: of a rank, as a share of the median compute; ``growth``: what it may have grown
    to since it was reported, as a multiple."""

    has_past: bool
    of_rank: bool
    rank: int | None = None
    with_it: frozenset[int] = frozenset()
    believed: bool = False
    excess: float = 0.0
    growth: float = 1.0
    job_ratio: float = 1.0
    total: float = 0.0
    marks: deque[tuple[float, float]] = field(default_factory=deque)

    def note(self, slowdown: Slowdown) -> None:
        """Take the latest figures."""
        # Of a machine the job waits for its slowest rank, which is slower than each of them usually is.
        before, self.excess = self.excess, max(slowdown.ratio, slowdown.job_ratio, 1.0) - 1.0
        grown = max(self.excess - before, 0.0) if before else 0.0
        self.growth = 1.0 + _LAG * grown / self.excess if grown else 1.0
        self.job_ratio = slowdown.job_ratio
        self.believed = self.believed or slowdown.believed

    def seconds(self, taken: Taken, healthy: float) -> float:
        """Return what its cause alone explains that the step took longer than ``healthy`` [s]."""
        if self.has_past and self.of_rank:
            return self.excess * healthy
        return taken.seconds * (1.0 - 1.0 / max(self.job_ratio, 1.0))

    def late(self, taken: Taken, others: float, pace: float) -> float:
        """Return by how much its rank was later than the last of the ``others`` [s], up to what it explains,
        for it pauses like any other; 0 where it is about no rank."""
        own = next((seconds for rank, seconds in taken.last if rank == self.rank), others)
        return min(max(own - others, 0.0), self.growth * self.excess * taken.work * pace)

    def cost(self, at: float) -> Cost:
        """Return what it has come to by ``at``, with the mean rate over the last ``RATE_SECONDS``.

        Never less than before: after recovery steps scatter about the healthy one.
        """
        total = max(self.total, self.marks[-1][1])
        self.marks.append((at, total))
        while len(self.marks) > 2 and self.marks[1][0] <= at - RATE_SECONDS:
            self.marks.popleft()
        first, before = self.marks[0]
        rate = (total - before) / (at - first) if at > first else 0.0
        return Cost(total, rate)


class LostTime(Generic[K]):
    """The accounts of one job, by what each is about.

    Where the last ranks of a step are known, a rank slower by e pays max(0, c - m), up to e * p * w: c is
    what it took itself, without waits, and m the same of the last rank in good health. The step had ended
    so much sooner without the fault. Ranks that are slow at once are waited for at once, and share the
    largest of their parts (``layers``). If the steps since the onset are slower than that explains, by three
    standard errors, the job is not as simple as that, and its step times decide.

    Per step with time t, compute w, GPUs g, and the healthy pace p (step seconds per second of compute, over
    the last 300 healthy steps): the excess t - p * w, in seconds, times g is charged to the other accounts
    with a past, in shares of what each of them alone explains; a rank that is slower by e pays e * p * w at
    most, and more while e grows: other ranks pause, too. What is left of t is charged to those without a past
    by their job ratio r, as t * (1 - 1 / r). Nothing is charged twice: the sum over accounts is what the job
    lost [GPU-s].

    ``step`` comes before the detectors see the step, ``charge`` and ``close`` after.
    """

    def __init__(self) -> None:
        self._healthy = StepsTaken()
        self._charged = StepsTaken()
        self._latest: deque[float] = deque(maxlen=_LATEST_STEPS)
        self._pace = _Pace()
        self._open: dict[K, _Account] = {}
        self._in_step = True
        # Ranks that may be slow, and whether their lateness explains how slow the steps are.
        self._affected: frozenset[int] = frozenset()
        self._explained = True

    def step(
        self, seconds: float, work: float, ts: float, *, gpus: int, in_step: bool, last: LastRanks = ()
    ) -> None:
        """Take a step of so many seconds without its checkpoint, ended at ``ts``, in a job of ``gpus``.

        ``work``: compute of its healthy ranks [s]. Ranks that are not ``in_step`` have no common step time.
        ``last``: empty where they are not known, or where ranks do different work.
        """
        self._in_step = in_step
        if not seconds > 0:
            return
        taken = Taken(ts, seconds, work if work > 0 else 1.0, gpus, last=last)
        pace = taken.seconds / taken.work
        usual = median(self._latest) if self._latest else pace
        # A pause is kept here as well: if it was the first step of slower work, that is usual in eight steps.
        self._latest.append(pace)
        if pace > _PAUSE * usual:
            return
        # While a cause is open, its steps would teach the slowdown as good health.
        kept = self._charged if self._with_past() else self._healthy
        kept.append(self._charge(taken, self._open.values()))

    def let_go(self) -> None:
        """Keep no steps of a job that sends none: only what is on the accounts still counts."""
        self._healthy.clear()
        self._charged.clear()

    def resized(self) -> None:
        """Learn the healthy step anew: the job has other ranks."""
        self.let_go()
        self._latest.clear()

    def charge(self, key: K, slowdown: Slowdown, at: float, *, on_and_off: bool = False) -> Cost:
        """Return what ``key`` has cost up to ``at``, from its onset on; ``on_and_off``: see ``_opened``."""
        account = self._open.get(key)
        if account is None:
            account = self._opened(key, slowdown, at, on_and_off=on_and_off)
        else:
            self._note(account, slowdown)
            if len(self._charged) <= _DOUBT_STEPS:
                self._explained = self._explains(self._charged.last(_DOUBT_STEPS))
        return account.cost(at)

    def charge_steps(self, key: K, gpu_seconds: float, at: float, *, onset: float) -> Cost:
        """Return the cost of ``key`` up to ``at``: ``gpu_seconds`` lost in single long steps since ``onset``.

        The caller passes these steps to ``step`` without that time: no other account is charged for it.
        """
        account = self._open.get(key)
        if account is None:
            account = self._open[key] = _Account(has_past=False, of_rank=False)
            account.marks.append((onset, 0.0))
        account.total = gpu_seconds
        return account.cost(at)

    def _note(self, account: _Account, slowdown: Slowdown) -> None:
        before = account.excess
        account.note(slowdown)
        if account.has_past and account.excess > before:
            # A ramp: the steps since the last report were bounded by what it explained then.
            reported_at, _ = account.marks[-1]
            for taken in self._charged.take(self._charged.since(reported_at)):
                self._charged.append(self._charge(taken, [account]))

    def close(self, key: K, at: float) -> float:
        """Return the GPU-seconds that ``key`` has cost, and charge it no more."""
        cost = self._open.pop(key).cost(at)
        self._note_affected()
        # All causes that are open at once share one pace; the next one learns it from the steps before it.
        if not self._with_past():
            self._pace, self._explained = _Pace(), True
            self._charged.clear()
        return cost.gpu_seconds

    def _with_past(self) -> list[_Account]:
        return [account for account in self._open.values() if account.has_past]

    def _note_affected(self) -> None:
        self._affected = frozenset().union(*(a.with_it for a in self._open.values() if a.rank is not None))

    def _opened(self, key: K, slowdown: Slowdown, at: float, *, on_and_off: bool) -> _Account:
        changed, since = self._in_step and slowdown.changed, list[Taken]()
        account = _Account(has_past=changed, of_rank=slowdown.of_rank)
        if slowdown.rank is not None and self._in_step:
            account.rank, account.with_it = slowdown.rank, slowdown.with_it | {slowdown.rank}
        account.note(slowdown)
        if changed:
            alone = not self._with_past()
            since = self._take_since(slowdown.onset_lo, alone=alone)
            if alone:
                self._pace = _pace(self._healthy, account.excess if account.of_rank else _PAUSE)
            if math.isnan(self._pace.seconds):
                # Too few healthy steps: the ratio to the peers must do, and the steps go back.
                account.has_past, changed = False, False
                for taken in since:
                    self._healthy.append(taken)
        self._open[key] = account
        self._note_affected()
        if changed:
            recent = since + self._charged.last(_DOUBT_STEPS)
            self._explained = self._explains(recent[-_DOUBT_STEPS:])
            since += self._charged.take(self._charged.since(slowdown.onset_lo))
        else:
            since = self._healthy.take(self._healthy.since(slowdown.onset_lo))
        # The onset may lie within a step, all of which is charged: the rate counts from the start of that
        # step. That of a rank that is slow on and off counts the time between, too.
        onset = slowdown.onset
        if not changed:
            # What came back was on its own account until it was gone.
            onset = max([onset, *(taken.ts for taken in since if taken.paid_always)])
        began = next((taken.ts - taken.seconds for taken in since if taken.ts > onset), onset)
        first, before = min(began, onset, at - (RATE_SECONDS if on_and_off else 0.0)), 0.0
        kept = self._charged if changed else self._healthy
        for taken in since:
            kept.append(self._charge(taken, [account]))
            before = max(account.total, 0.0) if taken.ts <= first else before
        account.marks.append((first, before))
        return account

    def _take_since(self, onset: float, *, alone: bool) -> list[Taken]:
        """Take the steps since shortly before ``onset`` from the healthy ones, in order."""
        since = self._healthy.since(onset)
        # Causes that began together have one lead: a node's eight ranks would charge 120 steps before it.
        lead = min(LEAD_STEPS if alone or since else 0, len(self._healthy) - since - _LEAST_STEPS)
        return self._healthy.take(since + max(lead, 0))

    def _charge(self, taken: Taken, accounts: Iterable[_Account]) -> Taken:
        """Put what a step took longer on the accounts, each second on one of them only, less what others have
        been charged for it before; return the step as it is to be kept."""
        own, healthy = list(accounts), self._pace.seconds * taken.work
        late = self._late(taken, own)
        for account, seconds in late:
            account.total += taken.gpus * seconds
        charged = math.fsum(seconds for _, seconds in late)
        if late:
            own = [account for account in own if account.rank is None]
        past, always = [a for a in own if a.has_past], [a for a in own if not a.has_past]
        # What is only suspected pays for nothing that a certain cause explains.
        sure = [a for a in past if a.believed] or past
        parts = _parts(sure, taken, healthy, taken.seconds - healthy - charged)
        for account, seconds in zip(sure, parts, strict=True):
            account.total += taken.gpus * seconds
        paid = taken.paid + charged + math.fsum(parts)
        # What the accounts with a past have paid is taken off the step before the others share it.
        left = (taken.seconds - max(paid, 0.0)) / taken.seconds
        claims = [left * account.seconds(taken, healthy) for account in always]
        claims = [max(claim - taken.paid_always, 0.0) for claim in claims]
        for account, seconds in zip(always, layers(claims), strict=True):
            account.total += taken.gpus * seconds
        return replace(taken, paid=paid, paid_always=taken.paid_always + max(claims, default=0.0))

    def _late(self, taken: Taken, accounts: Iterable[_Account]) -> list[tuple[_Account, float]]:
        """Return what each account of a rank pays of a step for being late; none where that does not show."""
        others = self._others(taken) if self._explained else None
        if others is None:
            return []
        asked = [account for account in accounts if account.rank is not None]
        shares = layers([account.late(taken, others, self._usual) for account in asked])
        # The rest of what the step waited for ranks that are slow, which others have been charged before.
        rest = max(self._waited(taken, others) - taken.paid, 0.0)
        return [(account, min(share, rest)) for account, share in zip(asked, shares, strict=True)]

    @property
    def _usual(self) -> float:
        """Return the healthy pace; 1.0, for the compute alone, where it is not known."""
        return self._pace.seconds if self._pace.steps else 1.0

    def _others(self, taken: Taken) -> float | None:
        """Return what the last rank in good health took itself [s], None where it is not known."""
        return next((seconds for rank, seconds in taken.last if rank not in self._affected), None)

    def _waited(self, taken: Taken, others: float) -> float:
        return max((a.late(taken, others, self._usual) for a in self._open.values()), default=0.0)

    def _explains(self, steps: Iterable[Taken]) -> bool:
        """Return whether lateness explains how slow ``steps`` are, up to a tenth or three standard errors."""
        pace, unexplained, waited, n = self._pace, 0.0, 0.0, 0
        if not pace.steps or any(account.rank is None for account in self._with_past()):
            return self._explained
        for taken in steps:
            others = self._others(taken)
            if others is not None:
                late, healthy = self._waited(taken, others), pace.seconds * taken.work
                unexplained += min(taken.seconds - healthy, pace.bound * healthy) - late
                waited, n = waited + late, n + 1
        error = pace.scatter * math.sqrt(n + n * n / pace.steps)
        return unexplained <= max(_DOUBT_ERRORS * error, _NEARLY * waited)


def layers(sizes: Sequence[float]) -> list[float]:
    """Share the largest size among all: who waits for several waits for them at once.

    Each layer is shared by those that reach up to it, the Shapley values of the maximum.

    >>> layers([2.0, 6.0])
    [1.0, 5.0]
    """
    shares, below, given = [0.0] * len(sizes), 0.0, 0.0
    order = sorted(range(len(sizes)), key=lambda i: sizes[i])
    for place, i in enumerate(order):
        given += (sizes[i] - below) / (len(order) - place)
        below = sizes[i]
        shares[i] = given
    return shares


def _parts(accounts: list[_Account], taken: Taken, healthy: float, excess: float) -> list[float]:
    """Return what each account pays of a step's ``excess``; ranks are slow at once, other causes add up.

    A rank pays no more than it explains: what a step took beyond that was another rank's pause.
    """
    of_ranks = iter(layers([a.seconds(taken, healthy) for a in accounts if a.of_rank]))
    sizes = [next(of_ranks) if a.of_rank else a.seconds(taken, healthy) for a in accounts]
    whole = math.fsum(sizes)
    parts = [excess * (size / whole if whole > 0 else 1.0 / len(sizes)) for size in sizes]
    parts = [
        min(part, a.growth * size) if a.of_rank else part
        for part, size, a in zip(parts, sizes, accounts, strict=True)
    ]
    # The rest of a step that others were charged for before this cause was found.
    return [max(part - taken.paid, 0.0) for part in parts] if taken.paid else parts


@dataclass(frozen=True, slots=True)
class _Pace:
    """Step ``seconds`` per second of compute in good health, from so many ``steps`` with excesses of up to
    ``bound`` healthy steps; ``scatter``: standard deviation of these [s], for sums of many."""

    seconds: float = math.nan
    bound: float = 0.0
    steps: int = 0
    scatter: float = math.nan


def _pace(healthy: StepsTaken, bound: float) -> _Pace:
    """Return the step seconds per second of compute that the healthy steps are charged nothing by.

    A step is charged ``bound`` healthy ones at most (``_parts``), so the pace is the root p of
    sum(min(t, (1 + bound) * p * w)) = p * sum(w), found by Newton's method from above, in a few turns. NaN
    where the steps are too few, without the long ones that the job started with.
    """
    steps = healthy.last(REFERENCE_STEPS)
    if steps:
        usual = median(taken.work for taken in steps)
        steps = list(itertools.dropwhile(lambda taken: taken.work > _WARM_UP * usual, steps))
    if len(steps) < _LEAST_STEPS:
        return _Pace()
    pace, over, longer = math.inf, -1, list[Taken]()
    while len(longer) > over:
        over = len(longer)
        seconds = math.fsum(t.seconds for t in steps) - math.fsum(t.seconds for t in longer)
        work = math.fsum(t.work for t in steps) - (1.0 + bound) * math.fsum(t.work for t in longer)
        pace = seconds / work
        longer = [t for t in steps if t.seconds > (1.0 + bound) * pace * t.work]
    excesses = [min(t.seconds - pace * t.work, bound * pace * t.work) for t in steps]
    return _Pace(pace, bound, len(steps), _scatter(excesses))


def _scatter(excesses: Sequence[float]) -> float:
    """Return the standard deviation of one of them, as sums of many show it: neighbours may be correlated."""
    blocks = [math.fsum(excesses[i : i + _BLOCK]) for i in range(0, len(excesses), _BLOCK)]
    single, summed = (math.fsum(x * x for x in of) / len(excesses) for of in (excesses, blocks))
    return math.sqrt(max(single, summed))
