"""The benchmark of starts: what is drawn, and how findings about it are counted."""

import numpy as np
import pytest

from benchmarks.detection.startup import GPUS, Start, arrivals, drawn, run
from slowrank.telemetry.messages import PHASES


def test_a_start_is_drawn_with_its_barriers():
    """All nodes meet, and all end together; the straggler costs what the start is longer by."""
    for seed in range(20):
        start = drawn(np.random.default_rng(seed), healthy=False)
        assert 4 <= len(start.ends) <= 256
        assert np.ptp(start.ends[:, PHASES.index("rendezvous")]) == 0
        assert np.ptp(start.ends[:, -1]) == 0
        assert (start.seconds > 0).all()
        assert 0 <= start.sooner * GPUS * len(start.ends) / 3600.0 < start.gpu_hours_lost


def test_what_is_lost_is_the_slowest_less_the_median_of_each_phase():
    """By hand: four nodes, one image that takes 100 s longer; waiting for each other is not counted."""
    seconds = np.tile([60.0, 8.0, 4.0, 1.0, 30.0, 20.0], (4, 1))
    seconds[2, 0], seconds[[0, 1, 3], 3] = 160.0, 101.0
    start = Start(np.cumsum(seconds, axis=1), (2, 0), 100.0)
    assert start.gpu_hours_lost == pytest.approx(4 * GPUS * 100.0 / 3600.0)


@pytest.mark.parametrize(("lost", "sent"), [(0.0, 1.05), (0.5, 0.525), (1.0, 0.0)])
def test_events_are_lost_and_doubled(lost, sent):
    """So many of a start's events arrive, in order of arrival."""
    start = Start(np.cumsum(np.ones((200, len(PHASES))), axis=1))
    events = list(arrivals(start, np.random.default_rng(1), lost=lost))
    assert len(events) / start.ends.size == pytest.approx(sent, abs=0.05)


def test_every_start_is_counted_once():
    """Of eight seeds two are healthy; with every event lost there is no finding."""
    whole, nothing = run(range(8), lost=0.0), run(range(8), lost=1.0)
    assert (whole.starts, whole.healthy, whole.wrong) == (6, 2, 0)
    assert (whole.found, whole.node, whole.phase, whole.close) == (6, 6, 6, 1.0)
    assert (nothing.starts, nothing.found, nothing.node, nothing.close) == (6, 0, 0, 0.0)
