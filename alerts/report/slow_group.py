"""What to do about ranks that carry more work than the others: by what is known to distinguish them."""

import re
from collections.abc import Sequence

from alerts.report.title import place_in_text
from slowrank.telemetry import Subject, Suspicion

# The model comes first and may hold commas; coordinates follow.
_MODEL = re.compile(r"gpu_model=(.+?)(?:, (?:pp|ep|tp|cp)=\d+)*")


def slow_group(subject: Subject, suspicions: Sequence[Suspicion]) -> tuple[str, str]:
    """Return the kind whose action is the one to take, and what its text is about.

    The detector notes what its ranks have in common: their GPU model and coordinates (``gpu_model=A100,
    pp=3``), else which they are (``ranks 7,15``).
    """
    ranks = f"the ranks of {place_in_text(subject)}"
    where = next((e.note for s in suspicions for e in s.evidence if e.note), ranks)
    if model := _MODEL.fullmatch(where):
        return "imbalance.model", model[1]
    coords = subject.coords or {}
    if "pp" in coords:
        return "imbalance.stage", place_in_text(subject)
    if "ep" in coords:
        return "imbalance.expert", place_in_text(subject)
    return "imbalance.unknown", ranks if coords else where
