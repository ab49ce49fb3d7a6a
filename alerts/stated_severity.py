"""The severity of a fault by itself, as its kind and its detectors state it, whatever it costs a job."""

from collections.abc import Iterable

from alerts.kinds import kind_of
from slowrank.telemetry.records import Severity

ORDER: tuple[Severity, ...] = ("info", "warning", "error", "critical")


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
