"""Announcements of nodes to the cluster stage."""

import msgspec

from slowrank.telemetry import NodeSample
from streams.node.inventory import NodeAnnouncer
from streams.suspicions import Location


def announced(*seen):
    """Return time, job, GPUs and ports of what (time, job) of one node is announced as."""
    node = NodeSample(
        schema=1, cluster="c", node="n", boot_id="b", seq=1, ts=0.0, gpu_ids=("0", "1"), nic_ids=("m/1",)
    )
    announcer = NodeAnnouncer()
    samples = [msgspec.structs.replace(node, ts=ts, job_id=job) for ts, job in seen]
    found = [a for sample in samples for a in announcer.update(sample, Location.of(sample))]
    return [(a.ts, a.job_id, a.gpus, a.ports) for a in found]


def test_boards_are_announced_when_named_and_hold_until_others_are():
    """A sample that names none leaves them as they are; a swapped board is announced at once."""
    announcer, found = NodeAnnouncer(), []
    for ts, labels in enumerate([{}, {"gpu.0": "GPU-a/1"}, {"rack": "r"}, {"gpu.0": "GPU-b/2"}]):
        sample = NodeSample(
            schema=1, cluster="c", node="n", boot_id="b", seq=ts, ts=600.0 + ts, labels=labels
        )
        found += [a.boards for a in announcer.update(sample, Location.of(sample))]
    assert found == [{}, {"0": "GPU-a/1"}, {"0": "GPU-a/1"}, {"0": "GPU-b/2"}]


def test_a_node_is_announced_with_its_devices_and_again_with_another_job():
    """Not for a job that it stops naming for a while."""
    said = announced((600.0, "a"), (601.0, "a"), (602.0, None), (603.0, "a"), (604.0, "b"))
    assert said == [(600.0, "a", 2, 1), (604.0, "b", 2, 1)]
