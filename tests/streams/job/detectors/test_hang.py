"""Hangs from step rows alone, from rows to findings; the rows of another job show that time passes."""

import dataclasses
import random

import msgspec
import numpy as np
import pytest

from alerts.finding import Finding
from benchmarks.detection.step_jobs import START, records, synchronous
from slowrank.telemetry import JobSteps, NodeEvent, OpenStep
from streams.pipeline import local_pipeline
from tests.streams.job.job_tables import healthy

STEPS = 100
RANKS = 8


def job(
    name="job", *, steps=STEPS, missing=(), start=0.0, first=0, ranks=RANKS, lost=0.0, outage=0, attempt=0
):
    """Return records of a job on two nodes with a step a second; ``missing`` lack the last row.

    ``outage``: so many steps in the middle of which the second node sends nothing.
    """
    table = synchronous(healthy(steps=steps, ranks=ranks, seed=first))
    only = np.random.default_rng(first).random((steps, ranks)) >= lost
    only[steps // 2 : steps // 2 + outage, 4:] = False
    only[-1, :] = True
    only[-1, list(missing)] = False
    table = dataclasses.replace(
        table,
        job_id=name,
        numbers=table.numbers + first,
        ts=START + start + np.arange(float(steps)),
        attempt=attempt,
        ranks_per_node=4,
    )
    return [msgspec.structs.replace(r, node=f"{name}-{r.node}") for r in records(table, only=only)]


LAST = START + STEPS - 1.0


def beside(seconds):
    """Return records of another job that goes on so long: by them time passes."""
    return job("beside", steps=seconds, ranks=1)


def event(code, after=0.5):
    """Return what the job announces, right after its last step."""
    return NodeEvent(
        cluster="bench",
        node="job-n0",
        boot_id="",
        seq=1,
        ts=LAST + after,
        source="job",
        code=code,
        subject={"job_id": "job"},
    )


def versions(taken):
    """Return the last version of each finding about the job."""
    pipeline, last = local_pipeline(), dict[str, Finding]()
    for record in taken:
        last |= {f.id: f for f in pipeline.process(record)}
    last |= {f.id: f for f in pipeline.finish()}
    assert not pipeline.set_aside
    return [f for f in last.values() if f.subject.job_id == "job" and f.status != "suspected"]


def findings(taken):
    """Return kind, severity, status, suspected ranks and seconds from stop to finding."""
    return [
        (f.kind, f.severity, f.status, [s.subject.rank for s in f.suspects], round(f.detected_at - f.onset))
        for f in versions(sorted(taken, key=lambda record: record.ts))
    ]


def test_a_rank_that_did_not_arrive_is_named_after_a_minute():
    """An error: no pause begins without a row, where rows are not lost."""
    assert findings([*job(missing=[5]), *beside(300)]) == [("hang.job", "error", "open", [5], 60)]


def test_a_stop_with_a_suspect_is_surer_than_who_it_names():
    """A stop at which one rank lacks the last row is a hang; one at which all arrived may be a pause."""
    [named] = versions(sorted([*job(missing=[5]), *beside(300)], key=lambda record: record.ts))
    [pause] = versions(sorted([*job(), *beside(300)], key=lambda record: record.ts))
    assert named.suspects[0].probability < named.confidence < 1.0
    assert pause.confidence < 0.6


def test_a_node_that_did_not_arrive_is_named():
    """Its ranks share the probability."""
    [found] = findings([*job(missing=range(4, 8)), *beside(300)])
    assert found == ("hang.job", "error", "open", [4, 5, 6, 7], 60)


@pytest.mark.parametrize("steps", [100, 200])
def test_ranks_that_were_missing_before_are_suspected(steps):
    """The others went on without them for half of the steps, so that it stays information."""
    taken = [*job(steps=steps, missing=range(4, 8), outage=steps // 2), *beside(500)]
    told = {kind: (severity, ranks) for kind, severity, _, ranks, _ in findings(taken)}
    assert told.pop("hang.job") == ("info", [4, 5, 6, 7])
    assert told == ({"hang.rank_missing": ("warning", [])} if steps == 200 else {})


def test_without_a_missing_row_it_is_information():
    """A pause that was not announced, or the end of the job, looks the same."""
    assert findings([*job(), *beside(300)]) == [("hang.job", "info", "open", [], 120)]


def test_where_rows_are_lost_anyway_nobody_is_named():
    """The row that is missing may be one of those."""
    [found] = findings([*job(missing=[5], lost=0.02), *beside(300)])
    assert found[:4] == ("hang.job", "info", "open", [])


def test_an_outage_of_a_node_does_not_excuse_a_missing_row():
    """It lost twelve rows, but in three steps of a hundred."""
    assert findings([*job(missing=[5], outage=3), *beside(300)]) == [("hang.job", "error", "open", [5], 60)]


def test_after_a_restart_rows_are_lost_as_before():
    """The new attempt is too short to show it, and its last row may be lost like others."""
    again = job(steps=30, first=STEPS, start=STEPS + 20.0, attempt=1, missing=[5])
    [found] = findings([*job(lost=0.02), *again, *beside(400)])
    assert found[:4] == ("hang.job", "info", "open", [])


@pytest.mark.parametrize("missing", [[], [5]])
def test_a_file_that_ends_is_no_hang(missing):
    """No time passes after its last row; nor does less than a minute count."""
    assert findings(job(missing=missing)) == []
    assert findings([*job(missing=missing), *beside(STEPS + 55)]) == []


@pytest.mark.parametrize("missing", [[], [5]])
@pytest.mark.parametrize("code", ["job.end", "job.eval", "job.restart"])
def test_what_is_announced_is_no_hang(missing, code):
    """An end, or a pause of up to ten minutes."""
    assert findings([*job(missing=missing), *beside(600), event(code)]) == []


@pytest.mark.parametrize("attempt", [0, 1])
@pytest.mark.parametrize("ended", [0.5, 30.0], ids=["at once", "after a pause showed"])
def test_a_job_that_goes_on_after_its_end_did_not_stand_still(ended, attempt):
    """Neither does the time until its next attempt count, nor that after an end announced too early."""
    again = job(steps=60, first=STEPS, start=STEPS + 7200.0, attempt=attempt)
    assert findings([*job(), event("job.end", ended), *again]) == []


def test_a_late_row_of_a_named_rank_takes_it_back():
    """It arrived after all: what is left is a stop without a missing row."""
    late = job()[-1]
    before = [r for r in [*job(missing=[5]), *beside(400)] if r.ts <= LAST + 100.0]
    after = [r for r in beside(400) if r.ts > LAST + 100.0]
    [found] = versions([*sorted(before, key=lambda r: r.ts), late, *after])
    assert (found.severity, found.suspects) == ("info", ())


def test_steps_that_go_on_end_it():
    """A pause of three minutes is information, and over with the next step."""
    taken = [*job(), *job(steps=415, first=STEPS, start=STEPS + 180.0), *beside(700)]
    assert [found[:3] for found in findings(taken)] == [("hang.job", "info", "resolved")]


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_hang_that_ends_with_a_new_attempt_is_told(attempt):
    """As a watchdog ends it: in a file, the first row afterwards shows how long it was silent."""
    again = job(first=STEPS, start=STEPS + 600.0, attempt=attempt)
    [found] = findings([*job(missing=[5]), *again])
    assert (found[:2], found[3]) == (("hang.job", "error"), [5])


@pytest.mark.parametrize("attempt", [0, 1])
def test_short_pauses_and_restarts_are_nothing(attempt):
    """Neither a checkpoint nor a restart that is over before two minutes."""
    again = job(first=STEPS - 20 * attempt, start=STEPS + 100.0, attempt=attempt)
    assert findings([*job(), *again, *beside(400)]) == []


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_records_changes_nothing(seed):
    """The records of three seconds in any order."""
    taken = [*job(missing=[5]), *beside(300)]
    shuffled = random.Random(seed).sample(taken, len(taken))
    again = versions(sorted(shuffled, key=lambda record: record.ts // 3.0))
    assert [f.to_json() for f in again] == [f.to_json() for f in versions(sorted(taken, key=lambda r: r.ts))]


def reporting(phases, *, until=90, first=6, at=""):
    """Return what the ranks of a job that stopped report of their open step, every five seconds."""
    return [
        JobSteps(
            schema=1,
            cluster="bench",
            job_id="job",
            node=f"job-{'n0' if rank < 4 else 'n1'}",
            boot_id="",
            seq=rank,
            ts=LAST + seconds,
            world_size=RANKS,
            open=(OpenStep(rank, STEPS, phase, float(seconds), at),),
        )
        for seconds in range(first, until, 5)
        for rank, phase in phases.items()
    ]


WAITING = dict.fromkeys(range(RANKS), "wait")


def test_a_rank_that_reports_nothing_while_others_wait_is_named_at_once():
    """It was stopped or killed: an error once the job is stalled, although no row is missing."""
    reports = reporting({rank: phase for rank, phase in WAITING.items() if rank != 5})
    assert findings([*job(), *reports, *beside(300)]) == [("hang.job", "error", "open", [5], 15)]


def test_the_line_of_code_of_a_rank_that_the_others_wait_for_is_evidence():
    """The last that it was in, where it reports one."""
    waiting = reporting({rank: "wait" for rank in range(RANKS) if rank != 5}, at="train.py:9 in step")
    before = reporting({5: ""}, until=10, at="loader.py:3 in open")
    after = reporting({5: ""}, first=11, at="loader.py:7 in read")
    found = versions(sorted([*job(), *waiting, *before, *after, *beside(300)], key=lambda r: r.ts))

    [age] = [e for e in found[-1].evidence if e.metric == "job.step_age_seconds"]
    assert age.note == (
        "the others wait in a collective; rank 5 is in code outside any phase, at loader.py:7 in read"
    )


def test_a_rank_in_user_code_is_information_until_no_pause_lasts_so_long():
    """It may evaluate while the others wait; after two minutes it is an error."""
    taken = [*job(), *reporting(WAITING | {5: ""}), *beside(300)]
    assert findings([r for r in taken if r.ts < LAST + 60.0]) == [("hang.job", "info", "open", [5], 15)]
    assert findings(taken) == [("hang.job", "error", "open", [5], 15)]


@pytest.mark.parametrize(
    "phases", [WAITING, WAITING | {0: "checkpoint"}, dict.fromkeys(range(RANKS), "compute")]
)
def test_where_nobody_is_waited_for_nobody_is_named(phases):
    """All wait for the network, or one writes a checkpoint, or all compute."""
    [found] = findings([*job(), *reporting(phases), *beside(300)])
    assert found == ("hang.job", "info", "open", [], 120)
