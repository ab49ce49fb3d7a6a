"""The parts of the benchmark of jobs."""

from functools import partial

import pytest

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
