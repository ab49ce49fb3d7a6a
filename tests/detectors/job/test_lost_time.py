"""What slow steps cost, step by step."""

import pytest

from detectors.job.lost_time import LostTime, Slowdown

STEP, GPUS = 2.0, 128


@pytest.mark.parametrize("within", [0.0, 0.3, 0.9])
def test_the_rate_is_no_more_than_the_slow_steps_lose(within):
    """From the first report on, although the onset lies ``within`` a step, all of which is charged."""
    lost, ratio, ts = LostTime[str](), 1.31, 0.0
    for _ in range(40):
        ts += STEP
        lost.step(STEP, STEP, ts, gpus=GPUS, in_step=True)
    onset = ts + within * STEP * ratio
    slow = Slowdown(
        onset=onset, onset_lo=onset, ratio=ratio, job_ratio=ratio, of_rank=True, changed=True, believed=True
    )
    for _ in range(3):
        ts += STEP * ratio
        lost.step(STEP * ratio, STEP, ts, gpus=GPUS, in_step=True)
    cost = lost.charge("rank", slow, ts)
    assert cost.gpus == pytest.approx(GPUS * (1.0 - 1.0 / ratio))
    assert cost.gpu_seconds == pytest.approx(3 * GPUS * STEP * (ratio - 1.0))
