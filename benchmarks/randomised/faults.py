"""The fault of a drawn job: its kind, unit, onset, effect, and how the effect changes with time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from benchmarks.randomised.layout import Floats, Layout, Places, places
from benchmarks.randomised.ranges import chance, log_uniform, pick

Kind = Literal[
    "none",
    "slow_rank",
    "slow_node",
    "slow_group",
    "slow_replica",
    "slow_ring",
    "slow_data",
    "hang",
    "lost_rank",
]
Shape = Literal["lasting", "from_start", "intermittent", "sawtooth", "thermal", "drifting"]

COMPUTE_KINDS = ("slow_rank", "slow_node", "slow_group", "slow_replica")

# Assumption: shares give each kind its own row in a table; no site has this mix. Benign jobs are the largest
# part, for benign change outnumbers faults (What-if: 1.7 % of straggling jobs have a bad worker).
KIND_SHARES: dict[Kind, float] = {
    "none": 0.40,
    "slow_rank": 0.20,
    "slow_node": 0.09,
    "slow_group": 0.05,
    "slow_replica": 0.03,
    "slow_ring": 0.05,
    "slow_data": 0.06,
    "hang": 0.06,
    "lost_rank": 0.06,
}
SHAPE_SHARES: dict[Shape, float] = {
    "lasting": 0.4,
    "from_start": 0.15,
    "intermittent": 0.12,
    "sawtooth": 0.08,
    "thermal": 0.1,
    "drifting": 0.15,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. ``members`` are the ranks of the unit, ``culprit`` is one; steps count over all attempts.

    ``effect`` is the relative slowdown at full strength: of the compute of ``members``, of the transfers of
    their ring, or, of loading, in compute times of a step. ``silent_seconds`` is how long a hang is on file;
    ``reports_before``: all other ranks still report the step in which the culprit stops.
    """

    kind: Kind = "none"
    shape: Shape = "lasting"
    effect: float = 0.0
    onset: int = 0
    end: int = 0
    members: tuple[int, ...] = ()
    culprit: int = -1
    period: int = 1
    silent_seconds: float = 0.0
    reports_before: bool = False


def draw_kind(rng: np.random.Generator) -> Kind:
    """Draw what is at fault, or ``none``."""
    return pick(rng, tuple(KIND_SHARES), tuple(KIND_SHARES.values()))


def draw_fault(rng: np.random.Generator, kind: Kind, layout: Layout, ranks: int, steps: int) -> Fault:
    """Draw a fault of ``kind`` among the first ``ranks`` ranks of a job of ``steps`` steps."""
    if kind == "none":
        return Fault()
    culprit = int(rng.integers(ranks))
    members = members_of(kind, layout, places(layout), culprit)
    shape: Shape = pick(rng, tuple(SHAPE_SHARES), tuple(SHAPE_SHARES.values()))
    if kind in ("hang", "lost_rank"):
        shape = "lasting"
    onset = 0 if shape == "from_start" else int(steps * rng.uniform(0.15, 0.6))
    ends_early = shape == "lasting" and kind != "hang" and chance(rng, 0.25)
    effect = log_uniform(rng, 0.03, 1.5) if kind in COMPUTE_KINDS else log_uniform(rng, 0.1, 4.0)
    return Fault(
        kind,
        shape,
        # Chosen from 3 %, near the natural spread of ranks (Greyhound detects from 10 %), to a factor of 2.5,
        # the largest on record being 2.35. A ring or loader can be slower still (Greyhound 1.6-2x; a PCIe
        # link with fewer lanes 4-16x).
        0.0 if kind in ("hang", "lost_rank") else effect,
        onset,
        int(onset + (steps - onset) * rng.uniform(0.3, 0.9)) if ends_early else steps,
        members,
        culprit,
        # Assumption: GPU temperature settles in 2-5 minutes, 20-200 steps of 1-15 s.
        period=int(log_uniform(rng, 20, 200)),
        silent_seconds=log_uniform(rng, 120, 900),  # the NCCL watchdog ends a job after 10 minutes
        reports_before=chance(rng, 0.5),
    )


def members_of(kind: Kind, layout: Layout, where: Places, culprit: int) -> tuple[int, ...]:
    """Return the ranks that a fault of ``kind`` at ``culprit`` reaches by itself."""
    d, p, t = where.d[culprit], where.p[culprit], where.t[culprit]
    if kind in ("slow_node", "slow_data"):
        ranks = np.flatnonzero(where.node == where.node[culprit])
    elif kind == "slow_group":
        ranks = where.at[d, p, :]
    elif kind == "slow_replica":
        ranks = where.at[d].ravel()
    elif kind == "slow_ring":
        ranks = where.at[:, p, t]
    else:
        return (culprit,)
    return tuple(sorted(int(rank) for rank in ranks))


def strength(fault: Fault, steps: int, rng: np.random.Generator) -> Floats:
    """Return how far the fault is in force at each step, 0 to 1."""
    active = np.zeros(steps)
    since = np.arange(fault.end - fault.onset)
    active[fault.onset : fault.end] = _profile(fault, since, rng)[: max(0, steps - fault.onset)]
    return active


def _profile(fault: Fault, since: np.ndarray, rng: np.random.Generator) -> Floats:
    period = fault.period
    if fault.shape == "intermittent":
        # On for 10-50 % of the time (assumption); on at the onset, or that is no onset.
        share = rng.uniform(0.1, 0.5)
        on = np.empty(0, bool)
        while len(on) < len(since):
            lengths = 1 + rng.exponential((share * period, (1 - share) * period)).astype(int)
            on = np.concatenate([on, np.repeat([True, False], lengths)])
        return on[: len(since)].astype(float)
    if fault.shape == "sawtooth":
        return (since % period + 1) / period
    if fault.shape == "thermal":
        # Heats for a period with time constant period/4, is cool for half a period.
        phase = since % (period + period // 2)
        return np.where(phase < period, 1 - np.exp(-4 * (phase + 1) / period), 0.0)
    if fault.shape == "drifting":
        return np.clip((since + 1) / (4 * period), 0, 1)
    return np.ones(len(since))
