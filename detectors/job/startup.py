"""The start of a job, phase by phase over its nodes: which phase is slow, which nodes hold it up, its cost.

``seconds`` [nodes, phases]. Every node waits for the slowest in each phase, so that a start of N GPUs loses
N * sum over phases of (max - median) GPU-seconds (BootSeer, 2025). A node is a straggler of a
phase when it takes at least 1.5 times the median of the other nodes and 30 s longer, with at least three
others; the limits are chosen.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detectors.robust import Floats, nan_max, nan_median

Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupConfig:
    """A straggler takes ``ratio`` times as long as the median of the others, and ``seconds`` longer.

    With fewer than ``peers`` others no node is named.
    """

    ratio: float = 1.5
    seconds: float = 30.0
    peers: int = 3


@dataclass(frozen=True, slots=True)
class SlowStart:
    """A node (row) that held up a phase (column): its seconds and the median of the others'."""

    node: int
    phase: int
    seconds: float
    usual: float


@dataclass(frozen=True, slots=True)
class Startup:
    """``slowest``: the phase that gates the start longest; ``lost``: GPU-seconds waited for slow nodes.

    ``longest`` [phases] is what gates each phase, NaN where no node reported it; ``slow_starts`` are the
    nodes that hold up the others, longest first.
    """

    slowest: int
    longest: Floats
    lost: float
    slow_starts: tuple[SlowStart, ...]


def judge(
    seconds: Floats, gpus: Ints, *, together: Bools, config: StartupConfig | None = None
) -> Startup | None:
    """Judge ``seconds`` [nodes, phases] of a job with ``gpus`` [nodes]; NaN = not reported. None: nothing
    reported.

    Every node waits for the slowest in each phase, so that a start loses N · Σ (phase max - phase median)
    GPU-seconds over its phases (Bootseer). In phases that all end ``together`` [phases] they do the waiting:
    who takes longest there came first, so that no node is named for them and their seconds are not lost
    once more.

    >>> seconds = np.array([[60.0, 240.0], [62.0, 238.0], [300.0, 1.0], [58.0, 242.0]])
    >>> start = judge(seconds, np.full(4, 8), together=np.array([False, True]))
    >>> start.slowest, [s.node for s in start.slow_starts], start.lost
    (0, [2], 7648.0)
    """
    reported = np.isfinite(seconds) & (seconds >= 0)
    if not reported.any():
        return None
    held = np.where(reported, seconds, np.nan)
    longest, usual = nan_max(held), nan_median(held)
    own = np.where(together, np.nan, held)
    return Startup(
        slowest=int(np.nanargmax(longest)),
        longest=longest,
        lost=float(gpus.sum() * np.nansum(np.where(together, 0.0, longest - usual))),
        slow_starts=_slow_starts(own, config or StartupConfig()),
    )


def _slow_starts(held: Floats, config: StartupConfig) -> tuple[SlowStart, ...]:
    found = []
    for node, phase in np.argwhere(np.isfinite(held)).tolist():
        others = np.delete(held[:, phase], node)
        if np.isfinite(others).sum() < config.peers:
            continue
        usual, own = float(nan_median(others)), float(held[node, phase])
        if own >= config.ratio * usual and own - usual >= config.seconds:
            found.append(SlowStart(node, phase, own, usual))
    return tuple(sorted(found, key=lambda s: (s.usual - s.seconds, s.phase, s.node)))
