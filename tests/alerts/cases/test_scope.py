"""How many cases one scope holds, and what becomes of a remap whose error ends and comes again."""

import msgspec
import pytest

from alerts.cases.explaining import explaining_key
from alerts.cases.fold import MAX_CASES, advance, apply
from alerts.cases.scope import Scope
from alerts.cases.source import MOST_ANNOUNCED
from alerts.config import FindingConfig
from slowrank.telemetry import Subject, Suspicion

CONFIG = FindingConfig()
T0 = 1_795_160_000.0


def xid(gpu, ts, state="raise"):
    return Suspicion(
        cluster="c",
        detector="event.kmsg",
        family="event",
        kind="xid.79",
        state=state,
        subject=Subject(type="gpu", cluster="c", node="n", gpu_index=gpu),
        ts=T0 + ts,
        onset=T0,
        onset_lo=T0,
        onset_hi=T0,
        score=2.0,
        log_likelihood_ratio=6.0,
        overwhelming=True,
    )


def told(ts, kind, state="raise", onset=10.0):
    at = dict.fromkeys(("onset", "onset_lo", "onset_hi"), T0 + onset)
    return msgspec.structs.replace(xid(0, ts, state), kind=kind, **at)


def open_kinds(suspicions, until):
    """Return the kinds that are open, after every suspicion and deadline."""
    steps = [Scope()]
    for s in sorted(suspicions, key=lambda s: s.ts):
        steps += [step for _, step in advance(steps[-1], s.ts, CONFIG, inclusive=False)]
        steps.append(apply(steps[-1], [s], CONFIG))
    steps += [step for _, step in advance(steps[-1], T0 + until, CONFIG, inclusive=True)]
    return [{c.kind for c in step.cases.values() if c.status == "open"} for step in steps]


def left(suspicions, hours):
    """Return the kinds of the cases that a scope still has so many hours after the last suspicion."""
    scope = Scope()
    for s in suspicions:
        scope = apply(scope, [s], CONFIG)
    until = suspicions[-1].ts + hours * 3600.0
    for _, after in advance(scope, until, CONFIG, inclusive=True):
        scope = after
    return {case.kind for case in scope.cases.values()}


PENDING, ERROR = "ecc.row_remap_pending", "ecc.uncorrectable"


@pytest.mark.parametrize("error_at", [10.0, 25.0])
@pytest.mark.parametrize("again", [(700.0,), (700.0, 1400.0)])
def test_an_error_that_comes_again_still_waits_for_its_remap(error_at, again):
    """Told first or not, the remap is part of one open finding, however often the error is raised."""
    errors = [s for t in again for s in (told(t, ERROR, onset=t), told(t + 60.0, ERROR, "clear"))]
    said = [told(10.0, PENDING), told(error_at, ERROR, onset=error_at), told(60.0, ERROR, "clear"), *errors]
    waiting = [told(float(t), PENDING, "update") for t in range(61, 6000, 60)]
    steps = open_kinds([*said, *waiting], 6000.0)
    assert steps[-1] == {ERROR}
    assert {PENDING, ERROR} not in steps
    assert open_kinds([*said, *waiting, told(6000.0, PENDING, "clear")], 6300.0)[-1] == set()


def test_an_absorbed_remap_is_told_again_once_nothing_else_tells_of_it():
    """What absorbed it is over and came again for another reason: the rows still wait for their reset."""
    said = [told(10.0, PENDING), told(25.0, "xid.79", onset=25.0), told(60.0, "xid.79", "clear")]
    again = [told(700.0, "xid.79", onset=700.0), told(760.0, "xid.79", "clear")]
    waiting = [told(float(t), PENDING, "update") for t in range(61, 6000, 60)]
    assert open_kinds([*said, *again, *waiting], 6000.0)[-1] == {PENDING}


SLOW, ON_AND_OFF = "straggler.fail_slow", "straggler.intermittent"


def flapping(times):
    """Slow for a minute from each of these times on."""
    return [s for t in times for s in (told(t, SLOW, onset=t), told(t + 60.0, SLOW, "clear"))]


@pytest.mark.parametrize("first", [-200.0, 10.0, 300.0, 600.0])
def test_relapses_and_what_is_slow_on_and_off_are_one_finding(first):
    """Whichever relapse is the latest, what says that a rank comes and goes tells of the same cause."""
    said = [*flapping([10.0, 300.0, 600.0]), told(650.0, ON_AND_OFF, onset=first)]
    assert set().union(*open_kinds(said, 700.0)) == {SLOW}


def test_slow_on_and_off_before_it_stayed_so_is_a_finding_of_its_own():
    """What was told before the rank was slow for long has another onset, and stays as it was told."""
    said = [told(250.0, ON_AND_OFF), told(800.0, SLOW, onset=700.0)]
    assert open_kinds(said, 850.0)[-1] == {SLOW, ON_AND_OFF}


def test_one_that_had_ended_by_then_is_explained_by_nothing():
    scope = Scope()
    for s in (told(250.0, ON_AND_OFF), told(400.0, ON_AND_OFF, "clear"), told(7200.0, SLOW, onset=7100.0)):
        *_, scope = [scope, *(step for _, step in advance(scope, s.ts, CONFIG, inclusive=False))]
        scope = apply(scope, [s], CONFIG)
    (before,) = (case for case in scope.cases.values() if case.kind == ON_AND_OFF)
    assert explaining_key(scope, before, CONFIG) is None


def gpus(scope):
    return {case.subject.gpu_index for case in scope.cases.values()}


def test_a_full_scope_hears_on_of_the_cases_it_has():
    """Of more GPUs than any node has those that came first are kept, and go on being heard."""
    scope = apply(Scope(), [xid(gpu, 0.0) for gpu in range(MAX_CASES)], CONFIG)
    scope = apply(scope, [xid(MAX_CASES, 10.0), xid(3, 10.0)], CONFIG)
    assert gpus(scope) == set(range(MAX_CASES))
    assert {c.last_seen_at for c in scope.cases.values() if c.subject.gpu_index == 3} == {T0 + 10.0}


def test_what_is_certain_takes_the_place_of_what_is_suspected():
    """A fatal fault opens also where hints about hundreds of devices fill the scope."""
    hints = [
        msgspec.structs.replace(xid(gpu, 0.0), kind="link.nic_errors", overwhelming=False)
        for gpu in range(MAX_CASES)
    ]
    scope = apply(apply(Scope(), hints, CONFIG), [xid(3, 10.0)], CONFIG)
    assert [c.kind for c in scope.cases.values() if c.status == "open"] == ["xid.79"]
    assert len(scope.cases) == MAX_CASES


def test_what_has_ended_makes_room():
    """Of a full scope the case that ended first is forgotten when another comes."""
    scope = apply(Scope(), [xid(gpu, 0.0) for gpu in range(MAX_CASES)], CONFIG)
    for gpu, at in ((7, 1.0), (5, 2.0)):
        scope = apply(scope, [xid(gpu, at, "clear")], CONFIG)
    *_, (_, scope) = advance(scope, T0 + 1000.0, CONFIG, inclusive=True)
    scope = apply(scope, [xid(MAX_CASES, 1001.0)], CONFIG)
    assert gpus(scope) == {*range(MAX_CASES), MAX_CASES} - {7}


def of_job(ts, kind):
    subject = Subject(type="job", cluster="c", job_id="j1")
    return msgspec.structs.replace(told(ts, kind, onset=ts), subject=subject, overwhelming=False)


@pytest.mark.parametrize(
    ("kinds", "hours", "expected"),
    [
        (["job.planned"], 1.1, {"job.planned"}),
        (["job.planned"], 1.3, set()),
        (["job.planned", "hang.job"], 1.3, {"job.planned", "hang.job"}),
        (["job.planned", "hang.job"], 24.1, {"job.planned", "hang.job"}),
        (["job.planned", "hang.job"], 24.3, set()),
    ],
)
def test_what_a_job_declared_is_kept_for_a_day_only_beside_a_suspicion(kinds, hours, expected):
    """Evidence of an ended job has nothing to reopen; beside a suspicion it belongs to its finding."""
    assert left([of_job(10.0, kind) for kind in kinds], hours) == expected


def test_what_is_slow_on_and_off_is_told_after_the_slowness_only_where_it_goes_on():
    """The job has ended in between, or its rows still show it."""
    said = [told(10.0, SLOW), told(50.0, ON_AND_OFF), told(60.0, SLOW, "clear")]
    assert set().union(*open_kinds(said, 600.0)) == {SLOW}
    assert open_kinds([*said, told(400.0, ON_AND_OFF, "update")], 600.0)[-1] == {ON_AND_OFF}


def announced(ts, code):
    return msgspec.structs.replace(told(ts, "job.planned", onset=ts), detector=code, overwhelming=False)


@pytest.mark.parametrize("kind", [SLOW, ON_AND_OFF])
@pytest.mark.parametrize(
    ("said", "opens_at"),
    [
        # A rank that compiles for longer batches is slow for some steps.
        ([announced(100.0, "job.schedule"), told(110.0, SLOW, onset=105.0)], None),
        ([announced(100.0, "job.schedule"), told(170.0, SLOW, onset=165.0)], 170.0),
        ([told(110.0, SLOW, onset=95.0)], 110.0),
        # Ranks that are slow from a start on are found as soon as they show it.
        ([announced(100.0, "job.restart"), told(110.0, SLOW, onset=105.0)], 110.0),
        # One that still is when the others are done is slow by itself.
        (
            [
                announced(100.0, "job.schedule"),
                *(told(t, SLOW, onset=105.0, state="update") for t in (110.0, 140.0, 215.0, 225.0, 240.0)),
            ],
            225.0,
        ),
        # The next announcement does not take back the first one.
        (
            [
                announced(100.0, "job.schedule"),
                told(110.0, SLOW, onset=105.0),
                announced(190.0, "job.schedule"),
                *(told(t, SLOW, onset=105.0, state="update") for t in (195.0, 215.0, 225.0)),
            ],
            225.0,
        ),
    ],
)
def test_a_rank_that_is_slow_as_other_work_begins_is_found_once_it_stays_so(kind, said, opens_at):
    """The announcement explains two minutes of it."""
    scope, opened = Scope(), None
    for s in said:
        scope = apply(scope, [msgspec.structs.replace(s, kind=kind) if s.kind == SLOW else s], CONFIG)
        if opened is None and any(c.kind == kind and c.status == "open" for c in scope.cases.values()):
            opened = s.ts - T0
    assert opened == opens_at


def declared(ts, node):
    subject = Subject(type="node", cluster="c", node=node, job_id="j")
    return msgspec.structs.replace(announced(ts, "job.schedule"), subject=subject)


def test_what_a_job_announces_is_kept_apart_and_bounded():
    """The nodes of a job announce one change within a second; of many changes the latest are kept."""

    def kept(*suspicions):
        scope = Scope()
        for s in suspicions:
            scope = apply(scope, [s], CONFIG)
        (case,) = scope.cases.values()
        return sorted(s.onset - T0 for s in case.suspicions())

    assert kept(declared(10.25, "n1"), declared(10.5, "n2"), declared(100.0, "n1")) == [10.5, 100.0]
    times = [float(t) for t in range(0, 6000, 60)]
    assert kept(*(declared(t, "n1") for t in times)) == times[-MOST_ANNOUNCED:]


LOSS = "training.loss_anomaly"


@pytest.mark.parametrize("next_at", [None, 190.0])
def test_a_change_that_a_job_announces_excuses_its_loss_also_after_the_next(next_at):
    """What began with a restart is by plan, also where it shows after the next one."""
    said = [announced(100.0, "job.restart"), told(200.0, LOSS, onset=100.0)]
    if next_at is not None:
        said.insert(1, announced(next_at, "job.restart"))
    scope = Scope()
    for s in said:
        scope = apply(scope, [s], CONFIG)
    assert [case.by_plan for case in scope.cases.values() if case.kind == LOSS] == [True]


ERRORS, DOWN = "link.nic_errors", "link.nic_flap"


@pytest.mark.parametrize("down_at", [12.0, 40.0])
def test_a_link_that_is_lost_after_errors_is_a_finding_beside_them(down_at):
    """What is graver, and explains the other, is not hidden by it."""
    steps = open_kinds([told(11.0, ERRORS), told(down_at, DOWN, onset=down_at)], 300.0)
    assert {ERRORS} in steps
    assert steps[-1] == {ERRORS, DOWN}


def test_errors_of_a_link_that_is_down_are_part_of_its_finding():
    assert open_kinds([told(11.0, DOWN), told(12.0, ERRORS)], 300.0)[-1] == {DOWN}
