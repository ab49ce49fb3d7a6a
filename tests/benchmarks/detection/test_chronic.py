"""The benchmark of GPUs slow for good: its table, on one small fleet of each sort."""

import pytest

from benchmarks.detection.chronic import cost, run


@pytest.mark.parametrize(("size", "found"), [(0.0, 0), (0.02, 8), (0.05, 10)])
def test_slow_ones_are_named_within_days_and_no_other(size, found):
    """Where healthy ones differ by 0.2 %, ten slow GPUs are named within a week or so, and no healthy GPU."""
    tally = run(size, 0.002, seeds=range(1), gpus=400, days=20)
    assert tally.wrong == 0
    assert len(tally.days) >= found
    assert all(2 <= days <= 13 for days in tally.days)


def test_the_cost_of_paces_is_measured(capsys):
    """Each rank has one pace in an hour of steps."""
    cost(16)
    assert "16 paces in 3600 steps" in capsys.readouterr().out
