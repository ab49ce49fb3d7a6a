"""Faults of a node's telemetry, not of the node: a wrong clock, a stuck exporter, a spool without room."""

from collections.abc import Mapping

import numpy as np

from slowrank.telemetry import Evidence
from slowrank.telemetry.schema import Owner
from streams.clock_error import OFFSET, SKEW_SECONDS
from streams.debounce import ConditionBank, Debounce, Key
from streams.node.batch import Batch, Shape
from streams.node.conditions import observe
from streams.node.config import NodeConfig
from streams.node.detector import Found, Increases, Origin
from streams.node.detectors.frozen_readings import SWITCHES
from streams.node.rules.state_rules import STUCK
from streams.suspicions import Claim, Location

SPOOL_FREE = "exporter.spool_free_bytes"

# Chosen: twelve minutes of records, of which an hour takes 5 MB; a restart of the brokers takes less.
SPOOL_LEAST = 2**20

# Keys of the conditions; there is one exporter a node, and it has no name.
_SKEWED: Key = (0, "")
_STUCK: Key = (1, "")
_NO_SPOOL: Key = (2, "")

# Chosen: ten ticks, above a clock being stepped and an exporter that skips a few.
_DEBOUNCE = Debounce(hold=10.0)


class ExporterHealth:
    """Raises clocks more than half a second off, stuck exporters (``STUCK``) and spools without room.

    Each must last for 10 s.
    """

    counters: Mapping[Owner, tuple[str, ...]] = {}

    def __init__(self, shape: Shape, nodes: int, config: NodeConfig) -> None:
        self._conditions = ConditionBank(nodes)

    def update(self, batch: Batch, increases: Increases) -> Found:
        """Test the clocks and exporters of the batch; return the conditions that have lasted."""
        offset = batch.host[OFFSET][:, 0]
        active = {(int(k), _SKEWED) for k in np.flatnonzero(np.abs(offset) > SKEW_SECONDS)}
        active |= {(int(k), _STUCK) for k in np.flatnonzero(batch.host[STUCK])}
        # Samples of earlier schemas do not have it.
        free = batch.host.columns.get(SPOOL_FREE, np.full_like(batch.host[OFFSET], np.nan))[:, 0]
        active |= {(int(k), _NO_SPOOL) for k in np.flatnonzero(free < SPOOL_LEAST)}

        def claim(k: int, key: Key) -> Claim:
            location = batch.location(k)
            if key == _NO_SPOOL:
                return _no_spool(location, float(free[k]))
            return skewed(location, float(offset[k])) if key == _SKEWED else _stuck(location)

        return observe(self._conditions, batch, active, debounce=lambda _: _DEBOUNCE, claim=claim)

    def restart(self, node: int) -> None:
        """A reboot ends neither condition."""

    def forget(self, node: int) -> None:
        """Drop the conditions of a node."""
        self._conditions.forget(node)

    def carry(self, node: int, source: "ExporterHealth", origin: Origin) -> None:
        """Take over the conditions."""
        self._conditions.carry(node, source._conditions, origin.row)


def skewed(location: Location, offset: float) -> Claim:
    """Return the claim about a node whose clock is ``offset`` seconds ahead."""
    return Claim(
        detector="clock",
        catalogue_id="clock",
        family="telemetry",
        kind="host.clock_skew",
        subject=location.whole_node(),
        weight=2.0,
        evidence=(Evidence(metric=OFFSET, unit="s", detector="clock", value=round(offset, 4)),),
        note="warning: the order of what happened here and elsewhere is not known",
    )


def _stuck(location: Location) -> Claim:
    return Claim(
        detector="exporter.stuck",
        catalogue_id="silence",
        family="telemetry",
        kind="exporter.stale",
        subject=location.whole_node(),
        weight=2.0,
        evidence=(Evidence(metric=SWITCHES, unit="1", detector="exporter", value=0.0, note="increase"),),
        note="warning: every reading of this node is the last one repeated",
    )


def _no_spool(location: Location, free: float) -> Claim:
    return Claim(
        detector="exporter.spool",
        catalogue_id="silence",
        family="telemetry",
        kind="exporter.spool",
        subject=location.whole_node(),
        weight=2.0,
        evidence=(Evidence(metric=SPOOL_FREE, unit="By", detector="exporter", value=free),),
        note="warning: records of this node are lost when the brokers cannot be reached",
    )
