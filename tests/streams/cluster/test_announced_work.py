"""Work that a job announces, and the machines that are slow in it at the time."""

import itertools

import pytest

from alerts.cases.ending import ASIDE_SECONDS
from alerts.cases.source import MOST_ANNOUNCED
from alerts.finding import Finding
from slowrank.telemetry import Subject, Suspicion
from streams.cluster import announced_work
from streams.cluster.announced_work import AnnouncedWork
from streams.cluster.stage import FindingStage
from streams.runtime.snapshots.state_codec import dumps, loads

T0 = 1_795_160_000.0


def said(ts, *, kind="straggler.fail_slow", node="n3", detector="peer_step", onset=105.0, shadow=False):
    return Suspicion(
        cluster="c",
        detector=detector,
        family="timing",
        kind=kind,
        state="raise",
        subject=Subject(type="gpu", cluster="c", node=node, gpu_index=2, rank=26, job_id="j"),
        ts=T0 + ts,
        onset=T0 + onset,
        onset_lo=T0 + onset,
        onset_hi=T0 + onset,
        score=2.0,
        log_likelihood_ratio=6.0,
        overwhelming=True,
        shadow=shadow,
    )


ANNOUNCED = said(100.0, kind="job.planned", node="n0", detector="job.schedule", onset=100.0)


def opened(*suspicions):
    """Return when findings open, as seconds."""
    stage = FindingStage()
    found: list[Finding] = []
    for s in suspicions:
        stage.process(s)
    for second in range(90, 300):
        found += stage.tick(T0 + second)
    return sorted({(f.kind, f.detected_at - T0) for f in found if f.status == "open"})


@pytest.mark.parametrize("order", list(itertools.permutations(range(2))))
def test_a_rank_of_any_node_that_warms_up_is_no_finding(order):
    """The event came from another node, before or after what it explains."""
    both = (ANNOUNCED, said(110.0))
    assert opened(*(both[i] for i in order)) == []
    assert opened(said(110.0)) == [("straggler.fail_slow", 110.0)]


def test_a_rank_that_stays_slow_is_found_with_the_next_report():
    assert opened(ANNOUNCED, said(110.0), said(140.0), said(230.0)) == [("straggler.fail_slow", 230.0)]


def schedule(ts, node="n0"):
    return said(ts, kind="job.planned", node=node, detector="job.schedule", onset=ts)


def reached(work, node="n3"):
    """Return the announcements that reach a node that is slow next, as seconds."""
    return sorted(s.onset - T0 for _, s in work.announcements_for(said(1000.0, node=node)))


MANY = [schedule(float(t)) for t in range(100, 900, 10)]


@pytest.mark.parametrize(
    ("announced", "expected"),
    [
        ([schedule(100.0), *[schedule(200.0)] * 100], [100.0, 200.0]),
        ([schedule(200.0), schedule(100.0), schedule(200.0)], [100.0, 200.0]),
        ([schedule(100.0 + i / 128, f"n{i}") for i in range(65)], [100.5]),
        (MANY, [s.onset - T0 for s in MANY[-MOST_ANNOUNCED:]]),
        (MANY[::-1], [s.onset - T0 for s in MANY[-MOST_ANNOUNCED:]]),
    ],
)
def test_the_latest_announcements_are_kept_whenever_and_how_often_they_come(announced, expected):
    work = AnnouncedWork()
    for s in announced:
        list(work.announcements_for(s))
    assert reached(work) == expected


def test_an_old_announcement_is_forgotten_beside_a_recent_one():
    work = AnnouncedWork()
    for s in (schedule(100.0), schedule(900.0)):
        list(work.announcements_for(s))
    work.forget(T0 + 100.0 + ASIDE_SECONDS)
    assert reached(work) == [900.0]


@pytest.mark.parametrize("step", [1, -1])
def test_the_latest_scopes_of_a_job_are_kept(step, monkeypatch):
    monkeypatch.setattr(announced_work, "_MOST_SCOPES", 2)
    work = AnnouncedWork()
    for ts in (10.0, 20.0, 30.0)[::step]:
        list(work.announcements_for(said(ts, node=f"n{ts:.0f}")))
    assert sorted(scope for scope, _ in work.announcements_for(schedule(40.0))) == [
        "c/node/n20",
        "c/node/n30",
    ]


def test_announcements_reach_each_scope_once_and_are_forgotten():
    """Also one that only a detector in shadow has anything about; other kinds have no use for them."""
    work = AnnouncedWork()
    assert list(work.announcements_for(ANNOUNCED)) == []
    assert [(scope, s.shadow) for scope, s in work.announcements_for(said(110.0))] == [("c/node/n3", False)]
    assert (
        list(work.announcements_for(said(120.0)))
        == list(work.announcements_for(said(120.0, kind="xid.79", node="n4")))
        == []
    )
    assert [s.shadow for _, s in work.announcements_for(said(130.0, shadow=True))] == [True]
    again = said(200.0, kind="job.planned", node="n1", detector="job.schedule", onset=200.0)
    assert [(scope, s.shadow) for scope, s in work.announcements_for(again)] == [
        ("c/node/n3", False),
        ("c/node/n3", True),
    ]
    work.forget(T0 + 4000.0)
    assert list(work.announcements_for(again)) == []
    work.forget(T0 + 8000.0)
    assert list(work.announcements_for(said(110.0))) == []


def test_announcements_outlast_a_restart():
    """They are part of a worker's snapshot."""
    stage = FindingStage()
    stage.process(ANNOUNCED)
    stage.process(said(110.0))
    stage = loads(dumps(stage))
    found = [f for second in range(90, 300) for f in stage.tick(T0 + second)]
    assert {f.status for f in found} == {"suspected"}
