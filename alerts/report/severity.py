"""How urgent a finding is: job impact with enough confidence pages; hardware without impact does not."""

from collections.abc import Mapping

from alerts.kinds import kind_of
from alerts.reasoning.calibration import Basis
from alerts.stated_severity import ORDER
from slowrank.telemetry import Subject
from slowrank.telemetry.records import Severity

# The gravest that a slow machine can be by what the finding rests on, where not critical (chosen): what rows
# of steps alone cannot tell from a fault pages nobody, however often it was one.
WORST: Mapping[Basis, Severity] = {
    "weak": "error",
    "step_times": "error",
    "few_peers": "warning",
    "uneven": "warning",
}


def impact(confidence: float, basis: Basis) -> Severity:
    """Return the severity of a machine that measurably slows a job.

    Critical from a confidence of 0.9 on and an error from 0.7 on, unless ``WORST`` of its basis is milder.
    """
    by_confidence: Severity = "critical" if confidence >= 0.9 else "error" if confidence >= 0.7 else "warning"
    return min(by_confidence, WORST.get(basis, by_confidence), key=ORDER.index)


def severity(
    kind: str,
    subject: Subject,
    *,
    own: Severity,
    hurt: bool,
    sustained: bool,
    confidence: float,
    basis: Basis,
) -> Severity:
    """Return ``own``, or that of the ``impact`` if graver, where a machine measurably slows a job (``hurt``);
    not critical before that is ``sustained`` (``alerts.reasoning.sustained``).

    A job without an outlier is never above warning, however slow it is.
    """
    pages = kind_of(kind).pages
    if pages == "never" or (pages == "machine" and subject.type == "job"):
        return "warning" if hurt else "info"
    if not hurt:
        return own
    worst: Severity = "critical" if sustained else "error"
    return max(own, min(impact(confidence, basis), worst, key=ORDER.index), key=ORDER.index)
