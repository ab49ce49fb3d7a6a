"""Offline segmentation of a slow rank's last ratios: whether the change is confirmed in hindsight.

Called when a slow rank is reported, never step by step.
"""

import numpy as np

from detectors.changepoint.offline_segmentation import WINDOW, second_opinion
from detectors.peers.ratios import Ratios
from detectors.straggler.candidate import series_of
from detectors.straggler.core import Hindsight, PastFigures, SlowRank
from detectors.straggler.llr_cusum import Onset
from detectors.straggler.onset_time import date_onset
from detectors.straggler.peer_figures import past_figures


def hindsight(ratios: Ratios, slow: SlowRank, *, metric: str) -> Hindsight | None:
    """Segment the rank's last ratios to its peers; ``metric`` names the seconds they are ratios of.

    None for a rank that was slow from the start or is slow on and off, which has no single change to look
    for, and where the segmentation gives no answer.
    """
    if slow.lasting or slow.excursions:
        return None
    x = ratios.history.last(series_of(slow.timing), min(WINDOW, ratios.settled))[:, slow.rank]
    opinion = second_opinion(x, slow.steps)
    if opinion is None:
        return None
    at = len(x) - opinion.age
    past = past_figures(x[:at])
    change_at = None
    if opinion.confirmed:
        change_at = date_onset(ratios, slow.rank, Onset(at, at, at), steps=len(x)).at
    return Hindsight(
        opinion,
        f"{metric}.ratio",
        _ratio(slow, opinion.after),
        PastFigures(_ratio(slow, opinion.before), past.mad, past.n),
        change_at,
    )


def _ratio(slow: SlowRank, level: float) -> float:
    """Return compute, a log ratio, as a ratio; the other timings are excess shares of the work."""
    return float(np.exp(level)) if slow.timing == "compute" else 1.0 + level
