"""What the evidence of a case is compared with while its fault lasts, fades and comes back."""

import msgspec
import pytest

from alerts.cases.update import update
from alerts.config import FindingConfig
from slowrank.telemetry import Baseline, Evidence, Subject, Suspicion

CONFIG = FindingConfig()
T0 = 1_795_160_000.0
SECONDS, RATIO = "compute_seconds", "compute_seconds.ratio"


def piece(value, before, since, *, metric=SECONDS, note=""):
    past = None if before is None else Baseline(median=before, mad=0.01, n=100)
    at = None if since is None else T0 + since
    return Evidence(
        metric=metric, unit="s", detector="d", value=value, baseline=past, change_at=at, note=note
    )


def slow(ts, *pieces, state="update", onset=41.0, job="j"):
    return Suspicion(
        cluster="c",
        detector="peer_step",
        family="timing",
        kind="straggler.fail_slow",
        state=state,
        subject=Subject(type="gpu", cluster="c", node="n", gpu_index=2, job_id=job, attempt=0),
        ts=T0 + ts,
        onset=T0 + onset,
        onset_lo=T0 + onset,
        onset_hi=T0 + onset,
        score=2.0,
        log_likelihood_ratio=5.0,
        evidence=pieces,
    )


def shown(*suspicions):
    """Return value, past, date and note of each piece of evidence after these suspicions."""
    case = None
    for s in suspicions:
        case = update(case, s, CONFIG)
    assert case is not None
    return [
        (e.value, e.baseline and e.baseline.median, e.change_at and e.change_at - T0, e.note)
        for s in case.suspicions()
        for e in s.evidence
    ]


RAISED = slow(42.0, piece(0.46, 0.18, 41.0), state="raise")
AGAIN = slow(73.0, piece(0.43, 0.40, 55.0), piece(1.8, 1.2, 54.0, metric=RATIO, note="confirmed; more: 5"))


def test_what_is_slow_in_waves_is_compared_with_what_was_before_all_of_them():
    """Dated anew by its last rise it keeps the past and the date of its onset; the value is the latest."""
    seconds, ratio = shown(RAISED, AGAIN)
    assert seconds == (0.43, 0.18, 41.0, "")
    # First looked at after the onset: it has no past before it.
    assert ratio == (1.8, None, None, "no values of before the onset are at hand")


def test_a_look_back_at_the_onset_is_kept_when_later_ones_miss_it():
    """With its date and its note: that there was no change is said of a later date, too."""
    look = slow(104.0, piece(2.3, 1.0, 41.25, metric=RATIO, note="confirmed"))
    assert shown(RAISED, AGAIN, look, AGAIN)[-1] == (1.8, 1.0, 41.25, "confirmed")
    missed = slow(135.0, piece(0.43, 0.40, 55.0), piece(1.7, 1.2, None, metric=RATIO, note="no change"))
    assert shown(RAISED, look, missed)[-1] == (1.7, 1.0, 41.25, "confirmed")
    unsure = slow(104.0, piece(0.45, 0.18, 41.0), piece(1.7, 1.0, None, metric=RATIO, note="no change"))
    assert shown(RAISED, look, unsure)[-1] == (1.7, 1.0, None, "no change")


def test_a_change_that_sets_in_soon_after_the_onset_has_its_own_past():
    """A look back may date it some steps later, after it was suspected."""
    look = slow(73.0, piece(0.45, 0.18, 41.0), piece(2.3, 1.0, 42.5, metric=RATIO, note="confirmed"))
    assert shown(RAISED, look)[-1] == (2.3, 1.0, 42.5, "confirmed")


@pytest.mark.parametrize("since", [40.0, 41.5])
def test_an_onset_found_more_exactly_changes_no_past(since):
    """Within the time until it was suspected all dates are of one onset, which the finding shows."""
    assert shown(RAISED, slow(73.0, piece(0.45, 0.19, since))) == [(0.45, 0.18, 41.0, "")]


def test_a_relapse_is_compared_with_the_time_before_the_first_onset():
    """As the finding begins there; in another job the same GPU does other work."""
    ended = msgspec.structs.replace(RAISED, state="clear", ts=T0 + 60.0)
    relapse = {"onset": 70.0, "state": "raise"}
    again = slow(73.0, piece(0.43, 0.40, 70.0), **relapse)
    other = slow(73.0, piece(0.43, 0.40, 70.0), job="k", **relapse)
    assert shown(RAISED, ended, again) == [(0.43, 0.18, 41.0, "")]
    assert shown(RAISED, ended, other) == [(0.43, 0.40, 70.0, "")]


def test_what_has_no_date_is_as_its_detector_reports_it():
    """A rank that was slow from its first step on, a counter, an event."""
    undated = [slow(ts, piece(value, None, None)) for ts, value in ((42.0, 2.0), (73.0, 3.0))]
    assert shown(*undated) == [(3.0, None, None, "")]
