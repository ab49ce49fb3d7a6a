"""Everything remembered of one node, and how one sample moves it."""

import math

import numpy as np

from detectors.change import ChangeConfig
from slowrank.telemetry import NodeSample, Suspicion
from slowrank.telemetry.schema import GPU_V1, HOST_V1, NIC_V1, SAMPLE_SCHEMAS, Block
from streams.arrays import Array, columns
from streams.conditions import Conditions, Timing
from streams.counters import Counters, Increase
from streams.hardware import CountRules, StateRules, at
from streams.hardware_rules import GPU_COUNTS, GPU_STATES, HOST_COUNTS, NIC_COUNTS, Mask
from streams.level_changes import LevelChanges, Series, watchable
from streams.suspicions import Claim, Place

FAST_PORT_BITS_PER_SECOND = 10e9

Columns = dict[str, Array]


class NodeState:
    """State of one node; ``ts``, ``boot_id`` and ``seq`` are those of its last sample."""

    def __init__(self, change: ChangeConfig, *, gone: float) -> None:
        self.ts, self.boot_id, self.seq = -math.inf, "", -1
        self._counters = (Counters(), Counters(), Counters())
        self._gpu_counts = CountRules(GPU_COUNTS, GPU_V1)
        self._nic_counts = CountRules(NIC_COUNTS, NIC_V1)
        self._host_counts = CountRules(HOST_COUNTS, HOST_V1)
        self._states = StateRules(GPU_STATES)
        self._frozen = _Frozen()
        self._presence = _Presence(gone)
        self._levels = LevelChanges(change)

    def update(self, sample: NodeSample) -> list[Suspicion]:
        """Take the node's next sample; return what it gives rise to."""
        if self.boot_id and sample.boot_id != self.boot_id:
            self._restarted()
        self.ts, self.boot_id, self.seq = sample.ts, sample.boot_id, sample.seq
        schema, place, ts = SAMPLE_SCHEMAS[sample.schema], Place.of(sample), sample.ts
        gpu, nic = columns(schema.gpu, sample.gpu), columns(schema.nic, sample.nic)
        host = columns(schema.host, sample.host)
        host_ids = ("",) if sample.host else ()
        gpu_rise = self._counters[0].update(ts, sample.gpu_ids, _counter_rows(schema.gpu, gpu))
        nic_rise = self._counters[1].update(ts, sample.nic_ids, _counter_rows(schema.nic, nic))
        host_rise = self._counters[2].update(ts, host_ids, _counter_rows(schema.host, host))
        frozen = self._frozen.update(sample.gpu_ids, gpu, gpu_rise, schema.gpu)
        # The links of an ordinary host come and go for reasons of its own.
        fabric = bool(sample.gpu_ids)
        return [
            *self._gpu_counts.update(ts, sample.gpu_ids, gpu_rise.delta, subject=place.gpu),
            *self._nic_counts.update(ts, sample.nic_ids, nic_rise.delta, subject=place.nic, trusted=fabric),
            *self._host_counts.update(ts, host_ids, host_rise.delta, subject=lambda _: place.whole_node()),
            *self._states.update(ts, sample.gpu_ids, gpu | {"frozen": frozen}, subject=place.gpu),
            *self._presence.update(ts, sample.gpu_ids, gpu, place=place),
            *self._levels.update(ts, _levels(sample, gpu, (nic, nic_rise), host), place),
        ]

    def _restarted(self) -> None:
        for counters in self._counters:
            counters.forget()
        self._frozen = _Frozen()
        self._presence.forget()
        self._levels.reset()


class _Frozen:
    """GPUs whose power, temperature and energy stand still to the last bit: a driver that repeats itself."""

    def __init__(self) -> None:
        self._ids: tuple[str, ...] = ()
        self._before: tuple[Array, Array] = (np.empty(0), np.empty(0))
        self._moved: set[str] = set()

    def update(self, ids: tuple[str, ...], gpu: Columns, rise: Increase, block: Block) -> Mask:
        """Return which GPUs [n] read exactly as before, with an energy counter that once moved."""
        energy = rise.delta[_counter_names(block).index("gpu.energy_millijoules_total")]
        now = (gpu["gpu.power_watts"], gpu["gpu.temp_celsius"])
        self._moved.update(ids[int(i)] for i in np.flatnonzero(energy > 0))
        same = np.zeros(len(ids), np.bool_)
        if ids == self._ids:
            moved = np.array([name in self._moved for name in ids], np.bool_)
            same = moved & (energy == 0) & (now[0] == self._before[0]) & (now[1] == self._before[1])
        self._ids, self._before = ids, now
        return same


class _Presence:
    """GPUs that were read before and are not read any more, while the exporter goes on sending."""

    def __init__(self, gone: float) -> None:
        self._timing = Timing(hold=gone)
        self._known: set[str] = set()
        self._conditions = Conditions()

    def update(self, ts: float, ids: tuple[str, ...], gpu: Columns, *, place: Place) -> list[Suspicion]:
        read = ~np.isnan([gpu["gpu.power_watts"], gpu["gpu.temp_celsius"], gpu["gpu.clock.sm_hz"]]).all(
            axis=0
        )
        alive = {ids[int(i)] for i in np.flatnonzero(read)}
        self._known |= alive
        none_left = bool(self._known) and not alive
        lost = set() if none_left else {(0, name) for name in self._known - alive}
        absent = lost | ({(1, "")} if none_left else set())
        found: list[Suspicion] = []
        for key in sorted(absent.union(self._conditions.pending())):
            claim = _unreadable_claim(place) if key[0] else _gone_claim(place, key[1])
            found += self._conditions.observe(key, key in absent, ts, timing=self._timing, make=at(claim, ts))
        return found

    def forget(self) -> None:
        self._known.clear()
        self._conditions.forget()


def _counter_names(block: Block) -> list[str]:
    return [c.name for c in block.columns if c.kind == "counter"]


def _counter_rows(block: Block, held: Columns) -> Array:
    return np.array([held[name] for name in _counter_names(block)], np.int64)


def _levels(
    sample: NodeSample, gpu: Columns, nic: tuple[Columns, Increase], host: Columns
) -> dict[Series, float]:
    values: dict[Series, float] = {}
    for i, metric in watchable("gpu"):
        values.update(((i, name), float(x)) for name, x in zip(sample.gpu_ids, gpu[metric], strict=True))
    if not sample.gpu_ids and sample.job_id is None:
        return values
    ports, rise = nic
    fast = ports["nic.port.speed_bits_per_second"] >= FAST_PORT_BITS_PER_SECOND
    names = _counter_names(SAMPLE_SCHEMAS[sample.schema].nic)
    for i, metric in watchable("nic"):
        row = names.index(metric)
        rate = rise.delta[row] / rise.seconds[row]
        values.update(((i, sample.nic_ids[int(p)]), float(rate[p])) for p in np.flatnonzero(fast))
    for i, metric in watchable("host"):
        if sample.host:
            values[i, ""] = float(host[metric][0])
    return values


def _gone_claim(place: Place, name: str) -> Claim:
    return Claim(
        detector="presence.gpu",
        family="event",
        kind="xid.79",
        subject=place.gpu(name),
        weight=6.0,
        score=2.0,
        overwhelming=True,
        note="critical: the GPU is no longer read while the others on the node are",
    )


def _unreadable_claim(place: Place) -> Claim:
    return Claim(
        detector="presence.node",
        family="telemetry",
        kind="exporter.stale",
        subject=place.whole_node(),
        weight=2.0,
        note="warning: no GPU of the node can be read (driver not loaded, or NVML not reachable)",
    )
