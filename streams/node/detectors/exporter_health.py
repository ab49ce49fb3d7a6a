"""Whether what a node sends can be trusted: its clock, and that its exporter reads anew each time.

Both are findings about the telemetry and never about the machine.
"""

import struct

import numpy as np

from slowrank.telemetry import Evidence, NodeSample, Suspicion
from slowrank.telemetry.schema import SAMPLE_SCHEMAS
from streams.arrays import FloatArray, Mask
from streams.batch import Batch
from streams.conditions import ConditionBank, Key, Timing
from streams.hardware import Found, at
from streams.suspicions import Claim, Place

OFFSET = "host.clock_offset_seconds"
SWITCHES = "host.context_switches_total"
SKEW_SECONDS = 0.5
"""Onsets of a machine and its job are compared to the second."""

BELIEVED_SECONDS = 86_400.0
"""A clock said to be further off was not measured: it would keep its node from ever falling silent."""


# The keys of one node's conditions; there is one exporter, and it has no name.
_SKEWED: Key = (0, "")
_STUCK: Key = (1, "")
_TIMING = Timing(hold=10.0)


class ExporterHealth:
    """The exporters of a page of nodes."""

    def __init__(self, nodes: int) -> None:
        self._conditions = ConditionBank(nodes)

    def update(self, batch: Batch, stuck: Mask) -> Found:
        """Take a batch and which of its exporters are ``stuck`` [n]; tell what has lasted."""
        offset = batch.host[OFFSET][:, 0]
        active = {(int(k), _SKEWED) for k in np.flatnonzero(np.abs(offset) > SKEW_SECONDS)}
        active |= {(int(k), _STUCK) for k in np.flatnonzero(stuck)}
        for k, keys in self._conditions.due(batch.index, active):
            for key in sorted(keys):
                for s in self._observe(batch, k, key, holds=(k, key) in active):
                    yield k, s

    def forget(self, node: int) -> None:
        """Drop everything of a node."""
        self._conditions.forget(node)

    def carry(self, node: int, source: "ExporterHealth", row: int) -> None:
        """Take over a node that was ``row`` of another bank."""
        self._conditions.carry(node, source._conditions, row)

    def _observe(self, batch: Batch, k: int, key: Key, *, holds: bool) -> list[Suspicion]:
        ts, place, offset = float(batch.ts[k]), batch.place(k), float(batch.host[OFFSET][k, 0])
        make = at(lambda: skewed(place, offset) if key == _SKEWED else _stuck(place), ts)
        return self._conditions.observe(int(batch.index[k]), key, holds, ts, timing=_TIMING, make=make)


def stuck(batch: Batch, frozen: Mask, switches: FloatArray) -> Mask:
    """Return which exporters repeat themselves, [n]: all GPUs stand still, and so does the host's scheduler.

    Where the host goes on, it is the GPUs' driver that does not answer. ``switches`` [n, 1] is the increase
    of the host's context switches.
    """
    there = batch.gpu_there
    all_frozen = there.any(axis=1) & (frozen | ~there).all(axis=1)
    return np.asarray(all_frozen & (switches[:, 0] == 0))


def clock_error(sample: NodeSample) -> float:
    """Return by how many seconds the node's clock is ahead, as far as that is told and matters, else 0."""
    if not sample.host:
        return 0.0
    # There is one host, so that a column begins where its first value does.
    (offset,) = struct.unpack_from("<f", sample.host, SAMPLE_SCHEMAS[sample.schema].host.places[OFFSET][0])
    return offset if SKEW_SECONDS < abs(offset) <= BELIEVED_SECONDS else 0.0


def skewed(place: Place, offset: float) -> Claim:
    """Return what is said of a node whose clock is ``offset`` seconds ahead."""
    return Claim(
        detector="clock",
        family="telemetry",
        kind="host.clock_skew",
        subject=place.whole_node(),
        weight=2.0,
        evidence=(Evidence(metric=OFFSET, unit="s", detector="clock", value=round(offset, 4)),),
        note="warning: the order of what happened here and elsewhere cannot be told",
    )


def _stuck(place: Place) -> Claim:
    return Claim(
        detector="exporter.stuck",
        family="telemetry",
        kind="exporter.stale",
        subject=place.whole_node(),
        weight=2.0,
        evidence=(Evidence(metric=SWITCHES, unit="1", detector="exporter", value=0.0, note="increase"),),
        note="warning: every reading of this node is the last one repeated",
    )
