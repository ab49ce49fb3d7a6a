"""Published and simple rules for slow ranks on arrays of seconds [steps, ranks].

Each returns booleans [steps, ranks]: whether the rule holds for that rank at that step. Re-implemented from
their descriptions (NVRx relative score, DLRover's two-fold median), with causal windows only.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

Rule = Callable[[Floats], Bools]


def nvrx(seconds: Floats, *, score: float = 0.75) -> Bools:
    """Fastest rank's median over 20 steps below ``score`` of the rank's own."""
    recent = _rolling_median(seconds, 20)
    fastest = np.nanmin(np.where(np.isnan(recent), np.inf, recent), axis=1, keepdims=True)
    slow: Bools = fastest / recent < score
    return slow


def dlrover(seconds: Floats, *, factor: float = 2.0) -> Bools:
    """Above ``factor`` times the median of all ranks, two steps in a row."""
    return _in_a_row(seconds > factor * np.nanmedian(seconds, axis=1, keepdims=True), 2)


def peer_mad(seconds: Floats) -> Bools:
    """Same-step robust z above 5 with a floor of 1 %, three steps in a row."""
    median = np.nanmedian(seconds, axis=1, keepdims=True)
    mad = 1.4826 * np.nanmedian(np.abs(seconds - median), axis=1, keepdims=True)
    return _in_a_row((seconds - median) / np.maximum(mad, 0.01 * median) > 5.0, 3)


def rolling_ratio(seconds: Floats, *, limit: float = 1.03) -> Bools:
    """Median over 20 steps of the ratio to the step's median above ``limit``."""
    return _rolling_median(seconds / np.nanmedian(seconds, axis=1, keepdims=True), 20) > limit


def static(seconds: Floats, *, factor: float = 1.2) -> Bools:
    """Above ``factor`` times the median of all ranks over the first 60 steps, three in a row."""
    return _in_a_row(seconds > factor * np.nanmedian(seconds[:60]), 3)


def rolling_z(seconds: Floats, *, limit: float = 3.0) -> Bools:
    """More than ``limit`` standard deviations above the mean of the rank's last 60 steps, three in a row."""
    z = np.full(seconds.shape, -np.inf)
    if len(seconds) > 60:
        past = np.lib.stride_tricks.sliding_window_view(seconds, 60, axis=0)[:-1]
        spread = np.maximum(np.nanstd(past, axis=-1), 1e-9)
        z[60:] = (seconds[60:] - np.nanmean(past, axis=-1)) / spread
    return _in_a_row(z > limit, 3)


def own_rolling(seconds: Floats) -> Bools:
    """Above 1.15 times the rank's own median of the last 60 steps, three in a row."""
    return _in_a_row(seconds > 1.15 * _rolling_median(seconds, 60), 3)


RULES: dict[str, Rule] = {
    "NVRx relative score < 0.75": nvrx,
    "DLRover 2x median": dlrover,
    "peer MAD z > 5, 3 in a row": peer_mad,
    "rolling ratio(20) > 1.03": rolling_ratio,
    "own rolling median(60) > 1.15": own_rolling,
}


def alarms(holds: Bools, *, apart: int = 50) -> list[tuple[int, int]]:
    """Return (step, rank) of every alarm that opens; alarms of one rank less than ``apart`` steps apart
    are one.
    """
    opened = []
    for rank in range(holds.shape[1]):
        last = -apart
        for step in np.flatnonzero(holds[:, rank]):
            if step - last >= apart:
                opened.append((int(step), rank))
            last = int(step)
    return sorted(opened)


def _rolling_median(values: Floats, window: int) -> Floats:
    out = np.full(values.shape, np.nan)
    if len(values) >= window:
        views = np.lib.stride_tricks.sliding_window_view(values, window, axis=0)
        out[window - 1 :] = np.nanmedian(views, axis=-1)
    return out


def _in_a_row(holds: Bools, count: int) -> Bools:
    out = holds.copy()
    for back in range(1, count):
        out[back:] &= holds[:-back]
        out[:back] = False
    return out
