"""Ports in which data waits: one alone is slow, several are the network's or the job's business."""

import math
from typing import Any

import numpy as np
import pytest

from simulator.cluster.cluster import Cluster
from simulator.cluster.layout import ClusterSpec, one_job
from simulator.faults.fault import Fault
from slowrank.telemetry import Suspicion
from streams.node.stage import NodeStage
from streams.pipeline import local_pipeline
from tests.streams.node.node_samples import node_sample

START, SLOW = 1000, 1100
USUAL_TICKS = 20_000


def record(t, ticks, moved, *, job="j", width=16):
    """A sample of the first schema; the counters of the ports stand at ``ticks`` and ``moved``."""
    ports = [
        {
            "nic.port.xmit_wait_ticks_total": None if math.isnan(wait) else int(wait),
            "nic.port.tx_bytes_total": int(total),
        }
        for wait, total in zip(ticks, moved, strict=True)
    ]
    gpu = {"gpu.pcie.link_width": width, "gpu.pcie.link_width_max": 16}
    return node_sample(t, ports=ports, gpus=[gpu], job=job)


def run(waits, *, ports=4, job=lambda t: "j", width=lambda t: 16, sent=5e9):
    """What is said of the ports of a node in which data waits ``waits(t, i)`` times as long as usual."""
    stage, rng = NodeStage(), np.random.default_rng(4)
    found: list[Any] = []
    ticks, moved = np.zeros(ports), np.zeros(ports)
    for t in range(START, START + 300):
        ticks += [USUAL_TICKS * waits(t, i) * rng.lognormal(0, 0.3) for i in range(ports)]
        moved += sent
        found += stage.process(record(t, ticks, moved, job=job(t), width=width(t)))
    return [s for s in found if isinstance(s, Suspicion) and s.kind == "link.nic_slow"]


def one(t, i):
    return 30.0 if i == 1 and SLOW <= t < SLOW + 100 else 1.0


@pytest.mark.parametrize("ports", [2, 4, 8])
def test_a_port_that_waits_alone_is_suspected_and_convicted_when_it_lasts(ports):
    """Suspected within fifteen seconds, told as a warning within thirty-five, cleared after its end."""
    found = run(one, ports=ports)
    raised = [s for s in found if s.state == "raise"]
    assert [(s.subject.nic, s.overwhelming, s.severity) for s in raised] == [
        ("mlx5_1", False, "warning"),
        ("mlx5_1", True, "warning"),
    ]
    assert all(SLOW <= s.onset <= SLOW + 5 for s in raised)
    assert raised[0].ts <= SLOW + 15
    assert raised[1].ts <= SLOW + 35
    assert [s.state for s in found].count("clear") == 2


@pytest.mark.parametrize(
    "waits",
    [
        lambda t, i: 1.0,
        lambda t, i: 30.0 if t >= SLOW else 1.0,
        lambda t, i: 30.0 if t >= SLOW and i < 2 else 1.0,
        lambda t, i: 5.0 if t >= SLOW and i == 1 else 1.0,
        lambda t, i: 30.0 if i == 1 else 1.0,
        lambda t, i: 30.0 if i == 1 and t % 30 < 5 else 1.0,
        lambda t, i: math.nan if i == 1 and t >= SLOW else 1.0,
    ],
    ids=["healthy", "all", "two", "a little", "always", "bursts", "not read"],
)
def test_what_is_no_slow_port_is_silent(waits):
    """Congestion, a busier job, a port that always waited, colliding flows and gaps name nobody."""
    assert run(waits) == []


def test_a_port_that_never_waited_must_wait_for_long_to_count():
    """From nothing to a few thousand ticks a second is nothing; to a million it is a slow port."""

    def from_zero(ticks):
        return lambda t, i: ticks / USUAL_TICKS if i == 1 and t >= SLOW else 0.0

    assert run(from_zero(5e3)) == []
    assert {s.subject.nic for s in run(from_zero(1e6))} == {"mlx5_1"}


@pytest.mark.slow
def test_what_has_another_reason_is_no_slow_port():
    """Without a job, behind a narrow PCIe link, in the first minute of a job, or with nothing to send."""
    assert run(one, job=lambda t: None) == []
    assert run(one, width=lambda t: 4 if t >= SLOW else 16) == []
    assert run(one, job=lambda t: "next" if t >= SLOW else "j") == []
    assert run(one, sent=1e5) == []


def test_a_counter_that_starts_anew_is_no_wait():
    """A reset, and a minute in which the node says nothing, are gaps."""
    stage = NodeStage()
    found: list[Any] = []
    for t in (*range(START, SLOW + 50), *range(SLOW + 110, SLOW + 200)):
        ticks = np.full(4, USUAL_TICKS * t, dtype=float)
        ticks[1] -= USUAL_TICKS * (START if t < SLOW else SLOW)
        found += stage.process(record(t, ticks, np.full(4, 5e9 * t)))
    assert [s for s in found if isinstance(s, Suspicion) and s.kind == "link.nic_slow"] == []


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("nic_slow", {("link.nic_slow", "sim-0002")}),
        ("link_errors", {("link.nic_errors", "sim-0002")}),
        ("pcie_downgrade", {("link.pcie_downgrade", "sim-0002")}),
        ("congestion", set()),
    ],
)
def test_of_links_the_right_thing_is_told(kind, expected):
    """A slow port without errors is named; errors, a narrow bus and congestion are told as what they are."""
    size = 6.0 if kind == "pcie_downgrade" else 2.0
    fault = Fault(kind=kind, node=2, gpu=1, onset=100.0, magnitude=size)
    spec = ClusterSpec(nodes=4, gpus=4, nics=2, jobs=(one_job(4, 4),))
    pipeline = local_pipeline()
    found = [f for r in Cluster(spec, seed=5, faults=[fault]).run(200.0) for f in pipeline.process(r)]
    last = {f.id: f for f in found}.values()
    told = {(f.kind, f.subject.node) for f in last if f.status == "open" and f.group_key is None}
    assert {(k, n) for k, n in told if k.startswith("link.")} == expected
