"""Runs recorded telemetry through the in-process pipeline, at full speed or paced."""

from collections.abc import Callable, Iterable, Iterator

import msgspec

from alerts.finding import Finding
from slowrank.telemetry import Record
from streams.pipeline import Pipeline


def findings_of(records: Iterable[Record], pipeline: Pipeline) -> Iterator[Finding]:
    """Yield every version of every finding from records in order of event time."""
    for record in records:
        yield from pipeline.process(record)
    yield from pipeline.finish()


def final_versions(findings: Iterable[Finding]) -> list[Finding]:
    """Return the last version of each finding that opened, sorted by detection time and id.

    Findings that were only suspected are left out, and so are versions in which one that has ended is
    suspected again: live, nobody is called about them.
    """
    last: dict[str, Finding] = {}
    for finding in findings:
        if finding.status == "open" or (finding.id in last and finding.status != "suspected"):
            last[finding.id] = finding
    return sorted(last.values(), key=lambda f: (f.detected_at, f.id))


def as_ndjson(findings: Iterable[Finding]) -> bytes:
    """Return ``finding.v1`` lines."""
    return b"".join(msgspec.json.encode(finding.to_json()) + b"\n" for finding in findings)


def paced(
    records: Iterable[Record],
    *,
    speed: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Iterator[Record]:
    """Yield the records ``speed`` times as fast as they happened; ``clock`` in seconds, any zero."""
    first_ts = first_now = None
    for record in records:
        if first_ts is None or first_now is None:
            first_ts, first_now = record.ts, clock()
        ahead = (record.ts - first_ts) / speed - (clock() - first_now)
        if ahead > 0:
            sleep(ahead)
        yield record
