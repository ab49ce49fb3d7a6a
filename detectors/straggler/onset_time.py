"""Event times of what began in a step, with the interval in which it began.

``llr_cusum.locate_onset`` gives the first slow step as an index k into the last rows of a rank, with the 90 %
interval [low, high] of its posterior. A row is made at the end e_k [Unix s] of its step, which took d_k
seconds, and the change came while it ran. With d the median of the steps up to k:

    at = e_k - min(d / 2, 2 s)               the middle of the first slow step, at most 2 s before its end
    lo = min(e_low - d_low, e_(low-1), at)   its beginning, or the end of the row before: rows may be sampled
    hi = e_high                              the end of the last step that may be the first slow one

``at`` orders causes and effects over ranks and nodes, ``lo`` and ``hi`` are how surely. Times are those of
the rank's own rows; a rank that was not read in a step has the latest of the others' (``Ratios``). The
posterior is a flat-prior Bayesian change point with a known noise; the two seconds are ours.
"""

import math
from dataclasses import dataclass
from typing import SupportsFloat

from detectors.changepoint.llr_cusum import Onset
from detectors.peers.ratios import Ratios
from detectors.robust import nan_median

# How far before the end of the first slow step an onset is put at most. Chosen: dated too early, a victim
# comes before its culprit and a change before its cause; dated late by a part of a step, it does no harm.
_AHEAD_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Dated:
    """When something began, in event time: earliest, most likely, latest."""

    lo: float
    at: float
    hi: float


def date_onset(ratios: Ratios, rank: int, onset: Onset, *, steps: int) -> Dated:
    """Put the ``onset`` found in the last ``steps`` rows of ``rank`` into event time.

    The interval reaches from the end of the last row before (rows may be sampled) to the end of the latest
    step that may be the first slow one; the onset lies half a usual step before the end of the likeliest.
    """
    history = ratios.history
    have = len(history.view("ts", steps))
    ends, seconds = (history.view(name, have + 1)[:, rank] for name in ("ts", "step"))
    offset = len(ends) - have
    low, first = onset.low + offset, onset.index + offset
    began = float(ends[low]) - _read(seconds[low])
    if low:
        began = min(began, float(ends[low - 1]))
    usual = _read(nan_median(seconds[: first + 1]))
    at = float(ends[first]) - min(usual / 2, _AHEAD_SECONDS)
    return Dated(min(began, at), at, float(ends[onset.high + offset]))


def _read(seconds: SupportsFloat) -> float:
    """Return a time, 0 where it was not read."""
    known = float(seconds)
    return 0.0 if math.isnan(known) else known
