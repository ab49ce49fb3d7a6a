"""How urgent a finding is: job impact with enough confidence pages; hardware without impact does not."""

from alerts.finding import Severity
from alerts.kinds import rule_of
from slowrank.telemetry import Subject

ORDER: tuple[Severity, ...] = ("info", "warning", "error", "critical")
IMPACT = 1.05
"""A job this much slower than its healthy pace is measurably hurt."""


def severity(kind: str, subject: Subject, *, job_slowdown: float | None, confidence: float) -> Severity:
    """Return the severity: the kind's own, or higher where a machine measurably slows a job.

    A job without an outlier accuses nobody: it never goes above warning, however slow it is.
    """
    own = rule_of(kind).severity
    hurt = job_slowdown is not None and job_slowdown >= IMPACT
    if kind == "straggler.job_wide" or (subject.type == "job" and kind.startswith("straggler.")):
        return "warning" if hurt else "info"
    if not hurt:
        return own
    impact: Severity = "critical" if confidence >= 0.9 else "error" if confidence >= 0.7 else "warning"
    return max(own, impact, key=ORDER.index)
