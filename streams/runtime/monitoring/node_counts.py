"""Which nodes a partition's samples come from, and how many series they carry: for the metrics alone."""

from dataclasses import dataclass, field
from typing import NamedTuple

from slowrank.telemetry import NodeSample
from slowrank.telemetry.schema import SAMPLE_SCHEMAS
from streams.silence import SilenceConfig

_AS_SILENCE = SilenceConfig()
"""What counts as reporting here is what does for the silence of nodes."""


class Present(NamedTuple):
    """Nodes heard of lately, nodes that have not left, and the series of the former."""

    reporting: int = 0
    expected: int = 0
    series: int = 0


@dataclass(slots=True)
class Senders:
    """The last sample's time and size of every node."""

    _heard: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict)

    def heard(self, sample: NodeSample) -> None:
        """Note that a node sent a sample."""
        schema = SAMPLE_SCHEMAS[sample.schema]
        series = len(sample.gpu_ids) * len(schema.gpu.columns) + len(sample.nic_ids) * len(schema.nic.columns)
        series += len(schema.host.columns) if sample.host else 0
        self._heard[sample.cluster, sample.node] = (sample.ts, series)

    def counts(self, event_time: float) -> Present:
        """Return how many there are at ``event_time``; who has left is forgotten."""
        oldest = event_time - _AS_SILENCE.expected
        for key in [key for key, (ts, _) in self._heard.items() if ts < oldest]:
            del self._heard[key]
        live = [series for ts, series in self._heard.values() if ts > event_time - _AS_SILENCE.stale]
        return Present(len(live), len(self._heard), sum(live))
