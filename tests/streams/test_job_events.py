import pytest

from slowrank.telemetry import NodeEvent
from streams.job_events import excuse


def event(code, **subject):
    return NodeEvent(cluster="c", node="n", ts=5.0, source="job", code=code, subject=subject)


@pytest.mark.parametrize(
    ("code", "detector"),
    [
        ("job.checkpoint", "job.paused"),
        ("job.eval", "job.paused"),
        ("job.start", "job.paused"),
        ("job.end", "job.ended"),
    ],
)
def test_a_job_that_declares_a_pause_or_its_end_is_excused(code, detector):
    """The vote is about the job, against a hang, from the moment it was declared."""
    (vote,) = excuse(event(code, job_id="j"))
    assert (vote.detector, vote.kind, vote.subject.job_id, vote.onset) == (detector, "hang.job", "j", 5.0)
    assert vote.log_likelihood_ratio < 0


def test_other_events_excuse_nobody():
    """A fault, a change of schedule, or a pause of nobody in particular says nothing."""
    assert excuse(event("xid.79", gpu_index=1)) == []
    assert excuse(event("job.schedule", job_id="j")) == []
    assert excuse(event("job.checkpoint")) == []
