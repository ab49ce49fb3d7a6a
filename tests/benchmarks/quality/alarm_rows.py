"""Events and alarms for tests of the evaluation."""

from dataclasses import replace

from benchmarks.quality.scoring.matching import Alarm, Event

CAUSE = Event(
    row="slow",
    fault="clock_lock",
    nodes=("a",),
    gpu=3,
    job_id="job",
    onset=100.0,
    end=None,
    step_seconds=1.0,
    magnitude=1.2,
    verdicts=("straggler.fail_slow",),
    causes=("clock.low",),
    machine=True,
)


def event(onset=100.0, *, node="a", **given):
    return replace(CAUSE, **{"onset": onset, "nodes": (node,), **given})


def alarm(onset=100.0, *, node="a", gpu=3, sent_at=None, kind="straggler.fail_slow", job_id="job"):
    places = () if node is None else ((node, gpu),)
    sent_at = onset + 5 if sent_at is None else sent_at
    return Alarm(at=sent_at, sent_at=sent_at, onset=onset, kind=kind, places=places, job_id=job_id)
