"""Alerts of other systems: one suspicion while any of them fires, and no finding without another witness."""

import msgspec
import pytest

from slowrank.telemetry import NodeEvent, Suspicion
from streams.node.events.external_alerts import DEFAULT_KIND, ExternalAlerts, argued_kind
from streams.node.stage import NodeStage
from tests.streams.cluster.test_stage import T0, hot, run, slow


def alert(ts=12.0, *, code="alert.firing", identity="a1", started=6.0, **subject):
    more = {"alert": identity, "started_ms": round((T0 + started) * 1000)}
    return NodeEvent(
        cluster="c",
        node="n1",
        ts=T0 + ts,
        source="alertmanager",
        code=code,
        subject=more | {"gpu_index": 5} | subject,
        message="GpuTooHot: 92 degrees",
    )


def resolved(ts=30.0, **more):
    return alert(ts, code="alert.resolved", **more)


def test_an_alert_is_a_mild_suspicion_since_it_began():
    """About its GPU, with what it reports as evidence."""
    (found,) = suspicions(alert(kind="throttle.thermal"))
    assert (found.kind, found.state, found.onset, found.ts) == ("throttle.thermal", "raise", T0 + 6, T0 + 12)
    assert (found.subject.type, found.subject.gpu_index, found.overwhelming) == ("gpu", 5, False)
    assert found.evidence[0].note == "GpuTooHot: 92 degrees"


def test_while_any_alert_fires_there_is_one_suspicion():
    """Repetitions give nothing; the last to end clears it, also after a restart that lost its beginning."""
    alerts = ExternalAlerts()
    events = [alert(), alert(13), alert(14, identity="a2"), resolved(20), resolved(21, identity="a2")]
    states = [[s.state for s in alerts.update(event)] for event in events]
    assert states == [["raise"], [], [], [], ["clear"]]
    assert [s.state for s in ExternalAlerts().update(resolved())] == ["clear"]


@pytest.mark.parametrize(
    ("named", "argued"),
    [
        ("throttle.thermal", "throttle.thermal"),
        ("xid.145", "xid.145"),
        (None, DEFAULT_KIND),
        ("hang.job", DEFAULT_KIND),
        ("straggler.fail_slow", DEFAULT_KIND),
        ("self.lag", DEFAULT_KIND),
        ("node.lemon", DEFAULT_KIND),
        ("no.such", DEFAULT_KIND),
    ],
)
def test_an_alert_argues_for_faults_that_need_a_second_witness(named, argued):
    """Whatever else it names is a weak sign: it could open a finding alone, or is none of a machine."""
    assert argued_kind(named) == argued


def suspicions(*events):
    stage = NodeStage()
    return [s for event in events for s in stage.process(event) if isinstance(s, Suspicion)]


def test_alerts_alone_open_nothing():
    """However many, of whatever kinds."""
    events = [
        alert(identity=f"a{i}", kind=kind) for i, kind in enumerate(("throttle.thermal", "xid.79", "x"))
    ]
    last, _ = run(*suspicions(*events))
    assert {finding.status for finding in last.values()} == {"suspected"}


@pytest.mark.parametrize("kind", ["throttle.thermal", "unknown"])
def test_an_alert_corroborates_a_slow_rank(kind):
    """A weak suspicion of its GPU opens with it, and names what the alert names."""
    last, _ = run(slow(), *suspicions(alert(kind=kind)))
    finding = last["straggler.fail_slow", "rank"]
    assert finding.status == "open"
    assert finding.cause.hypothesis == argued_kind(kind)
    assert "GpuTooHot: 92 degrees" in [seen.note for seen in finding.evidence]


def test_an_alert_about_another_gpu_corroborates_nothing():
    """Nor does one that began at another time, or has ended."""
    other = suspicions(alert(gpu_index=6))
    assert run(slow(), *other)[0]["straggler.fail_slow", "rank"].status == "suspected"
    early = suspicions(alert(started=-600))
    assert run(slow(), *early)[0]["straggler.fail_slow", "rank"].status == "suspected"


def test_an_alert_and_our_own_reading_agree():
    """A throttle that is weak by itself opens with the alert about it."""
    mild = msgspec.structs.replace(hot(), overwhelming=False, severity="warning")
    assert run(mild)[0]["throttle.thermal", "gpu"].status == "suspected"
    last, _ = run(mild, *suspicions(alert(kind="throttle.thermal")))
    assert last["throttle.thermal", "gpu"].status == "open"


def test_memory_is_bounded():
    """The oldest alerts of a node are forgotten."""
    alerts = ExternalAlerts()
    for number in range(3000):
        alerts.update(alert(identity=f"a{number}", gpu_index=number % 8))
    assert len(alerts._firing) == 1024
