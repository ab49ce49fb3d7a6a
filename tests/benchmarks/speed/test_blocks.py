"""Partitions side by side find what one block of all nodes does."""

from itertools import count

import pytest

from benchmarks.speed import blocks


@pytest.mark.parametrize("partitions", [1, 4, 16])
def test_any_number_of_partitions_finds_the_same(partitions):
    """The benchmark compares what is found itself, and there is something to find."""
    cost = blocks.measure(3, partitions, warm=8, measured=2)
    assert min(cost.apart, cost.together, cost.times) > 0.0


def test_other_findings_are_refused(monkeypatch):
    different = count()
    monkeypatch.setattr(blocks, "_bytes", lambda found: next(different))
    with pytest.raises(ValueError, match="2 partitions find something else than one in second 0"):
        blocks.measure(3, 2, warm=8, measured=2)


def test_silence_is_no_comparison():
    with pytest.raises(ValueError, match="nothing was found"):
        blocks.measure(1, 2, warm=1, measured=1)
