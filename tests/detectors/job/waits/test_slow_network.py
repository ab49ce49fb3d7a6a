"""A slow network of a whole job."""

import numpy as np
import pytest

from detectors.job.waits.slow_network import transfer_seconds
from detectors.peers.step_times import StepTimes
from detectors.straggler.step_detector import StragglerDetector

RANKS, ONSET = 16, 120


def job(comm_factor=1.0, *, compute_factor=1.0, steps=200, noise=0.04, comm=0.2, waits=None, until=None):
    """Return the steps of a job whose transfers, and work, change at ONSET; waiting counts as comm."""
    rng = np.random.default_rng(5)
    factor = np.ones(steps)
    factor[ONSET:until] = comm_factor
    work = np.exp(0.01 * rng.normal(size=(steps, 1)) + 0.004 * rng.normal(size=(steps, RANKS)))
    work[ONSET:] *= compute_factor
    if waits is not None:
        work[ONSET:, 3] *= waits
    transfer = comm * factor * np.exp(noise * rng.normal(size=steps))
    wait = work.max(axis=1, keepdims=True) - work
    seconds = np.repeat(work.max(axis=1, keepdims=True) + transfer[:, None], RANKS, axis=1)
    ts = 1000.0 + np.cumsum(seconds, axis=0)
    nan = np.full(RANKS, np.nan)
    for s in range(steps):
        yield StepTimes(
            number=1000 + s, ts=ts[s], step=seconds[s], compute=work[s], wait=nan, data=nan,
            comm=transfer[s] + wait[s], checkpoint=nan, tokens=nan,
        )  # fmt: skip


def verdicts(times):
    detector = StragglerDetector(RANKS, np.zeros(RANKS, dtype=np.intp))
    return [detector.update(t) for t in times]


def shown(times):
    return [(s, v.network) for s, v in enumerate(verdicts(times)) if v.network is not None]


@pytest.mark.parametrize("factor", [1.3, 1.5, 2.0, 5.0])
def test_slow_transfers_are_found_with_what_they_cost(factor):
    """Transfers of a sixth of the step that take longer are reported once, with onset and slowdown."""
    [(step, found)] = shown(job(factor))
    lost = 0.2 * (factor - 1.0)
    assert step <= ONSET + 20
    assert found.ratio == pytest.approx(factor, rel=0.1)
    assert found.job_slowdown == pytest.approx(1 + lost / 1.22, abs=0.03)
    times = [t.ts[0] for t in job(factor)]
    assert times[ONSET - 3] <= found.onset <= times[ONSET + 3]


@pytest.mark.parametrize(
    "times",
    [
        {},
        {"comm_factor": 1.05},
        {"comm_factor": 3.0, "comm": 0.005},
        {"comm_factor": 3.0, "until": ONSET + 6},
        {"comm_factor": 1.5, "compute_factor": 1.5},
        {"compute_factor": 1.5},
        {"waits": 1.5},
        {"noise": 0.4},
    ],
    ids=[
        "healthy", "a little slower", "too short to cost", "a burst", "a larger batch", "slower code",
        "waiting for a slow rank", "scatter",
    ],
)  # fmt: skip
def test_everything_else_is_silent(times):
    """What costs the job nothing, passes, comes with other work or is waiting is no slow network."""
    assert not shown(job(**times))


def test_a_ladder_is_found():
    """Four small steps, each near the noise, are found together."""
    factors = np.ones(260)
    for rung in range(4):
        factors[ONSET + 20 * rung :] *= 1.2
    times = list(job(steps=260))
    for t, f in zip(times, factors, strict=True):
        extra = (f - 1.0) * transfer_seconds(t.comm[None])[0]
        t.comm[:], t.step[:] = t.comm + extra, t.step + extra
    assert len(shown(times)) == 1


@pytest.mark.parametrize("steps", [4, 8, 16])
def test_a_ladder_is_found_while_it_grows(steps):
    """What counts is how slow the network is by now, not on the first rung, which cost next to nothing."""
    times = list(job(steps=ONSET + 8 * steps, comm=0.06))
    for s, t in enumerate(times):
        factor = 1.25 ** min(max(0, 1 + (s - ONSET) // steps), 4)
        extra = (factor - 1.0) * transfer_seconds(t.comm[None])[0]
        t.comm[:], t.step[:] = t.comm + extra, t.step + extra
    [(step, found)] = shown(times)
    assert step <= ONSET + max(2 * steps, 10) + 5
    assert times[ONSET - 3].ts[0] <= found.onset <= times[ONSET + 5].ts[0]


@pytest.mark.parametrize(("compute", "found"), [(0.96, 1), (1.04, 1), (1.4, 0)])
def test_compute_that_wanders_a_little_is_the_same_work(compute, found):
    """Transfers of four times their length are no new batch because compute has moved by 4 %, but by 40 %."""
    assert len(shown(job(4.0, compute_factor=compute))) == found


def test_it_ends():
    """When the transfers are as usual again, that is reported, once."""
    results = verdicts(job(2.0, until=ONSET + 40, steps=260))
    ends = [s for s, v in enumerate(results) if v.network_recovered]
    assert len(ends) == 1
    assert ONSET + 50 < ends[0] < ONSET + 80


@pytest.mark.parametrize("missing", [slice(None), slice(0, 15), slice(0, 1)])
def test_missing_values_are_not_slow(missing):
    """Ranks without communication times change nothing; where none has any, nothing is found."""
    times = list(job(2.0))
    for t in times:
        t.comm[missing] = np.nan
    assert len(shown(times)) == (0 if missing == slice(None) else 1)


def test_after_new_work_its_own_communication_is_usual():
    """A larger batch is learnt; a network that becomes slow later is found against it."""
    times = list(job(1.5, compute_factor=1.5, steps=320))
    for t in times[240:]:
        t.comm[:], t.step[:] = t.comm * 2, t.step + transfer_seconds(t.comm[None])[0]
    assert [s > 240 for s, _ in shown(times)] == [True]
