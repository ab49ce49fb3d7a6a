"""Bayesian online change-point detection for one series, sample by sample: what the bank is compared with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from detectors.changepoint.bocpd import LARGEST_INPUT, BocpdConfig, Onset, onset_of, run_statistics


@dataclass(slots=True)
class Run:
    """One hypothesis: the current run has this age and these sufficient statistics; log_weight is
    unnormalised."""

    age: int
    mu: float
    beta: float
    log_weight: float


class Bocpd:
    """Compute the posterior over the start of the present run of one series (reference implementation).

    For each start time s held, with x_s..x_t the samples since then,

        P(s | x_1..x_t)  ∝  P(s | x_1..x_{t-1}) · (1 − H) · p(x_t | x_s..x_{t-1})        s < t
        P(t | x_1..x_t)  ∝  H · p(x_t | prior)

    with hazard H and Student-t predictive p, ν = 2α degrees of freedom (Adams and MacKay 2007, equation 3, in
    the shifted indexing; Murphy 2007, equation 100). `update(x)` returns the mass of the starts after the
    accepted regime start, the probability that the series has changed since. After an alarm the caller dates
    the change (`onset`) and makes it the regime (`accept`); older starts stay as hypotheses.

    Input is standardised: mean 0, sigma 1. NaN means "not read" and leaves the state as it is. O(slots) per
    sample, float64. `BocpdBank` computes the same for many series at once.

    >>> detector = Bocpd()
    >>> for x in [0.1, -0.4, 0.3, 0.0, -0.2, 0.5, -0.1, 0.2]:
    ...     probability = detector.update(x)
    >>> round(probability, 3)
    0.0
    >>> for x in [5.1, 4.8, 5.3, 5.0, 4.9]:
    ...     probability = detector.update(x)
    >>> probability > 0.9, detector.onset().age
    (True, 5)
    """

    def __init__(self, config: BocpdConfig | None = None) -> None:
        self._config = config or BocpdConfig()
        self._ring: list[Run] = []
        self._old: Run | None = None
        # Log weight of the run that the next sample may start: 0 for the first, afterwards log H, since the
        # weights are normalised.
        self._birth = 0.0
        self._regime_age = 0
        self.probability = 0.0

    def update(self, x: float) -> float:
        """Take one standardised sample; return the mass of runs that began after the regime did."""
        if math.isnan(x):
            return self.probability
        x = min(max(x, -LARGEST_INPUT), LARGEST_INPUT)
        config = self._config
        # A run that only starts has survived no hazard: what the loop takes off for that is added here.
        self._ring.append(Run(0, config.mu0, config.beta0, self._birth - math.log1p(-config.hazard)))
        for run in self._runs():
            run.log_weight += self._absorb_sample(run, x) + math.log1p(-config.hazard)
        self._regime_age += 1
        total = _log_sum(run.log_weight for run in self._runs())
        for run in self._runs():
            run.log_weight -= total
        self._birth = math.log(config.hazard)
        self.probability = sum(math.exp(run.log_weight) for run in self._runs() if run.age < self._regime_age)
        self._absorb_oldest()
        return self.probability

    def posterior(self) -> dict[int, float]:
        """Probability by age of the run, in samples; the absorbing slot stands at the age of its heaviest
        run."""
        return {run.age: math.exp(run.log_weight) for run in self._runs()}

    def onset(self) -> Onset:
        """Onset of the new run: posterior over ages below the regime's. LookupError when there is none."""
        posterior = sorted((age, p) for age, p in self.posterior().items() if age < self._regime_age)
        return onset_of([age for age, _ in posterior], [p for _, p in posterior])

    def accept(self, age: int, samples: Sequence[float]) -> None:
        """Make the run that began `age` samples ago the accepted regime, with the statistics of `samples`.

        Runs as young or younger merge into it: after an alarm most of their mass differs only by a sample
        or two. Older runs stay, so a change accepted in error can still be outweighed.
        """
        merged = [run for run in self._runs() if run.age <= age]
        weight = _log_sum(run.log_weight for run in merged)
        self._ring = [run for run in self._ring if run.age > age]
        mu, beta = run_statistics(samples, self._config)
        run = Run(age, mu, beta, weight)
        if age < self._config.slots:
            self._ring.append(run)
        # One slot holds what is older than the ring: the heavier of two runs.
        elif self._old is None or self._old in merged or weight > self._old.log_weight:
            self._old = run
        self._regime_age = age
        self.probability = 0.0

    def _runs(self) -> list[Run]:
        return self._ring if self._old is None else [*self._ring, self._old]

    def _absorb_sample(self, run: Run, x: float) -> float:
        """Move the run's statistics on by x and return the log predictive density of x before the move."""
        config = self._config
        n = min(run.age, config.cap)
        kappa, alpha = config.kappa0 + n, config.alpha0 + n / 2
        d = x - run.mu
        before = run.beta
        run.mu += d / (kappa + 1)
        run.beta += d * d * kappa / (2 * (kappa + 1))
        # Student-t: 1 + z²/ν is the ratio of the two betas.
        density = (
            math.lgamma(alpha + 0.5)
            - math.lgamma(alpha)
            - 0.5 * math.log(2 * math.pi * (kappa + 1) / kappa)
            + alpha * math.log(before)
            - (alpha + 0.5) * math.log(run.beta)
        )
        if run.age >= config.cap:
            # alpha stays at the cap, so that beta has to shrink by as much as alpha would have grown: its
            # estimate of the variance, beta / alpha, would rise for ever.
            run.beta *= alpha / (alpha + 0.5)
        run.age += 1
        return density

    def _absorb_oldest(self) -> None:
        """Fold the run that leaves the ring into the absorbing slot: weights add, the heavier statistics
        stay."""
        leaving = self._ring[0]
        if leaving.age < self._config.slots:
            return
        del self._ring[0]
        if self._old is None:
            self._old = leaving
            return
        heavier = leaving if leaving.log_weight > self._old.log_weight else self._old
        weight = _log_sum([leaving.log_weight, self._old.log_weight])
        self._old = Run(heavier.age, heavier.mu, heavier.beta, weight)


def _log_sum(values: Iterable[float]) -> float:
    terms = list(values)
    top = max(terms)
    return top + math.log(math.fsum(math.exp(v - top) for v in terms))
