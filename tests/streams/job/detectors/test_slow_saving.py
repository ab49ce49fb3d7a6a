"""Slow saving of a job, from its rows to what is reported."""

import pytest

from slowrank.telemetry.rows.json_rows import steps_record
from tests.streams.job.job_tables import SuspectingStage, job_level

T0, RANKS, EVERY = 1_795_160_000.0, 16, 50


def suspicions(saving, *, steps=620):
    """Those of a job of steps of a second; ``saving`` gives the seconds of a rank in each 50th step."""
    stage, found, ts = SuspectingStage(), [], T0
    for number in range(steps):
        own = [saving(number, rank) if number % EVERY == EVERY - 1 else 0.0 for rank in range(RANKS)]
        seconds = 1.0 + max(own)
        ts += seconds
        rows = [
            {
                "cluster": "c",
                "job_id": "j",
                "node": f"n{rank // 4}",
                "rank": rank,
                "step": number,
                "ts": ts,
                "step_seconds": seconds,
                "compute_seconds": 0.8 + 0.001 * ((number * 7 + rank * 3) % 5),
                "comm_seconds": 0.1 + max(own) - own[rank],
                "checkpoint_seconds": own[rank],
            }
            for rank in range(RANKS)
        ]
        for first in range(0, RANKS, 4):
            found += stage.process(steps_record(rows[first : first + 4]))
    return found


def test_a_job_that_saves_more_slowly_than_before_is_told_with_what_it_loses():
    found = suspicions(lambda number, _: 2.0 if number < 220 else 8.0)
    [raised] = job_level(found)
    assert (raised.kind, list(raised.hypotheses)) == ("straggler.job_wide", ["saving"])
    assert raised.ts - raised.onset == pytest.approx(2 * (EVERY + 8.0), abs=1.0)
    last = [s for s in found if s.detector == "saving"][-1]
    assert last.lost.gpu_seconds == pytest.approx(RANKS * 6.0 * 8)
    assert last.job_slowdown_ratio == pytest.approx(1.0 + 6.0 / (EVERY + 2.0), rel=0.05)


@pytest.mark.parametrize("since", [0, 120])
def test_a_node_that_saves_more_slowly_than_the_others_is_named(since):
    """Also where it did so from the start."""
    found = suspicions(lambda number, rank: 8.0 if rank // 4 == 2 and number >= since else 2.0)
    assert job_level(found) == []
    assert {s.subject.node for s in found} == {"n2"}


@pytest.mark.parametrize("since", [0, 120])
def test_a_rank_that_saves_more_slowly_than_the_others_is_named(since):
    """Also where it did so from the start."""
    found = suspicions(lambda number, rank: 8.0 if rank == 9 and number >= since else 2.0)
    assert {(s.kind, s.subject.node, s.subject.rank) for s in found} == {("straggler.intermittent", "n2", 9)}


@pytest.mark.parametrize("saves", [lambda _, rank: 8.0 * (rank == 0), lambda _, rank: 2.0 + 6.0 * (rank < 4)])
def test_what_the_first_rank_or_machine_saves_for_all_accuses_nobody(saves):
    assert suspicions(saves) == []
