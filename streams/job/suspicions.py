"""Suspicions that several job detectors build alike."""

import msgspec

from slowrank.telemetry import Evidence, Subject, Suspicion
from streams.job.view import JobView

# Source ids of suspicions: from the ranks' step times, and from missing steps.
STEPS = "peer_step"
PROGRESS = "step_progress"

# Log-odds of evidence that opens a finding by itself; chosen: above the opening threshold of a finding.
WEIGHT_SLOW = 5.0

# Log-odds of one sign among the several that a finding needs; chosen: below its opening threshold.
_WEIGHT_STANDING = 2.0


def about_job(
    view: JobView,
    at: float,
    *,
    catalogue_id: str,
    subject: Subject,
    hypotheses: dict[str, float],
    slowdown: float,
    since: tuple[float, float],
    ratio: float,
    evidence: tuple[Evidence, ...],
    note: str,
) -> Suspicion:
    """Build what holds for the job as a whole; its first slow step began and ended ``since``."""
    onset_lo, onset = since
    return msgspec.structs.replace(
        dated(view, subject, "straggler.job_wide", catalogue_id=catalogue_id, since=onset, at=at),
        detector=STEPS,
        family="job",
        onset_lo=onset_lo,
        onset_hi=at,
        log_likelihood_ratio=WEIGHT_SLOW,
        overwhelming=True,
        slowdown_ratio=round(ratio, 4),
        job_slowdown_ratio=round(slowdown, 4),
        evidence=evidence,
        hypotheses=hypotheses,
        ruled_out=("single_rank",),
        note=note,
    )


def dated(
    view: JobView, subject: Subject, kind: str, *, catalogue_id: str, since: float, at: float
) -> Suspicion:
    """Build what has held since a moment that is known, as one sign among the several it needs."""
    return Suspicion(
        cluster=view.cluster,
        detector=PROGRESS,
        family="silence",
        kind=kind,
        state="raise",
        subject=subject,
        ts=at,
        onset=since,
        onset_lo=since,
        onset_hi=since,
        score=1.0,
        log_likelihood_ratio=_WEIGHT_STANDING,
        gpus=view.gpus,
        ranks=view.gpus,
        nodes=view.nodes,
        catalogue_id=catalogue_id,
    )
