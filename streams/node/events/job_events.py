"""Events that jobs declare: pauses and the end, which explain a stall, and planned changes."""

from typing import get_args

from slowrank.telemetry import HangVote, JobDeclared, JobEnded, NodeEvent, StartupPhase, Suspicion
from slowrank.telemetry.messages import PHASES, JobCode
from streams.suspicions import Claim, HangClaim, Location

PAUSES = frozenset({"job.checkpoint", "job.eval", "job.start", "job.restart"})
END = "job.end"

# Events after which the levels of the node and the step times of the job may be others; a pause leaves both.
CHANGES = frozenset({"job.start", "job.restart", "job.schedule"})


# A longer phase of a start is an invalid number. Chosen: a week.
LONGEST_PHASE_SECONDS = 7 * 86_400.0

# Upper bound of GPUs in an event, which comes from outside. Chosen: ten times the largest fleet.
MAX_GPUS = 1 << 20

_PHASE_PREFIX = "startup."


def end_of(event: NodeEvent) -> JobEnded | None:
    """Return the end of a job, for the job stage; None for other events."""
    job = event.subject.get("job_id")
    if job is None or event.code != END:
        return None
    return JobEnded(cluster=event.cluster, ts=event.ts, job_id=str(job), node=event.node, seq=event.seq)


def startup_phase(event: NodeEvent) -> list[StartupPhase]:
    """Return the phase of an event ``startup.<phase>`` that names its job and duration; else nothing.

    The nodes of one job meet nowhere before the cluster stage.
    """
    name, fields = event.code.removeprefix(_PHASE_PREFIX), event.subject
    milliseconds, job = fields.get("milliseconds"), fields.get("job_id")
    if not event.code.startswith(_PHASE_PREFIX) or job is None or not isinstance(milliseconds, int):
        return []
    if not 0 <= milliseconds <= 1000.0 * LONGEST_PHASE_SECONDS:
        return []
    return [
        StartupPhase(
            cluster=event.cluster,
            ts=event.ts,
            node=event.node,
            job_id=str(job),
            attempt=_whole(fields.get("attempt")),
            phase=phase,
            began=event.ts - milliseconds / 1000.0,
            gpus=min(MAX_GPUS, _whole(fields.get("gpus"))),
        )
        for phase in PHASES
        if phase == name
    ]


def excuse(event: NodeEvent) -> list[HangVote]:
    """Return the vote against a hang of a job that declares a pause or its end; nothing for other events."""
    job = event.subject.get("job_id")
    if job is None or (event.code not in PAUSES and event.code != END):
        return []
    ended = event.code == END
    claim = HangClaim(
        signal="ended" if ended else "paused",
        detector="job.ended" if ended else "job.paused",
        family="host",
        subject=Location(event.cluster, event.node, str(job)).whole_node(),
        # The largest weight that one family may have against a hypothesis (``alerts.reasoning.fusion``).
        weight=-4.0,
        note=f"declared: {event.code}",
    )
    return [claim.suspicion("raise", ts=event.ts, onset=event.ts)]


def planned(event: NodeEvent) -> list[Suspicion]:
    """Return the planned change that a job declares; nothing for other events."""
    job = event.subject.get("job_id")
    if job is None or event.code not in CHANGES:
        return []
    claim = Claim(
        detector=event.code,
        catalogue_id="events",
        family="host",
        kind="job.planned",
        subject=Location(event.cluster, event.node, str(job)).whole_node(),
        weight=0.0,
        note=f"declared: {event.code}",
    )
    return [claim.suspicion("raise", ts=event.ts, onset=event.ts)]


def declared(event: NodeEvent) -> list[JobDeclared]:
    """Return what a job declares with the event, to be stored; nothing for other events."""
    job = event.subject.get("job_id")
    if job is None:
        return []
    return [
        JobDeclared(
            cluster=event.cluster,
            ts=event.ts,
            node=event.node,
            job_id=str(job),
            code=code,
            message=event.message,
        )
        for code in get_args(JobCode)
        if code == event.code
    ]


def _whole(value: str | int | None) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
