"""The parts of the benchmark of jobs."""

from functools import partial

import numpy as np
import pytest

from benchmarks.detection.step_jobs import synchronous
from benchmarks.speed import jobs


@pytest.mark.parametrize(("argv", "run"), [([], ["live", "large"]), (["large"], ["large"])])
def test_all_parts_are_run_unless_some_are_named(argv, run, monkeypatch):
    """Each part that is run prints its table, in order; one that misses its goal makes the status 1."""
    ran = []

    def part(name):
        ran.append(name)
        return name == "live"

    monkeypatch.setattr(jobs, "_PARTS", {name: partial(part, name) for name in ("live", "large")})

    assert jobs.main(argv) == 1
    assert ran == run


@pytest.mark.parametrize("work", jobs._WORK)
def test_work_is_drawn_for_every_step_and_rank(work):
    """Whatever moves between ranks."""
    draw, _ = jobs._WORK[work]
    drawn = draw(np.random.default_rng(0), 90, 16)
    assert drawn.shape == (90, 16)
    assert (drawn > 0).all()


def test_each_step_of_a_job_is_timed():
    """All of its records are processed."""
    table = synchronous(np.ones((5, 12)))
    spent = jobs._spent(table)
    assert len(spent) == 5
    assert min(spent) >= 0
