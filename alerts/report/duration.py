"""How long a fault that has lasted so long will go on: lognormal laws of fail-slow durations.

The means are Greyhound's (ATC '25): compute fail-slow 10 min, congestion 24 min, in jobs of 512 GPUs and more
72 min. Its spread is not published; σ is our assumption.
"""

import math
from dataclasses import dataclass

from alerts.kinds import kind_of

# Probability of lasting so long below which its own expectation would be a quotient of rounding errors.
_HEALED = 1e-12


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Durations with a mean of ``mean_seconds`` whose logarithm has the standard deviation ``sigma``."""

    mean_seconds: float
    sigma: float

    @property
    def _mu(self) -> float:
        return math.log(self.mean_seconds) - self.sigma**2 / 2

    def heals_within(self, seconds: float, *, age: float) -> float:
        """Return the probability that it ends within ``seconds`` from now: (F(a + h) − F(a)) / (1 − F(a)).

        >>> round(COMPUTE.heals_within(600, age=60), 2)
        0.73
        """
        lasting = self._outlasts(age)
        return 1.0 - self._outlasts(age + seconds) / lasting if lasting > _HEALED else 0.0

    def remaining(self, *, age: float) -> float:
        """Return the seconds it is expected to go on: E[T | T > a] − a.

        The longer it has lasted, the longer it will last: in minutes,

        >>> [round(COMPUTE.remaining(age=60 * age) / 60) for age in (0, 5, 60)]
        [10, 13, 42]
        """
        lasting = self._outlasts(age)
        if age <= 0 or lasting <= _HEALED:
            return self.mean_seconds if age <= 0 else age
        # The partial expectation of a lognormal: E[T; T > a] = mean · P(Z > (ln a - mu) / sigma - sigma).
        share = _above((math.log(age) - self._mu) / self.sigma - self.sigma)
        return self.mean_seconds * share / lasting - age

    def _outlasts(self, age: float) -> float:
        return 1.0 if age <= 0 else _above((math.log(age) - self._mu) / self.sigma)


def _above(z: float) -> float:
    return 0.5 * math.erfc(z / math.sqrt(2.0))


COMPUTE = Lognormal(600.0, 1.2)
CONGESTION = Lognormal(1440.0, 1.2)
LARGE_JOB = Lognormal(4320.0, 1.3)

# GPUs from which a job has the longer law (Greyhound: jobs of 512 GPUs and more).
_LARGE = 512


def law_of(hypothesis: str, gpus: int) -> Lognormal:
    """Return the law for a likely cause in a job of so many GPUs."""
    if gpus >= _LARGE:
        return LARGE_JOB
    return CONGESTION if kind_of(hypothesis).heals_like == "congestion" else COMPUTE
