"""What slow steps cost, step by step."""

import numpy as np
import pytest

from detectors.job.lost_time import LostTime, Slowdown
from detectors.job.steps_taken import KEPT_STEPS, LAST_RANKS, StepsTaken, Taken

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


@pytest.mark.parametrize("beside", [0.6, 2.4], ids=["less beside compute", "more beside it"])
def test_the_first_steps_that_compile_teach_no_healthy_pace(beside):
    """Each of three weighs as several others, and takes more or less long beside its compute than they do."""
    lost, ratio, ts, usual = LostTime[str](), 1.1, 0.0, 0.8 * STEP
    for work in [6.0 * usual, 4.0 * usual, 2.5 * usual] + [usual] * 30:
        ts += (seconds := STEP if work == usual else work * (1.0 + 0.25 * beside))
        lost.step(seconds, work, ts, gpus=GPUS, in_step=True)
    onset = ts
    for _ in range(60):
        ts += ratio * STEP
        lost.step(ratio * STEP, usual, ts, gpus=GPUS, in_step=True)
    slow = Slowdown(
        onset=onset, onset_lo=onset, ratio=1.2, job_ratio=ratio, of_rank=True, changed=True, believed=True
    )
    assert lost.charge("rank", slow, ts).gpu_seconds == pytest.approx(60 * GPUS * STEP * (ratio - 1.0))


def slowdown(rank, onset, *, ratio=1.05, changed=True, with_it=()):
    return Slowdown(
        onset=onset,
        onset_lo=onset,
        ratio=ratio,
        job_ratio=ratio,
        of_rank=True,
        changed=changed,
        believed=True,
        rank=rank,
        with_it=frozenset(with_it),
    )


def ranks_that_pause(steps, slow, *, ranks=256, seed=0):
    """Own seconds [steps, ranks] of ranks that scatter by 1 % and pause now and then, and the same with rank
    0 slower by 5 % in the steps ``slow``."""
    rng = np.random.default_rng(seed)
    healthy = rng.lognormal(0.0, 0.01, (steps, ranks))
    healthy += (rng.random((steps, ranks)) < 1 / 200) * rng.exponential(0.3, (steps, ranks))
    faulty = healthy.copy()
    faulty[slow, 0] *= 1.05
    return healthy, faulty


def last_of(own):
    return tuple((int(rank), float(own[rank])) for rank in np.argsort(-own)[:LAST_RANKS])


@pytest.mark.parametrize("changed", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_slow_rank_costs_what_it_is_later_than_the_last_of_the_others(seed, changed):
    """In a large job others pause in most steps, in which a rank slower by 5 % delays nobody: it costs what
    the same steps took less without it, whether the job's own past is known or not. Dated 20 steps too early
    it costs no more."""
    healthy, faulty = ranks_that_pause(300, slice(120, None), seed=seed)
    true = GPUS * float((faulty.max(axis=1) - healthy.max(axis=1)).sum())
    lost, ts = LostTime[str](), 0.0
    for number, own in enumerate(faulty):
        ts += own.max()
        lost.step(own.max(), 1.0, ts, gpus=GPUS, in_step=True, last=last_of(own))
        if number == 100:
            dated = ts
        if number >= 140 and number % 20 == 0:
            cost = lost.charge("rank", slowdown(0, dated, changed=changed), ts)
    assert lost.close("rank", ts) == pytest.approx(true, rel=0.1)
    assert 0.0 < cost.gpu_seconds < GPUS * 0.05 * 180 / 2


def test_ranks_of_a_machine_that_are_found_one_after_the_other_cost_their_job_once():
    """Eight ranks slower by a half, of which each is found some steps after the one before, are 180 slow
    steps of the job; so they are where the machine is not known and the first ones hide each other."""
    for machine in (range(8), ()):
        lost, ts = LostTime[int](), 0.0
        for number in range(300):
            own = np.where((np.arange(16) < 8) & (number >= 120), 1.5, 1.0) + 1e-3 * np.arange(16)
            ts += own.max()
            lost.step(own.max(), 1.0, ts, gpus=GPUS, in_step=True, last=last_of(own))
            for rank in range(8):
                if number == 130 + 5 * rank:
                    lost.charge(rank, slowdown(rank, 136.0, ratio=1.5, with_it=machine), ts)
        total = sum(lost.close(rank, ts) for rank in range(8))
        assert total == pytest.approx(180 * GPUS * 0.5, rel=0.03)


def test_steps_that_are_slower_than_the_rank_is_late_decide():
    """The others wait for the rank while they compute, so that all of them seem to be as late as it is."""
    lost, ts = LostTime[str](), 0.0
    for number in range(200):
        ts += 1.3 if number >= 100 else 1.0
        own = np.full(16, 1.3 if number >= 100 else 1.0)
        lost.step(own.max(), 1.0, ts, gpus=GPUS, in_step=True, last=last_of(own))
        if number == 110:
            lost.charge("rank", slowdown(0, 100.0, ratio=1.3), ts)
    assert lost.close("rank", ts) == pytest.approx(100 * 0.3 * GPUS)


def test_kept_steps_come_back_as_they_were():
    """The last ranks too, where they are known; older steps are let go."""
    kept = StepsTaken()
    steps = [
        Taken(float(n), 1.5, 1.0, 8, 0.25, ((n, 1.5), (n + 1, 1.25)) if n % 2 else ()) for n in range(1000)
    ]
    for step in steps:
        kept.append(step)
    assert KEPT_STEPS <= len(kept) < 2 * KEPT_STEPS
    assert kept.last(KEPT_STEPS) == steps[-KEPT_STEPS:]
    assert kept.since(989.5) == 10
    assert kept.take(10) == steps[-10:]
    assert kept.last(5) == steps[-15:-10]


def test_uneven_work_that_comes_back_costs_no_step_twice():
    """Gone and back three times, dated back to the first step each time, as what looks even for a while is.
    All of the steps are lost once, at a rate that is that of the last ones."""
    lost, ts, total = LostTime[str](), 0.0, 0.0
    uneven = Slowdown(
        onset=0.0, onset_lo=0.0, ratio=1.2, job_ratio=1.2, of_rank=False, changed=False, believed=True
    )
    for number in range(300):
        ts += STEP
        lost.step(STEP, STEP, ts, gpus=GPUS, in_step=True)
        if number % 100 == 50:
            cost = lost.charge("stage", uneven, ts)
            assert cost.gpus == pytest.approx(GPUS * (1.0 - 1.0 / 1.2))
        if number % 100 == 80:
            total += lost.close("stage", ts)
    assert total == pytest.approx(281 * STEP * GPUS * (1.0 - 1.0 / 1.2))


def test_of_two_causes_in_the_work_the_second_is_charged_what_it_explains_beyond_the_first():
    """The steps before it was found included."""
    lost, ts = LostTime[str](), 0.0
    for number in range(100):
        ts += STEP
        lost.step(STEP, STEP, ts, gpus=GPUS, in_step=True)
        for name, at, ratio in (("stage", 20, 1.25), ("batches", 60, 2.0)):
            if number == at:
                uneven = Slowdown(
                    onset=0.0,
                    onset_lo=0.0,
                    ratio=ratio,
                    job_ratio=ratio,
                    of_rank=False,
                    changed=False,
                    believed=True,
                )
                lost.charge(name, uneven, ts)
    both = lost.close("stage", ts), lost.close("batches", ts)
    assert sum(both) == pytest.approx(100 * STEP * GPUS / 2)
