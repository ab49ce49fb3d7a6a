"""Counters of network ports that are sent every five seconds: they lose nothing in between."""

import math
from collections.abc import Mapping

from exporters.collector import Columns

# No detector reads them, and roll-ups have ten seconds; every second they would be a tenth of a sample.
PACKETS = ("nic.port.rx_packets_total", "nic.port.tx_packets_total")

# Least time between two values. Chosen: every fifth tick of a second, as the slow set of GPUs
# (``exporters.nvml.deadlines``), with half a tick for its jitter.
SECONDS = 4.5


class Seldom:
    """Leaves packet counters out of ticks that follow soon after one with them."""

    def __init__(self) -> None:
        self._sent_at = -math.inf

    def thin(self, ports: Mapping[str, Columns], monotonic: float) -> Mapping[str, Columns]:
        """Return what to send of ``ports`` in the tick at ``monotonic`` (seconds)."""
        if monotonic >= self._sent_at + SECONDS:
            self._sent_at = monotonic
            return ports
        return {
            port: {name: value for name, value in columns.items() if name not in PACKETS}
            for port, columns in ports.items()
        }
