"""What slow steps cost: the accounts of one job's suspicions, from steps made by hand."""

import numpy as np
import pytest

from detectors.straggler.step_detector import StragglerDetector
from slowrank.telemetry import Evidence, Subject, Suspicion
from streams.job.detectors.lost_time import JobCosts
from streams.job.detectors.slow_ranks import COMPUTE
from streams.job.step_aligner import Step
from streams.job.view import JobView
from streams.open_suspicions import OpenSuspicions

RANKS, SLOW_FROM = 4, 100


def steps(seconds, compute=0.9, *, pause=None):
    """Return whole steps of four ranks that end one after the other, and the last time."""
    made, ts = [], 0.0
    for number, step in enumerate(seconds):
        ts += step
        values = np.full((10, RANKS), np.nan)
        values[0], values[1] = step, compute
        if pause and number in pause:
            ts += pause[number]
            values[0], values[5] = step + pause[number], pause[number]
        ranks = np.arange(RANKS)
        made.append(Step(number, frozenset(range(RANKS)), ranks, np.full(RANKS, ts), values))
    return made


def suspicion(rank, onset, ts, *, state="raise", ratio=1.5, **changes):
    shown = Evidence(metric="compute_seconds", unit="s", detector="peer_step", value=1.0, change_at=onset)
    fields = {
        "cluster": "c",
        "detector": "peer_step",
        "family": "timing",
        "kind": "straggler.fail_slow",
        "state": state,
        "subject": Subject(type="rank", cluster="c", rank=rank),
        "ts": ts,
        "onset": onset,
        "onset_lo": onset,
        "onset_hi": onset,
        "score": 2.0,
        "log_likelihood_ratio": 5.0,
        "overwhelming": True,
        "slowdown_ratio": ratio,
        "job_slowdown_ratio": ratio,
        "evidence": (shown,),
    }
    return Suspicion(**(fields | changes))


def charged(made, raised, *, at=150):
    """Return the GPU-seconds of each suspicion of ``raised`` ({rank: ratio}), raised at step ``at``."""
    lost = JobCosts()
    view = JobView(
        cluster="c",
        job_id="job",
        attempt=0,
        roster=tuple(range(RANKS)),
        identities={},
        core=StragglerDetector(RANKS, None),
        open=OpenSuspicions(30.0),
    )
    for step in made:
        lost.step(view, step)
        if step.number == at:
            for rank, ratio in raised.items():
                lost.stamped((COMPUTE, rank), suspicion(rank, 100.0, step.closed_at, ratio=ratio))
    end = made[-1].closed_at
    over = [lost.stamped((COMPUTE, r), suspicion(r, 100.0, end, state="clear")) for r in raised]
    return [s.lost.gpu_seconds for s in over if s.lost is not None]


def test_a_slow_rank_is_charged_what_the_steps_took_longer():
    """A hundred steps of 1.5 s for 1 s: 50 s of four GPUs, those before it was raised included."""
    made = steps([1.0] * SLOW_FROM + [1.5] * 100 + [1.0] * 20)
    assert charged(made, {0: 1.5}) == [pytest.approx(200.0)]


def test_a_ramp_is_charged_step_by_step():
    """Steps grow from 1 s to 1.5 s: the sum of what each took longer, not the last or the middle one's."""
    ramp = np.linspace(1.0, 1.5, 100)
    assert charged(steps([1.0] * SLOW_FROM + ramp.tolist()), {0: 1.5}) == [
        pytest.approx(4 * (ramp - 1).sum())
    ]


def test_two_ranks_that_are_slow_at_once_share_what_is_lost():
    """The job waits for both at once: they share up to the lesser excess, beyond it the greater bears all.

    What was lost before the second was found, 51 steps, is the first one's.
    """
    lost = charged(steps([1.0] * SLOW_FROM + [1.5] * 100), {0: 1.2, 1: 1.6})
    both = 49 * 4 * 0.5
    assert lost == pytest.approx([102.0 + both * 0.1 / 0.6, both * 0.5 / 0.6], abs=1e-3)
    assert sum(lost) == pytest.approx(200.0)


def test_checkpoints_and_pauses_are_charged_to_no_cause():
    """A declared checkpoint of 0.8 s in every tenth step, and an undeclared pause of ten seconds."""
    pause = dict.fromkeys(range(0, 200, 10), 0.8)
    seconds = [1.0] * SLOW_FROM + [1.5] * 100
    seconds[160] = 10.0
    # Of the slow steps the one that was a pause is not charged.
    assert charged(steps(seconds, pause=pause), {0: 1.5}) == [pytest.approx(99 * 0.5 * 4)]


def test_work_that_grows_by_plan_is_no_loss():
    """From the onset on all ranks compute longer, and the step takes as much longer."""
    made = steps([1.0] * SLOW_FROM) + [
        Step(s.number + SLOW_FROM, s.present, s.ranks, s.ts + SLOW_FROM, s.values)
        for s in steps([2.0] * 100, compute=1.8)
    ]
    assert charged(made, {0: 1.5}) == [pytest.approx(0.0, abs=1e-6)]
