"""How urgent a finding is: job impact with enough confidence pages; hardware without impact does not."""

from collections.abc import Iterable

from alerts.kinds import rule_of
from slowrank.telemetry import Subject
from slowrank.telemetry.records import Severity

ORDER: tuple[Severity, ...] = ("info", "warning", "error", "critical")
IMPACT, RELIEF = 1.05, 1.03
"""A job is measurably hurt from the first on, and until it is back below the second: with one limit, a job
that stands at it would page again and again."""


def hurts(job_slowdown: float | None, before: bool) -> bool:
    """Return whether a job so much slower than its healthy pace is hurt, given whether it was ``before``."""
    return job_slowdown is not None and job_slowdown >= (RELIEF if before else IMPACT)


def milder(kind: str, stated: Iterable[Severity | None]) -> Severity:
    """Return the kind's own severity, or the worst its detectors stated, where that is milder.

    Hardware that slows no job calls nobody, whatever its rule thinks of it.
    """
    own, known = rule_of(kind).severity, [said for said in stated if said is not None]
    return min(own, max(known, key=ORDER.index), key=ORDER.index) if known else own


def isolated(kind: str, stated: Iterable[Severity | None]) -> bool:
    """Return whether the kind is nobody's business until it repeats, and it is no error yet.

    Then it neither pages, whatever the job does meanwhile, nor advises more than to watch.
    """
    return rule_of(kind).debounced and ORDER.index(milder(kind, stated)) < ORDER.index("error")


def severity(kind: str, subject: Subject, *, own: Severity, hurt: bool, confidence: float) -> Severity:
    """Return the severity: ``own``, or higher where a machine measurably slows a job (``hurt``).

    A job without an outlier accuses nobody: it never goes above warning, however slow it is.
    """
    if kind == "straggler.job_wide" or (subject.type == "job" and kind.startswith("straggler.")):
        return "warning" if hurt else "info"
    if not hurt:
        return own
    impact: Severity = "critical" if confidence >= 0.9 else "error" if confidence >= 0.7 else "warning"
    return max(own, impact, key=ORDER.index)
