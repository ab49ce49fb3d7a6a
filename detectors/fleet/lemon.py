"""Lemons: machines that fail again and again, job after job, though no single failure shows it.

Failures come in bursts, so episodes are counted: what follows the last failure of a machine within an hour
belongs to the same one. With k episodes of a machine in the time looked at, and a fleet whose typical machine
has a rate of λ₀ = −ln(share without any episode), its rate λ has a Gamma(½, b) prior and the posterior

    λ | k  ~  Gamma(½ + k, b + 1)

and it is a lemon where P(λ > 5·λ₀) > 0.95, with at least three episodes on two days in two jobs. The prior's
mean ½/b is that of the fleet, and b is at most a fifth of the time looked at.

Source: Kokolis et al. (HPCA '25), Revisiting reliability in large-scale machine learning research clusters,
who find about one node in eighty to be a lemon; the Gamma-Poisson model is the usual conjugate one.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby, pairwise

# What comes sooner after the last failure of a machine belongs to the same episode (chosen).
BURST_SECONDS = 3600.0

# A lemon fails with this probability more than so many times as often as the fleet's typical machine; with
# fewer episodes, days or jobs it may be the job's fault (all chosen).
MIN_EPISODES, MIN_DAYS, MIN_JOBS = 3, 2, 2
TIMES_TYPICAL = 5.0
CERTAINTY = 0.95

# Shape of the prior, that of Jeffreys' for a Poisson rate, and the largest share of the time looked at that
# it may weigh (chosen: where nearly nothing failed, it would outweigh what a machine has shown).
_PRIOR_SHAPE = 0.5
_PRIOR_SHARE = 0.2

_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class MachineFault:
    """One finding about a machine: when it began (Unix seconds) and the job that ran, if one did."""

    machine: str
    at: float
    job: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lemon:
    """A machine under suspicion; ``probability`` that its rate is over five times the fleet's typical one.

    ``rate`` is its expected number of episodes in the time looked at.
    """

    machine: str
    probability: float
    episodes: int
    days: int
    jobs: int
    rate: float
    first_at: float
    last_at: float


def lemons(faults: Iterable[MachineFault], *, fleet: int) -> tuple[Lemon, ...]:
    """Return the lemons among ``fleet`` machines, the surest first; all were watched for the same time."""
    ordered = sorted(faults, key=lambda t: (t.machine, t.at, t.job or ""))
    by_machine = {name: tuple(mine) for name, mine in groupby(ordered, key=lambda t: t.machine)}
    counts = {name: _episodes(mine) for name, mine in by_machine.items()}
    typical, prior = _fleet(list(counts.values()), max(fleet, len(counts)))
    found = [
        lemon
        for name, mine in by_machine.items()
        if (lemon := _judged(mine, counts[name], typical, prior)) is not None
    ]
    return tuple(sorted(found, key=lambda lemon: (-lemon.probability, -lemon.episodes, lemon.machine)))


def exceeds(episodes: int, rate: float, prior: float) -> float:
    """Return the probability that the rate of a machine with so many episodes is over ``rate``.

    Both in one unit of time, under a prior Gamma(½, ``prior``): the upper incomplete gamma function of a
    half-integer shape, in closed form.

    >>> round(exceeds(0, 1.0, 1.0), 4), round(exceeds(6, 1.5, 0.2), 4)
    (0.0455, 0.9948)
    """
    # Q(½, x) = erfc(√x), and Q(a + 1, x) = Q(a, x) + x^a·exp(-x) / Γ(a + 1). The posterior is a Gamma of
    # shape ½ + episodes and rate 1 + prior.
    x = rate * (1.0 + prior)
    tail, term = math.erfc(math.sqrt(x)), math.exp(-x) * math.sqrt(x) / math.gamma(1.5)
    for k in range(episodes):
        tail += term
        term *= x / (k + 1.5)
    return min(tail, 1.0)


def _fleet(counts: list[int], fleet: int) -> tuple[float, float]:
    """Return the typical rate of a fleet, and the rate of the prior made from it.

    The share of machines without any episode gives the typical rate: lemons are too few to move it, while
    they would carry a mean away. The prior counts at most as a fifth of the time looked at: healthy
    machines do not show how often a bad one fails.
    """
    mean = sum(counts) / fleet
    untroubled = 1.0 - len(counts) / fleet
    typical = -math.log(untroubled) if untroubled > 0 else float(sorted(counts)[len(counts) // 2])
    # With this rate the mean of the prior is that of the fleet.
    return typical, min(_PRIOR_SHAPE / mean, _PRIOR_SHARE) if mean else _PRIOR_SHARE


def _episodes(mine: tuple[MachineFault, ...]) -> int:
    return 1 + sum(later.at - earlier.at >= BURST_SECONDS for earlier, later in pairwise(mine))


def _judged(mine: tuple[MachineFault, ...], episodes: int, typical: float, prior: float) -> Lemon | None:
    days = len({int(t.at // _DAY) for t in mine})
    jobs = len({t.job for t in mine if t.job is not None})
    if episodes < MIN_EPISODES or days < MIN_DAYS or jobs < MIN_JOBS:
        return None
    probability = exceeds(episodes, TIMES_TYPICAL * typical, prior)
    if probability <= CERTAINTY:
        return None
    return Lemon(
        machine=mine[0].machine,
        probability=round(probability, 4),
        episodes=episodes,
        days=days,
        jobs=jobs,
        rate=round((_PRIOR_SHAPE + episodes) / (prior + 1.0), 2),
        first_at=mine[0].at,
        last_at=mine[-1].at,
    )
