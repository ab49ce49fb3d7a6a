"""What slow steps cost: the accounts of one job's suspicions, from steps made by hand."""

import numpy as np
import pytest

from detectors.job.lost_time import LostTime, Slowdown
from detectors.job.waits.flapping import Flapping
from detectors.straggler.core import StepResult
from detectors.straggler.step_detector import StragglerDetector
from slowrank.telemetry import UNKNOWN_NODE, Evidence, Subject, Suspicion
from streams.job.detectors.flapping import FLAPPING
from streams.job.detectors.lost_time import JobCosts
from streams.job.detectors.slow_ranks import COMPUTE, STALLING
from streams.job.rows.step_aligner import Step
from streams.job.rows.step_rows import Identity
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


def view_of(open_, *, world_size=0, flapping=None):
    return JobView(
        cluster="c",
        job_id="job",
        attempt=0,
        roster=tuple(range(RANKS)),
        identities=dict.fromkeys(range(RANKS), Identity(UNKNOWN_NODE, None, None, (), "")),
        core=StragglerDetector(RANKS, None),
        open=open_,
        result=StepResult(flapping=flapping),
        world_size=world_size,
    )


def charged(made, raised, *, at=150, onset=100.0, world_size=0, aspect=COMPUTE):
    """Return the GPU-seconds of each suspicion of ``raised`` ({rank: ratio}), raised at step ``at``."""
    lost, view = JobCosts(), view_of(OpenSuspicions(30.0), world_size=world_size)
    for step in made:
        lost.step(view, step)
        if step.number == at:
            for rank, ratio in raised.items():
                lost.stamped((aspect, rank), suspicion(rank, onset, step.closed_at, ratio=ratio))
    end = made[-1].closed_at
    over = [lost.stamped((aspect, r), suspicion(r, onset, end, state="clear")) for r in raised]
    return [s.lost.gpu_seconds for s in over if s.lost is not None]


def test_a_slow_rank_is_charged_what_the_steps_took_longer():
    """A hundred steps of 1.5 s for 1 s: 50 s of four GPUs, those before it was raised included."""
    made = steps([1.0] * SLOW_FROM + [1.5] * 100 + [1.0] * 20)
    assert charged(made, {0: 1.5}) == [pytest.approx(200.0)]


@pytest.mark.parametrize("slow", [1.5, 3.0])
@pytest.mark.parametrize(("every", "apart", "counted"), [(10, 10.0, 10), (10, 1.0, 1), (1, 10.0, 1)])
def test_a_step_that_is_logged_stands_for_those_before_it(every, apart, counted, slow):
    """By their numbers, where the time between them allows as many steps as that; else for itself."""
    lasts, made = [1.0] * SLOW_FROM + [slow] * 100, []
    for place, step in enumerate(steps(lasts)):
        ts = np.full(RANKS, apart * sum(lasts[: place + 1]))
        made.append(Step(every * place, step.present, step.ranks, ts, step.values))
    [lost] = charged(made, {0: slow}, at=every * 150, onset=made[SLOW_FROM - 1].closed_at)
    assert lost == pytest.approx(RANKS * 100 * (slow - 1.0) * counted, rel=0.02)


def test_a_rank_that_stalls_is_charged_the_stalls():
    """A step of 6 s for 1 s in every twentieth, found after the third: they are pauses of all others."""
    seconds = [6.0 if number >= SLOW_FROM and number % 20 == 0 else 1.0 for number in range(300)]
    [lost] = charged(steps(seconds), {0: 1.25}, aspect=STALLING)
    assert lost == pytest.approx(4 * 10 * 5.0, rel=0.1)


def test_a_ramp_is_charged_step_by_step():
    """Steps grow from 1 s to 1.5 s: the sum of what each took longer, not the last or the middle one's."""
    ramp = np.linspace(1.0, 1.5, 100)
    assert charged(steps([1.0] * SLOW_FROM + ramp.tolist()), {0: 1.5}) == [
        pytest.approx(4 * (ramp - 1).sum())
    ]


def test_two_ranks_that_are_slow_at_once_share_what_is_lost():
    """The job waits for both at once: they share up to the lesser excess, beyond it the greater bears all.

    So do the 51 steps before the second was found, of which the first was charged what it explains.
    """
    lost = charged(steps([1.0] * SLOW_FROM + [1.5] * 100), {0: 1.2, 1: 1.6})
    both, before = 49 * 4 * 0.5, 51 * 4
    assert lost == pytest.approx([before * 0.2 + both * 0.1 / 0.6, before * 0.3 + both * 0.5 / 0.6], abs=1e-3)
    assert sum(lost) == pytest.approx(200.0)


def test_pauses_of_other_ranks_are_not_charged_to_a_slow_one():
    """Every fourth step takes half as long again for another rank's garbage collection, before and after."""
    seconds = [1.5 if number % 4 == 0 else 1.0 for number in range(SLOW_FROM)]
    slow = [1.5 if number % 4 == 0 else 1.06 for number in range(100)]
    assert charged(steps(seconds + slow), {0: 1.06}) == [pytest.approx(4 * 75 * 0.06, rel=0.05)]
    # The same where the pauses only come when the rank is slow: no more than 6 % of the steps' time.
    assert charged(steps([1.0] * SLOW_FROM + slow), {0: 1.06}) == [pytest.approx(4 * 100 * 0.06)]


def test_half_of_the_ranks_becoming_slow_is_no_growth_of_the_work():
    """Two ranks of four compute 1.5 times as long, which moves the median of all."""
    made = steps([1.0] * SLOW_FROM + [1.45] * 100)
    for step in made[SLOW_FROM:]:
        step.values[1, :2] = 1.35
    assert sum(charged(made, {0: 1.5, 1: 1.5})) == pytest.approx(4 * 100 * 0.45)


def test_the_whole_job_waits_where_only_some_ranks_log():
    """Four ranks log of 32: the others wait as well."""
    made = steps([1.0] * SLOW_FROM + [1.5] * 100)
    assert charged(made, {0: 1.5}, world_size=32) == [pytest.approx(32 * 100 * 0.5)]


def test_a_ramp_is_charged_what_it_comes_to_between_two_reports():
    """Found at 5 %, 30 % at the next report: the steps between are not bounded by the first figure."""
    lost = LostTime[int]()
    ramp = np.linspace(1.0, 1.3, 20)
    for number, seconds in enumerate([1.0] * SLOW_FROM + ramp.tolist() + [1.3] * 20, start=1):
        lost.step(seconds, 0.9, float(number), gpus=RANKS, in_step=True)
        if number in (SLOW_FROM + 3, SLOW_FROM + 40):
            ratio = 1.05 if number == SLOW_FROM + 3 else 1.3
            slow = Slowdown(
                onset=SLOW_FROM,
                onset_lo=SLOW_FROM,
                ratio=ratio,
                job_ratio=ratio,
                of_rank=True,
                changed=True,
                believed=True,
            )
            cost = lost.charge(0, slow, float(number))
    assert cost.gpu_seconds == pytest.approx(RANKS * ((ramp - 1.0).sum() + 20 * 0.3))


def test_a_node_of_ranks_costs_no_more_than_its_job_has():
    """Slow in spells for 90 steps before the onset that is found last, all four of its ranks at once."""
    seconds = [1.0] * 60 + [1.0, 1.0, 2.0] * 30 + [2.0] * 6
    lost, made = LostTime[int](), steps(seconds)
    for step in made:
        lost.step(float(step.values[0, 0]), 0.9, step.closed_at, gpus=RANKS, in_step=True)
    onset, at = made[-7].closed_at, made[-1].closed_at
    slow = Slowdown(
        onset=onset, onset_lo=onset, ratio=2.0, job_ratio=2.0, of_rank=True, changed=True, believed=True
    )
    costs = [lost.charge(rank, slow, at) for rank in range(RANKS)]
    assert sum(cost.gpus for cost in costs) == pytest.approx(RANKS / 2, rel=0.2)


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


@pytest.mark.parametrize("waits", ["told", "always 0", "not told"])
def test_steps_in_which_another_rank_pauses_are_not_charged_to_a_slow_one(waits):
    """Other ranks pause by 30 % in every second step, outside of their compute. Waits show that nobody waits
    for the slow rank then; without them its compute has to do, which says that somebody may."""
    rng, ranks = np.random.default_rng(1), 32
    lost, ts = JobCosts(), 0.0
    view = JobView(
        cluster="c",
        job_id="job",
        attempt=0,
        roster=tuple(range(ranks)),
        identities=dict.fromkeys(range(ranks), Identity(UNKNOWN_NODE, None, None, (), "")),
        core=StragglerDetector(ranks, None),
        open=OpenSuspicions(30.0),
    )
    for number in range(300):
        compute = rng.lognormal(0.0, 0.001, ranks)
        compute[0] *= 1.1 if number >= 100 else 1.0
        own = compute.copy()
        own[1 + number % 31] += 0.3 * (number % 2)
        values = np.full((10, ranks), np.nan)
        values[0], values[1] = own.max() + 0.2, compute
        if waits != "not told":
            values[2] = own.max() - own if waits == "told" else 0.0
        ts += own.max() + 0.2
        lost.step(view, Step(number, frozenset(range(ranks)), np.arange(ranks), np.full(ranks, ts), values))
        if number == 99:
            onset = ts
        if number == 120:
            lost.stamped((COMPUTE, 0), suspicion(0, onset, ts, ratio=1.1))
    cost = lost.stamped((COMPUTE, 0), suspicion(0, onset, ts, state="clear")).lost
    slow_steps = 100 if waits == "told" else 200
    assert cost is not None
    assert cost.gpu_seconds == pytest.approx(ranks * 0.1 * slow_steps, rel=0.05)


def test_long_transfers_cost_what_these_steps_took_longer_and_nothing_else_does():
    """Every twentieth step takes 6 s for 1 s, found with the third; a rank is slow from before that on."""
    lost, at, shown = JobCosts(), 140, {FLAPPING: 1.0, COMPUTE: 1.2}
    seconds = [1.2 + (5.0 if number % 20 == 0 else 0.0) for number in range(200)]
    for step in steps([1.0] * SLOW_FROM + seconds):
        found = None
        if step.number >= at:
            found = Flapping(
                idling="transfers",
                count=3,
                steps=41,
                ratio=6.0,
                seconds=6.0,
                lost=5.0 * (1 + (step.number - SLOW_FROM) // 20),
                job_slowdown=1.2,
                onset_lo=100.0,
                onset=106.0,
            )
        lost.step(view_of(OpenSuspicions(30.0), flapping=found), step)
        if step.number == at:
            for aspect, ratio in shown.items():
                lost.stamped((aspect, 0), suspicion(0, 100.0, step.closed_at, ratio=ratio))
        elif step.number > at:
            lost.stamped((FLAPPING, 0), suspicion(0, 100.0, step.closed_at, state="update"))
    ended = [lost.stamped((a, 0), suspicion(0, 100.0, step.closed_at, state="clear")).lost for a in shown]
    assert [one.gpu_seconds for one in ended if one] == [
        pytest.approx(RANKS * 10 * 5.0),
        pytest.approx(RANKS * (200 - 3) * 0.2, rel=0.02),
    ]
