"""Time per token: takes out of a rank's time what its share of the work explains.

Packed batches give every rank another number of tokens in every step; the line through time against tokens,
fitted robustly over all ranks of a role, leaves the part that the machine is responsible for.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_ROUNDS = 5
_HUBER = 1.345
"""95 % efficient under normal noise (Huber, 1964); five rounds of reweighting settle the third digit."""

_MIN_POINTS = 40
_MIN_TOKEN_SPREAD = 0.01
"""With less variation than the noise has, a line through the points is arbitrary."""


@dataclass(frozen=True, slots=True)
class TokenModel:
    """Expected seconds = ``base`` + ``per_token`` * tokens."""

    base: float
    per_token: float

    def log_expected(self, tokens: Floats) -> Floats:
        """Return log expected seconds; NaN where tokens are unknown or the model expects no time at all."""
        expected = self.base + self.per_token * tokens
        return np.log(np.where(expected > 0, expected, np.nan))


def fit_tokens(seconds: Floats, tokens: Floats) -> TokenModel | None:
    """Fit by Huber's iteratively reweighted least squares on relative errors.

    ``seconds`` and ``tokens`` are of one shape, NaN = not read. Returns None when tokens hardly vary, there
    are too few points, or more tokens do not take longer.
    """
    read = np.isfinite(seconds) & np.isfinite(tokens) & (seconds > 0)
    y, n = seconds[read], tokens[read]
    if y.size < _MIN_POINTS or n.std() < _MIN_TOKEN_SPREAD * abs(n.mean()):
        return None
    scale = n.mean()
    # Divided by the time, residuals are relative: a slow batch weighs no more than a quick one. Tokens in
    # units of their mean keep the normal equations well conditioned.
    design = np.stack([np.ones_like(n), n / scale], axis=1) / y[:, None]
    target, weight = np.ones_like(y), np.ones_like(y)
    base = slope = 0.0
    for _ in range(_ROUNDS):
        weighted = design * weight[:, None]
        base, slope = np.linalg.lstsq(weighted.T @ design, weighted.T @ target, rcond=None)[0]
        residual = np.abs(target - design @ np.array([base, slope]))
        sigma = max(1.4826 * float(np.median(residual)), 1e-4)
        weight = np.minimum(1.0, _HUBER * sigma / np.maximum(residual, 1e-12))
    return TokenModel(float(base), float(slope / scale)) if slope > 0 else None
