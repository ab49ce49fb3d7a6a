"""What to do about ranks that take longer than the others: by what is known to distinguish them."""

import re
from collections.abc import Sequence

from alerts.kinds import kind_of
from alerts.report.title import place_in_text
from slowrank.telemetry import Subject, Suspicion

# The model comes first and may hold commas; coordinates follow.
_MODEL = re.compile(r"gpu_model=(.+?)(?:, (?:pp|ep|tp|cp)=\d+)*")

_NODES = re.compile(r"nodes (.+)")


def slow_group(subject: Subject, suspicions: Sequence[Suspicion]) -> tuple[str, str]:
    """Return the kind whose action is the one to take, and what its text is about.

    The detector notes what its ranks have in common: their GPU model and coordinates (``gpu_model=A100,
    pp=3``), the nodes they fill (``nodes gpu-1, gpu-4``), else which they are (``ranks 7,15``).
    """
    ranks = f"the ranks of {place_in_text(subject)}"
    model, nodes = model_of(suspicions), nodes_of(suspicions)
    if model is not None:
        return "imbalance.model", model
    if nodes is not None:
        return "imbalance.machine", nodes
    coords = subject.coords or {}
    if "pp" in coords:
        return "imbalance.stage", place_in_text(subject)
    if "ep" in coords:
        return "imbalance.expert", place_in_text(subject)
    return "imbalance.unknown", ranks if coords else _in_common(suspicions) or ranks


def model_of(suspicions: Sequence[Suspicion]) -> str | None:
    """Return the GPU model that the ranks have in common and the others have not, None if there is none."""
    named = _MODEL.fullmatch(_in_common(suspicions))
    return None if named is None else named[1]


def nodes_of(suspicions: Sequence[Suspicion]) -> str | None:
    """Return the nodes that the ranks fill, None where these are not what sets them apart."""
    named = _NODES.fullmatch(_in_common(suspicions))
    return None if named is None else named[1]


def _in_common(suspicions: Sequence[Suspicion]) -> str:
    about = (s for s in suspicions if kind_of(s.kind).no_culprit)
    return next((e.note for s in about for e in s.evidence if e.note), "")
