"""The nodes behind a partition, counted."""

from slowrank.telemetry.schema import GPU_V1, HOST_V1, NIC_V1
from streams.runtime.monitoring.node_counts import NodeCounts, NodeTotals
from tests.streams import traffic

T0 = 1_795_160_000.0
SERIES = 4 * len(GPU_V1.columns) + len(NIC_V1.columns) + len(HOST_V1.columns)


def test_nodes_and_series_are_counted_while_they_report():
    """A node that fell silent is expected but does not report; one that left is neither."""
    senders = NodeCounts()
    for sample in traffic.nodes(count=3, seconds=10, ends=T0):
        if sample.node != "node-2" or sample.ts < T0 - 8:
            senders.update(sample)
    assert senders.counts(T0 - 0.5) == NodeTotals(3, 3, 3 * SERIES)
    assert senders.counts(T0 + 3) == NodeTotals(2, 3, 2 * SERIES)
    assert senders.counts(T0 + 596) == NodeTotals(0, 2, 0)
    assert senders.counts(T0 + 5000) == NodeTotals()
