"""What a job left open about a GPU ends once a later job is seen to run as fast on it as on others."""

import math

import msgspec
import pytest

from alerts.finding import Finding
from slowrank.telemetry import RankPace
from slowrank.telemetry.rows.json_rows import rows, steps_record
from streams.cluster.stage import FindingStage
from streams.pipeline import local_pipeline
from tests.streams.cluster import test_stage
from tests.streams.cluster.test_stage import POWER, RANK, T0, hot
from tests.streams.job.detectors.test_pace import job

SUBJECT = msgspec.structs.replace(RANK, type="gpu")


def slow(*args, **changes):
    """The GPU, alone enough for a finding."""
    return test_stage.slow(*args, **{"subject": SUBJECT, "overwhelming": True} | changes)


def pace(ts=4000.0, *, ratio=1.002, **changes):
    fields = {
        "cluster": "c",
        "ts": T0 + ts,
        "node": "n1",
        "gpu_index": 5,
        "job_id": "j2",
        "rank": 0,
        "log_ratio": math.log(ratio),
        "spread": 0.003,
    }
    return RankPace(**(fields | changes))


def last_of(*messages, until=6000.0):
    """Return the last versions of all findings, by kind; time passes before each message and in the end."""
    stage = FindingStage()
    found: dict[str, Finding] = {}
    for message in messages:
        found |= {f.kind: f for f in stage.tick(message.ts - 1.0)}
        stage.process(message)
    return found | {f.kind: f for f in stage.tick(T0 + until)}


def test_a_later_job_at_full_speed_ends_it():
    """It is resolved when the recovery has held since the pace was known."""
    found = last_of(slow(), pace())["straggler.fail_slow"]
    assert (found.status, found.resolved_at) == ("resolved", T0 + 4000 + 300)


@pytest.mark.parametrize(
    "other",
    [
        pace(ratio=1.2),
        pace(job_id="j1"),
        pace(gpu_index=4),
        pace(node="n2"),
        pace(cluster="d"),
        pace(5.0),
    ],
    ids=["slow there too", "the job itself", "another GPU", "another node", "another cluster", "earlier"],
)
def test_nothing_else_ends_it(other):
    """Only another job, later, on this GPU, in which it is nearer to its peers than to what it was."""
    assert last_of(slow(), other)["straggler.fail_slow"].status == "open"


@pytest.mark.parametrize(
    "changes",
    [{"kind": "straggler.intermittent"}, {"detector": "peer_step.rest"}, {"kind": "data.loader_slow"}],
)
def test_a_pace_says_nothing_of_other_slowness(changes):
    """It is a median of compute: not of what comes and goes, of transfers or of loading."""
    found = last_of(slow(**changes), pace())
    assert [f.status for f in found.values()] == ["open"]


def test_hardware_evidence_has_its_own_end():
    """What telemetry shows of the GPU goes on for as long as telemetry shows it."""
    found = last_of(slow(), hot(3990, **POWER, subject=SUBJECT, kind="straggler.fail_slow"), pace())
    assert found["straggler.fail_slow"].status == "open"


def test_a_relapse_reopens_it():
    """The later job finds it slow after all."""
    again = slow(5000, onset=T0 + 4990, subject=msgspec.structs.replace(SUBJECT, job_id="j2"))
    found = last_of(slow(), pace(), again)["straggler.fail_slow"]
    assert (found.status, found.occurrences) == ("open", 2)


def later(records, seconds):
    """The same rows as those of another job, so much later."""
    for record in records:
        moved = [{**row, "ts": float(row["ts"]) + seconds} for row in rows(record)]
        yield msgspec.structs.replace(steps_record(moved), job_id="later", world_size=record.world_size)


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "status"), [(1.0, "resolved"), (1.3, "open")])
def test_from_step_rows_of_two_jobs(factor, status):
    """A rank was slow to the end of its job; the next job on its node has it at full speed, or slow too."""
    first, second = job(100, slow={3: 1.3}), job(slow={3: factor}, seed=1)
    pipeline = local_pipeline()
    versions = [f for r in first for f in pipeline.process(r)]
    for record in later(second, first[-1].ts - second[0].ts + 60.0):
        versions += pipeline.process(record)
    versions += pipeline.finish()
    found = {f.id: f for f in versions if f.kind == "straggler.fail_slow"}
    assert [(f.subject.gpu_index, f.status) for f in found.values()] == [(3, status)]
