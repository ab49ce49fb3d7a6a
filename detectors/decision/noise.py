"""Noise without a model: how far the atoms of a family scatter, and the evidence that one stands out."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

FLOOR = 0.001
"""Smallest credible spread, in logs: timers and rounding of real rows reach it."""

_MOST_RAISED = 3.5
"""The present spread raises the usual one by this much at most (3 to 4 measured alike): where all scatter,
nobody stands out, but a slow half must not hide itself."""

_MOST_SKEW = 3.0
"""The upper side counts up to this multiple of the lower one: noise of times has a long upper tail, but in a
small family the upper side is the slow atom itself."""

_LAG = 8
"""Evaluations until a spread counts as usual: a window's length, so that a shift does not teach itself."""

_LOW, _LOCATION, _HIGH = 0.10, 0.35, 0.84
"""Quantiles of the atoms. The location is that of a role (``channels``); the upper one is a Gaussian sigma
above the median."""


class FamilyNoise:
    """The scatter of each statistic across the atoms of one family.

    For statistic s with window L, the spread tau of its values D_a over the atoms a is

        tau^2 = mean over time of max(lower, min(upper, 3 lower))^2,
        lower = (q35 - q10) / c_n,  upper = (q84 - q35) / d_n  [log seconds],

    c_n and d_n making them unbiased for n Gaussian atoms: with q35 in place of the median half of the atoms
    may be slow. It is raised to at most 3.5 times itself by the present
    ``lower``, and never below 0.1 %. z_a = (D_a - location) / tau, the location from the faster part (q35),
    and the evidence is the generalised likelihood ratio of a shift under Student's t,

        G = (nu + 1) / 2 * ln(1 + z^2 / nu)  [nats],  nu = (n - 1)(1 + elapsed / L),

    for z > 0: a scatter known from few atoms and windows gives little evidence. What correlation in time
    does to means over L steps is in tau by itself, since tau is measured on such means (no autocorrelation
    is modelled). Calibration across atoms replaces the usual variance of one series.
    """

    def __init__(self, atoms: int, windows: Ints) -> None:
        self._atoms = atoms
        self._lag = np.minimum(windows, _LAG)
        self._pending = np.zeros((len(windows), _LAG))
        self._sum = np.zeros(len(windows))
        self._count = np.zeros(len(windows), dtype=np.intp)

    def evidence(self, values: Floats, which: Ints) -> tuple[Floats, Floats]:
        """Return the evidence [statistics, atoms] that each atom is slow, from ``values`` of the statistics
        ``which``, and the spreads [statistics] by which they were weighed."""
        location, lower, upper = spreads(values)
        now = np.maximum(lower, np.minimum(upper, _MOST_SKEW * lower))
        matured = np.maximum(self._count[which] - self._lag[which], 0)
        usual = np.where(matured > 0, np.sqrt(self._sum[which] / np.maximum(matured, 1)), now)
        tau = np.maximum(np.clip(lower, usual, _MOST_RAISED * usual), FLOOR)
        freedom = (self._atoms - 1) * (1.0 + matured / self._lag[which])
        self._learn(now, which)
        return t_glr((values - location[:, None]) / tau[:, None], freedom[:, None]), tau

    def _learn(self, now: Floats, which: Ints) -> None:
        slot = self._count[which] % self._lag[which]
        ripe = self._count[which] >= self._lag[which]
        self._sum[which] += np.where(ripe, self._pending[which, slot], 0.0)
        self._pending[which, slot] = now**2
        self._count[which] += 1


def t_glr(z: Floats, freedom: Floats) -> Floats:
    """Return the evidence in nats of standardised shifts ``z``; none for z <= 0."""
    up = np.maximum(z, 0.0)
    found: Floats = 0.5 * (freedom + 1.0) * np.log1p(up * up / freedom)
    return found


def spreads(values: Floats) -> tuple[Floats, Floats, Floats]:
    """Return location, lower and upper spread over the last axis, each unbiased for Gaussian values."""
    n = values.shape[-1]
    ordered = np.sort(values, axis=-1)
    q10, q35, q84 = (_quantile(ordered, q) for q in (_LOW, _LOCATION, _HIGH))
    below, above, offset = _unbiased(n)
    lower, upper = (q35 - q10) * below, (q84 - q35) * above
    return q35 + offset * lower, lower, upper


def _quantile(ordered: Floats, q: float) -> Floats:
    place = q * (ordered.shape[-1] - 1)
    low = int(place)
    high = min(low + 1, ordered.shape[-1] - 1)
    found: Floats = ordered[..., low] + (place - low) * (ordered[..., high] - ordered[..., low])
    return found


@lru_cache
def _unbiased(n: int) -> tuple[float, float, float]:
    """Return what makes q35 - q10 and q84 - q35 of n Gaussians one, and by how much the mean lies above
    q35."""
    if n > 200:
        return 1.0 / 0.8962, 1.0 / 1.3798, 0.3853
    draws = np.sort(np.random.default_rng(0).standard_normal((4000, n)), axis=-1)
    q10, q35, q84 = (float(_quantile(draws, q).mean()) for q in (_LOW, _LOCATION, _HIGH))
    return 1.0 / (q35 - q10), 1.0 / (q84 - q35), -q35
