"""What slow steps cost: the job's own step times less those it would take in good health, step by step.

An account per known cause. The healthy step is learnt from the steps before the first of them began, as step
seconds per second of the ranks' median compute: planned changes of the work are no loss. What a step takes
longer is charged once, however many causes are open. Checkpoints and pauses are charged to none.
"""

import math
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# The steps that an onset is dated in (256, ``StragglerConfig.history``), and some before them.
KEPT_STEPS = 384

# Steps that make the healthy one, and fewer than which make none. The mean of 300 steps is known to 0.3 %
# where steps scatter by 5 %; with 100, a slowdown of 25 % was charged 4 % too little for want of steps.
REFERENCE_STEPS, _LEAST_STEPS = 300, 10

# Steps before the dated onset that are charged too: a ramp begins before it shows, and while nothing is wrong
# they come to nothing. A ramp of 200 s was dated 8 to 12 steps late (`python -m benchmarks cost`).
LEAD_STEPS = 15

# A step so many times as long as the latest ones' median is a pause that was not declared. Chosen: the gap
# from which ``pauses`` counts one (``PAUSE_GAPS``).
_PAUSE = 3.0

# Chosen: enough for a median, and few enough that a change of the work is usual after eight steps.
_LATEST_STEPS = 15

# How far the ratio of a ramp lags, in reports: it is that of some dozen steps. Chosen by
# `python -m benchmarks cost`, where a ramp was charged a tenth too little with 0.
_LAG = 2.0

# What is lost at present is the mean over so long. Chosen: a ramp is followed, and single steps do not show.
RATE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class _Taken:
    ts: float
    seconds: float
    work: float
    gpus: int
    # Seconds of it that accounts with a past were charged.
    paid: float = 0.0


# Values that are kept of a step.
_FIELDS = 5


class _Steps:
    """The latest steps, up to twice ``KEPT_STEPS``, in 40 bytes each: a worker holds thousands of jobs."""

    def __init__(self) -> None:
        self._values = array("d")

    def __len__(self) -> int:
        return len(self._values) // _FIELDS

    def append(self, taken: _Taken) -> None:
        self._values.extend((taken.ts, taken.seconds, taken.work, taken.gpus, taken.paid))
        # Only at twice the length: cutting the front at every step would copy all of them each time.
        if len(self) > 2 * KEPT_STEPS:
            del self._values[: _FIELDS * KEPT_STEPS]

    def last(self, steps: int) -> list[_Taken]:
        """Return so many of the latest, in order."""
        values = self._values[-_FIELDS * steps :] if steps else ()
        rows = zip(*(iter(values),) * _FIELDS, strict=True)
        return [_Taken(ts, seconds, work, int(gpus), paid) for ts, seconds, work, gpus, paid in rows]

    def take(self, steps: int) -> list[_Taken]:
        """Return so many of the latest, in order, and hold them no longer."""
        taken = self.last(steps)
        del self._values[len(self._values) - _FIELDS * len(taken) :]
        return taken

    def since(self, ts: float) -> int:
        """Return how many of the latest ended after ``ts``."""
        times = self._values[::_FIELDS]
        return len(times) - bisect_right(times, ts)

    def clear(self) -> None:
        del self._values[:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """A cause of slow steps: since when, its ``ratio`` to its peers or past, the ``job_ratio`` it alone
    explains. ``of_rank``: one rank that the others wait for; ``changed``: it began some time, so that the
    job's own past shows what it costs; ``believed``: it is certain."""

    onset: float
    onset_lo: float
    ratio: float
    job_ratio: float
    of_rank: bool
    changed: bool
    believed: bool


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
    believed: bool = False
    excess: float = 0.0
    growth: float = 1.0
    job_ratio: float = 1.0
    total: float = 0.0
    marks: deque[tuple[float, float]] = field(default_factory=deque)

    def note(self, slowdown: Slowdown) -> None:
        """Take the latest figures."""
        before, self.excess = self.excess, max(slowdown.ratio - 1.0, 0.0)
        grown = max(self.excess - before, 0.0) if before else 0.0
        self.growth = 1.0 + _LAG * grown / self.excess if grown else 1.0
        self.job_ratio = slowdown.job_ratio
        self.believed = self.believed or slowdown.believed

    def seconds(self, taken: _Taken, healthy: float) -> float:
        """Return what its cause alone explains that the step took longer than ``healthy`` [s]."""
        if self.has_past and self.of_rank:
            return self.excess * healthy
        return taken.seconds * (1.0 - 1.0 / max(self.job_ratio, 1.0))

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

    Per step with time t, compute w, GPUs g, and the healthy pace p (step seconds per second of compute, over
    the last 300 healthy steps): the excess t - p * w, in seconds, times g is charged to the accounts with a
    past, in shares of what each of them alone explains; ranks that are slow at once are waited for at once
    (``layers``), and a rank that is slower by e pays e * p * w at most, and more while e grows: other ranks
    pause, too. What is left of t is charged to those without a past by their job ratio r, as t * (1 - 1 / r).
    Nothing is charged twice: the sum over accounts is what the job lost [GPU-s].

    ``step`` comes before the detectors see the step, ``charge`` and ``close`` after.
    """

    def __init__(self) -> None:
        self._healthy = _Steps()
        self._charged = _Steps()
        self._latest: deque[float] = deque(maxlen=_LATEST_STEPS)
        self._pace = math.nan
        self._open: dict[K, _Account] = {}
        self._in_step = True

    def step(self, seconds: float, work: float, ts: float, *, gpus: int, in_step: bool) -> None:
        """Take a step of so many seconds without its checkpoint, ended at ``ts``, in a job of ``gpus``.

        ``work``: compute of its healthy ranks [s]. Ranks that are not ``in_step`` have no common step time.
        """
        self._in_step = in_step
        if not seconds > 0:
            return
        taken = _Taken(ts, seconds, work if work > 0 else 1.0, gpus)
        pace = taken.seconds / taken.work
        usual = median(self._latest) if self._latest else pace
        # A pause is kept here as well: if it was the first step of slower work, that is usual in eight steps.
        self._latest.append(pace)
        if pace > _PAUSE * usual:
            return
        # While a cause is open, its steps would teach the slowdown as good health.
        if not self._with_past():
            self._healthy.append(taken)
        self._charge(taken, self._open.values())

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
        return account.cost(at)

    def _note(self, account: _Account, slowdown: Slowdown) -> None:
        before = account.excess
        account.note(slowdown)
        if account.has_past and account.excess > before:
            # A ramp: the steps since the last report were bounded by what it explained then.
            reported_at, _ = account.marks[-1]
            for taken in self._charged.take(self._charged.since(reported_at)):
                self._charge(taken, [account])

    def close(self, key: K, at: float) -> float:
        """Return the GPU-seconds that ``key`` has cost, and charge it no more."""
        cost = self._open.pop(key).cost(at)
        # All causes that are open at once share one pace; the next one learns it from the steps before it.
        if not self._with_past():
            self._pace = math.nan
            self._charged.clear()
        return cost.gpu_seconds

    def _with_past(self) -> list[_Account]:
        return [account for account in self._open.values() if account.has_past]

    def _opened(self, key: K, slowdown: Slowdown, at: float, *, on_and_off: bool) -> _Account:
        changed, late = self._in_step and slowdown.changed, list[_Taken]()
        account = _Account(has_past=changed, of_rank=slowdown.of_rank)
        account.note(slowdown)
        others = self._with_past() if changed else [a for a in self._open.values() if not a.has_past]
        if changed:
            since = self._take_since(slowdown.onset_lo, alone=not others)
            if not others:
                self._pace = _pace(self._healthy, account.excess if account.of_rank else _PAUSE)
            if math.isnan(self._pace):
                # Too few healthy steps: the ratio to the peers must do, and the steps go back.
                account.has_past, changed = False, False
                for taken in since:
                    self._healthy.append(taken)
            else:
                late = self._charged.take(self._charged.since(slowdown.onset_lo))
        if not changed:
            since = [] if others else self._healthy.last(self._healthy.since(slowdown.onset_lo))
        # The onset may lie within a step, all of which is charged: the rate counts from the start of that
        # step. That of a rank that is slow on and off counts the time between, too.
        onset = slowdown.onset
        began = next((taken.ts - taken.seconds for taken in since if taken.ts > onset), onset)
        first, before = min(began, onset, at - (RATE_SECONDS if on_and_off else 0.0)), 0.0
        for taken in since + late:
            self._charge(taken, [account])
            before = max(account.total, 0.0) if taken.ts <= first else before
        account.marks.append((first, before))
        self._open[key] = account
        return account

    def _take_since(self, onset: float, *, alone: bool) -> list[_Taken]:
        """Take the steps since shortly before ``onset`` from the healthy ones, in order."""
        since = self._healthy.since(onset)
        # Causes that began together have one lead: a node's eight ranks would charge 120 steps before it.
        lead = min(LEAD_STEPS if alone or since else 0, len(self._healthy) - since - _LEAST_STEPS)
        return self._healthy.take(since + max(lead, 0))

    def _charge(self, taken: _Taken, accounts: Iterable[_Account]) -> None:
        """Put what a step took longer on the accounts: each second on one of them only."""
        own = list(accounts)
        past, always = [a for a in own if a.has_past], [a for a in own if not a.has_past]
        healthy = self._pace * taken.work
        # What is only suspected pays for nothing that a certain cause explains.
        sure = [a for a in past if a.believed] or past
        parts = _parts(sure, taken, healthy)
        for account, seconds in zip(sure, parts, strict=True):
            account.total += taken.gpus * seconds
        paid = taken.paid + math.fsum(parts)
        if past:
            self._charged.append(replace(taken, paid=paid))
        # What the accounts with a past have paid is taken off the step before the others share it.
        left = (taken.seconds - max(paid, 0.0)) / taken.seconds
        claims = [account.seconds(taken, healthy) for account in always]
        for account, seconds in zip(always, layers(claims), strict=True):
            account.total += taken.gpus * left * seconds


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


def _parts(accounts: list[_Account], taken: _Taken, healthy: float) -> list[float]:
    """Return what each account pays of a step's excess; ranks are slow at once, other causes add up.

    A rank pays no more than it explains: what a step took beyond that was another rank's pause.
    """
    of_ranks = iter(layers([a.seconds(taken, healthy) for a in accounts if a.of_rank]))
    sizes = [next(of_ranks) if a.of_rank else a.seconds(taken, healthy) for a in accounts]
    whole, excess = math.fsum(sizes), taken.seconds - healthy
    parts = [excess * (size / whole if whole > 0 else 1.0 / len(sizes)) for size in sizes]
    parts = [
        min(part, a.growth * size) if a.of_rank else part
        for part, size, a in zip(parts, sizes, accounts, strict=True)
    ]
    # The rest of a step that others were charged for before this cause was found.
    return [max(part - taken.paid, 0.0) for part in parts] if taken.paid else parts


def _pace(healthy: _Steps, bound: float) -> float:
    """Return the step seconds per second of compute that the healthy steps are charged nothing by.

    A step is charged ``bound`` healthy ones at most (``_parts``), so the pace is the root p of
    sum(min(t, (1 + bound) * p * w)) = p * sum(w), found by Newton's method from above, in a few turns. NaN
    where the steps are too few.
    """
    steps = healthy.last(REFERENCE_STEPS)
    if len(steps) < _LEAST_STEPS:
        return math.nan
    pace, over, longer = math.inf, -1, list[_Taken]()
    while len(longer) > over:
        over = len(longer)
        seconds = math.fsum(t.seconds for t in steps) - math.fsum(t.seconds for t in longer)
        work = math.fsum(t.work for t in steps) - (1.0 + bound) * math.fsum(t.work for t in longer)
        pace = seconds / work
        longer = [t for t in steps if t.seconds > (1.0 + bound) * pace * t.work]
    return pace
