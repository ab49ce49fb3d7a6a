"""How many cases one scope holds, whatever names its suspicions bring."""

from alerts.config import FindingConfig
from alerts.scope import MAX_CASES, Scope, advance, apply
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


def gpus(scope):
    return {case.subject.gpu_index for case in scope.cases.values()}


def test_a_full_scope_hears_on_of_the_cases_it_has():
    """Of more GPUs than any node has those that came first are kept, and go on being heard."""
    scope = apply(Scope(), [xid(gpu, 0.0) for gpu in range(MAX_CASES)], CONFIG)
    scope = apply(scope, [xid(MAX_CASES, 10.0), xid(3, 10.0)], CONFIG)
    assert gpus(scope) == set(range(MAX_CASES))
    assert {c.last_seen_at for c in scope.cases.values() if c.subject.gpu_index == 3} == {T0 + 10.0}


def test_what_has_ended_makes_room():
    """Of a full scope the case that ended first is forgotten when another comes."""
    scope = apply(Scope(), [xid(gpu, 0.0) for gpu in range(MAX_CASES)], CONFIG)
    for gpu, at in ((7, 1.0), (5, 2.0)):
        scope = apply(scope, [xid(gpu, at, "clear")], CONFIG)
    *_, (_, scope) = advance(scope, T0 + 1000.0, CONFIG, inclusive=True)
    scope = apply(scope, [xid(MAX_CASES, 1001.0)], CONFIG)
    assert gpus(scope) == {*range(MAX_CASES), MAX_CASES} - {7}
