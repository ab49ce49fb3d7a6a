"""Counters of the second sample schema: any rise is told of the port, and nothing else of them is."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slowrank.telemetry import Suspicion
from slowrank.telemetry.columns import pack
from slowrank.telemetry.schema import MISSING_INT, SAMPLE_SCHEMAS
from streams.node.stage import NodeStage
from tests.streams.node.node_samples import node_sample

START, PORTS = 1000, 4
INTEGRITY = "nic.port.local_link_integrity_errors_total"
OVERRUN = "nic.port.excessive_buffer_overrun_errors_total"
RNR = "nic.port.rnr_nak_retry_errors_total"
METRICS = (INTEGRITY, OVERRUN, RNR)

metrics = st.sampled_from(METRICS)
readings = st.none() | st.integers(0, 2**31)


def run(metric, values, *, schema=lambda t: 2, gpus=1, job=None):
    """What is said of a node whose second port reads ``values`` second by second; the others read 0."""
    stage, found = NodeStage(), list[Any]()
    for t, value in enumerate(values):
        ports = [{metric: value if i == 1 else 0} for i in range(PORTS)]
        sample = node_sample(START + t, ports=ports, schema=schema(t), gpus=[{}] * gpus, job=job)
        found += stage.process(sample)
    return [s for s in found if isinstance(s, Suspicion) and s.kind.startswith("link.")]


@pytest.mark.parametrize(
    ("metric", "severity", "alone"),
    [(INTEGRITY, "error", True), (OVERRUN, "error", True), (RNR, "warning", False)],
)
def test_one_error_is_told_of_its_port_and_cleared(metric, severity, alone):
    """Broken ports open a finding by themselves; retries that ran out need another sign beside them."""
    found = run(metric, [7] * 20 + [8] * 120)
    raised, *later = found
    assert (raised.state, raised.kind, raised.severity) == ("raise", "link.nic_errors", severity)
    assert (raised.subject.nic, raised.ts, raised.overwhelming) == ("mlx5_1", START + 20.0, alone)
    assert raised.detector == f"counter.{metric}"
    assert [s.state for s in later] == ["clear"]


@pytest.mark.slow
@given(metrics, st.integers(0, 2**40), st.integers(1, 2**40), st.integers(1, 30))
def test_any_rise_is_told_at_once(metric, before, by, at):
    """However large the counter is and however much it rises."""
    found = run(metric, [before] * at + [before + by] * 3)
    assert [(s.state, s.ts) for s in found] == [("raise", float(START + at))]
    assert found[0].evidence[0].value == by


@given(metrics, st.lists(st.integers(0, 2**31), min_size=1, max_size=20))
def test_a_counter_that_only_goes_back_says_nothing(metric, values):
    """Resets, one after the other, are no errors; neither is a counter that stands still."""
    assert run(metric, sorted(values, reverse=True)) == []


@pytest.mark.slow
@given(metrics, readings, st.integers(1, 20))
def test_a_counter_that_is_read_once_or_never_says_nothing(metric, value, gap):
    """There is nothing to compare it with."""
    assert run(metric, [None] * gap + [value] + [None] * gap) == []


@pytest.mark.parametrize("metric", METRICS)
def test_a_rise_across_a_gap_is_a_rise(metric):
    """What was counted while nothing was read has happened all the same."""
    assert [s.ts for s in run(metric, [3, None, None, 4])] == [START + 3.0]


@pytest.mark.parametrize("metric", METRICS)
def test_a_host_without_gpus_opens_nothing(metric):
    """Unless a job runs there: links of other hosts come and go for unrelated reasons."""
    found = run(metric, [0] * 5 + [1], gpus=0)
    assert [s.overwhelming for s in found] == [False]
    with_job = run(metric, [0] * 5 + [1], gpus=0, job="job")
    assert [s.overwhelming for s in with_job] == [metric != RNR]


def test_a_link_that_was_down_for_two_seconds_opens_a_finding():
    """On a host without GPUs too, while it runs a job: the port lost its carrier and has it again."""
    found = run("nic.port.carrier_changes_total", [2] * 5 + [3, 3, 4], gpus=0, job="job")
    assert [(s.kind, s.severity, s.overwhelming, s.ts) for s in found] == [
        ("link.nic_flap", "warning", True, START + 7.0)
    ]


@given(metrics, st.lists(readings, min_size=2, max_size=10))
def test_a_record_of_the_first_schema_says_nothing_of_them(metric, values):
    """It has no such columns, whatever else its ports tell."""
    assert run(metric, values, schema=lambda t: 1) == []


@pytest.mark.parametrize("metric", METRICS)
def test_an_exporter_that_is_upgraded_and_taken_back_is_no_error(metric):
    """The counter appears as it stands, goes, and appears again: only a rise between two readings counts."""
    upgraded = run(metric, [5] * 60, schema=lambda t: 2 if 10 <= t < 30 or t >= 45 else 1)
    assert upgraded == []
    risen = run(metric, [5] * 20 + [6] * 100, schema=lambda t: 2 if t >= 10 else 1)
    assert [(s.state, s.ts) for s in risen] == [("raise", START + 20.0), ("clear", START + 109.0)]


@pytest.mark.parametrize("metric", METRICS)
def test_what_was_told_is_cleared_when_the_counter_is_gone(metric):
    """An exporter that is taken back ends what its successor had told."""
    found = run(metric, [5] * 20 + [6] * 130, schema=lambda t: 2 if t < 30 else 1)
    assert [s.state for s in found] == ["raise", "clear"]


def test_old_rules_count_on_when_the_schema_changes():
    """What they have counted is kept by their number, which is the same in every schema."""
    downed, stage, found = "nic.port.link_downed_total", NodeStage(), list[Any]()
    for t in range(120):
        ports = [{downed: (t >= 20) + (t >= 80)} if i == 1 else {downed: 0} for i in range(PORTS)]
        found += stage.process(node_sample(START + t, gpus=[{}], ports=ports, schema=2 if t >= 40 else 1))
    flaps = [s for s in found if isinstance(s, Suspicion) and s.kind == "link.nic_flap"]
    assert [(s.ts, s.severity) for s in flaps if s.state == "raise"] == [
        (START + 20.0, "warning"),
        (START + 80.0, "error"),
    ]


def test_missing_is_no_number():
    """What stands for "not read" in the new columns is what stands for it in every counter."""
    block = SAMPLE_SCHEMAS[2].nic
    assert {c.dtype for c in block.columns if c.name in METRICS} == {"<i8"}
    assert pack(block, [{}])[-8:] == MISSING_INT.to_bytes(8, "little", signed=True)


def test_rules_of_one_counter_are_cleared_independently():
    """A port that goes down twice within five minutes stays an error when no link was lost for a minute."""
    found = run("nic.port.link_downed_total", [0] * 5 + [1] * 75 + [2] * 120)
    state = {s.detector: (s.state, s.severity) for s in found}
    assert sorted(state.values()) == [("clear", "warning"), ("update", "error")]
