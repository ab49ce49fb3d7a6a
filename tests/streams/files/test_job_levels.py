"""What is said of a job in a file whose ranks all take longer from some step on."""

import numpy as np
import pytest

from streams.files.data_quality import StepColumns
from streams.files.job_levels import level_rises
from streams.files.record_builder import read_records

RANKS = 16


def rows(levels, *, slow=RANKS, compute=True, attempt_from=None, nan=False):
    """A job with a level of compute for each step, of which the first ``slow`` ranks take part."""
    rng = np.random.default_rng(5)
    steps = len(levels)
    seconds = np.exp(0.02 * rng.normal(size=(steps, RANKS)))
    seconds[:, :slow] *= np.asarray(levels, float)[:, None]
    if nan:
        seconds[rng.random(seconds.shape) < 0.3] = np.nan
    step, rank = np.repeat(np.arange(steps), RANKS), np.tile(np.arange(RANKS), steps)
    attempt = (step >= (steps if attempt_from is None else attempt_from)).astype(np.int64)
    own, whole = seconds.ravel(), np.repeat(np.nanmax(seconds, axis=1) + 0.1, RANKS)
    none = np.full(own.shape, np.nan)
    return StepColumns(
        attempt=attempt,
        step=step,
        rank=rank,
        node=np.zeros_like(step),
        ts=1_795_160_000.0 + np.cumsum(whole) / RANKS,
        step_seconds=whole,
        compute_seconds=own if compute else none,
        wait_seconds=none,
        comm_seconds=none,
    )


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (rows([1.0] * 100 + [1.3] * 100), "its ranks compute 1.30x as long from step 100 on"),
        (rows([1.0] * 100 + [1.3] * 100, nan=True), "its ranks compute 1.30x as long from step 100 on"),
        (rows([1.0] * 1000 + [1.5] * 1000), "its ranks compute 1.50x as long from step 1000 on"),
        (rows([1.0] * 80 + [2.0] * 40, attempt_from=80), "its ranks compute 2.00x as long from step 80 on"),
        (rows([1.0] * 100 + [1.3] * 100, compute=False), "its steps take 1.27x as long from step 100 on"),
    ],
    ids=["compute", "rows that miss values", "in bins", "at a restart", "whole steps"],
)
def test_what_all_ranks_take_longer_is_said_with_its_step_and_size(job, said):
    [sentence] = level_rises(job)
    assert sentence.startswith(said)


@pytest.mark.parametrize(
    "job",
    [
        rows([1.0] * 200),
        rows([1.0] * 100 + [1.05] * 100),
        rows([1.3] * 100 + [1.0] * 100),
        rows([1.0] * 100 + [1.3] * 4 + [1.0] * 96),
        rows([1.0] * 100 + [1.3] * 100, slow=12),
        rows([1.0] * 9),
        rows([0.0] * 200),
        rows([0.0, 0.0, 1.0] * 40),
    ],
    ids=[
        "steady",
        "by less",
        "faster",
        "for some steps",
        "of some ranks",
        "few steps",
        "zero",
        "mostly zero",
    ],
)
def test_of_other_jobs_nothing_is_said(job):
    assert list(level_rises(job)) == []


def test_of_work_that_keeps_growing_the_first_steps_are_named():
    levels = np.repeat(1.2 ** np.arange(6), 50)
    *first, last = level_rises(rows(levels))
    assert len(first) == 3
    assert last == "and again from each of 2 later steps on"


def test_who_reads_a_file_is_told(tmp_path):
    path = tmp_path / "steps.csv"
    held = rows([1.0] * 100 + [1.3] * 100)
    columns = {
        name: getattr(held, name) for name in ("step", "rank", "ts", "step_seconds", "compute_seconds")
    }
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines))
    [(job, remark)] = read_records([path]).doubts
    assert (job, remark[:29]) == ("job", "its ranks compute 1.30x as lo")


def test_steps_that_read_zero_are_not_read():
    """As of a tracker that logs every third step."""
    levels = np.array([1.0] * 120 + [1.6] * 120)
    levels[np.arange(240) % 3 > 0] = 0.0
    assert [sentence[:27] for sentence in level_rises(rows(levels))] == ["its ranks compute 1.60x as "]
