"""Low clocks that all GPUs of a node share, beside the job's other nodes."""

import random

import msgspec
import pytest

from slowrank.telemetry import LoadedMinute, Subject
from streams.cluster.shared_clocks import SharedClocks
from streams.cluster.stage import FindingStage
from streams.config.toml_file import tuning_of
from tests.streams.cluster.test_stage import slow

T0 = 1_795_160_040.0
LOCKED = {"clock_hz": 1.2e9, "held_by": "nothing"}
LOWER_LIMIT = {"clock_hz": 1.3e9, "limit_watts": 400.0}


def minute(at, node, **changes):
    start = T0 + 60 * at
    usual = LoadedMinute(
        cluster="c",
        node=node,
        job_id="j",
        start=start,
        since=start + 2,
        ts=start + 70,
        model="NVIDIA H100",
        clock_hz=1.98e9,
        utilization_ratio=0.97,
        limit_watts=700.0,
        held_by="power_cap",
    )
    return msgspec.structs.replace(usual, **changes)


def fleet(minutes, odd, *, nodes=4, since=0, others=None, odd_nodes=1):
    """The minutes of a job of which node n0, or several, are ``odd`` from one of them on."""
    return [
        minute(at, f"n{i}", **((odd if i < odd_nodes else others or {}) if at >= since else {}))
        for at in range(minutes)
        for i in range(nodes)
    ]


def found(minutes, *, until=60):
    """What is found: the minute of event time, state, kind, node, and whether it is a finding by itself."""
    clocks, out = SharedClocks(), []
    for m in minutes:
        clocks.update(m)
    for at in range(1, until):
        out += [(at, s) for s in clocks.due(T0 + 60 * at + 10)]
    return [(at, s.state, s.kind, s.subject.node, s.overwhelming) for at, s in out]


def findings(minutes, *, until=600):
    """The versions of the findings that they alone make."""
    stage = FindingStage()
    for m in minutes:
        stage.process(m)
    return [f for second in range(0, until, 10) for f in stage.tick(T0 + second)]


def kinds(minutes):
    return sorted({(kind, node, alone) for _, _, kind, node, alone in found(minutes)})


def test_a_clock_that_a_node_has_locked_is_evidence_and_then_a_finding():
    """After two minutes evidence, after three a finding; cleared after two minutes as usual."""
    minutes = [*fleet(4, LOCKED), *(minute(at, f"n{i}") for at in (4, 5, 6) for i in range(4))]
    assert found(minutes) == [
        (2, "raise", "clock.low", "n0", False),
        (3, "update", "clock.low", "n0", True),
        (4, "update", "clock.low", "n0", True),
        (6, "clear", "clock.low", "n0", True),
    ]


def test_it_is_dated_by_the_first_sample_of_the_first_low_minute():
    """The others are its evidence."""
    clocks = SharedClocks()
    for m in fleet(5, LOCKED, since=2):
        clocks.update(m)
    first, *_ = clocks.due(T0 + 1000)
    assert (first.onset, first.onset_hi) == (T0 + 122, T0 + 182)
    [evidence] = first.evidence
    assert (evidence.metric, evidence.value) == ("gpu.clock.sm_hz", 1.2e9)
    assert evidence.peers is not None
    assert (evidence.peers.n, evidence.peers.median, evidence.peers.rank_of_subject) == (3, 1.98e9, 1)


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        (LOCKED, ("clock.low", True)),
        (LOCKED | {"clock_hz": 1.8e9}, ("clock.low", False)),
        (LOWER_LIMIT, ("throttle.power_limit", True)),
        (LOWER_LIMIT | {"held_by": "unknown"}, ("throttle.power_limit", True)),
        (LOWER_LIMIT | {"clock_hz": 1.8e9}, ("throttle.power_limit", False)),
        (LOWER_LIMIT | {"held_by": "thermal"}, ("throttle.thermal", True)),
        (LOCKED | {"held_by": "power_brake"}, ("throttle.power", True)),
        (LOCKED | {"held_by": "slowdown"}, ("throttle.hw_slowdown", True)),
        # Heavier work explains a low clock at the same limit, and another model one of unknown reason.
        (LOCKED | {"held_by": "power_cap"}, ("throttle.power", False)),
        (LOCKED | {"held_by": "unknown"}, ("clock.low", False)),
    ],
)
def test_the_kind_says_what_holds_the_clocks_down(odd, expected):
    """Far below it is a finding by itself, else evidence beside slow steps."""
    kind, alone = expected
    assert {k for k, _, _ in kinds(fleet(5, odd))} == {kind}
    assert any(a for _, _, a in kinds(fleet(5, odd))) == alone
    assert {n for _, n, _ in kinds(fleet(5, odd))} == {"n0"}


@pytest.mark.parametrize(
    ("odd", "others", "nodes"),
    [
        ({}, {}, 4),
        (LOCKED, {}, 3),
        ({"clock_hz": 1.93e9, "held_by": "nothing"}, {}, 4),
        ({"clock_hz": 1.86e9, "held_by": "power_cap"}, {}, 4),
        (LOCKED | {"model": "NVIDIA A100"}, {}, 8),
        (LOCKED | {"job_id": "k"}, {}, 8),
        (LOCKED | {"cluster": "d"}, {}, 8),
        (LOCKED | {"utilization_ratio": 0.8}, {}, 4),
        (LOCKED, LOCKED, 8),
        ({"limit_watts": 400.0}, {}, 4),
    ],
)
def test_healthy_nodes_are_not_accused(odd, others, nodes):
    """Too few others, small differences, another model, job or work, all alike, a limit without effect."""
    assert found(fleet(6, odd, nodes=nodes, others=others)) == []


@pytest.mark.parametrize(
    ("odd", "kind", "alone"),
    [
        ({"clock_hz": 0.79 * 1.98e9, "limit_watts": 500.0}, "throttle.power_limit", False),
        (LOCKED, "clock.low", False),
        (LOCKED | {"held_by": "thermal"}, "throttle.thermal", True),
    ],
)
def test_what_several_nodes_may_have_been_set_to_is_evidence_only(odd, kind, alone):
    """A lower limit or a lock of four nodes of sixteen explains slow steps; heat is a fault of each."""
    minutes = fleet(6, odd, nodes=16, odd_nodes=4)
    assert {(k, n) for k, n, _ in kinds(minutes)} == {(kind, f"n{i}") for i in range(4)}
    assert any(a for *_, a in kinds(minutes)) == alone
    assert {f.kind for f in findings(minutes) if f.status == "open"} == ({kind} if alone else set())


def test_a_power_limit_that_was_not_read_is_no_higher_one():
    """The node's clock is low, and its limit is compared with none."""
    limits = dict(zip((f"n{i}" for i in range(6)), (600.0, 600.0, 600.0, 700.0, 0.0, 0.0), strict=True))
    minutes = [msgspec.structs.replace(m, limit_watts=limits[m.node]) for m in fleet(6, LOCKED, nodes=6)]
    assert {kind for kind, *_ in kinds(minutes)} == {"clock.low"}


def test_without_a_known_model_it_is_evidence_only():
    """GPUs of two models may be in one job."""
    assert kinds(fleet(6, LOCKED | {"model": ""}, others={"model": ""})) == [("clock.low", "n0", False)]


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        (LOCKED, [("clock.low", "n0", False)]),
        (LOWER_LIMIT, [("throttle.power_limit", "n0", False)]),
        (LOCKED | {"held_by": "power_cap"}, []),
        (LOCKED | {"held_by": "unknown"}, []),
        (LOCKED | {"model": ""}, []),
    ],
)
def test_nodes_that_name_no_job_may_do_other_work(odd, expected):
    """What heavier work or another model may explain is nothing, and the rest evidence only."""
    others = {"job_id": None, "model": odd.get("model", "NVIDIA H100")}
    assert kinds(fleet(6, odd | others, others=others)) == expected


def test_single_minutes_are_nothing():
    """A clock that is low now and then is none of a lock."""
    minutes = [
        minute(at, f"n{i}", **(LOCKED if i == 0 and at % 2 else {})) for at in range(9) for i in range(4)
    ]
    assert found(minutes) == []


def test_another_job_on_the_node_or_none_ends_it():
    """At once with the next job's first minute; else five minutes after the last that could be compared."""
    before = fleet(3, LOCKED)
    other = [minute(3, f"n{i}", job_id="k") for i in range(4)]
    assert [(at, state) for at, state, *_ in found([*before, *other])][-1] == (4, "clear")
    assert [(at, state) for at, state, *_ in found(before)] == [(2, "raise"), (3, "update"), (8, "clear")]


def test_order_and_repeats_change_nothing():
    """A minute may come in any order until it is due; later it is too late."""
    minutes = fleet(6, LOCKED, since=1)
    mixed = [*minutes, *minutes[:7]]
    random.Random(3).shuffle(mixed)
    assert found(mixed) == found(minutes)
    clocks = SharedClocks()
    assert list(clocks.due(T0 + 600)) == []
    for m in minutes:
        clocks.update(m)
    assert list(clocks.due(T0 + 900)) == []


@pytest.mark.parametrize(("odd", "cause"), [(LOCKED, "clock.low"), (LOWER_LIMIT, "throttle.power_limit")])
def test_it_explains_a_node_that_is_slow_by_step_times(odd, cause):
    """One finding about the node, opened by its steps, with the clocks as its cause."""
    node = Subject(type="node", cluster="c", node="n0", job_id="j")
    at = {"ts": T0 + 8, "onset": T0 + 2, "onset_lo": T0, "onset_hi": T0 + 4}
    stage = FindingStage()
    stage.process(msgspec.structs.replace(slow(subject=node, overwhelming=True), **at))
    versions = list(stage.tick(T0 + 10))
    for m in fleet(4, odd):
        stage.process(m)
    versions += [f for second in range(10, 300, 10) for f in stage.tick(T0 + second)]
    [last] = {f.dedup_key: f for f in versions if f.status == "open"}.values()
    assert (last.kind, last.subject.node, last.detected_at) == ("straggler.fail_slow", "n0", T0 + 8)
    causes = [f.cause.hypothesis for f in (versions[0], last) if f.cause is not None]
    assert causes == ["straggler.fail_slow", cause]


def test_it_is_switched_as_one_detector():
    """Off nothing is compared; on trial what is found is in shadow."""
    off, shadow = (
        tuning_of({"detectors": {"node_clocks": {"mode": mode}}}, file="f") for mode in ("off", "shadow")
    )
    assert [off.judged(m) for m in fleet(1, LOCKED)] == [None] * 4
    clocks = SharedClocks()
    for m in fleet(3, LOCKED):
        on_trial = shadow.judged(m)
        assert isinstance(on_trial, LoadedMinute)
        clocks.update(on_trial)
    assert [s.shadow for s in clocks.due(T0 + 200)] == [True, True]
