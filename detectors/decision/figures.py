"""Figures about a slow rank, in seconds and event time, made when it is reported."""

import numpy as np
import numpy.typing as npt

from detectors.job.imbalance import slowdown
from detectors.peers.history import History, rows_at_most
from detectors.peers.ratios import StepTimes
from detectors.robust import nan_median, spread
from detectors.straggler.core import Comparison, PastFigures, PeerFigures, SlowRank, Timing

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

_STEPS = 256
_AHEAD_SECONDS = 2.0
"""How far before the end of the first slow step an onset is put at most (``straggler.onset_time``)."""

_LEAST_PAST = 5
_PAST = 100
"""Steps before the onset that are shown as the rank's past, and the fewest worth showing."""

_SINGLE = ("step", "compute", "wait", "data", "comm", "rest")


def rank_bytes() -> int:
    """Return the bytes that a full log takes for each rank."""
    return rows_at_most(_STEPS) * (8 + 4 * len(_SINGLE))


class Log(History):
    """The seconds of the last steps, as reported; ``rest`` is what is left of a step beside these."""

    def __init__(self, ranks: int) -> None:
        super().__init__(_STEPS, ranks, ("ts", *_SINGLE), single=_SINGLE)

    @property
    def steps(self) -> int:
        """Number of steps held."""
        return min(self.count, self.capacity)

    def push_times(self, times: StepTimes) -> None:
        """Take the seconds of a step; a rank without compute has its step without waits for it."""
        outside = np.nan_to_num(times.data) + np.nan_to_num(times.checkpoint)
        own = np.where(np.isfinite(times.wait), times.step - times.wait - outside, times.step)
        compute = np.where(np.isfinite(times.compute), times.compute, own)
        latest = np.nanmax(times.ts) if np.isfinite(times.ts).any() else np.nan
        self.push(
            ts=np.where(np.isfinite(times.ts), times.ts, latest),
            step=times.step,
            compute=compute,
            wait=times.wait,
            data=times.data,
            comm=times.comm,
            rest=times.step - times.wait - times.compute - outside,
        )


def dates(log: Log, rank: int, steps: int, *, start: bool) -> tuple[float, float, float]:
    """Return when the last ``steps`` steps of ``rank`` began: likeliest, earliest, latest [Unix s]."""
    ends, seconds = (log.last(name, steps + 1)[:, rank] for name in ("ts", "step"))
    first = len(ends) - steps
    usual = float(np.nan_to_num(nan_median(seconds)))
    at = float(ends[first]) - min(usual / 2, _AHEAD_SECONDS)
    before = float(ends[first - 1]) if first else float(ends[0] - np.nan_to_num(seconds[0]))
    later = float(ends[first]) if start else float(ends[min(first + 1, len(ends) - 1)])
    return at, min(before, at), max(later, at)


def job_ratio(log: Log, timing: Timing, rank: int, steps: int, others: Bools) -> float:
    """Return the job's step over what it would be if ``rank`` took as long as the slowest of ``others``."""
    seconds, step = log.last(timing, steps), nan_median(log.last("step", steps), axis=1)
    others = others & (np.arange(len(others)) != rank)
    if not others.any() or not np.isfinite(seconds[:, rank]).any():
        return 1.0
    slowest = np.fmax.reduce(seconds[:, others], axis=1)
    lost = np.maximum(seconds[:, rank] - slowest, 0.0)
    ratio = float(nan_median(slowdown(step, lost)))
    return ratio if np.isfinite(ratio) else 1.0


def waits_least(log: Log, rank: int, steps: int) -> bool | None:
    """Return whether the rank waits less than half the others do; None where waits are not reported."""
    waits = nan_median(log.last("wait", steps))
    others = np.delete(waits, rank)
    if not np.isfinite(waits[rank]) or not np.isfinite(others).any():
        return None
    return bool(waits[rank] < float(nan_median(others)))


def comparisons(log: Log, slow: SlowRank, role: Ints) -> tuple[Comparison, ...]:
    """Compare the rank with its role in what it is slow in, and where these are reported on waiting, and on
    transfers if they are part of that."""
    found = [_compared(log, slow, role, series=slow.timing, metric=f"{slow.timing}_seconds")]
    for series in ("comm", "wait") if slow.timing == "rest" else ("wait",):
        if np.isfinite(log.last(series, slow.steps)[:, slow.rank]).any():
            found.append(_compared(log, slow, role, series=series, metric=f"{series}_seconds"))
    return tuple(found)


def _compared(log: Log, slow: SlowRank, role: Ints, *, series: str, metric: str) -> Comparison:
    usual = nan_median(log.last(series, slow.steps))
    others = usual[role[role != slow.rank]]
    others = others[np.isfinite(others)]
    value = float(usual[slow.rank])
    past = log.last(series, slow.steps + _PAST)[: -slow.steps, slow.rank]
    past = past[np.isfinite(past)]
    return Comparison(
        metric,
        value,
        PastFigures(float(np.median(past)), float(spread(past)) / 1.4826, len(past))
        if len(past) >= _LEAST_PAST
        else None,
        _peers(others, value) if others.size else None,
    )


def _peers(others: Floats, value: float) -> PeerFigures:
    low, middle, high = (float(np.quantile(others, share)) for share in (0.05, 0.5, 0.95))
    return PeerFigures(len(others), low, middle, high, 1 + int((others < value).sum()))
