"""Counters of the NIC ports: bytes while the link is up, waiting, and errors of the links."""

from collections.abc import Iterable

import numpy as np

from simulator.cluster.activity import Activity
from simulator.cluster.layout import ClusterSpec
from simulator.devices.board import Board
from simulator.devices.counters import Counters
from simulator.faults.condition import BoolArray, Condition
from simulator.faults.events import Incident
from slowrank.telemetry.schema import CURRENT_SAMPLE_SCHEMA, SAMPLE_SCHEMAS

# Bits a second of the ports of H100 nodes, and the largest InfiniBand MTU.
NIC_BITS = 400e9
PACKET_BYTES = 4096
# Assumptions: a good cable has some errors a day, and a busy fabric marks some packets without congestion.
# The detector's floor of 10 notifications a second, not this rate, is what congestion is compared with.
SYMBOL_ERRORS_PER_SECOND = 0.001
CNPS_PER_SECOND = 2.0

# Slope of `port_xmit_wait` in the lost bandwidth. Assumption: a busy 400 Gb/s port that lost half of it
# counts a million ticks a second or more, a healthy one 2 % of that. The detector compares ratios above 1,000
# ticks a second, so that a far smaller slope would make slow ports of little traffic invisible.
WAIT_TICKS_PER_BYTE = 1e-4


class Nics:
    """The counters of every NIC port; ``read`` advances them and fills the board."""

    def __init__(self, spec: ClusterSpec, rng: np.random.Generator) -> None:
        self._rng = rng
        shape = (spec.nodes, spec.nics)
        block = SAMPLE_SCHEMAS[CURRENT_SAMPLE_SCHEMA].nic
        self.board = Board(block, *shape)
        start = {
            "nic.port.rx_bytes_total": rng.integers(10**13, 10**14, shape),
            "nic.port.tx_bytes_total": rng.integers(10**13, 10**14, shape),
            "nic.port.xmit_wait_ticks_total": rng.integers(0, 10**6, shape),
            "nic.port.symbol_errors_total": rng.integers(0, 5, shape),
        }
        self._counters = Counters((c.name for c in block.columns if c.kind == "counter"), shape, start)

    def read(
        self, activity: Activity, condition: Condition, dt: float, happened: Iterable[Incident] = ()
    ) -> None:
        """Advance by ``dt`` seconds and fill the board."""
        up = condition.link_back == 0
        moved = np.where(up, activity.sent * dt, 0.0)
        count = self._counters
        jitter = 1.0 + 0.03 * self._rng.standard_normal(moved.shape)
        count.add("nic.port.tx_bytes_total", moved * jitter)
        count.add("nic.port.rx_bytes_total", moved * jitter[::-1])
        for way in ("rx", "tx"):
            sent = count.values[f"nic.port.{way}_bytes_total"]
            count.values[f"nic.port.{way}_packets_total"] = sent // PACKET_BYTES
        # A port counts the ticks in which data waits because it cannot be sent; a healthy one some (2 %).
        waits = moved * (1.0 / condition.link - 0.98) * WAIT_TICKS_PER_BYTE
        count.add("nic.port.xmit_wait_ticks_total", waits)
        self._errors(condition, up, moved > 0, dt)
        for incident in happened:
            count.count(incident)
        speed = {"nic.port.up": up, "nic.port.speed_bits_per_second": np.where(up, NIC_BITS, np.nan)}
        stuck = condition.stuck
        held = np.broadcast_to(stuck[:, None], up.shape) if stuck.any() else None
        self.board.update(speed | count.values, held=held)

    def _errors(self, condition: Condition, up: BoolArray, sending: BoolArray, dt: float) -> None:
        """Count errors on links that are up; a port that is down counts none."""
        healthy = {
            "nic.port.symbol_errors_total": np.full(up.shape, SYMBOL_ERRORS_PER_SECOND),
            "nic.port.cnp_handled_total": np.where(sending, CNPS_PER_SECOND, 0.0),
        }
        for rates in (healthy, condition.rates):
            ours = {name: np.where(up, rate, 0.0) for name, rate in rates.items() if name.startswith("nic.")}
            self._counters.happen(ours, dt, self._rng)
