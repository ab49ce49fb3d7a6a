"""Reported work as an alibi: what a rank's tokens explain of its time is taken out before it is compared."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MOST_SLOPE = 1.2
"""Time grows with tokens no faster than in proportion, but for attention, which the squares stand for;
above 1 by the error of the fit."""

_HUBER = 1.5
"""Residual spreads from which a residual counts less (Huber 1964: 95 % efficient at a Gaussian)."""

_FORGET = 0.995
"""Weight left of a step one step later: some 200 steps count, as in ``detectors.peers.workload``."""

_LEAST = 1e-3
"""Spread of the amounts, in logs, below which they explain nothing: all ranks have the same work."""

_RIDGE = 1e-2
"""Sum of squares added to both amounts: some jobs pack all batches to one number of tokens."""

_PRIOR = np.array([1.0, 1.0])
"""Slopes until amounts vary enough to show them: twice the tokens, or twice the length of sequences, take
twice as long, so that a rank that reports more from one step on is not slow by as much (chosen)."""


class WorkFit:
    """Recursive least squares of log time on log amounts, both relative to the role of the rank.

    With y_r = ln t_r less its role's location and w_r [2] = ``log_amounts`` less theirs, the slopes b solve
    (sum k w w' + ridge) b = sum k y w + ridge b0, b0 = (1, 1), over all ranks and steps with weights that
    halve in 140 steps. k = min(1, 1.5 s / |y - b w|) is Huber's weight on the *residual*, s its robust spread
    in the step: a slow rank hardly moves the fit. (Clipping the ratio y itself instead leaves a ghost of some
    3 % on ranks with much work.) Slopes lie in [0, 1.2]: more work never takes less time. ``known``: whether
    amounts have been reported.
    """

    def __init__(self) -> None:
        self.slopes = _PRIOR
        self.known = False
        self._xx = np.zeros((2, 2))
        self._xy = np.zeros(2)
        self._spread = 0.0

    def explained(self, amounts: Floats) -> Floats:
        """Return the log time that ``amounts`` [2, ranks] explain, [ranks]; 0 where none are reported."""
        found: Floats = np.nan_to_num(self.slopes @ np.nan_to_num(amounts))
        return found

    def update(self, y: Floats, amounts: Floats) -> None:
        """Take a step: log times [ranks] and log amounts [2, ranks], relative to the role."""
        w = np.nan_to_num(amounts)
        self.known = True
        known = np.isfinite(y) & np.isfinite(amounts).any(axis=0)
        if known.sum() < 4 or np.ptp(w[:, known], axis=1).max() < _LEAST:
            return
        y, w = y[known], w[:, known]
        # Locations are low quantiles: a fit through the origin would lean on their difference.
        y, w = y - np.median(y), w - np.median(w, axis=1, keepdims=True)
        residual = y - self.slopes @ w
        spread = 1.4826 * float(np.median(np.abs(residual)))
        self._spread = spread if self._spread == 0.0 else 0.9 * self._spread + 0.1 * spread
        weight = np.minimum(1.0, _HUBER * max(self._spread, 1e-4) / np.maximum(np.abs(residual), 1e-9))
        self._xx = _FORGET * self._xx + (w * weight) @ w.T
        self._xy = _FORGET * self._xy + (w * weight) @ y
        ridged = self._xx + np.eye(2) * _RIDGE
        solved = np.linalg.solve(ridged, self._xy + _RIDGE * _PRIOR)
        self.slopes = np.clip(solved, 0.0, MOST_SLOPE)


def log_amounts(tokens: Floats, squares: Floats | None) -> Floats:
    """Return the logs of what is reported of each rank's work, [2, ranks]; NaN where nothing is.

    These are its tokens, and the mean length of a token's sequence: squared lengths over tokens (where tokens
    are not reported, squared lengths), for both amounts of one batch nearly agree.
    """
    both = np.stack([tokens, np.full_like(tokens, np.nan) if squares is None else squares])
    found: Floats = np.log(np.where(both > 0, both, np.nan))
    found[1] -= np.nan_to_num(found[0])
    return found
