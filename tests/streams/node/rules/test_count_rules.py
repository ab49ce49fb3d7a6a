"""Every row of the counter tables: its count within its window is met, and nothing less."""

from typing import Any

import pytest

from slowrank.telemetry import Suspicion
from streams.node.rules.counter_rules import GPU_COUNTS, HOST_COUNTS, NIC_COUNTS
from streams.node.stage import NodeStage
from tests.streams.node.node_samples import node_sample

START, DEVICES, SCHEMA = 1000.0, 5, 2
ROWS = [
    pytest.param(owner, rule, id=f"{rule.metric} {rule.count:g} in {rule.window:g} s")
    for owner, rules in (("gpu", GPU_COUNTS), ("nic", NIC_COUNTS), ("host", HOST_COUNTS))
    for rule in rules
]


def sample(seq, ts, owner, metric, value, siblings=None):
    """A node in a job; of the owner's devices the second reads ``value``, the others 0 and ``siblings``."""
    many = {"gpu": DEVICES, "nic": DEVICES, "host": 1}
    rows = {part: [dict[str, float | None]() for _ in range(n)] for part, n in many.items()}
    for i, row in enumerate(rows[owner]):
        named = i == min(1, len(rows[owner]) - 1)
        row |= {metric: value} if named else {metric: 0} | (siblings or {})
    [host] = rows["host"]
    return node_sample(ts, gpus=rows["gpu"], ports=rows["nic"], host=host, schema=SCHEMA, job="j", seq=seq)


def met(owner, rule, *readings, siblings=None):
    """The devices of which the row is met when its counter reads so much at such seconds; what the
    ``siblings`` read is the same, or by reading."""
    stage, found = NodeStage(), list[Any]()
    for seq, (seconds, value) in enumerate(readings):
        beside = siblings[seq] if isinstance(siblings, list) else siblings
        found += stage.process(sample(seq, START + seconds, owner, rule.metric, value, beside))
    named = f"in {rule.window:g} s, threshold"
    return [
        s.subject.nic or s.subject.gpu_index or s.subject.node
        for s in found
        if isinstance(s, Suspicion) and s.state == "raise" and s.rule_id == f"counter.{rule.metric}"
        if s.kind == rule.symptom.kind and s.severity == rule.symptom.severity
        if s.evidence[0].note.startswith(named)
    ]


@pytest.mark.parametrize(("owner", "rule"), ROWS)
def test_its_count_within_its_window_names_the_device(owner, rule):
    """All at once, and in two parts within the window."""
    device = {"gpu": 1, "nic": "mlx5_1", "host": "n"}[owner]
    assert met(owner, rule, (0, 7), (1, 7 + rule.count)) == [device]
    if rule.count > 1:
        assert met(owner, rule, (0, 7), (1, 7 + rule.count - 1), (2, 7 + rule.count)) == [device]


@pytest.mark.parametrize(("owner", "rule"), ROWS)
def test_one_less_or_later_than_its_window_is_nothing(owner, rule):
    """A count that begins to leave the window before it is complete is not met."""
    assert met(owner, rule, (0, 7), (1, 7 + rule.count - 1)) == []
    if rule.count > 1:
        before, last = 7 + rule.count - 1, 1 + rule.window + 1
        assert met(owner, rule, (0, 7), (1, before), (last - 2, before), (last, before + 1)) == []


@pytest.mark.parametrize("rest", [{"gpu.utilization_ratio": 0.0}, {"gpu.throttle_reasons": 1}])
def test_a_gpu_at_its_power_limit_stands_out_only_among_gpus_at_work(rest):
    """One that works alone reaches its limit, and its idle siblings do not, without any fault."""
    [rule] = [rule for rule in GPU_COUNTS if rule.metric == "gpu.throttle.power_nanoseconds_total"]
    readings = ((0, 7), (1, 7 + rule.count))

    assert met("gpu", rule, *readings, siblings=rest) == []
    assert met("gpu", rule, *readings, siblings={"gpu.utilization_ratio": 0.9}) == [1]


@pytest.mark.parametrize(("count", "expected"), [(2, []), (20, ["mlx5_1"])])
def test_what_all_ports_show_now_and_then_accuses_none(count, expected):
    """Out of sequence come packets that take several paths: what is usual is what the other ports show."""
    [rule] = [rule for rule in NIC_COUNTS if rule.usual is not None]
    readings = ((0, 7), (100, 7), (1000, 7), (1001, 7 + count))
    beside = [{rule.metric: value} for value in (0, 1, 1, 1)]

    assert met("nic", rule, *readings, siblings=beside) == expected
    assert met("nic", rule, *readings) == ["mlx5_1"]
