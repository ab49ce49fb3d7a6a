"""Which nodes a partition's samples come from, and how many series they carry: for the metrics alone."""

from dataclasses import dataclass, field
from typing import NamedTuple

from slowrank.telemetry import NodeSample
from slowrank.telemetry.schema import SAMPLE_SCHEMAS
from streams.silent_nodes import SilenceConfig

# A node reports, and is expected, as long as for the liveness of nodes.
_AS_SILENCE = SilenceConfig()


class NodeTotals(NamedTuple):
    """Nodes that report, nodes that have not left, and the series of the former."""

    reporting: int = 0
    expected: int = 0
    series: int = 0


@dataclass(slots=True)
class NodeCounts:
    """The last sample's time and size of every node."""

    _nodes: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict)

    def update(self, sample: NodeSample) -> None:
        """Record a node's sample."""
        schema = SAMPLE_SCHEMAS[sample.schema]
        series = len(sample.gpu_ids) * len(schema.gpu.columns) + len(sample.nic_ids) * len(schema.nic.columns)
        series += len(schema.host.columns) if sample.host else 0
        self._nodes[sample.cluster, sample.node] = (sample.ts, series)

    def counts(self, event_time: float) -> NodeTotals:
        """Return the totals at ``event_time``; drop nodes that have left."""
        oldest = event_time - _AS_SILENCE.expected
        for key in [key for key, (ts, _) in self._nodes.items() if ts < oldest]:
            del self._nodes[key]
        live = [series for ts, series in self._nodes.values() if ts > event_time - _AS_SILENCE.stale]
        return NodeTotals(len(live), len(self._nodes), sum(live))
