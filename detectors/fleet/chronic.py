"""Chronic slowness: GPUs slightly slower than their peers in job after job, which no single job reveals.

Each hour of a job gives the log ratio x of a GPU's step seconds to those of its role. The hours of a UTC day
in one job are one observation, their mean. Healthy GPUs differ for good, too, by a robust sd s (1.4826 times
the median absolute deviation of the fleet's means), so only a difference of several times s counts.

For each slowdown δ = ln(1 + effect) of ``EFFECTS`` a one-sided CUSUM adds up log-likelihood ratios of
"slower by δ" against "as its peers", in days:

    S ← clip(S + (δ/v)·(x − δ/2), 0, 1.5·h)    with v = s² + noise²,  h = ln(machines · tests / FALSE_NAMES)

A GPU is named once S ≥ h for some δ, its mean since then is at least ``TIMES_SPREAD``·s, and the slow days
are on ``MIN_DAYS`` days of ``MIN_JOBS`` jobs. By Wald's inequality chance alone gets S ≥ h with a
probability below exp(−h), hence ``FALSE_NAMES`` a day in the whole fleet.

Source: Page (1954), Continuous inspection schemes; Wald (1945), Sequential tests of statistical hypotheses.
The limits on hours and days are ours.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import NamedTuple

# Slowdowns tested for: a larger one is found within a single job.
EFFECTS = (0.01, 0.02, 0.03, 0.05, 0.10)

# One hour counts as at most so much slower or faster (log ratio; chosen: a bad hour is no bad GPU).
LARGEST = math.log1p(EFFECTS[-1])

# A GPU must differ by so many robust sd of healthy ones (chosen: one in 3.5 million of a Gaussian).
TIMES_SPREAD = 5.0

# Chosen: what is seen on one day, or in one job, may be the day's or the job's.
MIN_DAYS, MIN_JOBS = 2, 2

# So far back, with today, one may ask: a GPU is judged by weeks, not by what it was a season ago.
MAX_DAYS = 28

# Of fewer, the spread of healthy ones cannot be estimated (chosen).
MIN_MACHINES = 8

# False names expected in a whole fleet each day, were its noise Gaussian (chosen: one in three years).
FALSE_NAMES = 1e-3

# Healthy GPUs of one role differ by 0.1 to 0.6 % for good in recorded jobs: less is not credible.
_LEAST_SPREAD = 0.001
_LEAST = math.log1p(EFFECTS[0])
_HOURS = 24

# Evidence is capped at so many thresholds, so that a repaired GPU is dropped within days.
_CAP = 1.5
# A day counts as at most so many sd above the slowdown tested for (winsorised).
_LIMIT_SIGMAS = 3.0


class Machine(NamedTuple):
    """A GPU by its place."""

    cluster: str
    node: str
    gpu_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """One hour of one GPU in a job at ``at`` (Unix seconds): log ratio of its step seconds to its role's.

    ``spread`` is the robust sd of these among all GPUs of the job.
    """

    machine: Machine
    job: str
    rank: int
    at: float
    log_ratio: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """The paces of one GPU in one job on the UTC day that begins at ``at``: over how many hours, and their
    mean log ratio; ``spread`` is the largest reported.
    """

    machine: Machine
    job: str
    rank: int
    at: float
    hours: int
    log_ratio: float
    spread: float


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is usual in a fleet of ``machines``: the robust sd of their mean log ratios, and by how much
    (sd) one day of a GPU differs from its mean.
    """

    machines: int
    spread: float
    noise: float

    @property
    def least(self) -> float:
        """Log ratio from which on a GPU differs from healthy ones."""
        return _least(self.spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chronic:
    """A GPU that is slow for good: ``ratio`` times as long as its peers, ``spreads`` times what healthy ones
    differ by, since the day that begins at ``since`` (Unix seconds).

    ``ranks``: how many different ranks it was meanwhile. One that was the same in every job may have more
    work instead.
    """

    machine: Machine
    ratio: float
    spreads: float
    certainty: float
    since: float
    hours: int
    days: int
    jobs: int
    ranks: int


def fleet_of(machines: Sequence[tuple[float, float | None]]) -> Fleet | None:
    """Return what is usual among machines, each a mean log ratio and the sd of its days, if it has several.

    None where there are too few. The medians belong to the healthy majority.

    >>> fleet_of([(0.004 * (-1) ** i, 0.001) for i in range(99)] + [(0.03, None)])
    Fleet(machines=100, spread=0.00711648, noise=0.001)
    """
    if len(machines) < MIN_MACHINES:
        return None
    means = [mean for mean, _ in machines]
    middle = median(means)
    # A spread seen on few may be far too small: by twice its standard error.
    spread = 1.4826 * median(abs(mean - middle) for mean in means) * (1.0 + 2.0 / math.sqrt(len(means)))
    days = [sd for _, sd in machines if sd is not None]
    return Fleet(len(machines), max(spread, _LEAST_SPREAD), median(days) if days else 0.0)


def chronic(days: Iterable[Day], fleet: Fleet) -> tuple[Chronic, ...]:
    """Return the GPUs of a fleet that are slow for good, the farthest from healthy first.

    Days may come in any order. A GPU without ``MIN_DAYS`` days and ``MIN_JOBS`` jobs of at least half of
    ``fleet.least`` is none of them, and may be left out.
    """
    ordered = sorted(days, key=lambda d: (d.machine, d.at, d.job))
    found = [_judged(tuple(mine), fleet) for _, mine in groupby(ordered, key=lambda d: d.machine)]
    return tuple(sorted((c for c in found if c is not None), key=place))


def place(found: Chronic) -> tuple[float, Machine]:
    """Return where a GPU stands in the answer."""
    return (-found.spreads, found.machine)


def _least(spread: float) -> float:
    return max(TIMES_SPREAD * spread, _LEAST)


def _judged(days: tuple[Day, ...], fleet: Fleet) -> Chronic | None:
    deltas = [delta for effect in EFFECTS if (delta := math.log1p(effect)) >= fleet.least - 1e-12]
    if not deltas:
        return None
    h = math.log(fleet.machines * len(deltas) / FALSE_NAMES)
    evidence, first = max(_accumulated(days, fleet, delta, h) for delta in deltas)
    since = days[first:]
    if evidence < h:
        return None
    hours = sum(d.hours for d in since)
    ratio = sum(d.hours * d.log_ratio for d in since) / hours
    spread = math.sqrt(sum(d.hours * max(fleet.spread, d.spread) ** 2 for d in since) / hours)
    # A job that was slow alone, or one day, is no memory of weeks.
    slow = [d for d in since if d.log_ratio >= _least(max(fleet.spread, d.spread)) / 2]
    on, jobs = {d.at for d in slow}, {d.job for d in slow}
    if ratio < _least(spread) or len(on) < MIN_DAYS or len(jobs) < MIN_JOBS:
        return None
    return Chronic(
        machine=days[0].machine,
        ratio=round(math.exp(ratio), 4),
        spreads=round(ratio / spread, 2),
        # Wald: by chance the evidence of one test gets so far with a probability below exp(-evidence).
        certainty=round(1.0 - FALSE_NAMES * math.exp(h - evidence), 6),
        since=since[0].at,
        hours=hours,
        days=len({d.at for d in since}),
        jobs=len({d.job for d in since}),
        ranks=len({d.rank for d in since}),
    )


def _accumulated(days: tuple[Day, ...], fleet: Fleet, delta: float, h: float) -> tuple[float, int]:
    """Return the evidence for a slowdown of ``delta`` (log) at the end, and with which day it began."""
    level, first = 0.0, 0
    for i, day in enumerate(days):
        variance = max(fleet.spread, day.spread) ** 2 + fleet.noise**2
        value = min(day.log_ratio, delta + _LIMIT_SIGMAS * math.sqrt(variance))
        # An hour counts at most as its share of a day, and no day counts more than the threshold.
        most = h * min(day.hours / _HOURS, 1.0)
        if level == 0.0:
            first = i
        level += min(max(delta / variance * (value - delta / 2), -most), most)
        level = min(max(level, 0.0), _CAP * h)
    return level, first
