"""A page of the fleet: nodes that carry the same devices, and how a sample of each of some moves them."""

from collections.abc import Sequence

import numpy as np

from detectors.change_point import ChangeConfig
from slowrank.telemetry import NodeSample, Subject, Suspicion
from slowrank.telemetry.schema import SAMPLE_SCHEMAS
from streams.batch import Batch, Devices, Shape
from streams.congestion import CNP, Notifications
from streams.counters import CounterBank
from streams.exporter_health import SWITCHES, ExporterHealth, stuck
from streams.hardware import CountRules, StateRules
from streams.hardware_rules import GPU_COUNTS, HOST_COUNTS, NIC_COUNTS
from streams.hardware_states import GPU_STATES, NIC_STATES, NODE_STATES, usual_reads
from streams.level_changes import LevelChanges
from streams.presence import Frozen, Ports, Presence
from streams.quiet_nodes import QuietNodes
from streams.suspicions import Place
from streams.waiting_ports import WAIT, WaitingPorts
from streams.watched import metrics_of

ENERGY = "gpu.energy_millijoules_total"


class Page:
    """Up to ``size`` nodes of one shape. A row is one node's; rows are handed out by ``take``."""

    def __init__(self, shape: Shape, size: int, change: ChangeConfig | None, *, gone: float) -> None:
        self._devices: dict[int, Devices] = {}
        # Taken from the end, so that rows fill from 0 on and the nodes of a page are neighbours.
        self._free = list(range(size))[::-1]
        schema = SAMPLE_SCHEMAS[shape.schema]
        self._gpu_counts = CountRules(GPU_COUNTS, size, Place.gpu, known=schema.gpu.names)
        self._nic_counts = CountRules(NIC_COUNTS, size, Place.nic, known=schema.nic.names, fabric_only=True)
        self._host_counts = CountRules(HOST_COUNTS, size, _whole_node, known=schema.host.names)
        self._gpu_states = StateRules(GPU_STATES, size, Place.gpu)
        self._nic_states = StateRules(NIC_STATES, size, Place.nic)
        self._node_states = StateRules(NODE_STATES, size, _whole_node)
        self._gpu_counters = CounterBank(size, (*self._gpu_counts.metrics, ENERGY), shape.gpus)
        self._nic_counters = CounterBank(
            size, (*self._nic_counts.metrics, *metrics_of("nic"), WAIT, CNP), shape.nics
        )
        self._host_counters = CounterBank(size, (*self._host_counts.metrics, SWITCHES), 1)
        self._frozen, self._ports = Frozen(size, shape.gpus), Ports(size, shape.nics)
        self._presence = Presence(size, shape.gpus, gone=gone)
        self._levels = None if change is None else LevelChanges(shape, size, change)
        self._quiet = QuietNodes(size, shape.gpus)
        self._waiting = WaitingPorts(size, shape.nics)
        self._notifications = Notifications(size)
        self._exporters = ExporterHealth(size)

    @property
    def full(self) -> bool:
        """Whether no row is left."""
        return not self._free

    @property
    def empty(self) -> bool:
        """Whether no row is taken."""
        return not self._devices

    def take(self, devices: Devices) -> int:
        """Hand out a row for a node that is new here."""
        row = self._free.pop()
        self._devices[row] = devices
        return row

    def leave(self, row: int) -> None:
        """Take back the row of a node that has left."""
        self.restart(row)
        counts = self._gpu_counts, self._nic_counts, self._host_counts
        states = self._gpu_states, self._nic_states, self._node_states
        for rules in (*counts, *states, self._quiet, self._waiting, self._notifications):
            rules.forget(row)
        self._exporters.forget(row)
        self._free.append(row)
        del self._devices[row]

    def restart(self, row: int) -> None:
        """The node was started anew: no reading before it counts, but what its hardware did still does."""
        counters = self._gpu_counters, self._nic_counters, self._host_counters
        for bank in (*counters, self._frozen, self._ports):
            bank.forget(row)
        self._presence.forget(row)
        if self._levels is not None:
            self._levels.forget(row)
        self._quiet.restart(row)
        self._waiting.restart(row)
        self._notifications.restart(row)

    def relearn(self, row: int) -> None:
        """What the node does was changed by plan: its levels are learnt anew."""
        if self._levels is not None:
            self._levels.relearn(row)

    def carry(self, row: int, source: "Page", there: int) -> None:
        """Let a node move in that was at row ``there`` of another page: its devices have changed."""
        # What is kept by the name of a device moves on; counters, ports and levels stand by lane and start
        # anew.
        self._gpu_counts.carry(row, source._gpu_counts, there)
        self._nic_counts.carry(row, source._nic_counts, there)
        self._host_counts.carry(row, source._host_counts, there)
        self._gpu_states.carry(row, source._gpu_states, there)
        self._nic_states.carry(row, source._nic_states, there)
        self._node_states.carry(row, source._node_states, there)
        lanes = {name: lane for lane, name in enumerate(source._devices[there].gpus)}
        known = [lanes.get(name) for name in self._devices[row].gpus]
        self._presence.carry(row, source._presence, there, lanes=known)
        self._quiet.carry(row, source._quiet, there)
        self._waiting.carry(row, source._waiting, there)
        self._notifications.carry(row, source._notifications, there)
        self._exporters.carry(row, source._exporters, there)

    def update(self, rows: Sequence[int], samples: Sequence[NodeSample]) -> list[tuple[int, Suspicion]]:
        """Take one sample of each of some nodes, in ascending order of their ``rows``.

        Returns what they give rise to, each with the number of its sample; for one sample in a fixed order.
        """
        index = np.array(rows, np.int64)
        neighbours = rows[-1] - rows[0] == len(rows) - 1
        selected = slice(rows[0], rows[-1] + 1) if neighbours else index
        batch = Batch(selected, index, samples, [self._devices[row] for row in rows])
        gpu = self._gpu_counters.update(batch.rows, batch.ts, batch.gpu, batch.gpu_there)
        nic = self._nic_counters.update(batch.rows, batch.ts, batch.nic, batch.nic_there)
        host = self._host_counters.update(batch.rows, batch.ts, batch.host, batch.host_there)
        frozen, ports = self._frozen.update(batch, gpu.of(ENERGY)), self._ports.update(batch)
        repeating = stuck(batch, frozen, host.of(SWITCHES))
        # An exporter that repeats itself says nothing about the drivers of its GPUs.
        frozen &= ~repeating[:, None]
        return [
            *self._gpu_counts.update(batch, batch.gpu_ids, batch.gpu, gpu),
            *self._nic_counts.update(batch, batch.nic_ids, batch.nic, nic),
            *self._host_counts.update(batch, batch.host_ids, batch.host, host),
            *self._gpu_states.update(batch, batch.gpu_ids, batch.gpu | {"frozen": frozen}, batch.gpu_there),
            *self._nic_states.update(
                batch, batch.nic_ids, batch.nic | ports, batch.nic_there & batch.fabric[:, None]
            ),
            *self._node_states.update(
                batch,
                batch.host_ids,
                self._notifications.update(batch, nic) | usual_reads(batch.gpu),
                batch.fabric[:, None],
            ),
            *self._presence.update(batch),
            *(() if self._levels is None else self._levels.update(batch, nic)),
            *self._quiet.update(batch, nic),
            *self._waiting.update(batch, nic),
            *self._exporters.update(batch, repeating),
        ]


def _whole_node(place: Place, _: str) -> Subject:
    return place.whole_node()
