"""What a sample shows only beside earlier ones: devices that are gone, stand still, or could once do more."""

from collections.abc import Mapping, Sequence

import numpy as np

from slowrank.telemetry import Suspicion
from slowrank.telemetry.records import GPUS_RELEASED
from streams.arrays import Array, FloatArray, Mask
from streams.batch import Batch
from streams.conditions import ConditionBank, Key, Timing
from streams.hardware import Found, at
from streams.hardware_states import READ_SECONDS, SLOW_READ_SECONDS
from streams.suspicions import Claim, Place

_RELEASED = GPUS_RELEASED["gpus"]


class Frozen:
    """GPUs whose power, temperature and energy stand still to the last bit: a driver that repeats itself."""

    def __init__(self, nodes: int, gpus: int) -> None:
        self._before = np.full((2, nodes, gpus), np.nan, np.float32)
        self._moved = np.zeros((nodes, gpus), np.bool_)

    def update(self, batch: Batch, energy: FloatArray) -> Mask:
        """Return which GPUs [n, gpus] read as before, with an ``energy`` counter that once moved."""
        power, celsius = batch.gpu["gpu.power_watts"], batch.gpu["gpu.temp_celsius"]
        before_power, before_celsius = self._before[:, batch.rows]
        # A counter that never moved is none: nothing is told by its standing still.
        moved = self._moved[batch.rows] | (energy > 0)
        same = moved & (energy == 0) & (power == before_power) & (celsius == before_celsius)
        self._moved[batch.rows] = moved
        self._before[0, batch.rows], self._before[1, batch.rows] = power, celsius
        return np.asarray(same)

    def forget(self, node: int) -> None:
        """Start one node anew."""
        self._before[:, node], self._moved[node] = np.nan, False


class Ports:
    """What every port has been capable of, whether it was ever up and its best speed, beside what else is."""

    def __init__(self, nodes: int, ports: int) -> None:
        self._was_up = np.zeros((nodes, ports), np.bool_)
        self._best_speed = np.full((nodes, ports), np.nan)

    def update(self, batch: Batch) -> dict[str, Array]:
        """Return ``was_up`` and ``best_speed`` (bits a second, NaN: never read), [n, ports].

        ``others_up`` tells whether another port of the node is up, ``in_job`` [n, 1] whether it names a job.
        """
        up = batch.nic["nic.port.up"] > 0
        speed = np.where(up, batch.nic["nic.port.speed_bits_per_second"], np.nan)
        was_up = self._was_up[batch.rows] = self._was_up[batch.rows] | up
        best = self._best_speed[batch.rows] = np.fmax(self._best_speed[batch.rows], speed)
        others_up = up.sum(axis=1, keepdims=True) > up
        in_job = batch.in_job[:, None]
        return {"was_up": was_up, "best_speed": best, "others_up": others_up, "in_job": in_job}

    def forget(self, node: int) -> None:
        """Start one node anew."""
        self._was_up[node], self._best_speed[node] = False, np.nan


SLOW_SECONDS = 20.0
"""For so long a GPU that owes an answer is slow (``state.slow_reads``), and not gone. Chosen: ten times the
slowest reads provided for, and within 30 s with the hold, the goal for a GPU that is silent."""


class Presence:
    """GPUs that were read before and are not read any more, while the exporter goes on sending.

    A GPU whose read is only slow is there, and so are GPUs that the exporter has let go of on purpose.
    """

    def __init__(self, nodes: int, gpus: int, *, gone: float) -> None:
        self._timing = Timing(hold=gone)
        self._known = np.zeros((nodes, gpus), np.bool_)
        self._conditions = ConditionBank(nodes)

    def update(self, batch: Batch) -> Found:
        """Tell of every GPU that is gone, or of the node when none of its GPUs is left."""
        alive = _alive(batch.gpu)
        released = np.array([s.labels.get("gpus") == _RELEASED for s in batch.samples])
        alive |= self._known[batch.rows] & (released[:, None] | _slow(batch.gpu))
        known = self._known[batch.rows] | alive
        self._known[batch.rows] = known
        absent = known & ~alive
        if not absent.any() and not self._conditions.busy:
            return
        none_left = np.asarray(known.any(axis=1) & ~alive.any(axis=1))
        lost = {(k, (0, batch.gpu_ids[k][i])) for k, i in np.argwhere(absent & ~none_left[:, None]).tolist()}
        lost |= {(k, (1, "")) for k in np.flatnonzero(none_left).tolist()}
        for k, keys in self._conditions.due(batch.index, lost):
            for key in sorted(keys):
                for s in self._observe(batch, k, key, absent=(k, key) in lost):
                    yield k, s

    def forget(self, node: int) -> None:
        """Expect nothing of a node any more."""
        self._known[node] = False
        self._conditions.forget(node)

    def carry(self, node: int, source: "Presence", row: int, *, lanes: Sequence[int | None]) -> None:
        """Take over a node that was ``row`` of another bank; ``lanes`` are those its GPUs had there."""
        self._conditions.carry(node, source._conditions, row)
        self._known[node] = [lane is not None and source._known[row, lane] for lane in lanes]

    def _observe(self, batch: Batch, k: int, key: Key, *, absent: bool) -> list[Suspicion]:
        ts, place = float(batch.ts[k]), batch.place(k)
        make = at(lambda: _unreadable_claim(place) if key[0] else _gone_claim(place, key[1]), ts)
        return self._conditions.observe(int(batch.index[k]), key, absent, ts, timing=self._timing, make=make)


def _alive(gpu: Mapping[str, Array]) -> Mask:
    read = [gpu[name] == gpu[name] for name in ("gpu.power_watts", "gpu.temp_celsius", "gpu.clock.sm_hz")]
    return np.asarray(read[0] | read[1] | read[2])


def _slow(gpu: Mapping[str, Array]) -> Mask:
    seconds = gpu[READ_SECONDS]
    return np.asarray((seconds > SLOW_READ_SECONDS) & (seconds < SLOW_SECONDS))


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
