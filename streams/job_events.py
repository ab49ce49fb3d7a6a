"""What a job says of itself: pauses and its end, which excuse a stall, and changes by plan."""

from slowrank.telemetry import NodeEvent, Suspicion
from streams.suspicions import Claim, Place

PAUSES = frozenset({"job.checkpoint", "job.eval", "job.start", "job.restart"})
END = "job.end"
CHANGES = frozenset({"job.start", "job.restart", "job.schedule"})
"""From here on the levels of the node that tells of it are other ones, and the job is not what it was. A
pause leaves both as they are."""


def excuse(event: NodeEvent) -> list[Suspicion]:
    """Return the vote against a hang of the job that declares a pause or its end; of other events nothing."""
    job = event.subject.get("job_id")
    if job is None or (event.code not in PAUSES and event.code != END):
        return []
    claim = Claim(
        detector="job.ended" if event.code == END else "job.paused",
        family="host",
        kind="hang.job",
        subject=Place(event.cluster, event.node, str(job)).whole_node(),
        # As much as any family may say against something (``alerts.fusion``).
        weight=-4.0,
        note=f"declared: {event.code}",
    )
    return [claim.suspicion("raise", ts=event.ts, onset=event.ts)]


def planned(event: NodeEvent) -> list[Suspicion]:
    """Return that the job declares a change of its work; of other events nothing."""
    job = event.subject.get("job_id")
    if job is None or event.code not in CHANGES:
        return []
    claim = Claim(
        detector="job.planned",
        family="host",
        kind="job.planned",
        subject=Place(event.cluster, event.node, str(job)).whole_node(),
        weight=0.0,
        note=f"declared: {event.code}",
    )
    return [claim.suspicion("raise", ts=event.ts, onset=event.ts)]
