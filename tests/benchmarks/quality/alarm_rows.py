"""Events and alarms for tests of the evaluation."""

from dataclasses import replace

from benchmarks.quality.matching import Alarm, Event

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


def alarm(onset=100.0, *, node="a", gpu=3, told=None, kind="straggler.fail_slow", job_id="job"):
    places = () if node is None else ((node, gpu),)
    told = onset + 5 if told is None else told
    return Alarm(at=told, told=told, onset=onset, kind=kind, places=places, job_id=job_id)
