import random

import pytest

from alerts.config import FindingConfig
from slowrank.telemetry import NodeEvent
from slowrank.telemetry.messages import PHASES
from streams.cluster.job_startup import Startups
from streams.node.events.job_events import startup_phase
from streams.pipeline import local_pipeline

T0 = 1_795_160_000.0
USUAL = {"image": 60.0, "environment": 8.0, "launch": 4.0, "checkpoint_load": 30.0, "first_step": 20.0}


def told(node, phase, began, seconds, *, job="j", gpus=8, **subject):
    given = {"job_id": job, "milliseconds": round(1000 * seconds), "gpus": gpus, **subject}
    return NodeEvent(
        cluster="c", node=node, ts=T0 + began + seconds, source="job", code=f"startup.{phase}", subject=given
    )


def start(nodes=6, *, slow=(), job="j", attempt=0, at=0.0, seed=1):
    """The events of one start in order of time; ``slow`` holds (node, phase, times as long)."""
    rng, events, ready = random.Random(seed), [], {}
    for node in range(nodes):
        now = at
        for phase in ("image", "environment", "launch"):
            factor = next((f for n, p, f in slow if (n, p) == (node, phase)), 1.0)
            seconds = USUAL[phase] * factor * rng.uniform(0.95, 1.05)
            events.append(told(f"n{node}", phase, now, seconds, job=job, attempt=attempt))
            now += seconds
        ready[node] = now
    there = max(ready.values()) + 1.0
    for node, now in ready.items():
        events.append(told(f"n{node}", "rendezvous", now, there - now, job=job, attempt=attempt))
        load = USUAL["checkpoint_load"] * next(
            (f for n, p, f in slow if (n, p) == (node, "checkpoint_load")), 1.0
        )
        events.append(told(f"n{node}", "checkpoint_load", there, load, job=job, attempt=attempt))
        events.append(told(f"n{node}", "first_step", there + load, 400.0 - load, job=job, attempt=attempt))
    return sorted(events, key=lambda e: e.ts)


def findings(events):
    """Everything said of slow starts, with event time going on for half an hour."""
    pipeline = local_pipeline()
    found = [f for e in events for f in pipeline.process(e)]
    last = max(e.ts for e in events)
    for second in range(0, 2400, 5):
        found += pipeline.tick(last + second)
    return [f for f in found if f.kind == "startup.slow"]


def said(finding):
    return {e.metric: e for e in finding.evidence}


def test_a_healthy_start_is_no_news():
    """Nodes a few per cent apart give no finding."""
    assert findings(start()) == []


@pytest.mark.parametrize("seed", range(20))
def test_the_node_and_phase_that_hold_up_a_start_are_named(seed):
    """One slow image pull or checkpoint load among six is named, with its peers and the GPU-hours lost."""
    node, phase = seed % 6, ("image", "checkpoint_load")[seed % 2]
    found = findings(start(slow=[(node, phase, 4.0)], seed=seed))
    assert {f.id for f in found} == {found[0].id}
    opened = next(f for f in found if f.status == "open")
    assert (opened.subject.type, opened.subject.job_id, opened.severity) == ("job", "j", "warning")
    worst = said(opened)["startup.straggler_1_seconds"]
    assert worst.note == f"n{node}: {phase}"
    assert worst.peers.n == 5
    lost = 6 * 8 * 3.0 * USUAL[phase] / 3600
    assert said(opened)["startup.gpu_hours_lost"].value == pytest.approx(lost, rel=0.12)
    assert found[-1].status == "resolved"


def test_gpu_hours_lost_are_exact():
    """Maximum less median of every phase, times all GPUs; waiting for each other is not counted twice."""
    events = [told(f"n{i}", "image", 0.0, 60.0 if i else 240.0) for i in range(5)]
    events += [told(f"n{i}", "rendezvous", 60.0 if i else 240.0, 181.0 if i else 1.0) for i in range(5)]
    events += [told(f"n{i}", "first_step", 241.0, 9.0) for i in range(5)]
    opened = next(f for f in findings(events) if f.status == "open")
    assert said(opened)["startup.gpu_hours_lost"].value == 5 * 8 * 180.0 / 3600
    assert said(opened)["startup.slowest_phase_seconds"].note == "image"


def test_the_order_of_events_and_their_repetition_change_nothing():
    """Shuffled within a few seconds, and told twice, the finding is the same."""
    events = start(slow=[(2, "image", 5.0)])
    rng = random.Random(3)
    shuffled = sorted(
        [*events, *events], key=lambda e: e.ts + rng.uniform(0, FindingConfig().lateness_seconds / 2)
    )
    assert findings(shuffled) == findings(events)


def test_each_attempt_and_each_job_is_judged_by_itself():
    """A restart is another start; jobs that start together are not each other's peers."""
    once, again = start(slow=[(1, "image", 4.0)]), start(slow=[(3, "image", 4.0)], attempt=1, at=2000.0)
    other = start(job="k", nodes=2, slow=[(0, "image", 9.0)])
    found = findings(sorted([*once, *again, *other], key=lambda e: e.ts))
    assert {f.subject.job_id for f in found} == {"j"}
    notes = [said(f)["startup.straggler_1_seconds"].note for f in found if f.status == "open"]
    assert list(dict.fromkeys(notes)) == ["n1: image", "n3: image"]


def test_a_start_that_never_ends_is_judged_when_nobody_tells_more():
    """Without first steps the judgement waits for half an hour of silence."""
    events = [e for e in start(slow=[(1, "image", 4.0)]) if e.code != "startup.first_step"]
    opened = next(f for f in findings(events) if f.status == "open")
    assert opened.detected_at == max(e.ts for e in events) + 1800.0


@pytest.mark.parametrize(
    "event",
    [
        told("n", "image", 0.0, 1.0, milliseconds="soon"),
        told("n", "image", 0.0, 1.0, milliseconds=-1),
        told("n", "image", 0.0, 1.0, milliseconds=2**63 - 1),
        told("n", "imagination", 0.0, 1.0),
        NodeEvent(
            cluster="c", node="n", ts=T0, source="job", code="startup.image", subject={"milliseconds": 5}
        ),
        NodeEvent(cluster="c", node="n", ts=T0, source="job", code="job.start", subject={"job_id": "j"}),
    ],
)
def test_events_that_do_not_say_enough_say_nothing(event):
    """Without a phase that is known, a job and a duration there is no message."""
    assert startup_phase(event) == []


def test_every_phase_becomes_a_message():
    """The message carries node, job, attempt and when the phase began."""
    for phase in PHASES:
        (message,) = startup_phase(told("n", phase, 5.0, 2.5, attempt=2))
        assert (message.phase, message.began, message.ts, message.gpus) == (phase, T0 + 5.0, T0 + 7.5, 8)
        assert (message.node, message.job_id, message.attempt) == ("n", "j", 2)


def test_starts_that_never_end_do_not_pile_up():
    """Beyond the room for nodes new starts are left out; those under way are judged as ever."""
    starts = Startups(max_nodes=20)
    slow = start(slow=[(2, "image", 5.0)])
    jobs = [told("n0", "image", 0.0, 1.0, job=f"j{i}") for i in range(30)]
    for event in (*slow, *jobs):
        for message in startup_phase(event):
            starts.update(message)
    assert len(starts.held) == 15
    assert [s.subject.job_id for s in starts.due(T0 + 400.0 + 600.0)] == ["j", "j"]
    assert list(starts.due(T0 + 4000.0)) == []
    for message in startup_phase(jobs[-1]):
        starts.update(message)
    assert len(starts.held) == 1


@pytest.mark.slow
def test_more_than_1024_jobs_may_start_at_once():
    """After an outage of a fleet all jobs start again: the slow node of each is found."""
    starts, names = Startups(), [f"job-{i}" for i in range(1100)]
    for events in zip(*(start(slow=[(2, "image", 5.0)], job=name) for name in names), strict=True):
        for event in events:
            for message in startup_phase(event):
                starts.update(message)
    found = {s.subject.job_id for s in starts.due(T0 + 4000.0) if s.state == "raise"}
    assert found == set(names)
