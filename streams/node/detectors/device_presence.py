"""GPUs that are no longer read while their exporter goes on sending."""

from collections.abc import Mapping

import numpy as np

from slowrank.telemetry.records import GPUS_RELEASED
from slowrank.telemetry.schema import Owner
from streams.columns import Mask
from streams.debounce import ConditionBank, Debounce, Key
from streams.node.batch import Batch, Part, Shape
from streams.node.conditions import observe
from streams.node.config import NodeConfig
from streams.node.detector import Found, Increases, Origin
from streams.node.rules.state_rules import READ_SECONDS, SLOW_READ_SECONDS
from streams.suspicions import Claim, Location

# An unfinished read of up to this makes a GPU slow (``state.slow_reads``), not gone. Chosen: ten times the
# slowest reads expected, and with the hold within 30 s, the goal for reporting a lost GPU.
SLOW_SECONDS = 20.0

_RELEASED = GPUS_RELEASED["gpus"]

# Keys of the conditions: a GPU by name, or the node as a whole.
_GPU, _NODE = 0, 1


class GpuPresence:
    """Raises GPUs that are missing for ``NodeConfig.gone`` seconds, or the node when all of them are.

    A GPU is present while its power, temperature or clock is read. It also counts as present while its read
    is merely slow, and while the exporter has released the GPUs on purpose.

    A GPU that its samples still name, and that cannot be read, has left the bus (``xid.79``). One that they
    name no more (``gpu.missing``) may be hidden instead, as by a collector that sends the GPUs of one job:
    that is an error and does not page by itself.
    """

    counters: Mapping[Owner, tuple[str, ...]] = {}

    def __init__(self, shape: Shape, nodes: int, config: NodeConfig) -> None:
        self._debounce = Debounce(hold=config.gone)
        self._known = np.zeros((nodes, shape.gpus), np.bool_)
        self._conditions = ConditionBank(nodes)

    def update(self, batch: Batch, increases: Increases) -> Found:
        """Compare the GPUs of the batch with those known; return the missing ones."""
        alive = _alive(batch.gpu)
        released = np.array([s.labels.get("gpus") == _RELEASED for s in batch.samples])
        alive |= self._known[batch.rows] & (released[:, None] | _slow(batch.gpu))
        known = self._known[batch.rows] | alive
        self._known[batch.rows] = known
        absent = known & ~alive
        if not absent.any() and not self._conditions.busy:
            return ()
        none_left = np.asarray(known.any(axis=1) & ~alive.any(axis=1))
        lone = np.argwhere(absent & ~none_left[:, None]).tolist()
        lost: set[tuple[int, Key]] = {(k, (_GPU, batch.gpu.ids[k][i])) for k, i in lone}
        lost |= {(k, (_NODE, "")) for k in np.flatnonzero(none_left).tolist()}

        def claim(k: int, key: Key) -> Claim:
            if key[0] == _NODE:
                return _unreadable(batch.location(k))
            return _gone(batch.location(k), key[1], named=key[1] in batch.samples[k].gpu_ids)

        return observe(self._conditions, batch, lost, debounce=lambda _: self._debounce, claim=claim)

    def restart(self, node: int) -> None:
        """Expect no GPU until it is read again."""
        self._known[node] = False
        self._conditions.forget(node)

    def forget(self, node: int) -> None:
        """Nothing outlives a restart."""

    def carry(self, node: int, source: "GpuPresence", origin: Origin) -> None:
        """Take over the known GPUs and the conditions."""
        self._conditions.carry(node, source._conditions, origin.row)
        self._known[node] = [slot is not None and source._known[origin.row, slot] for slot in origin.gpus]


def _alive(gpu: Part) -> Mask:
    # Equal to itself: not NaN.
    read = [gpu[name] == gpu[name] for name in ("gpu.power_watts", "gpu.temp_celsius", "gpu.clock.sm_hz")]
    return np.asarray(read[0] | read[1] | read[2])


def _slow(gpu: Part) -> Mask:
    seconds = gpu[READ_SECONDS]
    return np.asarray((seconds > SLOW_READ_SECONDS) & (seconds < SLOW_SECONDS))


def _gone(location: Location, name: str, *, named: bool) -> Claim:
    unread = "critical: the GPU is no longer read while the others on the node are"
    unnamed = "error: the GPU is no longer sent while the others on the node are; it may only be hidden"
    return Claim(
        detector="presence.gpu",
        catalogue_id="gpu_presence",
        family="event",
        kind="xid.79" if named else "gpu.missing",
        subject=location.gpu(name),
        weight=6.0,
        score=2.0,
        overwhelming=True,
        note=unread if named else unnamed,
        severity="critical" if named else "error",
    )


def _unreadable(location: Location) -> Claim:
    return Claim(
        detector="presence.node",
        catalogue_id="gpu_presence",
        family="telemetry",
        kind="gpu.unreadable",
        subject=location.whole_node(),
        weight=2.0,
        note="warning: no GPU of the node is sent any more, its host is (driver, NVML or their collector)",
    )
