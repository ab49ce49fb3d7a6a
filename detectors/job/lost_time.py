"""What slow steps cost: the job's own step times less those it would take in good health, step by step.

An account per open suspicion. The healthy step is learnt from the steps before the first of them began, as
step seconds per second of the ranks' median compute: planned changes of the work are no loss. What a step
takes longer is put on accounts once, however many suspicions are open. Checkpoints and pauses are on none.
"""

import math
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

import msgspec

from detectors.robust import nan_median
from slowrank.telemetry import Lost, Suspicion
from streams.job_view import Key, Topic
from streams.step_rows import SECONDS
from streams.steps import Step

_OF_RANKS: frozenset[Topic] = frozenset({"compute", "data", "rest", "intermittent"})

_WITHOUT_PAST: frozenset[Topic] = frozenset({"stage", "workload", "group"})
"""What is measured against work that is even, and not against the job's own past."""

COSTLY: frozenset[Topic] = _OF_RANKS | _WITHOUT_PAST | {"input", "unmeasured", "network"}
"""What slow steps may be put down to; the other topics cost nothing by themselves, or stop the job."""

KEPT_STEPS = 384
"""The steps that an onset is dated in (256, ``StragglerConfig.history``), and some before them."""

REFERENCE_STEPS, _LEAST_STEPS = 300, 10
"""Steps that make the healthy one, and fewer than which make none. The mean of 300 steps is known to 0.3 %
where steps scatter by 5 %; with 100, a slowdown of 25 % was charged 4 % too little for want of steps."""

LEAD_STEPS = 15
"""Steps before the dated onset that are charged too: a ramp begins before it shows, and while nothing is
wrong they come to nothing. A ramp of 200 s was dated 8 to 12 steps late (`python -m benchmarks cost`)."""

_STEP, _COMPUTE, _CHECKPOINT = (SECONDS.index(name) for name in ("step", "compute", "checkpoint"))

_PAUSE = 3.0
"""A step so many times as long as the latest ones' median is a pause that was not declared."""

_LATEST_STEPS = 15

RATE_SECONDS = 120.0
"""What is lost at present is the mean over so long: a ramp is followed, and single steps do not show."""


@dataclass(frozen=True, slots=True)
class _Taken:
    ts: float
    seconds: float
    work: float
    gpus: int


class _Steps:
    """The latest steps, up to twice ``KEPT_STEPS``, in 32 bytes each: a worker holds thousands of jobs."""

    def __init__(self) -> None:
        self._values = array("d")

    def __len__(self) -> int:
        return len(self._values) // 4

    def append(self, taken: _Taken) -> None:
        self._values.extend((taken.ts, taken.seconds, taken.work, taken.gpus))
        if len(self) > 2 * KEPT_STEPS:
            del self._values[: 4 * KEPT_STEPS]

    def last(self, steps: int) -> list[_Taken]:
        """Return so many of the latest, in order."""
        values = self._values[-4 * steps :] if steps else ()
        rows = zip(*(iter(values),) * 4, strict=True)
        return [_Taken(ts, seconds, work, int(gpus)) for ts, seconds, work, gpus in rows]

    def take(self, steps: int) -> list[_Taken]:
        """Return so many of the latest, in order, and hold them no longer."""
        taken = self.last(steps)
        del self._values[len(self._values) - 4 * len(taken) :]
        return taken

    def since(self, ts: float) -> int:
        """Return how many of the latest ended after ``ts``."""
        times = self._values[::4]
        return len(times) - bisect_right(times, ts)

    def clear(self) -> None:
        del self._values[:]


@dataclass(slots=True)
class _Account:
    """GPU-seconds put down to one suspicion. ``has_past``: its loss is against the healthy step, otherwise
    against ``job_ratio``; ``excess``: of a rank, as a share of the median compute."""

    onset: float
    has_past: bool
    of_rank: bool
    believed: bool = False
    excess: float = 0.0
    job_ratio: float = 1.0
    total: float = 0.0
    marks: deque[tuple[float, float]] = field(default_factory=deque)

    def seconds(self, taken: _Taken) -> float:
        """Return what its suspicion alone says that the step took longer."""
        if self.has_past and self.of_rank:
            return self.excess * taken.work
        return taken.seconds * (1.0 - 1.0 / max(self.job_ratio, 1.0))


class LostTime:
    """The accounts of one job. ``step`` comes before the detectors see the step, ``stamped`` after."""

    def __init__(self) -> None:
        self._healthy = _Steps()
        self._latest: deque[float] = deque(maxlen=_LATEST_STEPS)
        self._pace = math.nan
        self._open: dict[Key, _Account] = {}
        self._in_step = True

    def step(self, step: Step, *, gpus: int, in_step: bool) -> None:
        """Take a whole step of a job of ``gpus``; ranks that are not ``in_step`` have no common step time."""
        self._in_step = in_step
        middle = nan_median(step.values, axis=1)
        seconds, work, checkpoint = (float(middle[i]) for i in (_STEP, _COMPUTE, _CHECKPOINT))
        self._take(seconds - (checkpoint if checkpoint > 0 else 0.0), work, step.closed_at, gpus)

    def let_go(self) -> None:
        """Keep no steps of a job that sends none: only what is on the accounts still counts."""
        self._healthy.clear()

    def resized(self) -> None:
        """Learn the healthy step anew: the job has other ranks."""
        self._healthy.clear()
        self._latest.clear()

    def _take(self, seconds: float, work: float, ts: float, gpus: int) -> None:
        if not seconds > 0:
            return
        taken = _Taken(ts, seconds, work if work > 0 else 1.0, gpus)
        pace = taken.seconds / taken.work
        usual = median(self._latest) if self._latest else pace
        self._latest.append(pace)
        if pace > _PAUSE * usual:
            return
        if not self._since_past():
            self._healthy.append(taken)
        self._charge(taken, self._open.values())

    def stamped(self, key: Key, s: Suspicion) -> Suspicion:
        """Return a suspicion that is about to be raised, updated or cleared with what it has cost so far."""
        if key[0] not in COSTLY:
            return s
        account = self._open.get(key)
        if account is None:
            account = self._opened(key, s)
        elif s.state != "clear":
            _note(account, s)
        if s.state == "clear":
            del self._open[key]
            if not self._since_past():
                self._pace = math.nan
        return msgspec.structs.replace(s, lost=_lost(account, s))

    def _since_past(self) -> list[_Account]:
        return [account for account in self._open.values() if account.has_past]

    def _opened(self, key: Key, s: Suspicion) -> _Account:
        changed = self._in_step and key[0] not in _WITHOUT_PAST and _changed(s)
        account = _Account(s.onset, has_past=changed, of_rank=key[0] in _OF_RANKS)
        _note(account, s)
        others = self._since_past() if changed else [a for a in self._open.values() if not a.has_past]
        if changed:
            since = self._take_since(s.onset_lo)
            if not others:
                self._pace = _pace(self._healthy)
            if math.isnan(self._pace):
                account.has_past, changed = False, False
                for taken in since:
                    self._healthy.append(taken)
        if not changed:
            since = [] if others else self._healthy.last(self._healthy.since(s.onset_lo))
        for taken in since:
            self._charge(taken, [account])
        # The rate of a rank that is slow on and off counts the time between, too.
        on_and_off = ("intermittent", key[1]) in self._open
        account.marks.append((min(s.onset, s.ts - (RATE_SECONDS if on_and_off else 0.0)), 0.0))
        self._open[key] = account
        return account

    def _take_since(self, onset: float) -> list[_Taken]:
        """Take the steps since shortly before ``onset`` from the healthy ones, in order."""
        since = self._healthy.since(onset)
        lead = min(LEAD_STEPS, len(self._healthy) - since - _LEAST_STEPS)
        return self._healthy.take(since + max(lead, 0))

    def _charge(self, taken: _Taken, accounts: Iterable[_Account]) -> None:
        """Put what a step took longer on the accounts: each second on one of them only."""
        own = list(accounts)
        past, always = [a for a in own if a.has_past], [a for a in own if not a.has_past]
        excess = taken.seconds - self._pace * taken.work if past else 0.0
        if past:
            sure = [a for a in past if a.believed] or past
            for account, share in zip(sure, _shares(sure, taken), strict=True):
                account.total += taken.gpus * excess * share
        left = (taken.seconds - max(excess, 0.0)) / taken.seconds
        claims = [account.seconds(taken) for account in always]
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


def _shares(accounts: list[_Account], taken: _Taken) -> list[float]:
    """Return each account's share of a step's excess; ranks are slow at once, other causes add up."""
    of_ranks = layers([a.seconds(taken) for a in accounts if a.of_rank])
    ranks = iter(of_ranks)
    sizes = [next(ranks) if a.of_rank else a.seconds(taken) for a in accounts]
    whole = math.fsum(sizes)
    return [size / whole if whole > 0 else 1.0 / len(sizes) for size in sizes]


def _note(account: _Account, s: Suspicion) -> None:
    account.excess = max((s.slowdown_ratio or 1.0) - 1.0, 0.0)
    account.job_ratio = s.job_slowdown_ratio or 1.0
    account.believed = account.believed or s.overwhelming


def _changed(s: Suspicion) -> bool:
    """Return whether what is suspected began some time: what is seen from the first step on has no past."""
    return s.family != "timing" or any(e.change_at is not None for e in s.evidence)


def _pace(healthy: _Steps) -> float:
    steps = healthy.last(REFERENCE_STEPS)
    if len(steps) < _LEAST_STEPS:
        return math.nan
    return math.fsum(t.seconds for t in steps) / math.fsum(t.work for t in steps)


def _lost(account: _Account, s: Suspicion) -> Lost:
    total = max(account.total, 0.0)
    account.marks.append((s.ts, total))
    while len(account.marks) > 2 and account.marks[1][0] <= s.ts - RATE_SECONDS:
        account.marks.popleft()
    (first, before), now = account.marks[0], s.ts
    rate = (total - before) / (now - first) if now > first else 0.0
    return Lost(gpu_seconds=round(total, 3), gpus=round(max(rate, 0.0), 4) if s.state != "clear" else 0.0)
