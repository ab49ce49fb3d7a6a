"""However the records of a fleet are cut into batches and interleaved, every node says the same."""

import random
from typing import Any

import msgspec
import pytest

from simulator.cluster.cluster import Cluster
from simulator.cluster.layout import ClusterSpec, one_job
from simulator.faults.fault import Fault
from slowrank.telemetry import NodeEvent, NodeSample, Record, Suspicion, encode
from slowrank.telemetry.columns import pack
from slowrank.telemetry.schema import GPU_V1, NIC_V1, SAMPLE_SCHEMAS
from streams.columns import spread
from streams.node.batching import BatchBySecond
from streams.node.config import NodeConfig
from streams.node.node_table import SPARE_DEVICES, NodeTable
from streams.node.stage import NodeStage

SECONDS = 240
START = ClusterSpec().start
FAULTS = (
    Fault(kind="clock_lock", node=0, gpu=3, onset=120, duration=80, magnitude=1.3),
    Fault(kind="thermal_throttle", node=1, gpu=1, onset=130, magnitude=1.3),
    Fault(kind="pcie_downgrade", node=2, gpu=5, onset=100, magnitude=1.3),
    Fault(kind="nic_flap", node=3, gpu=2, onset=110, period=40, shape="square", magnitude=1.3),
    Fault(kind="ecc_storm", node=4, gpu=0, onset=90, magnitude=3.0),
    Fault(kind="gpu_lost", node=5, gpu=7, onset=140),
    Fault(kind="nic_slow", node=6, gpu=1, onset=90, magnitude=3.0),
    Fault(kind="job_hang", node=6, onset=200),
)


def without(sample, gpus=0, nics=0):
    """The sample of a node that has fewer devices."""
    g, n = len(sample.gpu_ids), len(sample.nic_ids)
    kept = slice(0, g - gpus), slice(0, n - nics)
    return msgspec.structs.replace(
        sample,
        gpu_ids=sample.gpu_ids[kept[0]],
        nic_ids=sample.nic_ids[kept[1]],
        gpu=_fewer(GPU_V1, sample.gpu, g, g - gpus),
        nic=_fewer(SAMPLE_SCHEMAS[sample.schema].nic, sample.nic, n, n - nics),
    )


def _fewer(block, data, n, left):
    parts, offset = [], 0
    for column in block.columns:
        size = 4 if column.dtype == "<f4" else 8
        parts.append(data[offset : offset + left * size])
        offset += n * size
    return b"".join(parts)


@pytest.fixture(scope="module")
def records():
    """Ten nodes of one job with all kinds of faults; devices, boots, jobs and clocks of some change."""
    spec = ClusterSpec(nodes=10, jobs=(one_job(10, 8),), send_seconds=1.0)
    kept = []
    for r in Cluster(spec, seed=3, faults=FAULTS).run(SECONDS):
        if not isinstance(r, NodeSample | NodeEvent):
            continue
        t, replaced = r.ts - START, r
        if isinstance(r, NodeSample):
            replaced = changed(r, t)
        kept.append(replaced)
        if len(kept) % 37 == 0:
            kept += [kept[-1], kept[max(0, len(kept) - 60)]]
    return kept


def changed(sample, t):
    node = int(sample.node[-1])
    if node == 4:
        return msgspec.structs.replace(sample, gpu_ids=tuple(f"GPU-{i}-of-four" for i in range(8)))
    if node == 7 and t < 100:
        return without(sample, gpus=2, nics=1)
    if node == 8 and t >= 150:
        fewer = without(sample, gpus=4) if t < 190 else sample
        return msgspec.structs.replace(fewer, boot_id="again", job_id=None if t > 170 else "other")
    if node == 9 and t > 120:
        return msgspec.structs.replace(sample, host=b"" if t % 50 > 40 else sample.host, ts=sample.ts - 0.4)
    return sample


def one_by_one(records):
    stage = NodeStage()
    return [s for r in records for s in stage.process(r)]


def is_silence(message):
    return isinstance(message, Suspicion) and message.detector.startswith("silence")


def canonical(found):
    """What each node said, in its order."""
    by_node: dict[str, list[bytes]] = {}
    for s in found:
        by_node.setdefault(s.subject.node, []).append(encode(s))
    return by_node


@pytest.fixture(scope="module")
def expected(records):
    return one_by_one(records)


def test_nodes_share_pages_whatever_their_devices_are_called(records):
    """GPUs named by their UUIDs differ on every node, and are handled with the others."""
    fleet = NodeTable(NodeConfig())
    first = {r.node: r for r in records if isinstance(r, NodeSample) and r.ts < START + 1}
    fleet.update(list(first.values()))
    assert sorted(len(blocks) for blocks in fleet.blocks.values()) == [1, 1]


@pytest.mark.slow
def test_the_records_give_something_to_say(expected):
    """The properties below would prove nothing on silence."""
    suspicions = [s for s in expected if isinstance(s, Suspicion)]
    kinds = {s.kind for s in suspicions}
    assert {"clock.low", "throttle.thermal", "link.pcie_downgrade", "link.nic_flap", "xid.79"} <= kinds
    assert {"ecc.correctable_rate", "hang.job", "link.nic_slow"} <= kinds
    assert {s.state for s in suspicions} == {"raise", "update", "clear"}


@pytest.mark.parametrize("seed", range(2))
def test_batches_of_any_size_say_the_same_in_the_same_order(records, expected, seed):
    """Cut anywhere, from single records to many seconds of all nodes."""
    rng, stage, found, at = random.Random(seed), NodeStage(), [], 0
    while at < len(records):
        size = rng.choice([1, 2, 7, 10, 64, 300])
        found += stage.process_many(records[at : at + size])
        at += size
    assert found == expected
    assert stage.ignored["late"] + stage.ignored["duplicate"] > 50


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_nodes_may_be_interleaved_in_any_way(records, expected, seed):
    """Whatever records of other nodes come between, and however they are cut."""
    rng = random.Random(seed)
    queues: dict[str, list[Record]] = {}
    for r in records:
        queues.setdefault(r.node, []).append(r)
    mixed = []
    while queues:
        node = rng.choice(sorted(queues))
        count = rng.choice([1, 3, 40])
        mixed += queues[node][:count]
        del queues[node][:count]
        queues = {n: q for n, q in queues.items() if q}
    stage, found = NodeStage(), []
    for at in range(0, len(mixed), 50):
        found += stage.process_many(mixed[at : at + 50])
    assert canonical(found) == canonical(expected)


@pytest.mark.slow
def test_gathered_until_the_tick_they_say_the_same(records, expected):
    """What the runners do: every sample waits for the next tick, and events do not."""
    stage = BatchBySecond(NodeStage())
    found: list[Any] = []
    for n, r in enumerate(records):
        found += stage.process(r)
        if n % 23 == 0:
            found += [s for s in stage.tick(0.0) if not is_silence(s)]
    found += stage.tick(0.0)

    def of_events(messages):
        return [s for s in messages if isinstance(s, Suspicion) and s.detector.startswith("event.")]

    events = of_events(expected)
    assert of_events(found) == events
    assert canonical(s for s in found if s not in events) == canonical(s for s in expected if s not in events)


def test_devices_that_are_not_there_read_as_missing(records):
    """A sample of fewer devices, laid over the slots of more, leaves the others unread."""
    sample = next(r for r in records if isinstance(r, NodeSample) and len(r.gpu_ids) == 6)
    assert without(sample, gpus=1).gpu == _fewer(GPU_V1, spread(GPU_V1, sample.gpu, range(6), 8), 8, 5)


def test_devices_that_come_and_go_take_no_lasting_room():
    """A node that names other interfaces in every record has slots for the last of them, in one block."""
    fleet = NodeTable(NodeConfig(level_changes=False))
    for t in range(100):
        names = tuple(f"veth{t}-{i}" for i in range(4))
        data = bytes(len(names) * NIC_V1.row_size)
        sample = NodeSample(
            schema=1, cluster="c", node="n", boot_id="b", seq=t, ts=START + t, nic_ids=names, nic=data
        )
        fleet.update([sample])
    ((shape, blocks),) = fleet.blocks.items()
    assert len(blocks) == 1
    assert shape.nics <= 4 * 2 + SPARE_DEVICES


@pytest.mark.parametrize("schemas", [sorted(SAMPLE_SCHEMAS), sorted(SAMPLE_SCHEMAS, reverse=True)])
def test_a_node_goes_on_when_its_exporter_is_of_another_version(schemas):
    """An upgrade of the exporter, or the way back, is no reboot: the node moves to a block of that schema."""
    fleet = NodeTable(NodeConfig())
    for t, schema in enumerate(n for n in schemas for _ in range(3)):
        layout = SAMPLE_SCHEMAS[schema]
        sample = NodeSample(
            schema=schema,
            cluster="c",
            node="n",
            boot_id="b",
            seq=t,
            ts=START + t,
            gpu_ids=("g",),
            gpu=pack(layout.gpu, [{}]),
            host=pack(layout.host, [{}]),
        )
        fleet.update([sample])
        assert {shape.schema for shape in fleet.blocks} == {schema}


def test_pages_of_departed_nodes_are_given_back():
    """When all nodes of a shape have left, nothing of it is kept."""
    fleet = NodeTable(NodeConfig(level_changes=False))
    for n in range(1, 40):
        names = tuple(str(i) for i in range(n))
        data = bytes(n * GPU_V1.row_size)
        sample = NodeSample(
            schema=1, cluster="c", node=f"n{n}", boot_id="b", seq=0, ts=START + n, gpu_ids=names, gpu=data
        )
        fleet.update([sample])
    fleet.forget(START + 30)
    assert {shape.gpus for shape in fleet.blocks} == set(range(30, 40))
