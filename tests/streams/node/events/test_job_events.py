import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.detection.step_jobs import records, synchronous
from slowrank.telemetry import NodeEvent
from store.telemetry.batches import Row
from store.telemetry.buckets import JobEvent
from streams.node.events.job_events import declared, excuse, planned
from streams.pipeline import local_pipeline
from tests.streams.job import test_stage_waits as waits
from tests.streams.job.detectors.test_loss import losses
from tests.streams.job.job_tables import healthy, packed


def event(code, **subject):
    return NodeEvent(cluster="c", node="n", ts=5.0, source="job", code=code, subject=subject)


@pytest.mark.parametrize(
    ("code", "signal"),
    [
        ("job.checkpoint", "paused"),
        ("job.eval", "paused"),
        ("job.start", "paused"),
        ("job.end", "ended"),
    ],
)
def test_a_job_that_declares_a_pause_or_its_end_is_excused(code, signal):
    """The vote is about the job, against a hang, from the moment it was declared."""
    (vote,) = excuse(event(code, job_id="j"))
    assert (vote.signal, vote.kind, vote.subject.job_id, vote.onset) == (signal, "hang.job", "j", 5.0)
    assert vote.log_likelihood_ratio < 0


def test_other_events_excuse_nobody():
    """A fault, a change of schedule, or a pause of nobody in particular says nothing."""
    assert excuse(event("xid.79", gpu_index=1)) == []
    assert excuse(event("job.schedule", job_id="j")) == []
    assert excuse(event("job.checkpoint")) == []


def test_a_change_by_plan_is_told_of_the_job():
    """A pause changes nothing, and a change of nobody in particular is nobody's."""
    (said,) = planned(event("job.schedule", job_id="j"))
    assert (said.kind, said.subject.job_id, said.onset) == ("job.planned", "j", 5.0)
    assert planned(event("job.eval", job_id="j")) == planned(event("job.schedule")) == []


@pytest.mark.parametrize(
    ("code", "subject", "stored"),
    [
        ("job.schedule", {"job_id": "j"}, ["job.schedule"]),
        ("job.start", {"job_id": "j"}, ["job.start"]),
        ("job.eval", {"job_id": "j"}, ["job.eval"]),
        ("job.checkpoint", {"job_id": 7}, ["job.checkpoint"]),
        ("job.end", {"job_id": "j"}, []),
        ("job.schedule", {}, []),
        ("startup.image", {"job_id": "j"}, []),
        ("xid.79", {"gpu_index": 1}, []),
    ],
)
def test_what_a_job_declares_is_stored(code, subject, stored):
    """With its message, until it is asked what explains a change of the job's level."""
    rows: list[Row] = []
    pipeline = local_pipeline(on_rows=rows.extend)
    pipeline.process(replace(event(code, **subject), message="batch 2048"))
    job = str(subject.get("job_id"))
    assert rows == [JobEvent("c", job, code, 5.0, "batch 2048") for code in stored]
    assert [one.code for one in declared(event(code, **subject))] == stored


def findings(steps, declared=(), *, job="job"):
    """What a job's steps lead to where it declares changes at some times."""
    told = [
        NodeEvent(cluster=steps[0].cluster, node=steps[0].node, ts=ts, source="job", code="job.schedule",
                  subject={"job_id": job})
        for ts in declared
    ]  # fmt: skip
    pipeline = local_pipeline()
    said = [f for r in sorted([*steps, *told], key=lambda r: r.ts) for f in pipeline.process(r)]
    last = {f.id: f for f in [*said, *pipeline.finish()]}
    return [(f.kind, f.status) for f in last.values() if f.status != "suspected"]


WAITING = ("straggler.job_wide", "open")


@pytest.mark.parametrize(
    ("after", "found"),
    [((), [WAITING]), ((-5.0,), []), ((3.0,), []), ((-5.0, 100.0), []), ((-200.0,), [WAITING])],
    ids=["undeclared", "declared", "declared-late", "and-another", "long-before"],
)
def test_a_longer_wait_is_no_news_where_the_job_declares_a_change(after, found):
    """What begins with a change by plan is meant so, for as long as it lasts; what begins later is not."""
    table = waits.waiting(0.5)
    onset = float(table.ts[waits.ONSET])
    assert findings(list(records(table)), [onset + seconds for seconds in after]) == found


def test_a_loss_that_leaps_by_plan_is_no_news():
    """Another mixture of the data, or another weight of its terms."""
    steps = losses(*[2.0] * 150, *[12.0] * 40)
    assert [kind for kind, _ in findings(steps)] == ["training.loss_anomaly"]
    assert findings(steps, [steps[150].ts - 1.0], job="j") == []


def test_work_that_becomes_uneven_by_plan_is_told():
    """It needs no past to be seen: whoever plans it wants to know what it costs."""
    table = synchronous(np.concatenate([healthy(150), packed(250)]))
    steps = list(records(table))
    assert findings(steps, [float(table.ts[150])]) == findings(steps) == [("straggler.job_wide", "open")]
