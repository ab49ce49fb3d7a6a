"""The contract of node detectors, held against every member of the list, and against one more."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from detectors.changepoint.acceptance import ChangeConfig
from simulator.cluster.cluster import Cluster
from simulator.cluster.layout import ClusterSpec, one_job
from simulator.faults.fault import Fault
from slowrank.telemetry import NodeSample, encode
from slowrank.telemetry.schema import CURRENT_SAMPLE_SCHEMA, SAMPLE_SCHEMAS
from streams.config.detector_catalogue import NAMES, RULES
from streams.node import registry
from streams.node.batch import Batch, Devices, Shape
from streams.node.config import NodeConfig
from streams.node.detector import NodeDetector, Origin
from streams.node.node_block import counter_banks
from streams.pipeline import local_pipeline
from tests.streams.node.node_samples import node_sample
from tests.streams.node.toy_detector import PACKETS, ToyDetector

NODES, GPUS, SECONDS = 6, 2, 90
CONFIG = NodeConfig(change=replace(ChangeConfig(), warmup=5, baseline=20))
FAULTS = (
    Fault(kind="clock_lock", node=0, gpu=1, onset=50, magnitude=1.5),
    Fault(kind="pcie_downgrade", node=1, gpu=0, onset=20, magnitude=1.5),
    Fault(kind="ecc_storm", node=2, gpu=0, onset=20, magnitude=3.0),
    Fault(kind="gpu_lost", node=3, gpu=1, onset=40),
    Fault(kind="clock_skew", node=4, onset=30, magnitude=2.0),
    Fault(kind="job_hang", node=5, onset=60),
)


def name_of(factory):
    if isinstance(factory, partial):
        return f"{factory.func.__name__}-{factory.args[0]}"
    return factory.__name__


FACTORIES = {name_of(factory): factory for factory in registry.NODE_DETECTORS}


@pytest.fixture(params=[*FACTORIES, "ToyDetector"])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def seconds():
    """The samples of a few nodes with faults of many kinds, second by second."""
    spec = ClusterSpec(nodes=NODES, gpus=GPUS, nics=2, jobs=(one_job(NODES, GPUS),))
    found: dict[int, list[NodeSample]] = {}
    for r in Cluster(spec, seed=5, faults=FAULTS).run(SECONDS):
        if isinstance(r, NodeSample):
            found.setdefault(int(r.ts - spec.start), []).append(r)
    return [found[second] for second in sorted(found)]


class Bench:
    """Detectors up to one under test, over one block: those before it make the columns that it reads."""

    def __init__(self, name: str, size: int = NODES) -> None:
        shape = Shape(CURRENT_SAMPLE_SCHEMA, GPUS, 2)
        names = [*FACTORIES, "ToyDetector"]
        factories = {**FACTORIES, "ToyDetector": ToyDetector}
        made = [factories[n](shape, size, CONFIG) for n in names[: names.index(name) + 1]]
        assert made[-1] is not None
        self.detector: NodeDetector = made[-1]
        self.all = [d for d in made if d is not None]
        self.banks = counter_banks(self.all, shape, size)

    def update(self, rows, samples):
        devices = [Devices(s.schema, s.gpu_ids, s.nic_ids) for s in samples]
        batch = Batch(np.array(rows), np.array(rows), samples, devices)
        increases = {
            owner: bank.update(batch.rows, batch.ts, batch.part(owner).columns, batch.part(owner).there)
            for owner, bank in self.banks.items()
        }
        found = [list(d.update(batch, increases)) for d in self.all]
        assert {s.catalogue_id for _, s in found[-1]} <= NAMES
        assert {s.rule_id for _, s in found[-1]} <= RULES | {""}
        return [(samples[k].node, encode(s)) for k, s in found[-1]]


def row_of(sample):
    return int(sample.node[-1])


def whole(samples):
    """The samples that name all devices: the bench has one shape."""
    return sorted((s for s in samples if len(s.gpu_ids) == GPUS), key=row_of)


def by_node(found):
    return {node: [s for n, s in found if n == node] for node in sorted({n for n, _ in found})}


def run(bench, seconds, *, cut):
    found = []
    for samples in seconds:
        for part in cut(whole(samples)):
            if part:
                found += bench.update([row_of(s) for s in part], part)
    return by_node(found)


def test_counters_are_columns_of_the_schema(name):
    """What a detector asks for, every block with the current schema can give it."""
    detector = Bench(name).detector
    for owner, counters in detector.counters.items():
        known = {
            c.name for c in SAMPLE_SCHEMAS[CURRENT_SAMPLE_SCHEMA].block(owner).columns if c.kind == "counter"
        }
        assert set(counters) <= known


def test_batches_change_nothing(name, seconds):
    """All nodes at once, or one by one: each node gives rise to the same suspicions."""
    at_once = run(Bench(name), seconds, cut=lambda s: [s])
    assert run(Bench(name), seconds, cut=lambda s: [[one] for one in s]) == at_once


def test_a_row_that_is_free_again_is_as_new(name, seconds):
    """After restart and forget a row finds what a row of a new bench does."""
    used, new = Bench(name), Bench(name)
    run(used, seconds, cut=lambda s: [s])
    for row in range(NODES):
        for bank in used.banks.values():
            bank.forget(row)
        for detector in used.all:
            detector.restart(row)
            detector.forget(row)
    assert run(used, seconds, cut=lambda s: [s]) == run(new, seconds, cut=lambda s: [s])


def test_a_node_takes_what_was_raised_along(name, seconds):
    """Moved to another row half way, no node raises anew what is kept by its name or its devices' names."""
    here, there = Bench(name), Bench(name)
    first = run(here, seconds[:70], cut=lambda s: [s])
    for row in range(NODES):
        for detector, source in zip(there.all, here.all, strict=True):
            detector.carry(NODES - 1 - row, source, Origin(row, tuple(range(GPUS))))
    found = []
    for samples in seconds[70:]:
        part = whole(samples)[::-1]
        found += there.update([NODES - 1 - row_of(s) for s in part], part)
    raised = {s for some in first.values() for s in some if b"raise" in s}
    assert raised.isdisjoint(s for _, s in found)


def test_names_in_the_list_are_distinct():
    """Each entry is a detector of its own."""
    assert len(FACTORIES) == len(registry.NODE_DETECTORS)


def test_one_more_detector_is_one_file_and_one_line(monkeypatch):
    """A toy detector in the list finds a fault, from samples to an open finding."""
    monkeypatch.setattr(registry, "NODE_DETECTORS", (*registry.NODE_DETECTORS, ToyDetector))
    pipeline, packets, last = local_pipeline(), 0, {}
    for t in range(1000, 1120):
        packets += 5_000_000 if 1060 <= t < 1100 else 1000
        for f in pipeline.process(node_sample(t, gpus=[{}], ports=[{PACKETS: packets}], schema=2, job="j")):
            last[f.id] = f
    (finding,) = [f for f in last.values() if f.kind == "link.nic_errors"]
    assert finding.status == "open"
    assert finding.subject.node == "n"
    assert 1060 <= finding.onset <= 1062
