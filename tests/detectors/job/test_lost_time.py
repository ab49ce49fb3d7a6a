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


def test_what_was_lost_is_not_won_back_by_steps_that_scatter():
    """After recovery a step is a little shorter or longer than the healthy one."""
    lost, ts, told = LostTime[str](), 0.0, list[float]()
    for seconds in [STEP] * 40 + [1.3 * STEP] * 5 + [0.99 * STEP, 1.0 * STEP] * 10:
        ts += STEP
        lost.step(seconds, STEP, ts, gpus=GPUS, in_step=True)
        if seconds > STEP or told:
            slow = Slowdown(
                onset=40 * STEP,
                onset_lo=40 * STEP,
                ratio=1.3,
                job_ratio=1.3,
                of_rank=True,
                changed=True,
                believed=True,
            )
            told.append(lost.charge("rank", slow, ts).gpu_seconds)
    assert told == sorted(told)
    assert told[-1] == pytest.approx(5 * 0.3 * STEP * GPUS)
