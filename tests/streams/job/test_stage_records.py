"""JobStage and its records: lost, repeated, batched anyhow; jobs that stop, restart and are many."""

import dataclasses

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.detection.step_jobs import records, synchronous
from slowrank.telemetry import UNKNOWN_NODE, HangVote, Suspicion, encode
from slowrank.telemetry.rows.json_rows import rows, steps_record
from tests.streams.job.job_tables import SuspectingStage, believed, healthy, job_level, run


def test_gaps_lost_rows_and_missing_values_do_not_matter():
    """Sampled steps, 3 % lost rows and unread values neither hide the rank nor make another suspect."""
    work, rng = healthy(steps=300), np.random.default_rng(10)
    work[150:, 7] *= 1.1
    table = synchronous(work)
    kept = np.sort(rng.choice(300, 220, replace=False))
    compute = np.where(rng.random(work.shape) < 0.02, np.nan, work)
    table = dataclasses.replace(
        table,
        compute=compute[kept],
        step=table.step[kept],
        wait=None,
        numbers=table.numbers[kept],
        ts=table.ts[kept],
    )
    suspicions = run(table, only=rng.random((220, 16)) > 0.03)
    assert set(believed(suspicions)) == {7}
    assert {s.kind for s in suspicions} == {"straggler.fail_slow"}


def test_repeated_records_change_nothing():
    """Every record delivered twice gives what it gives once."""
    work = healthy(steps=150)
    work[80:, 7] *= 1.2
    once, twice = SuspectingStage(), SuspectingStage()
    first = [s for r in records(synchronous(work)) for s in once.process(r)]
    second = [s for r in records(synchronous(work)) for _ in range(2) for s in twice.process(r)]
    assert second == first
    assert twice.late_rows > 0


def twin_rows(table):
    return [row for record in records(table) for row in rows(record)]


SLOWED = healthy(steps=110, ranks=4, seed=21)
SLOWED[60:, 2] *= 1.15


ROWS = twin_rows(synchronous(SLOWED))

SQUARES = np.random.default_rng(21).uniform(1e13, 2e13, SLOWED.shape)
UNEVEN = twin_rows(dataclasses.replace(synchronous(SLOWED * SQUARES / 1e13), squares=SQUARES))
for row in UNEVEN[::37]:
    del row["seq_len_sq_sum"]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [ROWS, UNEVEN], ids=["plain", "squares"])
@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_how_rows_are_batched_changes_no_byte(rows, sizes):
    """Any chunking of the rows into records gives the same suspicions."""
    stage, at = SuspectingStage(), 0
    out: list[bytes] = []
    for size in [*sizes, *([7] * len(rows))]:
        chunk = rows[at : at + size]
        at += size
        if chunk:
            out += [encode(s) for s in stage.process(steps_record(chunk))]
    reference = SuspectingStage()
    assert out == [encode(s) for row in rows for s in reference.process(steps_record([row]))]
    assert out


def test_a_stalled_job_is_suspected_by_key_a_alone():
    """Event time passing without steps raises hang.job, each word at its own deadline, and none believed
    alone; a step ends it.
    """
    table = synchronous(healthy(steps=100))
    stage = SuspectingStage()
    for record in records(table):
        stage.process(record)
    end = float(table.ts[-1])
    assert list(stage.tick(end + 10)) == []
    found = list(stage.tick(end + 300))
    assert {(s.kind, s.family, s.overwhelming, s.onset) for s in found} == {("hang.job", "job", False, end)}
    early, hang, certain = found
    assert (early.state, hang.state, certain.state) == ("raise", "update", "update")
    assert end + 12 <= early.ts < end + 15 <= hang.ts <= end + 20
    assert early.score < hang.score == 1.0
    votes = [s for s in found if isinstance(s, HangVote)]
    assert [(v.early, v.certain) for v in votes] == [(True, False), (False, False), (False, True)]
    assert certain.ts == end + 120
    assert list(stage.tick(end + 400)) == []
    later = dataclasses.replace(table, numbers=table.numbers + 100, ts=table.ts + 500)
    assert next(s for r in records(later) for s in stage.process(r)).state == "clear"


def test_a_rank_that_stops_reporting_is_missing():
    """One rank's rows end while the others go on: the rank is named as missing, as a matter of silence."""
    table = synchronous(healthy(steps=160))
    only = np.ones((160, 16), dtype=bool)
    only[100:, 5] = False
    missing, lost = run(table, only=only)
    assert (missing.kind, missing.family, missing.subject.rank) == ("hang.rank_missing", "silence", 5)
    assert not missing.overwhelming
    assert (lost.state, lost.overwhelming, lost.subject.rank) == ("update", True, 5)


def test_a_new_attempt_learns_anew_and_keeps_who_was_slow():
    """After a restart on the same nodes the slow rank stays under suspicion, without being raised again."""
    work = healthy(steps=160)
    work[80:, 3] *= 1.2
    table = synchronous(work)
    stage = SuspectingStage()
    out: list[Suspicion] = []
    for record in records(table):
        out += stage.process(record)
    again = healthy(steps=100, seed=5)
    again[:, 3] *= 1.2
    second = dataclasses.replace(synchronous(again), attempt=1, ts=synchronous(again).ts + 180.0)
    for record in records(second):
        out += stage.process(record)
    assert [s.state for s in out if s.state != "update"] == ["raise"]
    assert out[-1].subject.attempt == 1


def restarted(*, before=1.0, dealt=None, world_size=48, seconds=1.0, named=True):
    """Suspicions of the second attempt of a job of 48 ranks on six nodes, without coordinates, of which the
    last one is slow by 1.3 in the second, and by ``before`` in the first; ``dealt`` renames nodes then, and
    without ``named`` rows name none."""
    stage, again = SuspectingStage(), list[Suspicion]()
    for attempt, factor in enumerate([before, 1.3]):
        work = healthy(
            steps=40 if attempt else 80, ranks=48, seed=attempt, seconds=seconds if attempt else 1.0
        )
        work[:, 40:] *= factor
        table = synchronous(work, overhead=0.5)
        size = world_size if attempt else 48
        table = dataclasses.replace(table, ts=table.ts + 1000.0 * attempt, attempt=attempt, world_size=size)
        for record in records(table):
            node = (dealt or {}).get(record.node, record.node) if attempt else record.node
            node = node if named else UNKNOWN_NODE
            found = stage.process(msgspec.structs.replace(record, node=node))
            again += found if attempt else []
    return again


@pytest.mark.parametrize(
    "changes",
    [{}, {"dealt": {"node-0001": "node-0009"}}, {"named": False}],
    ids=["same nodes", "one replaced", "no names"],
)
def test_a_node_that_is_slow_from_a_restart_on_is_no_stage(changes):
    """Its ranks were as quick as all others before, so that their work is the same; they are named soon."""
    found = restarted(**changes)
    assert set(believed(found)) == set(range(40, 48))
    assert job_level(found) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"before": 1.3},
        {"world_size": 64, "named": False},
        {"world_size": 64},
        {"seconds": 1.5},
        {"dealt": {"node-0000": "node-0001", "node-0001": "node-0000"}},
        {"dealt": {f"node-{n:04d}": f"node-{n + 6:04d}" for n in range(4)}},
    ],
    ids=[
        "slow before",
        "resized, no names",
        "resized",
        "other work",
        "ranks dealt anew",
        "mostly other nodes",
    ],
)
def test_a_group_that_may_be_a_stage_is_none_the_less_after_a_restart(changes):
    """It was slow before, or who does which work may have changed with the attempt: no rank is named."""
    assert believed(restarted(**changes)) == {}
