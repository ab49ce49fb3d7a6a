"""What jobs cost in memory, how long they are held, and that no job that goes on is dropped."""

import gc
import tracemalloc
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from benchmarks.detection.step_jobs import START, records, synchronous
from detectors.job.progress import FORGET_SECONDS
from slowrank.telemetry import NodeEvent
from slowrank.telemetry.rows.json_rows import rows, steps_record
from streams.job.memory import KIND, bytes_needed
from streams.job.stage import DEFAULT_MEMORY_BYTES
from streams.job.table import LINGER_SECONDS, SILENT_SECONDS
from streams.node.events.job_events import end_of
from streams.pipeline import local_pipeline
from tests.streams.job.job_tables import SuspectingStage, healthy, layout

SMALL = bytes_needed(4, SuspectingStage().config.straggler)


def job(name, *, steps=60, ranks=4, slow=None, start=START, factor=1.5, seed=0, nodes=None):
    """Records of a job of its own; rank ``slow`` becomes slower at step 30. ``nodes`` renames its node."""
    work = healthy(steps, ranks, seed=seed)
    if slow is not None:
        work[30:, slow] *= factor
    table = synchronous(work, overhead=0.1, coords=layout(ranks, 1))
    held = records(replace(table, job_id=name, ts=table.ts - START + start))
    return [with_gpus(record, nodes or f"node-of-{name}") for record in held]


def with_gpus(record, node):
    return steps_record([row | {"node": node, "gpu_index": row["rank"] % 8} for row in rows(record)])


def job_end(name, ts, node="epilog"):
    subject = {"job_id": name}
    return NodeEvent(cluster="bench", node=node, ts=ts, source="job", code="job.end", subject=subject)


def the_end(name, ts):
    crossed = end_of(job_end(name, ts))
    assert crossed is not None
    return crossed


def slow_ranks(suspicions):
    return {
        (s.subject.job_id, s.subject.rank)
        for s in suspicions
        if s.kind == "straggler.fail_slow" and s.overwhelming
    }


@pytest.mark.slow
def test_a_stall_is_found_in_each_of_more_jobs_than_1024():
    """1,100 live jobs send in rotation and then stop: each is reported, as one alone would be."""
    names = [f"job-{i}" for i in range(1100)]
    results = records(replace(synchronous(np.ones((3, 1))), ranks_per_node=1))
    first = [msgspec.structs.replace(record, world_size=1) for record in results]
    stage = SuspectingStage()
    for record in first:
        for name in names:
            stage.process(msgspec.structs.replace(record, job_id=name))
    found = stage.tick(first[-1].ts + 700.0)
    assert {s.subject.job_id for s in found if s.kind == "hang.job"} == set(names)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["job.end", "another job on its GPUs"])
def test_memory_stays_flat_over_jobs_one_after_the_other(how):
    """Through the whole pipeline: 60 short jobs hold no more than a few do, whichever way an end shows."""
    pipeline, held, at = local_pipeline(), [], START
    for i in range(60):
        for record in job(f"job-{i}", steps=40, start=at, nodes="gpu-0001"):
            pipeline.process(record)
        at += 60.0
        if how == "job.end":
            pipeline.process(job_end(f"job-{i}", at))
        held.append(pipeline.job_memory.jobs)
    assert max(held) <= 2 + LINGER_SECONDS / 60.0
    assert pipeline.job_memory.refused == 0


@pytest.mark.slow
def test_ended_jobs_leave_no_memory_behind():
    """After 200 jobs as much is allocated as after 50: nothing is kept of a job that has ended."""
    stage, sizes, at = SuspectingStage(), [], START
    tracemalloc.start()
    try:
        for i in range(200):
            for record in job(f"job-{i}", steps=10, start=at, nodes="gpu-0001"):
                stage.process(record)
            at += 100.0
            stage.tick(at)
            if i in (49, 199):
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[1] - sizes[0] < 150 * 2000


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [16, 64])
def test_bytes_counted_are_bytes_allocated(ranks):
    """What the stage counts for a job is within a fifth of what Python allocates, when young and when old."""
    steps = 260
    found = list(records(synchronous(healthy(steps, ranks), overhead=0.1, coords=layout(ranks, 1))))
    per_step, stage = len(found) // steps, SuspectingStage()
    for record in found[: 40 * per_step]:
        # What is imported or remembered for all jobs alike is no job's.
        stage.process(record)
    stage = SuspectingStage()
    gc.collect()
    tracemalloc.start()
    try:
        for first, last in ((0, 20), (20, steps)):
            for record in found[first * per_step : last * per_step]:
                stage.process(record)
            gc.collect()
            allocated = tracemalloc.get_traced_memory()[0]
            assert stage.memory.held == pytest.approx(allocated, rel=0.2)
        assert stage.memory.reserved == stage.memory.held
    finally:
        tracemalloc.stop()


def test_one_job_of_8192_ranks_needs_less_than_250_megabytes():
    """By the bytes counted, which the test above holds against what is allocated."""
    assert bytes_needed(8192, SuspectingStage().config.straggler) < 250e6


def test_a_live_job_is_never_dropped_for_a_newer_one():
    """With room for two jobs, the third is refused, and a finding states it; the two find what they found
    before.
    """
    stage = SuspectingStage(memory_bytes=2 * SMALL + 1000, name="job-steps:3")
    found = _together(stage, [job(f"job-{i}", slow=1, steps=80, start=START + i) for i in range(3)])
    assert slow_ranks(found) == {("job-0", 1), ("job-1", 1)}
    memory = stage.memory
    assert (memory.jobs, memory.refused) == (2, 1)
    raised = [s for s in found if s.kind == KIND]
    assert raised[0].state == "raise"
    assert (raised[0].subject.type, raised[0].subject.node) == ("telemetry", "job-steps:3")
    assert "1 jobs are not analysed" in raised[-1].note


def test_a_refused_job_is_analysed_once_there_is_room():
    """When one of the others ends, the refused job is taken in, and the finding about memory ends."""
    stage = SuspectingStage(memory_bytes=2 * SMALL + 1000)
    _together(stage, [job(f"job-{i}", steps=40, seed=i) for i in range(2)])
    late = job("job-2", slow=1, steps=400, start=START + 44)
    cut = 200
    first = [s for record in late[:cut] for s in [*stage.tick(record.ts), *stage.process(record)]]
    assert KIND in {s.kind for s in first}
    for name in ("job-0", "job-1"):
        stage.process(the_end(name, late[cut].ts))
    second = [s for record in late[cut:] for s in [*stage.tick(record.ts), *stage.process(record)]]
    assert stage.memory.jobs >= 1
    assert [s.state for s in second if s.kind == KIND][-1] == "clear"


def _together(stage, jobs):
    """Give a stage the records of several jobs in order of event time, with its ticks."""
    out = []
    for record in sorted((r for found in jobs for r in found), key=lambda r: (r.ts, r.job_id)):
        out += stage.tick(float(int(record.ts)))
        out += stage.process(record)
    return out


def test_the_job_silent_for_longest_goes_first_when_room_is_needed():
    """Ten minutes of silence free a place for a new job; less does not."""
    stage = SuspectingStage(memory_bytes=2 * SMALL + 1000)
    _together(stage, [job("old"), job("newer", start=START + 60)])
    end = START + 60 + 70
    stage.tick(end)
    stage.process(job("refused", start=end)[0])
    assert stage.memory.refused == 1
    stage.tick(end + SILENT_SECONDS - 40)
    stage.process(job("taken", start=end + SILENT_SECONDS)[0])
    assert stage.memory.jobs == 2
    stage.process(job("old", start=end + SILENT_SECONDS + 1)[0])
    assert stage.memory.jobs == 2


def test_what_can_never_fit_takes_no_place():
    """A job that claims more ranks than fit in all is refused; one that has hung for long is still held."""
    stage = SuspectingStage(memory_bytes=2 * SMALL + 1000)
    _together(stage, [job("hung")])
    stage.tick(START + 70 + SILENT_SECONDS + 60)
    claim = msgspec.structs.replace(job("claims", start=START + 700)[0], world_size=2**20)
    stage.process(claim)
    assert (stage.memory.jobs, stage.memory.refused) == (1, 1)


# Ranks of one job that all but fill the usual 4 GiB.
FULL = 192_588


def test_a_claim_of_many_ranks_keeps_no_real_job_out():
    """One row of a job that claims all ranks that fit, sent again every 300 s: a slow rank of a job
    that begins later is found when it would be without it."""
    start = START + 650
    lie = job("lie", steps=1, ranks=1)[0]
    lies = [msgspec.structs.replace(moved_by(lie, 300.0 * i), world_size=FULL) for i in range(3)]
    alone, lied_to = SuspectingStage(), SuspectingStage()
    assert DEFAULT_MEMORY_BYTES - SMALL < bytes_needed(FULL, alone.config.straggler) <= DEFAULT_MEMORY_BYTES
    truth = job("real", slow=1, steps=90, start=start)
    expected, found = _together(alone, [truth]), _together(lied_to, [lies, truth])
    assert slow_ranks(expected) == {("real", 1)}
    assert found == expected
    assert lied_to.memory.refused == 0


def moved_by(record, seconds):
    found = steps_record([row | {"ts": row["ts"] + seconds} for row in rows(record)])
    return msgspec.structs.replace(found, ts=record.ts + seconds)


def test_a_job_of_8192_ranks_is_taken_in_node_by_node():
    """Beside a job that claims as many: it needs the memory of the ranks seen at first, then that of all."""
    ranks, work = 8192, np.ones((2, 8192))
    found = [
        msgspec.structs.replace(record, world_size=ranks, job_id="large")
        for record in records(synchronous(work, overhead=0.1))
    ]
    of = SuspectingStage().config.straggler
    stage = SuspectingStage(memory_bytes=bytes_needed(ranks, of) + SMALL)
    claim = msgspec.structs.replace(job("claims", start=START)[0], world_size=ranks)
    stage.process(claim)
    stage.process(found[0])
    assert stage.memory.reserved == SMALL + bytes_needed(8, of)
    for record in found[1:]:
        stage.process(record)
    assert stage.memory.reserved == SMALL + bytes_needed(ranks, of)
    assert (stage.memory.jobs, stage.memory.refused) == (2, 0)


def test_a_day_of_silence_lets_a_job_go():
    """Without an end, a successor or a lack of memory a job is held for a day."""
    stage = SuspectingStage()
    _together(stage, [job("job")])
    stage.tick(START + FORGET_SECONDS)
    assert stage.memory.jobs == 1
    stage.tick(START + FORGET_SECONDS + 100)
    assert stage.memory.jobs == 0


@pytest.mark.slow
def test_two_jobs_that_share_a_gpu_do_not_end_each_other():
    """Only who is silent when the other begins has left its GPUs."""
    stage = SuspectingStage()
    shared = [job(name, steps=700, nodes="gpu-0001", start=START + 0.3 * i) for i, name in enumerate("ab")]
    _together(stage, shared)
    assert stage.memory.jobs == 2


def test_a_job_that_goes_on_after_its_end_was_declared_is_kept():
    """An epilog that ran too early costs nothing: steps that follow show that the job goes on."""
    found = job("job", steps=700, slow=1)
    stage, out = SuspectingStage(), []
    for i, record in enumerate(found):
        out += [*stage.tick(record.ts), *stage.process(record)]
        if i == 20:
            out += stage.process(the_end("job", record.ts))
    assert stage.memory.jobs == 1
    assert slow_ranks(out) == {("job", 1)}


def test_the_end_of_a_job_ends_what_is_wrong_with_the_job_and_not_what_is_with_its_gpu():
    """A hang is over when its job is; a slow GPU has not recovered."""
    stage, found = SuspectingStage(), job("job", slow=1, steps=90)
    out = [s for record in found for s in [*stage.tick(record.ts), *stage.process(record)]]
    end = found[-1].ts
    for second in range(200):
        out += stage.tick(end + second)
    assert "hang.job" in {s.kind for s in out}
    ended = stage.process(the_end("job", end + 200))
    assert [(s.kind, s.state) for s in ended] == [("hang.job", "clear")]
    assert stage.tick(end + 200 + LINGER_SECONDS + 1) == []
    assert stage.memory.jobs == 0


def test_what_was_open_about_a_job_let_go_ends_when_it_comes_back_well():
    """After a day of silence a job starts afresh: its hang ends at once, its slow rank when seen well."""
    stage, found = SuspectingStage(), job("job", slow=1, steps=90)
    out = [s for record in found for s in [*stage.tick(record.ts), *stage.process(record)]]
    for second in range(200):
        out += stage.tick(found[-1].ts + second)
    assert {s.kind for s in out} == {"straggler.fail_slow", "hang.job"}
    later = found[-1].ts + FORGET_SECONDS + 10
    assert stage.tick(later) == []
    assert stage.memory.jobs == 0
    again = [s for record in job("job", steps=120, start=later, seed=5) for s in stage.process(record)]
    assert {(s.kind, s.state) for s in again} == {("hang.job", "clear"), ("straggler.fail_slow", "clear")}


def test_the_shortage_is_a_finding_which_ends_with_it():
    """Through the whole pipeline: it opens while a job is refused, and is resolved once there is room."""
    pipeline = local_pipeline(job_memory_bytes=2 * SMALL + 1000)
    jobs = [job(f"job-{i}", steps=60, start=START + i) for i in range(3)]
    found = sorted((r for records in jobs for r in records), key=lambda r: r.ts)
    versions = [f for record in found for f in pipeline.process(record)]
    for name in ("job-0", "job-1"):
        versions += pipeline.process(job_end(name, found[-1].ts + 1))
    for second in range(900):
        versions += pipeline.tick(found[-1].ts + second)
    about = [f for f in versions if f.kind == KIND]
    assert about[0].status == "open"
    assert about[0].title == "slowrank runs out of memory for jobs: job-steps"
    assert "SLOWRANK_STREAMS_JOB_MEMORY_MIB" in about[0].action.text
    assert {e.metric for e in about[0].evidence} == {"slowrank.job_memory_bytes", "slowrank.jobs_refused"}
    assert about[-1].status == "resolved"
