"""Slow transfers of a part of a job, which the others wait for."""

import numpy as np
import pytest

from detectors.peers.step_times import StepTimes
from detectors.straggler.step_detector import StragglerDetector

RANKS, ONSET, STEPS = 32, 120, 200


def verdicts(
    rings=(),
    factor=1.0,
    *,
    slow_rank=1.0,
    slow_loader=0.0,
    waits=True,
    contain_waits=False,
    until=None,
    reported=0,
    reporters=RANKS,
    per_node=1,
):
    """Return what is found, step by step, where the transfers of the ranks of ``rings`` take ``factor`` times
    as long from ONSET on; transfers, ``reported`` from a step on by the first ``reporters`` ranks, may
    contain the wait for the slowest rank."""
    rng, ts = np.random.default_rng(7), 1000.0
    roles, nodes = np.zeros(RANKS, dtype=np.intp), np.arange(RANKS) // per_node
    detector, nan = StragglerDetector(RANKS, roles, nodes=nodes), np.full(RANKS, np.nan)
    for s in range(STEPS):
        is_slow = ONSET <= s < (until or STEPS)
        work = np.exp(0.004 * rng.normal(size=RANKS))
        work[3] *= slow_rank if is_slow else 1.0
        comm = 0.3 * np.exp(0.04 * rng.normal(size=RANKS))
        comm[list(rings)] *= factor if is_slow else 1.0
        data = np.full(RANKS, 0.01)
        data[3] += slow_loader if is_slow else 0.0
        total = float((work + comm + data).max())
        wait = total - work - comm - data
        if contain_waits:
            # In the pipeline of the slow rank.
            wait[:8] = 0.0
            comm = total - work - wait - data
        told = (np.arange(RANKS) < reporters) & (s >= reported)
        ts += total
        yield detector.update(StepTimes(
            number=s, ts=np.full(RANKS, ts), step=np.full(RANKS, total), compute=work,
            wait=wait if waits else nan, data=data, comm=np.where(told, comm, nan),
            checkpoint=nan, tokens=nan,
        ))  # fmt: skip


def shown(**job):
    return [(s, v.rings) for s, v in enumerate(verdicts(**job)) if v.rings is not None]


@pytest.mark.parametrize("reported", [0, 40, STEPS], ids=["reported", "reported later", "not reported"])
@pytest.mark.parametrize("rings", [range(8, 16), range(3, 32, 8), range(16)])
def test_slow_rings_are_found_with_whose_they_are(rings, reported):
    """A stage, a port of each machine, half of the ranks: the others wait. Transfers without a column are
    what is left of a step."""
    [(step, found)] = shown(rings=rings, factor=2.0, reported=reported)
    assert found.reported == (reported < STEPS)
    assert ONSET + 9 <= step <= ONSET + 20
    assert found.members is not None
    assert found.members.tolist() == list(rings)
    assert found.ratio == pytest.approx(2.0, rel=0.1)
    assert found.job_slowdown == pytest.approx(1.6 / 1.3, abs=0.05)


@pytest.mark.parametrize(
    "job",
    [
        {},
        {"slow_rank": 1.4},
        {"slow_rank": 1.4, "contain_waits": True},
        {"rings": range(8, 16), "factor": 2.0, "waits": False},
        {"rings": range(32), "factor": 2.0},
        {"rings": range(8, 16), "factor": 2.0, "until": ONSET + 6},
        {"rings": range(2), "factor": 2.0},
        {"slow_loader": 0.4, "contain_waits": True},
    ],
    ids=[
        "healthy", "a slow rank", "waits in transfers", "no waits", "all ranks", "a burst", "two ranks",
        "waits for a loader in transfers",
    ],
)  # fmt: skip
@pytest.mark.parametrize("reported", [0, STEPS], ids=["reported", "not reported"])
def test_all_else_is_no_slow_ring(job, reported):
    """Whose transfers they are shows only by who waits for whom."""
    assert not shown(**job, reported=reported)


def test_a_machine_that_reports_no_transfers_is_no_ring():
    """It is found by what it does beside what it reports."""
    assert not shown(rings=range(8, 16), factor=2.0, reported=STEPS, per_node=8)


def test_a_machine_with_half_of_the_ranks_is_a_part_of_the_job():
    """The others are no more than they are: which of the two machines is slow, only waits show."""
    [(_, found)] = shown(rings=range(16), factor=2.0, reported=STEPS, per_node=16)
    assert found.members.tolist() == list(range(16))


def test_rings_recover():
    """Slowness ends after steps without evidence."""
    ends = [s for s, v in enumerate(verdicts(range(8, 16), 2.0, until=ONSET + 40)) if v.rings_recovered]
    assert len(ends) == 1
    assert ONSET + 40 < ends[0] <= ONSET + 75


def test_rings_are_over_once_transfers_are_reported():
    """Transfers are learnt from there on: what showed before can not be seen to end any more."""
    seen = list(verdicts(range(8, 16), 2.0, reported=ONSET + 40))
    assert [s for s, v in enumerate(seen) if v.rings_recovered] == [ONSET + 40]
    [began] = [s for s, v in enumerate(seen) if v.rings is not None]
    assert began < ONSET + 40


@pytest.mark.parametrize("reported", [40, ONSET + 40], ids=["before", "since"])
def test_the_transfers_of_one_rank_are_not_those_of_the_job(reported):
    """What ranks do beside what they report stays watched."""
    seen = list(verdicts(range(8, 16), 2.0, reported=reported, reporters=1))
    [found] = [v.rings for v in seen if v.rings is not None]
    assert not found.reported
    assert found.members.tolist() == list(range(8, 16))
    assert not any(v.rings_recovered for v in seen)
