"""What the offline referee says about an accusation, as evidence and as weight.

Asked when something is said about a rank anyway, never step by step.
"""

from dataclasses import dataclass

import numpy as np

from detectors.accusation import Accusation, series_of
from detectors.dating import date_onset
from detectors.evidence import Onset
from detectors.ratios import Ratios
from detectors.referee import NEAR, WINDOW, Opinion, second_opinion
from detectors.robust import spread
from slowrank.telemetry import Baseline, Evidence

DETECTOR = "kernel_cpd"

_WEIGHT = 1.0
"""Log-odds by which confirmation strengthens an accusation, and disagreement weakens it."""


@dataclass(frozen=True, slots=True)
class SecondLook:
    """Log-odds to add to the accusation, and the evidence behind them; nothing where there is no opinion."""

    weight: float = 0.0
    evidence: tuple[Evidence, ...] = ()


def second_look(ratios: Ratios, a: Accusation, *, metric: str) -> SecondLook:
    """Segment the rank's last ratios to its peers anew; ``metric`` names the seconds they are ratios of.

    A rank that was slow from the start, or is on and off, has no single change to look for.
    """
    if a.lasting or a.excursions:
        return SecondLook()
    x = ratios.history.last(series_of(a.channel), min(WINDOW, ratios.settled))[:, a.rank]
    opinion = second_opinion(x, a.steps)
    if opinion is None:
        return SecondLook()
    before = x[: len(x) - opinion.age]
    at = len(x) - opinion.age
    evidence = Evidence(
        metric=f"{metric}.ratio",
        unit="1",
        detector=DETECTOR,
        value=round(_ratio(a, opinion.after), 6),
        baseline=Baseline(
            median=round(_ratio(a, opinion.before), 6),
            # ``spread`` is a sigma, 1.4826 times the median absolute deviation.
            mad=round(float(spread(before)) / 1.4826, 6),
            n=int(np.isfinite(before).sum()),
        ),
        change_at=date_onset(ratios, a.rank, Onset(at, at, at), steps=len(x)).at
        if opinion.confirmed
        else None,
        note=_note(opinion),
    )
    return SecondLook(_WEIGHT if opinion.confirmed else -_WEIGHT, (evidence,))


def _ratio(a: Accusation, level: float) -> float:
    """Return compute, a log ratio, as a ratio; the other channels are excess shares of the work."""
    return float(np.exp(level)) if a.channel == "compute" else 1.0 + level


def _note(opinion: Opinion) -> str:
    found = "confirmed in hindsight" if opinion.confirmed else f"no change within {NEAR} steps of the onset"
    return found + (f"; further changes: {opinion.further}" if opinion.further else "")
