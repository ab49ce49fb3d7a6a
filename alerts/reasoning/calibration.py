"""Calibration: fused log-odds to the share of findings that were right.

The fused log-odds are no probability: the votes are neither exact nor quite independent. A monotone table
maps them to one, fitted by isotonic regression (pool adjacent violators; Zadrozny and Elkan, KDD '02) of
"the named machine was at fault" on the log-odds of findings, reduced to few knots:

    p(x) = p₀ + (p₁ − p₀)·(x − x₀)/(x₁ − x₀)   between two knots, constant outside

``FITTED`` comes from 85 findings, opened or only suspected, on our own simulator. It has two knots, because
that many findings support no more: read a confidence as "about as sure as". `docs/detection-quality.md` gives
what findings with these confidences were worth on other data (`python -m benchmarks calibration`).
"""

from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Calibration:
    """``knots`` (log-odds, probability), both ascending; linear between them, constant outside.

    ``version`` names the fit; findings carry it in their configuration hash.

    >>> Calibration("example", ((-2.0, 0.1), (2.0, 0.9))).probability(0.0)
    0.5
    """

    version: str
    knots: tuple[tuple[float, float], ...]

    def probability(self, log_odds: float) -> float:
        """Return the share of findings with these log-odds that were right."""
        after = bisect_right(self.knots, log_odds, key=lambda knot: knot[0])
        if after in (0, len(self.knots)):
            return self.knots[max(after - 1, 0)][1]
        (x0, p0), (x1, p1) = self.knots[after - 1 : after + 1]
        return p0 + (p1 - p0) * (log_odds - x0) / (x1 - x0)


FITTED = Calibration("seeds-0-149-ebdbfc3a", ((-2.0, 0.2857), (2.0, 0.9878)))
