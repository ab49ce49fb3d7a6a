"""Which findings a slow job without a culprit has: one of how its work is spread, one of each later cause."""

from itertools import permutations

import msgspec
import pytest

from alerts.finding import Finding
from slowrank.telemetry import HangVote, Lost, Subject, Suspicion
from streams.cluster.stage import FindingStage

T0 = 1_795_160_000.0
STAGE, POSITION = {"imbalance.stage": 5.0, "imbalance.machine": 4.0}, {"imbalance.position": 5.0}
WORKLOAD = {"imbalance.workload": 5.0}
NETWORK, GROUP = {"congestion": 5.0, "link.nic_slow": 4.0}, {"group": 5.0}
DATA, UNMEASURED = {"data": 5.0}, {"unmeasured": 5.0}


def slow(ts, hypotheses, *, onset, lost=0.0, state="update", coords=None):
    return Suspicion(
        cluster="c",
        detector="peer_step",
        family="job",
        kind="straggler.job_wide",
        state=state,
        subject=Subject(type="job", cluster="c", job_id="j1", attempt=0, coords=coords),
        ts=T0 + ts,
        onset=T0 + onset,
        onset_lo=T0 + onset,
        onset_hi=T0 + onset,
        score=1.0,
        log_likelihood_ratio=5.0,
        overwhelming=True,
        slowdown_ratio=1.2,
        job_slowdown_ratio=1.2,
        hypotheses=hypotheses,
        lost=Lost(gpu_seconds=3600.0 * lost, gpus=0.0 if state == "clear" else 1.0),
    )


def findings(*suspicions, until=2000.0):
    """Return end of the key, cause, onset, cost and status of each finding that explains itself."""
    stage = FindingStage()
    last: dict[str, Finding] = {}
    for s in suspicions:
        last |= {f.id: f for f in stage.process(s)}
    last |= {f.id: f for f in stage.tick(T0 + until)}
    return sorted(
        (f.dedup_key.removeprefix("c/job/j1/"), f.cause.hypothesis, f.onset - T0, f.gpu_hours_lost, f.status)
        for f in last.values()
        if f.group_key is None and f.cause is not None
    )


@pytest.mark.parametrize("onset", [30.0, 900.0])
@pytest.mark.parametrize("work", [STAGE, WORKLOAD])
@pytest.mark.parametrize(("later", "part"), [(NETWORK, "transfers"), (GROUP, "transfers"), (DATA, "waits")])
def test_what_happens_to_a_job_of_uneven_work_has_its_own_onset_and_cost(work, later, part, onset):
    """However their reports alternate, also where it began within the first minute."""
    said = [
        slow(300.0, work, onset=0.0, lost=3.0),
        slow(1000.0, later, onset=onset, lost=0.1),
        slow(1010.0, work, onset=0.0, lost=10.0),
        slow(1020.0, later, onset=onset, lost=0.2),
    ]
    assert findings(*said) == [
        ("straggler.job_wide", next(iter(work)), 0.0, 10.0, "open"),
        (f"straggler.job_wide/{part}", next(iter(later)), onset, 0.2, "open"),
    ]


def test_slow_transfers_and_longer_waits_are_two_findings():
    said = [slow(300.0, NETWORK, onset=200.0, lost=1.0), slow(900.0, UNMEASURED, onset=800.0, lost=2.0)]
    assert findings(*said) == [
        ("straggler.job_wide/transfers", "congestion", 200.0, 1.0, "open"),
        ("straggler.job_wide/waits", "unmeasured", 800.0, 2.0, "open"),
    ]


def test_what_becomes_slow_at_once_is_one_finding():
    """Transfers and data over one network, of which the first to show explains the other."""
    said = [slow(300.0, NETWORK, onset=200.0, lost=1.0), slow(310.0, DATA, onset=230.0, lost=2.0)]
    assert findings(*said) == [("straggler.job_wide/transfers", "congestion", 200.0, 3.0, "open")]


@pytest.mark.parametrize(("first", "then"), [(STAGE, POSITION), (WORKLOAD, STAGE), (POSITION, STAGE)])
def test_uneven_work_that_changes_its_name_stays_one_finding(first, then):
    ((key, cause, *_),) = findings(slow(300.0, first, onset=0.0), slow(900.0, then, onset=800.0))
    assert (key, cause) == ("straggler.job_wide", next(iter(then)))


@pytest.mark.parametrize("onset", [0.0, 350.0])
@pytest.mark.parametrize("then", [STAGE, WORKLOAD])
def test_uneven_work_that_comes_back_costs_its_job_what_is_new(then, onset):
    """What is raised after it had cleared was not on its account before, whatever onset it has."""
    said = [
        slow(300.0, STAGE, onset=0.0, lost=3.0, state="raise"),
        slow(400.0, STAGE, onset=0.0, lost=4.0, state="clear"),
        slow(500.0, then, onset=onset, lost=1.0, state="raise"),
        slow(600.0, then, onset=onset, lost=2.5),
    ]
    [(*_, lost, _)] = findings(*said)
    assert lost == 6.5


@pytest.mark.parametrize(
    ("first", "then", "part"), [(NETWORK, GROUP, "transfers"), (UNMEASURED, DATA, "waits")]
)
def test_one_cause_that_is_named_more_exactly_stays_one_finding(first, then, part):
    ((key, cause, *_),) = findings(slow(300.0, first, onset=0.0), slow(900.0, then, onset=800.0))
    assert (key, cause) == (f"straggler.job_wide/{part}", next(iter(then)))


def test_the_end_of_one_is_not_the_end_of_the_other():
    """A network that has recovered leaves the stage with more work, and a repair of this the network."""
    stage, network = slow(300.0, STAGE, onset=0.0), slow(400.0, NETWORK, onset=350.0)
    over = slow(500.0, NETWORK, onset=350.0, state="clear"), slow(500.0, STAGE, onset=0.0, state="clear")
    assert [f[-1] for f in findings(stage, network, over[0])] == ["open", "resolved"]
    assert [f[-1] for f in findings(stage, network, over[1])] == ["resolved", "open"]


def test_in_whatever_order_they_come_the_findings_are_the_same():
    said = [
        slow(300.0, WORKLOAD, onset=0.0, lost=1.0),
        slow(310.0, NETWORK, onset=280.0, lost=0.5),
        slow(340.0, WORKLOAD, onset=0.0, lost=1.5),
        slow(350.0, NETWORK, onset=280.0, lost=0.75),
    ]
    assert {tuple(findings(*order)) for order in permutations(said)} == {tuple(findings(*said))}


@pytest.mark.parametrize("onset", [990.0, 1035.0])
@pytest.mark.parametrize("work", [STAGE, WORKLOAD])
def test_uneven_work_is_no_cause_of_a_stop_and_has_its_own_cost(work, onset):
    """A job that stops at a planned restart, and has it from the first step after that on."""
    stopped = HangVote(
        cluster="c",
        detector="step_progress",
        family="job",
        kind="hang.job",
        state="raise",
        subject=Subject(type="job", cluster="c", job_id="j1", attempt=0),
        ts=T0 + 1000.0,
        onset=T0 + 900.0,
        onset_lo=T0 + 900.0,
        onset_hi=T0 + 900.0,
        score=1.0,
        log_likelihood_ratio=2.0,
        gpus=36,
        signal="no_progress",
        alone=True,
    )
    said = [
        stopped,
        msgspec.structs.replace(stopped, state="clear", ts=T0 + 1030.0),
        slow(1100.0, work, onset=onset, lost=1.0, state="raise"),
    ]
    assert findings(*said, until=1100.0) == [
        ("hang.job", "hang.job", 900.0, 36 * 130.0 / 3600.0, "open"),
        ("straggler.job_wide", next(iter(work)), onset, 1.0, "open"),
    ]


@pytest.mark.parametrize(
    ("cause", "excused"),
    [
        ("imbalance.stage", False),
        ("imbalance.machine", False),
        ("imbalance.slowed_machine", True),
        ("imbalance.position", True),
        ("congestion", True),
    ],
)
def test_an_announced_change_excuses_what_a_job_is_compared_with_its_past_for(cause, excused):
    """What its ranks show beside each other is found whatever the job has announced."""
    announced = msgspec.structs.replace(
        slow(300.0, {}, onset=300.0, state="raise"), kind="job.planned", detector="job.planned", lost=None
    )
    found = findings(announced, slow(340.0, {cause: 5.0}, onset=310.0, state="raise"), until=340.0)
    assert [told for _, told, *_ in found] == ([] if excused else [cause])


def test_a_stage_that_coordinates_name_explains_nothing_else():
    """It has a key of its own, and transfers that become slower within a minute are another finding."""
    said = [slow(300.0, STAGE, onset=0.0, coords={"pp": 3}), slow(310.0, NETWORK, onset=20.0)]
    assert [f[:3] for f in findings(*said)] == [
        ("c/job/j1:pp=3/straggler.job_wide", "imbalance.stage", 0.0),
        ("straggler.job_wide/transfers", "congestion", 20.0),
    ]
