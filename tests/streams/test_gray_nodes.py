"""Nodes with several weak signs, on simulated telemetry."""

from functools import cache

import pytest

from simulator import Cluster, ClusterSpec, Fault, JobSpec
from slowrank.telemetry import NodeSample
from streams.gray_nodes import FEATURES, GrayNodes, fit
from streams.replay import as_ndjson, final_versions, findings_of
from streams.stage import Output
from streams.topology import local_pipeline

pytest.importorskip("sklearn")
NODES = 12
SPEC = ClusterSpec(nodes=NODES, gpus=8, nics=2, send_seconds=10.0, jobs=(JobSpec(dp=NODES, tp=8),))


def records(seed, *, minutes, fault=None):
    return list(Cluster(SPEC, seed=seed, faults=[fault] if fault else []).run(60.0 * minutes))


@cache
def region():
    return fit(records(1, minutes=40))


class Silent:
    """A node stage that says nothing."""

    def process(self, record):
        return ()

    def tick(self, event_time):
        return ()


def told(found, *, order=lambda samples: samples):
    stage = GrayNodes(Silent(), region())
    out: list[Output] = []
    samples = [r for r in found if isinstance(r, NodeSample)]
    for start in range(0, len(samples), 50):
        for sample in order(samples[start : start + 50]):
            stage.process(sample)
        out += stage.tick(min(s.ts for s in samples[start : start + 50]))
    return out + list(stage.tick(samples[-1].ts + 120.0))


FAULT = Fault(kind="host_contention", node=4, onset=300.0, magnitude=1.5, duration=600.0)


@pytest.mark.slow
def test_a_node_with_weak_signs_is_suspected_and_cleared():
    """A busy host is told from its peers after three minutes, corroborates only, and ends with its signs."""
    found = told(records(7, minutes=22, fault=FAULT))
    assert {(s.kind, s.subject.node) for s in found} == {("gray.node", SPEC.node_name(4))}
    assert [s.state for s in found if s.state != "update"] == ["raise", "clear"]
    first = found[0]
    assert (first.overwhelming, first.severity, first.log_likelihood_ratio) == (False, "warning", 1.0)
    assert SPEC.start + 240 <= first.onset <= SPEC.start + 360
    assert first.ts <= SPEC.start + 300 + 5 * 60
    assert first.evidence[0].metric in FEATURES
    assert "model" in first.evidence[0].note


@pytest.mark.slow
def test_healthy_nodes_are_left_alone():
    """An hour of another healthy cluster gives nothing."""
    assert told(records(8, minutes=60)) == []


@pytest.mark.slow
def test_the_order_within_a_few_seconds_changes_nothing():
    """Samples of different nodes may overtake each other."""
    found = records(7, minutes=12, fault=FAULT)
    shuffled = told(found, order=lambda samples: sorted(samples, key=lambda s: (s.node, s.ts)))
    assert shuffled == told(found)


@pytest.mark.slow
def test_a_pipeline_with_the_region_opens_nothing_by_it_alone():
    """It speaks through the finding stage like any other detector, and nothing else changes."""
    found = records(8, minutes=12)
    with_region = local_pipeline(gray=region())
    assert as_ndjson(final_versions(findings_of(found, with_region))) == as_ndjson(
        final_versions(findings_of(found, local_pipeline()))
    )
