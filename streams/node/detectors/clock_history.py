"""Derived columns: GPUs whose SM clock is far below that of their node's other GPUs, was low ever since, or
is low at a lower power limit.

A clock that falls is a change of level (``level_changes``). One that was locked before the first sample does
not change: only the siblings, which are of the same model, show what it should be. Without step times no
other family of evidence confirms either; a clock that is far below for minutes needs none.
"""

from collections.abc import Mapping

import numpy as np

from detectors.node.low_clock import FAR, LEAST_OTHERS, LOW, LOW_LIMIT, below_others, median_of_others
from slowrank.telemetry.schema import Owner
from streams.columns import FloatArray, Mask
from streams.node.batch import Batch, Shape
from streams.node.config import NodeConfig
from streams.node.detector import Increases, Origin
from streams.node.rules.state_rules import (
    ALWAYS_LOW,
    FAR_LOW,
    HELD_BY,
    HW_SLOWDOWN,
    HW_THERMAL,
    LOADED,
    LOWER_LIMIT,
    POWER_BRAKE,
    SW_POWER_CAP,
    SW_THERMAL,
)

CLOCK = "gpu.clock.sm_hz"

# Utilisation from which a clock that is far below counts. Chosen: a GPU that waits for work most of the time
# lowers its clock by itself.
BUSY = 0.5

# Chosen: longer than a checkpoint, in which no clock can be compared. A clock that is far below before and
# after such a pause was so all the time.
PAUSE_SECONDS = 60.0

# Share of the others' power below which a GPU does no heavier work than they. Chosen: GPUs at one power limit
# draw it within 1 to 2 %; a clock that is 15 % lower takes off a tenth or more, as dynamic power is in
# proportion to it.
LESS_POWER = 0.95

# Bits of NVML that say why a clock is low.
STATED = HW_SLOWDOWN | SW_THERMAL | HW_THERMAL | POWER_BRAKE


class ClockHistory:
    """Adds four GPU columns; clocks are compared under load.

    ``LOWER_LIMIT``: low, at a power limit below the siblings'. ``ALWAYS_LOW``: low, and never seen at full
    clock. ``FAR_LOW``: far below, now or before a pause of at most a minute. ``HELD_BY``: the reasons that
    NVML has stated since then.
    """

    counters: Mapping[Owner, tuple[str, ...]] = {}

    def __init__(self, shape: Shape, nodes: int, config: NodeConfig) -> None:
        self._was_full = np.zeros((nodes, shape.gpus), np.bool_)
        self._far_low_at = np.full((nodes, shape.gpus), -np.inf)
        self._stated = np.zeros((nodes, shape.gpus), np.int64)
        # Watts, summed up while a clock is far below: negative where heavier work does not explain it.
        self._excess = np.zeros((nodes, shape.gpus))

    def update(self, batch: Batch, increases: Increases) -> tuple[()]:
        """Add the columns [n, gpus]."""
        used = batch.gpu["gpu.utilization_ratio"]
        clock = np.where(used > LOADED, batch.gpu[CLOCK], np.nan)
        low = below_others(clock, LOW)
        was_full = self._was_full[batch.rows] | ((clock > 0) & ~low)
        self._was_full[batch.rows] = was_full
        batch.gpu.columns[ALWAYS_LOW] = low & ~was_full
        limit = np.where(clock > 0, batch.gpu["gpu.power_limit_watts"], np.nan)
        batch.gpu.columns[LOWER_LIMIT] = low & below_others(limit, LOW_LIMIT)
        self._add_far_low(batch, np.where(used > BUSY, batch.gpu[CLOCK], np.nan))
        return ()

    def restart(self, node: int) -> None:
        """Compare with no clock before a reboot."""
        self._was_full[node] = False
        self._far_low_at[node], self._stated[node], self._excess[node] = -np.inf, 0, 0

    def forget(self, node: int) -> None:
        """Nothing outlives a restart."""

    def carry(self, node: int, source: "ClockHistory", origin: Origin) -> None:
        """State by slot starts anew."""

    def _add_far_low(self, batch: Batch, clock: FloatArray) -> None:
        ts, reasons = batch.ts[:, None], batch.gpu["gpu.throttle_reasons"]
        stated = np.where(reasons > 0, reasons, 0).astype(np.int64) & STATED
        known = reasons >= 0
        capped = known & (np.where(known, reasons, 0).astype(np.int64) & SW_POWER_CAP != 0)
        far = below_others(clock, FAR) & ((stated > 0) | ~capped)
        compared = (clock > 0) & (np.isfinite(clock).sum(axis=1, keepdims=True) > LEAST_OTHERS)
        at = np.where(compared, -np.inf, self._far_low_at[batch.rows])
        at = self._far_low_at[batch.rows] = np.where(far, ts, at)
        lasts = ts - at <= PAUSE_SECONDS
        held = np.where(far, self._stated[batch.rows] | stated, self._stated[batch.rows])
        self._stated[batch.rows] = np.where(lasts, held, 0)
        excess = self._excess[batch.rows] + np.where(far, _excess_watts(batch, far, known), 0)
        self._excess[batch.rows] = np.where(lasts, excess, 0)
        batch.gpu.columns[FAR_LOW] = lasts & (excess < 0)
        batch.gpu.columns[HELD_BY] = self._stated[batch.rows]


def _excess_watts(batch: Batch, far: Mask, known: Mask) -> FloatArray:
    """Return how much more power GPUs [n, gpus] that are ``far`` below draw than lighter work would.

    Heavier work than that of the siblings lowers the clock by the power limit, at which a GPU draws at least
    as much as they. Minus infinity where that is no question: the reasons are ``known``, or a job gives all
    the same work; 0 where no power is read.
    """
    excess = np.where(known | batch.in_job[:, None], -np.inf, 0)
    for k in np.flatnonzero((far & (excess == 0)).any(axis=1)).tolist():
        watts = batch.gpu["gpu.power_watts"][k]
        read = np.isfinite(watts)
        if read.sum() > LEAST_OTHERS:
            row = watts[read]
            excess[k, read] += row - LESS_POWER * median_of_others(row)
    return np.asarray(excess)
