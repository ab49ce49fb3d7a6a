"""From versions of findings to the notifications sent."""

from dataclasses import replace

from alerts.finding import Cause, Finding
from benchmarks.quality.scoring.alarms import AlarmLog
from benchmarks.quality.scoring.matching import Suspects
from slowrank.telemetry import Subject
from slowrank.telemetry.records import Suspect

SUBJECT = Subject(type="gpu", cluster="c", node="a", gpu_index=3, job_id="job")
FINDING = Finding(
    id="fnd_1",
    dedup_key="k",
    kind="straggler.fail_slow",
    title="slow",
    severity="warning",
    status="suspected",
    subject=SUBJECT,
    onset=100.0,
    onset_lo=99.0,
    onset_hi=101.0,
    detected_at=104.0,
    last_seen_at=104.0,
    detector="d",
    confidence=0.7,
    cause=Cause("straggler.fail_slow", 0.6, {"clock.low": 0.4}),
)


def told(*versions):
    log = AlarmLog({"leaf": ("a", "b")})
    for now, finding in versions:
        log.update(finding, now)
    return log.alarms


def test_a_suspicion_is_not_notified():
    """What never opens is no alarm, whatever becomes of it."""
    assert not told((104.0, FINDING), (900.0, replace(FINDING, status="expired")))


def test_an_alarm_is_timed_at_its_opening_and_speaks_with_its_last_words():
    """Later versions raise the severity and change the cause, not the time; its end changes nothing."""
    opened = replace(FINDING, status="open", detected_at=105.0)
    worse = replace(opened, severity="critical", confidence=0.9, cause=Cause("clock.low", 0.9))
    [alarm] = told(
        (104.0, FINDING), (106.0, opened), (150.0, worse), (900.0, replace(opened, status="resolved"))
    )
    assert (alarm.at, alarm.sent_at, alarm.severity, alarm.causes) == (
        105.0,
        106.0,
        "critical",
        ("clock.low",),
    )
    assert (alarm.places, alarm.confidence, alarm.calls) == ((("a", 3),), 0.9, 1)


def test_a_finding_that_reopens_calls_again():
    """A relapse is one more call about the same finding."""
    opened = replace(FINDING, status="open")
    versions = [opened, replace(opened, status="resolved"), replace(opened, occurrences=2)]
    [alarm] = told(*((100.0 + i, version) for i, version in enumerate(versions)))
    assert alarm.calls == 2


def test_a_switch_stands_for_its_nodes():
    """A finding about a domain counts as an alarm about every node in it."""
    switch = Subject(type="switch", cluster="c", switch="leaf")
    [alarm] = told((104.0, replace(FINDING, status="open", subject=switch)))
    assert alarm.places == (("a", None), ("b", None))


def test_a_detector_on_trial_does_not_notify():
    """A finding in shadow mode is no alarm."""
    assert not told((104.0, replace(FINDING, status="open", shadow=True)))


def suspect(node, probability):
    subject = Subject(type="rank", cluster="c", node=node, gpu_index=1, job_id="job")
    return Suspect(subject=subject, probability=probability)


def test_suspects_are_kept_likeliest_first_with_the_time_they_were_sent():
    """A version with the same suspects adds nothing; what the subject shares is its group."""
    job = Subject(type="job", cluster="c", job_id="job", coords={"tp": 2, "pp": 0})
    opened = replace(FINDING, status="open", subject=job, suspects=(suspect("a", 0.2), suspect("b", 0.8)))
    later = replace(opened, suspects=(suspect("b", 1.0),))
    [alarm] = told((104.0, opened), (105.0, opened), (110.0, later))
    first, second = (("a", 1),), (("b", 1),)
    assert alarm.suspects == (Suspects(104.0, (second, first)), Suspects(110.0, (second,)))
    assert (alarm.group, alarm.named) == ((("pp", 0), ("tp", 2)), (second,))
