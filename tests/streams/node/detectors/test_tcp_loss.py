"""Nodes that lose TCP segments: samples with counters in, open findings out."""

import msgspec
import pytest

from simulator.cluster.cluster import Cluster
from simulator.cluster.layout import ClusterSpec
from slowrank.telemetry import NodeSample
from slowrank.telemetry.columns import pack, unpack
from slowrank.telemetry.schema import SAMPLE_SCHEMAS
from streams.config.toml_file import tuning_of
from streams.pipeline import local_pipeline

NAMES = ("sent", "received", "retransmitted", "out_of_order")
HEALTHY = (2000, 2000, 0, 0)
ONSET, SECONDS, NODE = 20, 120, "sim-0001"


def opened(rates, until=SECONDS, tuning=None, sends=True):
    """Return (kind, node) -> seconds since onset; one node has ``rates`` of segments a second.

    ``sends``: whether its samples arrive meanwhile.
    """
    cluster = Cluster(ClusterSpec(nodes=3, gpus=1, nics=1), seed=4)
    pipeline, counts = local_pipeline(tuning), dict[str, list[float]]()
    found = dict[tuple[str, str | None], float]()
    begun = cluster.spec.start + ONSET
    for record in cluster.run(SECONDS):
        if isinstance(record, NodeSample):
            hit = record.node == NODE and begun < record.ts <= begun + until
            held = counts.setdefault(record.node, [10**6] * 4)
            counts[record.node] = [c + r for c, r in zip(held, rates if hit else HEALTHY, strict=True)]
            block = SAMPLE_SCHEMAS[record.schema].host
            (row,) = unpack(block, record.host)
            tcp = {
                f"host.tcp.{name}_segments_total": int(n)
                for name, n in zip(NAMES, counts[record.node], strict=True)
            }
            record = msgspec.structs.replace(record, host=pack(block, [row | tcp]))
            if hit and not sends:
                continue
        for f in pipeline.process(record):
            if f.status == "open":
                found.setdefault((f.kind, f.subject.node), f.detected_at - begun)
    return found


@pytest.mark.parametrize(
    ("rates", "within"),
    [
        ((2000, 2000, 60, 60), 45),
        ((2000, 2000, 21, 21), 65),
        ((2000, 2000, 19, 60), None),
        ((20, 20, 1.5, 1.5), 65),
        # Its neighbours in a ring: each shows one direction.
        ((2000, 2000, 100, 0), None),
        ((2000, 2000, 0, 100), None),
        # A node that sends almost nothing: of so few no share can be told.
        ((20, 20, 1, 1), None),
    ],
)
def test_a_node_that_loses_in_both_directions_is_named(rates, within):
    """From a hundredth on, once the window has filled; one direction alone shows at both ends."""
    found = opened(rates)
    assert found.keys() == ({("link.tcp_loss", NODE)} if within else set())
    assert all(30.0 <= delay <= within for delay in found.values())


def test_a_burst_is_no_finding():
    """Loss for ten seconds, as of an incast, has gone before it counts."""
    assert opened((2000, 2000, 60, 60), until=10) == {}


def test_loss_while_nothing_was_read_is_over():
    """An exporter is back after a minute in which every fifth segment was lost, and none is any more."""
    found = opened((2000, 2000, 400, 400), until=60, sends=False)
    assert ("link.tcp_loss", NODE) not in found


def test_it_can_be_switched_off():
    """By its name in the settings, as any other."""
    off = tuning_of({"detectors": {"tcp_loss": {"mode": "off"}}}, file="f")
    assert opened((2000, 2000, 60, 60), tuning=off) == {}
