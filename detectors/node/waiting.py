"""GPUs that spin on a collective for longer than their job ever paused: the sign of a hang without steps."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detectors.node.running_median import Floats, Rows

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitConfig:
    """Seconds of event time, and numbers. All are chosen.

    ``least``: checkpoints and their barriers, in which all other ranks spin, mostly take less.
    ``pauses``: storage and evaluations are slow at times, so that a pause may take twice the longest so far.
    ``longest``: no pause longer than this is learned, so that a job that once stood still is watched again.
    ``worked``: the time-out of collectives in PyTorch; a job that compiles, loads or waits for its other
    nodes spins as well. ``gap``: nodes that are read once a minute may miss a reading.
    """

    least: float = 180.0
    samples: int = 3
    pauses: float = 2.0
    longest: float = 1800.0
    worked: float = 600.0
    clear: float = 10.0
    gap: float = 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What one sample of n nodes shows, [n]: its GPUs ``wait`` (spin and send nothing), or ``rest`` (each
    waits or stands idle), or are in use and do neither (``work``); or the job has ``ended`` there."""

    wait: Bools
    rest: Bools
    work: Bools
    ended: Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """``stuck_since`` [n]: since when the GPUs wait, where that is for too long, else NaN; ``resting_since``
    [n]: since when they wait or stand idle, where that is as long as a stuck node must at least."""

    stuck_since: Floats
    resting_since: Floats


class WaitingBank:
    """Test of many nodes for a wait that is no pause of their job, every node at its own event time.

    A wait begins with the first sample in which the GPUs wait and ends when they have not for ``clear``
    seconds. With w its length at present and L the longest that ended with work, a node is stuck where

        w ≥ max(180 s, 2·L),   in three samples at least, after ten minutes of work

    A wait that the processes did not outlive is no pause, and teaches nothing. Nodes that rest are not proven
    stuck: it is what a stall of the data looks like. Beside stuck ones they show that nobody works.

    >>> bank = WaitingBank(1)
    >>> one = lambda x: np.array([x])
    >>> for second in range(0, 1200, 30):
    ...     wait = second >= 900
    ...     seen = bank.update(np.array([0]), np.array([float(second)]), Signs(
    ...         wait=one(wait), rest=one(wait), work=one(not wait), ended=one(False)))
    >>> float(seen.stuck_since[0])
    900.0
    """

    def __init__(self, nodes: int, *, config: WaitConfig | None = None) -> None:
        self.config = config or WaitConfig()
        # Rows: a wait, a rest; ``calm``: since when it is interrupted.
        self._since, self._calm = np.full((2, nodes), np.nan), np.full((2, nodes), np.nan)
        self._samples = np.zeros(nodes, np.intp)
        self._longest, self._worked = np.zeros(nodes), np.zeros(nodes)
        # The last sample, and the last in which the GPUs waited.
        self._last, self._until = np.full(nodes, -np.inf), np.full(nodes, np.nan)

    def update(self, nodes: Rows, ts: Floats, signs: Signs) -> Waits:
        """Take one sample of each of the distinct ``nodes`` [n], younger than their last."""
        config, apart = self.config, ts - self._last[nodes]
        known = apart <= config.gap
        self._worked[nodes] += np.where(known & signs.work, apart, 0.0)
        self._last[nodes] = ts
        goes_on = known & ~signs.ended
        shown = np.stack((signs.wait, signs.rest)) & ~signs.ended
        since = np.where(goes_on, self._since[:, nodes], np.nan)
        calm = np.where(goes_on, self._calm[:, nodes], np.nan)
        # fmin passes over NaN: the time that it began at stays.
        since, calm = np.where(shown, np.fmin(since, ts), since), np.where(shown, np.nan, np.fmin(calm, ts))
        over = ts - calm >= config.clear
        paused = np.where(over[0], np.minimum(calm[0] - since[0], config.longest), np.nan)
        self._longest[nodes] = np.fmax(self._longest[nodes], paused)
        since = np.where(over, np.nan, since)
        waits = np.isfinite(since[0])
        self._samples[nodes] = np.where(waits, self._samples[nodes] + shown[0], 0)
        self._since[:, nodes], self._calm[:, nodes] = since, calm
        self._until[nodes] = np.where(shown[0], ts, self._until[nodes])
        needed = np.maximum(config.least, config.pauses * self._longest[nodes])
        stuck = (self._until[nodes] - since[0] >= needed) & (self._samples[nodes] >= config.samples)
        stuck &= self._worked[nodes] >= config.worked
        rests = ts - since[1] >= config.least
        return Waits(
            stuck_since=np.where(stuck, since[0], np.nan), resting_since=np.where(rests, since[1], np.nan)
        )

    def reset(self, nodes: Rows) -> None:
        """Forget some nodes: another job runs there, or they were started anew."""
        self._since[:, nodes], self._calm[:, nodes], self._last[nodes] = np.nan, np.nan, -np.inf
        self._samples[nodes], self._longest[nodes], self._worked[nodes] = 0, 0.0, 0.0
