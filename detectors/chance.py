"""How likely it is that something happens as often by chance."""

import math


def at_least(least: int, trials: int, chance: float) -> float:
    """Return P(X >= ``least``) of a binomial X of ``trials`` with a ``chance`` between 0 and 1."""
    ways = (
        math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        for k in range(least, trials + 1)
    )
    yes, no = math.log(chance), math.log1p(-chance)
    return math.fsum(math.exp(w + k * yes + (trials - k) * no) for k, w in enumerate(ways, start=least))


def beyond_chance(mean: float, chance: float) -> int:
    """Return the least number that a Poisson variable of this ``mean`` reaches with less than ``chance``."""
    number, term, below = 0, math.exp(-mean), 0.0
    while 1.0 - below >= chance:
        below += term
        number += 1
        term *= mean / number
    return number
