"""What a job says of itself: pauses and its end, which excuse a stall, and changes by plan."""

from slowrank.telemetry import JobSteps, NodeEvent, Suspicion
from slowrank.telemetry.schema import step_schema
from streams.suspicions import Claim, Place

PAUSES = frozenset({"job.checkpoint", "job.eval", "job.start", "job.restart"})
END = "job.end"
CHANGES = frozenset({"job.start", "job.restart", "job.schedule"})
"""From here on the levels of the node that tells of it are other ones, and the job is not what it was. A
pause leaves both as they are."""


_ENDED = {"phase": "ended"}
"""The labels of a record of step rows without rows: it ends its job."""


def end_of(event: NodeEvent) -> JobSteps | None:
    """Return the record that tells the stage of the job that the job has ended, None for other events.

    Events have the key of their node and steps that of their job: the end has to cross to the steps.
    """
    job = event.subject.get("job_id")
    if job is None or event.code != END:
        return None
    return JobSteps(
        schema=step_schema(squares=False).id,
        cluster=event.cluster,
        job_id=str(job),
        node=event.node,
        # Not the exporter's: it numbers its own records of step rows.
        boot_id=END,
        seq=event.seq,
        ts=event.ts,
        labels=_ENDED,
    )


def has_ended(record: JobSteps) -> bool:
    """Tell whether a record says that its job has ended."""
    return not record.rows and record.labels == _ENDED


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
