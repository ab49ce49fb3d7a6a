"""Calibration: what a finding rests on and its fused log-odds, to the share of findings that were right.

The fused log-odds x are no probability: the votes are neither exact nor quite independent. What a finding
rests on tells more, so each basis has a line of its own, fitted by logistic regression (Platt, 1999) of "the
named machine was at fault" on the log-odds of findings:

    p(x) = σ(offset + slope·x),   slope ≥ 0: more evidence is never less sure

Lines are drawn towards the line of all, the more so the fewer their findings
(``benchmarks.detection.calibration``).
`docs/detection-quality.md` gives what findings with these confidences were worth on draws that the fit had
not seen.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

Basis = Literal[
    "hardware", "slows_job", "large", "small", "weak", "step_times", "few_peers", "uneven", "stop", "other"
]
"""What a finding rests on: the first of these that applies.

``stop``: a job or a rank makes no steps. ``hardware``: a counter or an event of the machine. ``other``: a job
without a slow machine, or telemetry. The rest are a slow machine by the times of its steps alone: ``uneven``,
work that is uneven and unexplained is another explanation; ``few_peers``, compared with fewer than three;
``step_times``, no times of the steps' parts; ``weak``, no witness suffices alone, as its work varies;
``slows_job``, by 5 % or more; ``small``, slower by less than 5 %; ``large``, by more, while its job is not.
"""

BASES: tuple[Basis, ...] = get_args(Basis)

Line = tuple[float, float]
"""Offset and slope."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """``lines``: offset and slope of each basis. ``version`` names the fit; findings carry it in their
    configuration hash.

    >>> Calibration("example", (("stop", (0.0, 0.5)),)).probability("stop", 0.0)
    0.5
    """

    version: str
    lines: tuple[tuple[Basis, Line], ...]

    def probability(self, basis: Basis, log_odds: float) -> float:
        """Return the share of findings on this basis with these log-odds that were right.

        Raises ``KeyError`` for a basis without a line.
        """
        offset, slope = dict(self.lines)[basis]
        return 1.0 / (1.0 + math.exp(-(offset + slope * log_odds)))


# Fitted by `python -m benchmarks calibration --fit`, 27 November 2026, on 637 findings in 900 draws: seeds
# 7,000 to 7,299 of `benchmarks/results/calibration.ndjson`. Too few for a fit had step times (chosen: 0.7)
# and few peers (0.6).
FITTED = Calibration(
    "rows-071e9280",
    (
        ("hardware", (4.459, 0.696)),
        ("slows_job", (0.414, 1.334)),
        ("large", (0.065, 0.549)),
        ("small", (1.666, 0.675)),
        ("weak", (0.698, 0.684)),
        ("step_times", (0.847, 0.0)),
        ("few_peers", (0.405, 0.0)),
        ("uneven", (2.408, 0.041)),
        ("stop", (0.26, 1.29)),
        ("other", (1.675, 0.73)),
    ),
)
