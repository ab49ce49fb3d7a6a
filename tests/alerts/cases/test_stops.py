"""How often a job has stopped: each stop has to be found a hang, and the pauses in between are none."""

import pytest

from alerts.cases.fold import advance, apply
from alerts.cases.scope import Scope
from alerts.config import FindingConfig
from alerts.reasoning.corroborate import excused
from slowrank.telemetry import HangVote, Subject

CONFIG = FindingConfig()
JOB = Subject(type="job", cluster="c", job_id="j", attempt=0)
GPUS = 36


def vote(onset, after, state="raise", **found):
    return HangVote(
        cluster="c",
        detector="step_progress",
        family="job",
        kind="hang.job",
        state=state,
        subject=JOB,
        ts=onset + after,
        onset=onset,
        onset_lo=onset,
        onset_hi=onset,
        score=1.0,
        log_likelihood_ratio=2.0,
        gpus=GPUS,
        nodes=4,
        signal="no_progress",
        **found,
    )


def pause(onset, seconds):
    """A stop that is over before the steps alone are enough to find a hang."""
    return [vote(onset, 12.0, early=True), vote(onset, seconds, "clear")]


def stop(onset, seconds):
    """A stop that is long enough."""
    return [vote(onset, 12.0, early=True), vote(onset, 120.0, alone=True), vote(onset, seconds, "clear")]


def after(votes, until):
    """Return the case once all votes have come, and every deadline up to ``until`` has passed."""
    scope = Scope()
    for v in votes:
        *_, scope = [scope, *(step for _, step in advance(scope, v.ts, CONFIG, inclusive=False))]
        scope = apply(scope, [v], CONFIG)
    *_, scope = [scope, *(step for _, step in advance(scope, until, CONFIG, inclusive=True))]
    (case,) = scope.cases.values()
    return case


def figures(case):
    return case.status, case.onset[0], case.flaps, case.occurrences, round(case.account.lost, 3)


def test_a_pause_that_was_over_is_no_part_of_the_stop_that_follows():
    """It neither dates the hang nor is counted with it, and costs nothing; only the id is of the first."""
    case = after([*pause(1000.0, 15.0), *stop(1100.0, 1500.0)], 2600.0)
    assert figures(case) == ("open", 1100.0, 0, 1, GPUS * 1500.0 / 3600.0)
    # The stop that was over may have been shown as suspected.
    assert case.first_onset == 1000.0


@pytest.mark.parametrize("every", [60.0, 100.0, 200.0, 900.0])
def test_pauses_after_a_stop_do_not_reopen_it(every):
    """However often a job pauses after one real stop, that has ended when its recovery has held."""
    pauses = [v for n in range(1, 40) for v in pause(1600.0 + n * every, 40.0)]
    case = after([*stop(1000.0, 500.0), *pauses], 40_000.0)
    assert figures(case) == ("resolved", 1000.0, 0, 1, GPUS * 500.0 / 3600.0)
    assert case.ended_at - 1500.0 == pytest.approx(CONFIG.resolve_after_seconds, abs=40.0)


def test_while_a_job_pauses_its_earlier_stop_is_reported_as_it_was():
    case = after([*stop(1000.0, 500.0), vote(1600.0, 12.0, early=True)], 1612.0)
    assert excused(case, [case])


@pytest.mark.parametrize(
    ("onset", "occurrences"), [(1600.0, 1), (3000.0, 2)], ids=["before it was over", "after"]
)
def test_a_second_stop_is_counted_and_charged(onset, occurrences):
    """As a relapse of the open finding, or as its next occurrence."""
    case = after([*stop(1000.0, 500.0), *pause(1550.0, 20.0), *stop(onset, 500.0)], onset + 500.0)
    assert figures(case) == ("open", 1000.0, 1, occurrences, GPUS * 1000.0 / 3600.0)
    assert not excused(case, [case])


def test_a_pause_that_is_never_seen_to_end_ends_with_its_reports():
    """The stop before it has ended all the same."""
    case = after([*stop(1000.0, 500.0), vote(1600.0, 12.0, early=True)], 4000.0)
    assert figures(case)[:4] == ("resolved", 1000.0, 0, 1)
