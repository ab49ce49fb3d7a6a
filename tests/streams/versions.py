"""What comes out of a finding stage, and what notifiers would make of it."""

from collections.abc import Iterable, Iterator

from alerts.finding import Finding
from alerts.notify import NotifiedState, event_of
from slowrank.telemetry import Suspicion
from streams.cluster.stage import FindingStage


def versions_of(suspicions: Iterable[Suspicion], *, start: float, until: int, step: int = 1) -> list[Finding]:
    """Return every version that came out, ticking each ``step`` seconds from ``start`` on."""
    stage, versions = FindingStage(), list[Finding]()
    rest = sorted(suspicions, key=lambda s: s.ts)
    for second in range(0, until + 1, step):
        while rest and rest[0].ts <= start + second:
            stage.process(rest.pop(0))
        versions += stage.tick(start + second)
    return versions


def events_of(versions: Iterable[Finding]) -> Iterator[tuple[str, Finding]]:
    """Yield each version that is news, and what it is: opened, reopened, resolved or another."""
    last: dict[str, NotifiedState] = {}
    for finding in versions:
        event = event_of(last.get(finding.id), NotifiedState.of(finding))
        last[finding.id] = NotifiedState.of(finding)
        if event is not None:
            yield event.removeprefix("finding."), finding
