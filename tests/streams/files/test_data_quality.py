"""Rows of steps in which nothing may be found, and what is said of them."""

from dataclasses import fields

import numpy as np
import pytest

from streams.files.data_quality import StepColumns, doubts, zone_doubt
from streams.files.record_builder import read_records


def columns(*, ranks=8, steps=100, **changed):
    """Healthy rows of a synchronous job, 0.8 s of compute in a step of 1 s; ``changed`` replaces columns."""
    step, rank = np.repeat(np.arange(steps), ranks), np.tile(np.arange(ranks), steps)
    seconds = {"step_seconds": 1.0, "compute_seconds": 0.8, "wait_seconds": 0.1, "comm_seconds": 0.1}
    held = {"attempt": 0 * step, "step": step, "rank": rank, "ts": 1_795_160_000.0 + step, "node": 0 * step}
    held |= {name: np.full(len(step), value) for name, value in seconds.items()}
    return StepColumns(**held | {name: change(held) for name, change in changed.items()})


def test_about_whole_rows_nothing_is_doubtful():
    """Neither many ranks and steps, nor a job resumed after days, nor a trace of every tenth step."""
    assert list(doubts(columns())) == []
    assert list(doubts(columns(ranks=2, steps=60))) == []
    assert list(doubts(columns(ts=lambda h: h["ts"] + 200_000.0 * (h["step"] > 50)))) == []
    assert list(doubts(columns(step=lambda h: 10 * h["step"], ts=lambda h: 10 * h["ts"]))) == []


@pytest.mark.parametrize("seconds", [0.02, 0.13, 0.4, 0.7, 1.5])
@pytest.mark.parametrize("pause", [0.0, 200_000.0])
def test_times_in_whole_seconds_are_not_doubtful(seconds, pause):
    """Most steps then end when the one before did; a pause counts for no more than another step."""
    held = {
        name: (lambda h, name=name: seconds * h[name])
        for name in ("step_seconds", "compute_seconds", "wait_seconds")
    }
    ts = columns(
        steps=400, **held, ts=lambda h: np.floor(h["ts"][0] + seconds * h["step"]) + pause * (h["step"] > 200)
    )
    assert list(doubts(ts)) == []


@pytest.mark.parametrize(
    ("rows", "doubt"),
    [
        (columns(ranks=1), "one rank"),
        (columns(steps=20), "20 steps are few"),
        (columns(steps=1), "1 steps are few"),
        (columns(compute_seconds=lambda h: -h["compute_seconds"]), "compute_seconds is mostly negative"),
        (columns(compute_seconds=lambda h: 1e3 * h["compute_seconds"]), "compute_seconds is mostly larger"),
        (columns(wait_seconds=lambda h: 1e3 * h["wait_seconds"]), "wait_seconds is mostly larger"),
        (columns(step_seconds=lambda h: 0 * h["step_seconds"]), "step_seconds is mostly 0"),
        (columns(ts=lambda h: 0 * h["ts"] + 5.0), "take 99 s by step_seconds and 0 s by ts"),
        (columns(ts=lambda h: h["ts"] * 1e3), "take 99 s by step_seconds and 99,000 s by ts"),
    ],
)
def test_rows_that_cannot_be_evaluated_give_a_warning(rows, doubt):
    """Too few, signs and units that cannot be, and times that are none."""
    assert any(doubt in warning for warning in doubts(rows))


def test_an_assumed_zone_is_told_of():
    """With what to write instead."""
    assert zone_doubt(1600) == (
        "ts of 1600 rows has no time zone and is taken as UTC: if it is local time, add its offset, as in "
        "2026-11-20T07:33:21+01:00, or it does not fit what other hosts send"
    )


def test_durations_in_milliseconds_are_told_of_once_each():
    """One mistake in the whole file is one doubt about time, none about the parts of a step."""
    thousand = {
        name: (lambda h, name=name: 1e3 * h[name])
        for name in ("step_seconds", "compute_seconds", "wait_seconds")
    }
    (told,) = doubts(columns(**thousand))
    assert "take 99,000 s by step_seconds and 99 s by ts" in told
    assert told.endswith("step_seconds looks like milliseconds: divide by 1000")


def test_ranks_in_milliseconds_are_named():
    """Where the others are in seconds, it is no matter of the time that passes."""
    some = columns(step_seconds=lambda h: np.where(h["rank"] > 1, 1e3, 1.0) * h["step_seconds"])
    assert list(doubts(some)) == [
        "step_seconds of ranks 2, 3, 4, 5 and 2 more looks like milliseconds: some thousand times that of "
        "the others; divide by 1000"
    ]
    (one,) = doubts(columns(step_seconds=lambda h: np.where(h["rank"] == 5, 980, 1.0) * h["step_seconds"]))
    assert one.startswith("step_seconds of rank 5 looks like milliseconds")
    assert list(doubts(columns(step_seconds=lambda h: np.where(h["rank"] == 5, 50.0, 1.0)))) == []


def twice(**changed):
    """The rows of a job and once more as ``changed``."""
    one, other = columns(), columns(**changed)
    both = {f.name: (getattr(one, f.name), getattr(other, f.name)) for f in fields(StepColumns)}
    return StepColumns(**{name: np.concatenate(columns) for name, columns in both.items()})


def test_two_runs_under_one_name_are_told_of():
    """Rows that come twice say nothing new; other values under the same step and rank are another run."""
    assert list(doubts(twice())) == []
    assert list(doubts(twice(attempt=lambda h: h["attempt"] + 1, ts=lambda h: h["ts"] + 500.0))) == []
    (told,) = doubts(twice(ts=lambda h: h["ts"] + 0.1))
    assert told.startswith("800 rows have the step and rank of another row but other values")


def test_a_local_rank_in_place_of_the_rank_is_told_of():
    """Two nodes that send one rank, with the nodes; not where a rank was moved, or rows name no node."""
    (said,) = doubts(twice(node=lambda h: h["node"] + 1), ("n0", "n1"))
    assert said == (
        "rank 0 comes from nodes n0 and n1 and so do ranks 1, 2, 3, 4 and 3 more: is it the local rank? "
        "rank counts over all nodes of a job"
    )
    (said,) = doubts(twice(node=lambda h: h["node"] + 1, ts=lambda h: h["ts"] + 0.1), ("n0", "n1"))
    assert said.startswith("rank 0 comes from nodes n0 and n1")
    assert list(doubts(twice(node=lambda h: h["node"] - 1), ("n0",))) == []
    moved = columns(node=lambda h: np.where((h["rank"] == 3) & (h["step"] > 50), 1, 0))
    assert list(doubts(moved, ("n0", "n1"))) == []


def test_the_nodes_of_a_rank_are_told_by_name(tmp_path):
    """As rows name them, of the job that has them."""
    lines = ["job_id,node,step,rank,ts,step_seconds,compute_seconds"]
    for job, node, first in (("a", "x1", 0), ("a", "x2", 0), ("b", "x1", 0), ("b", "x3", 1)):
        ranks = range(2 * first, 2 * first + 2)
        lines += [f"{job},{node},{s},{r},{1_795_160_000 + s},1.0,0.8" for s in range(100) for r in ranks]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    (told,) = read_records([tmp_path / "a.csv"]).doubts
    assert told[0] == "a"
    assert told[1].startswith("rank 0 comes from nodes x1 and x2 and so does rank 1: is it the local rank?")


def test_a_rank_whose_rows_were_set_aside_is_told_of(tmp_path):
    """It looks missing in steps that it made; rows without a rank, and samples, are of none."""
    lines = ["kind,job_id,step,rank,ts,step_seconds,compute_seconds,metric"]
    lines += [f"step,j,{s},{r},{1_795_160_000 + s},1.0,0.8," for s in range(100) for r in range(4)]
    bad = [(s, r) for s in range(100, 103) for r in ("6", "7", "x", "", "-1")]
    lines += [f"step,j,{s},{r},{1_795_160_000 + s},-1.0,0.8," for s, r in bad]
    lines += ["sample,j,1,8,1795160000,1.0,0.8,gpu.power", "step,k,1,7,1795160000,-1.0,0.8,"]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    said = "6 rows of ranks 6, 7 were set aside: it may seem that ranks are missing"
    assert read_records([tmp_path / "a.csv"]).doubts == [("j", said)]


def test_columns_that_nobody_reads_are_named(tmp_path):
    """A name that is nearly right would else be missed in silence."""
    (tmp_path / "a.csv").write_text("step,rank,ts,step_seconds,compute,pp_rank\n0,0,1795160000,1.0,0.8,1\n")
    assert read_records([tmp_path / "a.csv"]).unknown.names == {"step": {"compute", "pp_rank"}}


def test_wall_clock_alone_identifies_no_rank():
    """How long a rank computed, waited or transferred is enough; neither is not."""
    told_apart = ("compute_seconds", "wait_seconds", "comm_seconds")
    absent = {name: (lambda h: np.full(len(h["ts"]), np.nan)) for name in told_apart}
    (told,) = doubts(columns(**absent))
    assert "the slow one cannot be identified" in told
    for name, nothing in absent.items():
        assert list(doubts(columns(**{name: nothing}))) == []


def test_doubts_are_by_job(tmp_path):
    """Of several jobs in several files, on several nodes, the doubtful one is named."""
    lines = ["job_id,node,step,rank,ts,step_seconds,compute_seconds"]
    for job, ranks in (("whole", range(4)), ("lone", range(1))):
        lines += [
            f"{job},n{rank % 2},{step},{rank},{1_795_160_000 + step},1.0,0.8"
            for step in range(100)
            for rank in ranks
        ]
    (tmp_path / "a.csv").write_text("\n".join([lines[0], *lines[1:150]]))
    (tmp_path / "b.csv").write_text("\n".join([lines[0], *lines[150:]]))
    read = read_records([tmp_path / "a.csv", tmp_path / "b.csv"])
    assert read.doubts == [("lone", "there is one rank, and no other to compare it with")]
