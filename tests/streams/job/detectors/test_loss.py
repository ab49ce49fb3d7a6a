import math

import pytest

from slowrank.telemetry import JobSteps
from slowrank.telemetry.rows.json_rows import rows, steps_record
from slowrank.telemetry.schema import NOT_FINITE
from streams.files.record_builder import read_records
from streams.pipeline import local_pipeline
from tests.streams.job.job_tables import SuspectingStage

RANKS = 8


def record(step, loss, *, attempt=0, on=range(RANKS)):
    """One step of all ranks, of which some report the loss."""
    return steps_record(
        [
            {
                "step": step,
                "rank": rank,
                "ts": 1000.0 + 2.0 * (step + 500 * attempt),
                "step_seconds": 2.0,
                "compute_seconds": 1.8,
                "node": f"n{rank // 4}",
                "job_id": "j",
                "attempt": attempt,
                "world_size": RANKS,
                "loss": loss if rank in on else None,
            }
            for rank in range(RANKS)
        ]
    )


def suspicions_of(records):
    stage = SuspectingStage()
    found = [s for r in records for s in stage.process(r)]
    return [s for s in found if s.kind == "training.loss_anomaly" and s.state != "update"]


def losses(*values, start=0):
    return [record(start + i, value) for i, value in enumerate(values)]


@pytest.mark.parametrize("on", [range(RANKS), [7], [0]], ids=["all", "last-stage", "rank-0"])
def test_a_leap_is_about_the_job_and_no_machine(on):
    """Whoever reports it, a leap names the job alone, with what was usual, and ends."""
    values = [2.0] * 150 + [20.0] * 2 + [2.0] * 30
    raised, cleared = suspicions_of(record(i, value, on=on) for i, value in enumerate(values))
    assert (raised.state, raised.subject.type, raised.subject.node, raised.subject.rank) == (
        "raise",
        "job",
        None,
        None,
    )
    assert raised.onset == raised.ts == 1300.0
    assert raised.overwhelming
    (evidence,) = raised.evidence
    assert (evidence.metric, evidence.value, evidence.baseline.median) == ("loss", 20.0, pytest.approx(2.0))
    assert (cleared.state, cleared.ts) == ("clear", 1342.0)


def test_a_new_attempt_ends_the_anomalies_of_the_last():
    """Whoever rolls back has read it."""
    before = losses(*[2.0] * 10, NOT_FINITE)
    raised, cleared = suspicions_of([*before, *(record(i, 2.0, attempt=1) for i in range(5, 8))])
    assert [raised.state, cleared.state] == ["raise", "clear"]


def test_a_divergence_is_shown_and_never_pages():
    """A sustained rise is for information."""
    (raised, *_) = suspicions_of(losses(*[2.0] * 150, *[2.8] * 30))
    assert raised.severity == "info"
    assert raised.hypotheses == {"loss.divergence": 1.0}


def test_a_loss_that_is_no_number_survives_the_wire():
    """It is written as a number beyond its column, is infinity there, and comes out as it went in."""
    (row, *_) = rows(record(3, NOT_FINITE))
    assert row["loss"] == NOT_FINITE
    (raised,) = suspicions_of(losses(2.0, NOT_FINITE))
    assert raised.evidence[0].metric == "loss.not_finite"
    assert math.isfinite(raised.evidence[0].value)


def test_a_loss_that_is_no_number_survives_a_file(tmp_path):
    """A file holds it in the same way, and the finding about the job opens by itself."""
    lines = ["step,rank,ts,step_seconds,loss,job_id"]
    lines += [f"{s},{r},{1000 + s},1.0,{2.0 if s < 40 else 1e300},j" for s in range(60) for r in range(4)]
    (tmp_path / "steps.csv").write_text("\n".join(lines))
    pipeline = local_pipeline()
    found = [f for r in read_records([tmp_path / "steps.csv"]).records for f in pipeline.process(r)]
    found += pipeline.finish()
    opened = [f for f in found if f.kind == "training.loss_anomaly" and f.status == "open"]
    assert {(f.subject.type, f.subject.job_id, f.severity) for f in opened} == {("job", "j", "warning")}
    assert opened[0].onset == 1040.0


def test_bad_on_one_rank_is_bad():
    """Where one rank alone reports no number, the job has it."""
    assert suspicions_of(losses(2.0, 2.0)) == []
    assert len(suspicions_of([*losses(2.0), record(1, NOT_FINITE, on=[2])])) == 1


def test_records_may_repeat_and_come_late():
    """A repeated or late row changes nothing."""
    records: list[JobSteps] = losses(*[2.0] * 150, 20.0, 2.0, 2.0)
    noisy = [r for i, one in enumerate(records) for r in (one, records[max(0, i - 3)])]
    assert suspicions_of(noisy) == suspicions_of(records)
