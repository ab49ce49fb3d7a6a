"""Votes to confidence and cause."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.finding import Cause
from alerts.reasoning.calibration import FITTED
from alerts.reasoning.fusion import cause, confidence, family_votes, fused_log_odds
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


def test_one_family_is_one_witness():
    """Two detectors of one family count once, by the stronger; another family adds to it."""
    assert family_votes([vote(), vote(llr=3.0), vote("clocks", 2.0)]) == {"timing": 5.0, "clocks": 2.0}
    assert fused_log_odds([vote(), vote(llr=3.0)], PRIOR) == pytest.approx(2.0)
    assert fused_log_odds([vote(), vote("clocks", 3.0)], PRIOR) == pytest.approx(5.0)
    assert confidence([vote(), vote("clocks", 3.0)], PRIOR) == FITTED.probability(5.0)


def test_votes_are_clipped():
    """No single witness is beyond doubt, in either direction."""
    assert family_votes([vote(llr=50.0), vote("host", -50.0)]) == {"timing": 6.0, "host": -4.0}


@pytest.mark.parametrize(
    ("suspicion", "cap"),
    [
        (vote(llr=6.0, peers=2), 0.6),
        (vote(llr=6.0, metric="step_seconds"), 0.7),
        (vote(llr=6.0, hypotheses={"straggler.fail_slow": 6.0, "imbalance.workload": -1.0}), 0.5),
        (vote(llr=6.0), FITTED.probability(3.0)),
        (vote(llr=6.0, peers=3), FITTED.probability(3.0)),
        (vote(llr=6.0, metric="data_seconds"), FITTED.probability(3.0)),
        (vote("event", 6.0, kind="xid.79", peers=None), FITTED.probability(3.0)),
    ],
)
def test_confidence_is_capped_by_what_the_inputs_can_tell(suspicion, cap):
    """Few peers or step times alone cannot make a slow machine sure; hardware evidence lifts the cap."""
    assert confidence([suspicion], PRIOR) == pytest.approx(cap)
    assert confidence([suspicion, vote("clocks", 6.0, kind="throttle.thermal")], PRIOR) > 0.9


def test_the_best_comparison_counts_and_one_of_a_job_accuses_nobody():
    """Two peers cap nothing beside three, and step times of a whole job argue for no slow machine."""
    of_job = msgspec.structs.replace(
        vote(llr=6.0, metric="step_seconds", peers=2), subject=Subject(type="job", cluster="c", job_id="j")
    )
    assert confidence([vote(llr=6.0, peers=2), vote(llr=6.0, peers=3)], PRIOR) == FITTED.probability(3.0)
    assert confidence([of_job], PRIOR) == FITTED.probability(3.0)


def test_symptom_is_explained_by_the_cause_seen_beside_it():
    """A slow rank with a thermal throttle is a thermal throttle; alone it is a slow rank."""
    alone = cause("straggler.fail_slow", [vote(hypotheses={"straggler.fail_slow": 6.0})])
    both = cause("straggler.fail_slow", [vote(), vote("clocks", 3.0, kind="throttle.thermal")])
    assert (alone.hypothesis, alone.confidence) == ("straggler.fail_slow", 1.0)
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
    assert confidence([*reversed(said), *said], PRIOR) == confidence(said, PRIOR)


@given(heard, st.floats(0, 9), st.floats(0, 9))
def test_more_from_one_more_family_is_never_less_sure(said, one, two):
    """Hardware evidence that was not there before, and more of it, only adds to the confidence."""
    less, more = sorted((one, two))
    steps = [said, *([*said, vote("gpu_memory", llr, kind="ecc.uncorrectable")] for llr in (less, more))]
    sure = [confidence(voices, PRIOR) for voices in steps]
    assert sure == sorted(sure)


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
    value = confidence(said, PRIOR)
    assert 0 < value < 1
    assert confidence(reversed(said), PRIOR) == value


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
