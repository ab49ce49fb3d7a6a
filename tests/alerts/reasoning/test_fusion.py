"""Votes to confidence and cause."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.finding import Cause
from alerts.reasoning.calibration import FITTED
from alerts.reasoning.fusion import basis_of, cause, confidence, family_votes, fused_log_odds
from slowrank.telemetry import Evidence, Peers, Subject, Suspicion

RANK = Subject(type="rank", cluster="c", node="n", gpu_index=0, rank=0, job_id="j")
PRIOR = -3.0


def vote(family="timing", llr=5.0, *, kind="straggler.fail_slow", metric="compute_seconds", peers=15, **more):
    group = Peers(group="g", n=peers, p05=1, median=1, p95=1) if peers is not None else None
    return Suspicion(
        cluster="c",
        detector=family,
        family=family,
        kind=kind,
        state="raise",
        subject=RANK,
        ts=1,
        onset=1,
        onset_lo=1,
        onset_hi=1,
        score=1,
        log_likelihood_ratio=llr,
        evidence=(Evidence(metric=metric, unit="s", detector=family, value=1, peers=group),),
        **more,
    )


def sure(said):
    """The confidence of a finding with these suspicions."""
    return confidence(said, PRIOR, basis=basis_of(said))


def test_one_family_is_one_witness():
    """Two detectors of one family count once, by the stronger; another family adds to it."""
    assert family_votes([vote(), vote(llr=3.0), vote("clocks", 2.0)]) == {"timing": 5.0, "clocks": 2.0}
    assert fused_log_odds([vote(), vote(llr=3.0)], PRIOR) == pytest.approx(2.0)
    assert fused_log_odds([vote(), vote("clocks", 3.0)], PRIOR) == pytest.approx(5.0)
    two = [vote(), vote("clocks", 3.0)]
    assert confidence(two, PRIOR, basis="hardware") == FITTED.probability("hardware", 5.0)


def test_votes_are_clipped():
    """No single witness is beyond doubt, in either direction."""
    assert family_votes([vote(llr=50.0), vote("host", -50.0)]) == {"timing": 6.0, "host": -4.0}


def by_step_times(peers, *, subject=RANK):
    return msgspec.structs.replace(vote(metric="step_seconds", peers=peers), subject=subject)


THROTTLE = vote("clocks", 6.0, kind="throttle.thermal")
OF_JOB = Subject(type="job", cluster="c", job_id="j")


@pytest.mark.parametrize(
    ("suspicions", "basis"),
    [
        ([vote()], "large"),
        ([vote(peers=3)], "large"),
        ([vote(metric="data_seconds")], "large"),
        ([vote(slowdown_ratio=1.05)], "large"),
        ([vote(slowdown_ratio=1.049)], "small"),
        ([vote(slowdown_ratio=1.049), vote(slowdown_ratio=1.2)], "large"),
        ([vote(llr=4.9)], "weak"),
        ([vote(llr=4.9), vote(llr=5.0)], "large"),
        ([vote(peers=2)], "few_peers"),
        ([vote(peers=2), vote(peers=3)], "large"),
        ([by_step_times(15)], "step_times"),
        ([by_step_times(2)], "few_peers"),
        ([vote(hypotheses={"straggler.fail_slow": 6.0, "imbalance.workload": -1.0})], "uneven"),
        ([vote("event", kind="xid.79", peers=None)], "hardware"),
        ([by_step_times(2), THROTTLE], "hardware"),
        ([vote("silence", kind="hang.rank_missing")], "stop"),
        ([vote("silence", kind="hang.rank_missing"), THROTTLE], "hardware"),
        ([vote("host", -4.0, kind="hang.job"), vote("job", kind="straggler.job_wide")], "stop"),
        ([by_step_times(2, subject=OF_JOB)], "other"),
        ([], "other"),
    ],
)
def test_what_a_finding_rests_on(suspicions, basis):
    """Hardware before all; of step rows, whatever keeps them from showing a slow machine comes first."""
    assert basis_of(suspicions) == basis


@pytest.mark.parametrize(
    ("suspicion", "basis"),
    [
        (vote(slowdown_ratio=1.2), "slows_job"),
        (vote(slowdown_ratio=1.04), "slows_job"),
        (vote(llr=4.9), "weak"),
        (vote(peers=2), "few_peers"),
        (vote(hypotheses={"imbalance.workload": 0.0}), "uneven"),
        (THROTTLE, "hardware"),
    ],
)
def test_what_a_finding_rests_on_once_its_job_is_hurt(suspicion, basis):
    """A slow rank whose job is slower by as much is surer; rows that cannot tell remain so."""
    assert basis_of([suspicion], hurt=True) == basis


def test_symptom_is_explained_by_the_cause_seen_beside_it():
    """A slow rank with a thermal throttle is a thermal throttle; alone it is a slow rank."""
    alone = cause("straggler.fail_slow", [vote(hypotheses={"straggler.fail_slow": 6.0})])
    both = cause("straggler.fail_slow", [vote(), vote("clocks", 3.0, kind="throttle.thermal")])
    assert (alone.hypothesis, alone.confidence) == ("straggler.fail_slow", None)
    assert both.hypothesis == "throttle.thermal"
    assert both.alternatives == {} or set(both.alternatives) == {"straggler.fail_slow"}


def test_competing_causes_share_the_probability():
    """Two causes with equal support are both kept, with half each and the name deciding the order."""
    told = cause(
        "x", [vote("clocks", 3.0, kind="throttle.power"), vote("host", 3.0, kind="host.cpu_contention")]
    )
    assert (told.hypothesis, told.confidence) == ("host.cpu_contention", 0.5)
    assert told.alternatives == {"throttle.power": 0.5}


def test_families_that_argue_for_one_cause_add_up():
    """Two kinds of evidence for one hypothesis outweigh one for another; two metrics of a family do not."""
    argues = [vote("clocks", 2.0, kind="throttle.power"), vote("host", 3.0, kind="host.cpu_contention")]
    more = vote("event", 2.0, kind="xid.1", hypotheses={"throttle.power": 2.0})
    assert cause("x", argues).hypothesis == "host.cpu_contention"
    assert cause("x", [*argues, argues[0]]).hypothesis == "host.cpu_contention"
    assert cause("x", [*argues, more]).hypothesis == "throttle.power"


def test_uneven_work_stays_an_alternative_to_a_slow_rank():
    """Where the ranks' work varies by nobody knows what, that is told beside the slow rank."""
    hypotheses = {"straggler.fail_slow": 3.0, "imbalance.workload": -1.0}
    told = cause("straggler.fail_slow", [vote(hypotheses=hypotheses)])
    assert told.hypothesis == "straggler.fail_slow"
    assert told.alternatives == {"imbalance.workload": pytest.approx(0.269, abs=0.001)}


@pytest.mark.parametrize(("odds", "told"), [(2.75, {"throttle.power": 0.0601}), (3.0, {})])
def test_what_has_less_than_a_twentieth_is_not_told(odds, told):
    """Of two explanations the other one is mentioned at 6 % and left out below 5 %."""
    hypotheses = {"host.cpu_contention": odds, "throttle.power": 0.0}
    assert cause("x", [vote("host", hypotheses=hypotheses)]).alternatives == told


CAUSES = {
    "clocks": "throttle.power",
    "nic": "link.nic_slow",
    "host": "host.cpu_contention",
    "event": "xid.31",
    "timing": "straggler.fail_slow",
}
heard = st.lists(
    st.builds(lambda f, llr: vote(f, llr, kind=CAUSES[f]), st.sampled_from([*CAUSES]), st.floats(-9, 9))
)


@given(heard)
def test_what_is_said_twice_and_in_another_order_is_the_same_cause(said):
    """Repeated and shuffled suspicions of the same families change neither the cause nor the confidence."""
    assert cause("x", [*reversed(said), *said]) == cause("x", said)
    assert sure([*reversed(said), *said]) == sure(said)


@given(heard, st.floats(0, 9), st.floats(0, 9))
def test_more_from_one_more_family_is_never_less_sure(said, one, two):
    """Hardware evidence that was not there before, and more of it, only adds to the confidence."""
    less, more = sorted((one, two))
    steps = [said, *([*said, vote("gpu_memory", llr, kind="ecc.uncorrectable")] for llr in (less, more))]
    told = [sure(voices) for voices in steps]
    assert told == sorted(told)


def test_ruled_out_is_merged_and_never_names_a_suspect():
    """What any detector ruled out is listed once, except what another one suspects."""
    told = cause(
        "straggler.fail_slow",
        [vote(ruled_out=("network", "host.cpu_contention")), vote("host", 2.0, kind="host.cpu_contention")],
    )
    assert told.ruled_out == ("network",)


@given(
    st.lists(st.tuples(st.sampled_from(["timing", "clocks", "nic", "host"]), st.floats(-9, 9)), min_size=1)
)
def test_confidence_is_a_probability_whatever_the_order(votes):
    """Any votes in any order give the same value between 0 and 1."""
    said = [vote(family, llr, peers=None) for family, llr in votes]
    value = sure(said)
    assert 0 < value < 1
    assert sure([*reversed(said)]) == value


@pytest.mark.parametrize(
    ("general", "reason"),
    [
        ("throttle.hw_slowdown", "throttle.thermal"),
        ("clock.low", "throttle.power"),
        ("straggler.fail_slow", "data.loader_slow"),
    ],
)
def test_a_reason_takes_the_votes_of_what_it_explains(general, reason):
    """What is seen because of another hypothesis does not share the odds with it, and stands without it."""
    voices = [vote("clocks", 3.0, kind=general), vote("clocks", 2.0, kind=reason)]
    assert cause("straggler.fail_slow", voices) == Cause(reason, 1.0)
    assert cause("straggler.fail_slow", voices[:1]).hypothesis == general


@pytest.mark.parametrize("kind", ["straggler.fail_slow", "host.cpu_contention", "clock.low"])
def test_a_kind_that_stands_alone_has_no_share(kind):
    """It does not explain itself: a share of one would be all of nothing."""
    assert cause(kind, [vote("clocks", 3.0, kind=kind)]) == Cause(kind)
    weighed = cause(kind, [vote("clocks", 3.0, kind=kind), vote("nic", 2.0, kind="link.nic_slow")])
    assert weighed.confidence is not None


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"comm_seconds": 0.75, "rest_seconds": 0.75}, "link.nic_slow"),
        ({"comm_seconds": 0.35, "rest_seconds": 0.75}, "straggler.fail_slow"),
        ({"comm_seconds": 0.75, "rest_seconds": 0.75, "compute_seconds": 0.9}, "straggler.fail_slow"),
        ({"compute_seconds": 0.9}, "straggler.fail_slow"),
    ],
)
def test_a_machine_that_only_transfers_longer_has_a_slow_port(metrics, expected):
    """Its peers take 0.3 s; where it also computes longer, the machine itself is slow."""
    usual = Peers(group="all ranks", n=63, p05=0.29, median=0.3, p95=0.31)
    shown = tuple(
        Evidence(metric=metric, unit="s", detector="peer_step", value=seconds, peers=usual)
        for metric, seconds in metrics.items()
    )
    said = msgspec.structs.replace(vote(hypotheses={"straggler.fail_slow": 5.0}), evidence=shown)
    assert cause("straggler.fail_slow", [said]).hypothesis == expected
