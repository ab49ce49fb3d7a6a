"""A job whose nodes send no samples: its step rows name them, and the kernel log of one says why it stops."""

from itertools import pairwise

import pytest

from alerts.cases.lifecycle import NOTIFIED
from slowrank.telemetry import JobNodes, NodeEvent
from streams.job.stage import JobStage
from streams.pipeline import local_pipeline
from tests.streams.traffic import job

T0 = 1_795_160_000.0


def after_stop(code, *, node="job-1-n1", late=0.5):
    """The findings notified within ten minutes after the last step of a job of two nodes, of which one logs
    ``code`` as it stops."""
    pipeline, found = local_pipeline(), {}
    steps = list(job(ends=T0, steps=120))
    stop = steps[-1].ts
    logged = NodeEvent(
        cluster="c",
        node=node,
        ts=stop + late,
        source="kmsg",
        code=code,
        severity="error",
        subject={"gpu_index": 5},
    )
    outputs = [pipeline.process(record) for record in (*steps, logged)]
    outputs += [pipeline.tick(stop + seconds) for seconds in range(1, 600)]
    for finding in (f for some in outputs for f in some):
        found[finding.id] = finding
    return {f.kind: f for f in found.values() if f.status in NOTIFIED}


@pytest.mark.parametrize("code", ["xid.79", "xid.62"])
def test_an_event_of_a_node_without_samples_explains_a_stop(code):
    """One finding, with the cost of the stop."""
    [(kind, finding)] = after_stop(code).items()

    assert (kind, finding.subject.node, finding.subject.gpu_index) == (code, "job-1-n1", 5)
    assert finding.severity == "critical"
    assert "job-1" in finding.blast_radius.jobs
    assert finding.gpu_hours_lost == pytest.approx(16 * 600 / 3600, rel=0.1)


def test_an_event_of_a_node_of_no_such_job_does_not():
    """Two causes, two findings."""
    assert sorted(after_stop("xid.79", node="other")) == ["hang.job", "xid.79"]


def test_the_nodes_of_a_job_are_reported_at_once_and_every_five_minutes():
    """With the first whole step."""
    stage = JobStage()
    found = [o for r in job(ends=T0, steps=800) for o in stage.process(r) if isinstance(o, JobNodes)]

    assert {m.nodes for m in found} == {("job-1-n0", "job-1-n1")}
    assert found[0].ts < T0 - 800
    assert all(300 <= b.ts - a.ts < 305 for a, b in pairwise(found))
