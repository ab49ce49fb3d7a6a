"""Explanations of slow compute that show only over time: rotation, healthy noise, work that moves.

Confirmed candidates are held against spells that rotate between ranks (``rotating_slowness``), how healthy
ranks wander (``usual_noise.wanders``), and positions that a hot expert or a long shard moves between, on one
machine or several (``peers.shared_work.MovingWork``, ``places.risen_together``). Who is explained is examined
again later; a rank that was reported before its explanation showed is excused.
"""

import math

import numpy as np
import numpy.typing as npt

from detectors.peers.places.risen_together import beside_the_middle, risen_together
from detectors.peers.ratios import Ratios
from detectors.peers.rotating_slowness import RotatingSlowness
from detectors.peers.shared_work import MovingWork, SharedWork
from detectors.straggler.alternatives.usual_noise import block_length, wanders
from detectors.straggler.candidate import FEW, Candidate, deviations
from detectors.straggler.core import SlowRank
from detectors.straggler.evidence.timing_channel import TimingChannel
from detectors.straggler.mates import began_apart

Bools = npt.NDArray[np.bool_]

# Of what a rank is slow by lately: it was less on average since its evidence began, which is dated back over
# steps in which it was not slow. Chosen: a ramp from nothing has a half, noise of the estimate aside.
ON_AND_OFF = 0.4

# Chosen, of what a rank is slow by: others that are so much slower are slow with it (``alternatives``).
_STILL = 0.5

# Steps after which a rank whose position explains it is examined again. Chosen: as often as baselines are
# learnt anew.
_EXAMINE_STEPS = 20

# Steps before a slowdown that show what is usual, at least, and of longer ones their part (chosen).
_BEFORE, _PART = 10, 4


class MovingSlowness:
    """Follows the slow ranks of a job of so many ``ranks``, some of which may get ``shared`` work."""

    def __init__(self, ranks: int, shared: SharedWork) -> None:
        self._rotation = RotatingSlowness(ranks)
        self._work = MovingWork(shared)
        self._slow_with: dict[int, Bools] = {}
        self._risen_with: dict[int, Bools] = {}
        self._not_before = np.zeros(ranks, dtype=np.intp)

    @property
    def visited(self) -> list[int]:
        """The ranks whose spells are a rotation; empty while there is none."""
        return self._rotation.visited

    def due(self, step: int) -> Bools:
        """Return who may be examined at ``step``, [ranks]: the others are explained for now."""
        due: Bools = self._not_before <= step
        return due

    def is_in_rotation(self, rank: int) -> bool:
        """Return whether ``rank`` has to be slow for longer than spells of a rotation to be reported."""
        return self._rotation.patience(rank) > 0

    def is_by_turns(self, slow: SlowRank) -> bool:
        """Return whether others were as slow before, one after the other, as where work moves."""
        size = math.log(max(slow.ratio, 1.0))
        return self._rotation.by_turns(slow.rank, size=size, steps=slow.steps)

    def outlasting(self, ranks: Bools, step: int) -> Bools:
        """Return those of ``ranks`` [ranks] that are slow for longer than one spell at ``step``, [ranks]."""
        outlasting = ranks.copy()
        for rank in np.flatnonzero(ranks).tolist():
            outlasting[rank] = self._rotation.outlasts(rank, step=step)
        return outlasting

    def update(self, ratios: Ratios, channel: TimingChannel) -> None:
        """Advance the rotation by the last step of ``ratios``; ``channel`` is that of compute."""
        self._rotation.update(
            ratios.settled,
            change=deviations(ratios, channel, "compute", 1)[0],
            lasting=deviations(ratios, channel, "compute", 1, lasting=True)[0],
        )

    def unexplained(
        self, ratios: Ratios, channel: TimingChannel, confirmed: list[Candidate]
    ) -> list[Candidate]:
        """Return those that none of the three explains."""
        larger = self._beyond_wandering(ratios, self.beyond_rotation(ratios, confirmed))
        return self._beyond_positions(ratios, channel, larger)

    def begin(self, found: Candidate, step: int, *, size: float) -> None:
        """Take that a rank looks slow at ``step`` by ``size``, which may be one of several spells."""
        self._rotation.begin(found.rank, step=step - found.steps, size=size, lasting=found.lasting)

    def beyond_rotation(self, ratios: Ratios, confirmed: list[Candidate]) -> list[Candidate]:
        """Return those who are slow for longer than slowness that rotates between ranks lasts."""
        now = ratios.settled
        if ratios.ranks < FEW:
            return confirmed
        beyond: list[Candidate] = []
        for found in confirmed:
            # Dated back over quiet steps, it is one more spell since shortly.
            whole = found.size >= ON_AND_OFF * found.recent
            size = max(found.size, found.recent)
            self.begin(found, now, size=size)
            left = self._rotation.patience(found.rank, size=size) - (found.steps if whole else 0)
            if left < 0:
                beyond.append(found)
            else:
                self._not_before[found.rank] = now + max(left, 1)
        return beyond

    def excuse(self, channel: TimingChannel) -> list[int]:
        """Lower and return the slow ranks that a rotation or work that moves explains by now."""
        raised = np.flatnonzero(channel.raised).tolist()
        self._slow_with = {rank: self._slow_with[rank] for rank in raised if rank in self._slow_with}
        moved = {rank for rank, with_it in self._slow_with.items() if self._work.explains(rank, with_it)}
        self._risen_with = {rank: self._risen_with[rank] for rank in raised if rank in self._risen_with}
        moved |= {rank for rank, others in self._risen_with.items() if self._work.has_risen_elsewhere(others)}
        excused = [rank for rank in raised if rank in moved or self._rotation.excuses(rank)]
        channel.lower(excused)
        return excused

    def _beyond_wandering(self, ratios: Ratios, confirmed: list[Candidate]) -> list[Candidate]:
        """Return those who are slower than healthy ranks are for as long. The others are examined again after
        a quarter as many steps: the median of a block hardly moves in fewer."""
        beyond: list[Candidate] = []
        for found in confirmed:
            if wanders(ratios, found):
                self._not_before[found.rank] = ratios.settled + block_length(found) // 4
            else:
                beyond.append(found)
        return beyond

    def _beyond_positions(
        self, ratios: Ratios, channel: TimingChannel, confirmed: list[Candidate]
    ) -> list[Candidate]:
        """Return those who are not slow as the ranks at one position are that work moves between."""
        slow = {
            f.rank: (f.effect >= _STILL * f.size) & ~began_apart(ratios, channel, f.onset.at)
            for f in confirmed
        }
        for rank, with_it in slow.items():
            if self._work.see(rank, with_it, ratios.settled):
                self._slow_with[rank] = with_it
        risen = _risen_with(ratios, confirmed)
        for rank in risen:
            # Noise may hide it from one of them.
            together = next((others for others in risen.values() if others[rank]), None)
            if together is not None:
                self._work.see_risen(together, ratios.settled)
                self._risen_with[rank] = risen[rank] = together
        beyond = [
            f
            for f in confirmed
            if not self._work.explains(f.rank, slow[f.rank])
            and not self._work.has_risen_elsewhere(risen[f.rank])
        ]
        for rank in slow.keys() - {f.rank for f in beyond}:
            self._not_before[rank] = ratios.settled + _EXAMINE_STEPS
        return beyond


def _risen_with(ratios: Ratios, confirmed: list[Candidate]) -> dict[int, Bools]:
    """Return who rose with each of the ``confirmed``, [ranks] (``risen_together``); nobody in a job with
    coordinates or batches."""
    if not confirmed or ratios.roles_known or ratios.batches is not None:
        return {found.rank: np.zeros(ratios.ranks, dtype=np.bool_) for found in confirmed}
    steps = {found.rank: _steps_around(ratios, found) for found in confirmed}
    x = beside_the_middle(ratios.history.last("v", max(steps.values())))
    return {rank: risen_together(x[-around:], rank, ratios.nodes) for rank, around in steps.items()}


def _steps_around(ratios: Ratios, found: Candidate) -> int:
    """Return how many of the last steps show a slowdown and what was usual before it."""
    held, before = ratios.history.count, max(_BEFORE, found.steps // _PART)
    # Slow in all steps judged, it may have become so in the warm-up.
    return held if found.steps == ratios.settled else min(found.steps + before, held)
