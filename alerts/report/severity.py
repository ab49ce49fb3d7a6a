"""How urgent a finding is: job impact with enough confidence pages; hardware without impact does not."""

from collections.abc import Iterable

from alerts.kinds import kind_of
from slowrank.telemetry import Subject
from slowrank.telemetry.records import Severity

ORDER: tuple[Severity, ...] = ("info", "warning", "error", "critical")

# A job is measurably hurt from the first on, and until it is back below the second (chosen: 5 %, with 2 % of
# hysteresis): with one limit, a job near it would page again and again.
IMPACT, RELIEF = 1.05, 1.03


def hurts(job_slowdown: float | None, before: bool) -> bool:
    """Return whether a job so much slower than its healthy pace is hurt, given whether it was ``before``."""
    return job_slowdown is not None and job_slowdown >= (RELIEF if before else IMPACT)


def milder(kind: str, stated: Iterable[Severity | None]) -> Severity:
    """Return the kind's own severity, or the worst its detectors stated, where that is milder.

    Hardware that slows no job does not page, whatever severity its rule states.
    """
    own, given = kind_of(kind).severity, [one for one in stated if one is not None]
    return min(own, max(given, key=ORDER.index), key=ORDER.index) if given else own


def isolated(kind: str, stated: Iterable[Severity | None]) -> bool:
    """Return whether the kind is not notified until it repeats, and it is no error yet.

    Then it neither pages, whatever the job does meanwhile, nor advises more than to watch.
    """
    return kind_of(kind).pages == "repeated" and ORDER.index(milder(kind, stated)) < ORDER.index("error")


def severity(kind: str, subject: Subject, *, own: Severity, hurt: bool, confidence: float) -> Severity:
    """Return the severity: ``own``, or higher where a machine measurably slows a job (``hurt``).

    A job without an outlier is never above warning, however slow it is.
    """
    pages = kind_of(kind).pages
    if pages == "never" or (pages == "machine" and subject.type == "job"):
        return "warning" if hurt else "info"
    if not hurt:
        return own
    impact: Severity = "critical" if confidence >= 0.9 else "error" if confidence >= 0.7 else "warning"
    return max(own, impact, key=ORDER.index)
