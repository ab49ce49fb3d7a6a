"""How often a job has stopped: each stop has to be found a hang, and the pauses in between are none."""

import pytest

from alerts.cases.fold import advance, apply
from alerts.cases.scope import Scope
from alerts.config import FindingConfig
from alerts.reasoning.corroborate import excused
from alerts.report.render import render, sources_of
from slowrank.telemetry import Evidence, HangVote, Subject

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


def machine(node, onset, after, state="raise", *, signal="idle", spinning=1.0):
    """A vote of a node: on a stop, or that the job has left it."""
    shown = Evidence(metric="gpu.spinning_ratio", unit="1", detector="quiet", value=spinning)
    return HangVote(
        cluster="c",
        detector=f"quiet.{signal}",
        family="clocks" if signal == "idle" else "host",
        kind="hang.job",
        state=state,
        subject=Subject(type="node", cluster="c", node=node, job_id="j"),
        ts=onset + after,
        onset=onset,
        onset_lo=onset - 1.0,
        onset_hi=onset,
        score=1.0,
        log_likelihood_ratio=3.0 if signal == "idle" else -4.0,
        signal=signal,
        evidence=(shown,) if signal == "idle" else (),
    )


def ended_and_restarted(left_from, steps_at=None, *, span=0.0):
    """The votes of four nodes of a job that stops at 1000 as n0 does not spin, is ended and steps again."""
    voted = [machine(f"n{i}", 1002.0 + i, 10.0, spinning=span if i == 0 else 1.0) for i in range(4)]
    found = [vote(1000.0, 20.0), vote(1000.0, 60.0, certain=True)]
    gone = []
    for i in range(4):
        at = left_from + i
        gone.append(machine(f"n{i}", 1002.0 + i, at - 1002.0 - i, "clear"))
        gone.append(machine(f"n{i}", at, 0.0, signal="left"))
    again = [] if steps_at is None else [vote(1000.0, steps_at - 1000.0, "clear")]
    return sorted([*voted, *found, *gone, *again], key=lambda v: v.ts)


def told(votes, until):
    """Return what the finding of the job tells at ``until``: its suspects, evidence and confidence."""
    scope = Scope()
    for v in (v for v in votes if v.ts <= until):
        *_, scope = [scope, *(step for _, step in advance(scope, v.ts, CONFIG, inclusive=False))]
        scope = apply(scope, [v], CONFIG)
    *_, scope = [scope, *(step for _, step in advance(scope, until, CONFIG, inclusive=True))]
    (case,) = [c for c in scope.cases.values() if c.rule.hang]
    finding = render(sources_of(scope, case, CONFIG), CONFIG)
    suspects = [s.subject.node for s in finding.suspects]
    return suspects, sorted({e.metric for e in finding.evidence}), finding.confidence


@pytest.mark.parametrize("left_from", [1060.0, 1500.0], ids=["by a watchdog", "by hand"])
@pytest.mark.parametrize(
    ("steps_at", "until"),
    [(None, 1.5), (None, 4.0), (200.0, 201.0), (200.0, 2500.0)],
    ids=["as it is ended", "ended", "as it steps again", "resolved"],
)
def test_a_hang_that_is_over_tells_what_it_told_while_it_stood(left_from, steps_at, until):
    """Whom the others waited for, why, and how surely; that it was ended is what was done about it."""
    votes = ended_and_restarted(left_from, steps_at and left_from + steps_at)
    before = told(votes, left_from - 1.0)
    assert before == (["n0"], ["gpu.spinning_ratio", "hang.suspects"], pytest.approx(before[2]))
    assert told(votes, left_from + until) == before


def test_what_a_job_does_after_a_hang_changes_nothing_that_the_hang_told():
    """A later pause of its machines is on another account."""
    votes = ended_and_restarted(1500.0, 1700.0)
    later = [machine("n2", 1800.0, 10.0, spinning=0.0), machine("n2", 1800.0, 40.0, "clear")]
    assert told([*votes, *later], 4000.0) == told(votes, 4000.0)


def test_nobody_is_suspected_for_leaving_first_where_all_waited():
    """Nodes of a job that is ended leave one after the other."""
    votes = ended_and_restarted(1060.0, span=1.0)
    assert [told(votes, at)[0] for at in (1059.0, 1060.5, 1061.5, 1070.0)] == [[], [], [], []]


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
