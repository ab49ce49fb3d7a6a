"""JobStage on waits that all ranks share: findings about the job, and none about what one of them causes."""

import dataclasses

import numpy as np
import pytest

from benchmarks.detection.step_jobs import synchronous
from tests.streams.job.job_tables import healthy, job_level, layout, run, steps_between

ONSET, STEPS, RANKS = 150, 400, 16


def waiting(
    longer=0.0,
    *,
    reported=True,
    until=None,
    work=1.0,
    one=None,
    first=RANKS,
    coords=None,
    silent_ranks=(),
    silent=ONSET,
    usual=0.05,
    grows=0,
    burst=1,
    every=1,
    since=ONSET,
):
    """Return a job whose ranks, or ``one`` of them, or the ``first`` ones, wait ``longer`` for data
    ``since`` a step, in the first ``burst`` of ``every`` so many.

    ``silent_ranks`` ranks send nothing from the step of ``silent`` on; of the others a twentieth of the rows
    is lost.
    """
    rng = np.random.default_rng(4)
    compute = healthy(STEPS, RANKS)
    compute[ONSET:until] *= work
    data = usual * np.exp(0.2 * rng.normal(size=compute.shape))
    rise = np.minimum(np.arange(1, STEPS - since + 1) / max(grows, 1), 1.0)[:, None]
    ranks = slice(first) if one is None else slice(one, one + 1)
    rise *= (np.arange(len(rise)) % every < burst)[:, None]
    data[since:until, ranks] += (longer * rise)[: len(data[since:until])]
    step = np.repeat((compute + data).max(axis=1, keepdims=True) + 0.02, RANKS, axis=1)
    wait = step - compute - data - 0.02
    lost = rng.random(compute.shape) < 0.05
    lost[silent:, silent_ranks] = True
    for values in (compute, data, wait):
        values[lost] = np.nan
    ts = 1_795_000_000.0 + np.cumsum(step[:, 0])
    table = synchronous(compute, coords=coords)
    return dataclasses.replace(table, step=step, data=data if reported else None, wait=wait, ts=ts)


@pytest.mark.parametrize("coords", [None, layout(RANKS, 4)])
@pytest.mark.parametrize(("reported", "hypothesis"), [(True, "data"), (False, "unmeasured")])
@pytest.mark.parametrize("longer", [0.2, 0.5, 3.0])
def test_a_wait_of_all_ranks_is_a_finding_about_the_job(longer, reported, hypothesis, coords):
    """It is dated, states its cost, names no rank, and ends when the wait is as before."""
    table = waiting(longer, reported=reported, until=300, coords=coords)
    changes = [s for s in run(table) if s.state != "update"]
    assert [(s.state, list(s.hypotheses)) for s in changes] == [
        ("raise", [hypothesis]),
        ("clear", [hypothesis]),
    ]
    raised, cleared = changes
    assert (raised.kind, raised.subject.type, raised.subject.rank) == ("straggler.job_wide", "job", None)
    usual = float(np.median(table.step[:ONSET]))
    assert raised.job_slowdown_ratio == pytest.approx(1 + longer / usual, rel=0.05)
    assert abs(steps_between(table, table.ts[ONSET], raised.onset)) <= 2
    assert steps_between(table, table.ts[ONSET], raised.ts) <= 25
    assert 0 < steps_between(table, table.ts[300], cleared.ts) <= 45


@pytest.mark.parametrize("until", [None, 300], ids=["for good", "for a while"])
def test_slow_loading_slows_the_job_by_what_the_last_rank_waits(until):
    """Each step another rank gets its data last, and all others wait for it in their collectives."""
    rng = np.random.default_rng(4)
    compute = healthy(STEPS, RANKS)
    data = 0.05 * np.exp(0.5 * rng.normal(size=compute.shape))
    data[ONSET:until] *= 8.0
    step = np.repeat((compute + data).max(axis=1, keepdims=True) + 0.02, RANKS, axis=1)
    ts = 1_795_000_000.0 + np.cumsum(step[:, 0])
    table = dataclasses.replace(synchronous(compute), step=step, data=data, wait=step - compute - data, ts=ts)
    last = [s for s in run(table) if s.hypotheses == {"data": 5.0} and s.state != "clear"][-1]
    expected = np.median(step[ONSET:until]) / np.median(step[:ONSET])
    assert last.job_slowdown_ratio == pytest.approx(expected, rel=0.05)
    assert last.slowdown_ratio == last.job_slowdown_ratio


@pytest.mark.parametrize("reported", [True, False])
def test_a_wait_that_halves_has_a_smaller_slowdown(reported):
    """What it costs is that of the last steps, however long it was longer before."""
    rng = np.random.default_rng(4)
    compute = healthy(STEPS, RANKS)
    data = 0.05 * np.exp(0.2 * rng.normal(size=compute.shape))
    data[ONSET:300] += 1.0
    data[300:] += 0.5
    step = np.repeat((compute + data).max(axis=1, keepdims=True) + 0.02, RANKS, axis=1)
    ts = 1_795_000_000.0 + np.cumsum(step[:, 0])
    table = dataclasses.replace(
        synchronous(compute),
        step=step,
        data=data if reported else None,
        wait=step - compute - data - 0.02,
        ts=ts,
    )
    said = [s for s in run(table) if s.kind == "straggler.job_wide"]
    usual = float(np.median(step[:ONSET]))
    before, later = (
        next(s for s in said[::-1] if s.ts <= table.ts[last]).job_slowdown_ratio for last in (299, 345)
    )
    assert before == pytest.approx(1 + 1.0 / usual, rel=0.05)
    assert later == pytest.approx(1 + 0.5 / usual, rel=0.05)


def test_a_wait_that_lasts_is_not_forgotten():
    """What was usual before stays what it is compared with, long after the history holds it no more."""
    table = waiting(0.3)
    assert [s.state for s in run(table) if s.state != "update"] == ["raise"]


def test_waits_for_data_in_bursts_are_one_finding_about_the_job():
    """Storage stalls each step for three in ten: it is dated by the first burst, lasts, and then ends."""
    table = waiting(3.0, burst=3, every=10, until=300)
    raised, cleared = (s for s in run(table) if s.state != "update")
    assert (raised.state, cleared.state, list(raised.hypotheses)) == ("raise", "clear", ["data"])
    usual = float(np.median(table.step[:ONSET]))
    assert raised.job_slowdown_ratio == pytest.approx(1 + 0.3 * 3.0 / usual, rel=0.25)
    assert abs(steps_between(table, table.ts[ONSET], raised.onset)) <= 2
    assert steps_between(table, table.ts[ONSET], raised.ts) <= 30


@pytest.mark.parametrize(
    "table",
    [
        waiting(3.0, burst=3, every=10, until=ONSET + 20),
        waiting(0.3, burst=1, every=20),
        waiting(3.0, burst=3, every=10, reported=False),
        waiting(3.0, burst=2, every=3, until=ONSET + 8),
        waiting(4.0, burst=1, every=8, since=0),
    ],
    ids=["two bursts", "each epoch", "not known to be for data", "a pause with quick steps", "as ever"],
)
def test_few_short_usual_or_unreported_bursts_are_no_finding(table):
    """A burst may be a pause, what costs the job a few per cent is usual, and so is what always was; and
    ranks may save meanwhile."""
    assert job_level(run(table)) == []


@pytest.mark.parametrize("every", [30, 60])
def test_rare_bursts_are_found_once(every):
    """Until none has come for twice as long as usual."""
    said = run(waiting(12.0, burst=4, every=every))
    assert [s.state for s in said if s.kind == "straggler.job_wide" and s.state != "update"] == ["raise"]


def test_quick_steps_in_a_wait_that_ends_are_no_bursts():
    """It ends as soon as without them."""
    table = waiting(1.0, until=250)
    for step in (ONSET + 2, ONSET + 60):
        for values in (table.data, table.wait, table.step):
            values[step] = values[ONSET - 1]
    raised, cleared = (s for s in run(table) if s.state != "update")
    assert (raised.state, cleared.state) == ("raise", "clear")
    assert steps_between(table, table.ts[250], cleared.ts) <= 45


@pytest.mark.parametrize(("longer", "steps"), [(0.9, 10), (1.2, 5)])
def test_a_wait_that_doubles_the_steps_is_found_after_five(longer, steps):
    """Of a step of a minute that becomes two, ten would be twenty minutes; pauses of five and less are
    none."""
    usual = float(np.median(waiting().step))
    last = ONSET + steps
    found = [job_level(run(waiting(longer * usual, until=last + more))) for more in (-1, 10)]
    assert [len(raised) for raised in found] == [0, 1]


@pytest.mark.parametrize("phase", range(5))
def test_a_rank_that_falls_silent_as_the_steps_double_may_be_waited_for(phase):
    """Whatever the step at which the job is looked at."""
    table = waiting(3.0, reported=False, silent_ranks=[3], silent=ONSET + phase)
    assert [s for s in job_level(run(table)) if s.ts < table.ts[ONSET + 40]] == []


@pytest.mark.parametrize("silent", [0, 20])
def test_a_rank_that_was_silent_before_hides_nothing(silent):
    """A rank without measurements, or one that is long gone, is not what the others wait for since."""
    table = waiting(0.5, reported=False, silent_ranks=[3], silent=silent)
    assert [list(s.hypotheses) for s in job_level(run(table))] == [["unmeasured"]]


def test_a_wait_that_grows_is_found():
    """Fifty steps to a third more."""
    (raised,) = job_level(run(waiting(0.4, grows=50)))
    assert list(raised.hypotheses) == ["data"]


@pytest.mark.parametrize("first", [7, 9, 12])
def test_a_wait_for_data_of_most_ranks_is_the_jobs_and_of_fewer_their_own(first):
    """Beyond half of them there is nobody to compare with who is known to be as usual."""
    findings = run(waiting(0.5, first=first))
    named = {s.subject.rank for s in findings if s.subject.rank is not None}
    assert named == (set(range(first)) if first <= RANKS / 2 else set())
    told = [list(s.hypotheses) for s in job_level(findings) if s.state == "raise"]
    assert told == ([] if first <= RANKS / 2 else [["data"]])


@pytest.mark.parametrize(("first", "why"), [(6, "data.shared"), (8, "data"), (10, "data")])
def test_a_wait_for_data_of_half_of_the_machines_is_the_jobs(first, why):
    """Of eight, four: nobody shows which half is as usual; fewer are machines that share a cause."""
    findings = run(dataclasses.replace(waiting(0.5, first=first), ranks_per_node=2))
    told = [list(s.hypotheses) for s in job_level(findings) if s.state == "raise"]
    named = {s.subject.rank for s in findings if s.subject.rank is not None}
    assert (told, named) == ([[why]], set())


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"longer": 0.08},
        {"longer": 0.5, "until": ONSET + 8},
        {"longer": 0.5, "work": 1.3},
        {"longer": 0.5, "work": 0.7},
        {"work": 2.0},
        {"longer": 0.5, "silent_ranks": [3]},
        {"longer": 0.5, "one": 6},
    ],
)
@pytest.mark.parametrize("reported", [True, False])
def test_no_finding_about_the_job_where_it_is_not_the_job(table, reported):
    """Nothing, too little, too short, another work, a rank that fell silent, or one rank's own wait."""
    assert job_level(run(waiting(**table, reported=reported))) == []


@pytest.mark.parametrize(
    ("seconds", "steps", "found"), [(0.1, 100, False), (0.1, 160, True), (5.0, 8, False), (5.0, 20, True)]
)
def test_it_takes_twenty_seconds_and_ten_steps(seconds, steps, found):
    """A second of short steps is a pause, and so are a few long ones."""
    table = waiting(0.5, until=ONSET + steps)
    scaled = {name: getattr(table, name) * seconds for name in ("compute", "step", "data", "wait")}
    table = dataclasses.replace(table, **scaled, ts=1_795_000_000.0 + np.cumsum(scaled["step"][:, 0]))
    assert bool(job_level(run(table))) == found


def test_a_wait_from_the_first_step_on_is_usual():
    """There is no past to compare with."""
    assert job_level(run(waiting(usual=0.6))) == []


def spaced(seconds, *, columns=True, work=1.0, until=None, every=1, jitter=0.0, whole=0.0, grows=0):
    """Return a healthy job with ``seconds`` more from the end of a step to the start of each ``every``th one,
    from ``ONSET`` on; ``ts`` is late by up to ``jitter`` seconds, or rounded up to ``whole`` ones.

    Without ``columns`` rows have step times alone.
    """
    rng = np.random.default_rng(8)
    compute = healthy(STEPS, RANKS)
    compute[ONSET:] *= work
    table = synchronous(compute)
    after = np.arange(STEPS - ONSET)
    more = np.zeros(STEPS)
    more[ONSET:] = seconds * np.minimum((after + 1) / max(grows, 1), 1.0) * (after % every == 0)
    more[STEPS if until is None else until :] = 0.0
    usual = 0.01 * np.exp(0.2 * rng.normal(size=STEPS))
    ts = 1_795_000_000.0 + np.cumsum(table.step[:, 0] + usual + more)
    ts += rng.random(STEPS) * jitter
    ts = np.ceil(ts / whole) * whole if whole else ts
    table = dataclasses.replace(table, ts=ts)
    return dataclasses.replace(table, with_compute=columns, wait=table.wait if columns else None)


@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("seconds", [0.15, 0.4, 3.0])
def test_time_between_the_steps_that_lasts_is_a_finding_about_the_job(seconds, columns):
    """Loading outside of the timed step: dated, with what the job loses by it; it ends with it."""
    table = spaced(seconds, columns=columns, until=300)
    raised, cleared = (s for s in run(table) if s.state != "update")
    assert (raised.kind, raised.subject.type, list(raised.hypotheses)) == (
        "straggler.job_wide",
        "job",
        ["between_steps"],
    )
    cadence = float(np.median(np.diff(table.ts[:ONSET])))
    assert raised.job_slowdown_ratio == pytest.approx(1 + seconds / cadence, rel=0.05)
    assert abs(steps_between(table, table.ts[ONSET], raised.onset)) <= 2
    assert steps_between(table, table.ts[ONSET], raised.ts) <= 25
    assert cleared.state == "clear"
    assert 0 < steps_between(table, table.ts[300], cleared.ts) <= 45
    assert cleared.lost.gpu_seconds == pytest.approx(RANKS * seconds * 150, rel=0.1)


def test_time_between_the_steps_that_grows_is_found():
    """Fifty steps to two fifths more."""
    (raised,) = job_level(run(spaced(0.4, grows=50)))
    assert list(raised.hypotheses) == ["between_steps"]


@pytest.mark.parametrize(
    "table",
    [
        spaced(0.0),
        spaced(0.05),
        spaced(0.5, until=ONSET + 8),
        spaced(3.0, until=ONSET + 8),
        spaced(3.0, every=2),
        spaced(20.0, every=25),
        spaced(0.5, work=1.3),
        spaced(0.0, jitter=0.5),
        spaced(0.0, whole=1.0),
        spaced(0.0, whole=10.0),
        spaced(-0.3),
    ],
    ids=[
        "as ever", "little", "few steps", "few long ones", "every other step", "checkpoints", "another work",
        "rows sent late", "whole seconds", "tens of seconds", "steps overlap",
    ],
)  # fmt: skip
@pytest.mark.parametrize("columns", [True, False])
def test_no_finding_where_the_time_between_the_steps_is_usual(table, columns):
    """Pauses that come and go, too little, another work, and times of day that do not show it."""
    if not columns:
        table = dataclasses.replace(table, with_compute=False, wait=None)
    assert job_level(run(table)) == []


def test_a_rank_that_logs_alone_shows_no_time_between_the_steps_of_the_job():
    """Nobody shows whether it is the job's or its own."""
    only = np.zeros((STEPS, RANKS), dtype=bool)
    only[:, 0] = True
    assert job_level(run(spaced(0.4), only=only)) == []
