"""Repeated short slowness of one rank: evidence that keeps coming and going, and frequent single far steps.

Sees what neither ``job.spike_rate`` nor ``rotating_slowness`` can: that it is the same rank each time, though
no single time suffices.

Per rank, over the last 200 steps, a rise is counted when

* the sharp evidence (effects of at least four sigmas, which healthy steps take back) passes h/2, which
  two neighbouring slow steps do and one does not, after it was taken back altogether: about h/2 it goes up
  and down while the rank is slow by less; or
* single far steps (above four sigmas, not following another) are more than healthy ranks have by chance: with
  n the upper quartile over the ranks of how many each had, at least half a one, a healthy rank has no more
  than a Poisson variable of mean n. A rank is calm that had at most one in 60 steps before.

Three rises make a suspicion, four need no second kind of evidence; more where the job's healthy ranks rise
often (``suspects``). Arrays are [window, ranks] and [ranks],
the work a step O(ranks).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detectors.chance import beyond_chance

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

WINDOW = 200

# Excursions within ``WINDOW`` steps that are no coincidence any more (chosen: one is); on several machines at
# once they are the work's.
AGAIN = 2

# Excursions within ``WINDOW`` steps to suspect a rank, and to believe it without a second kind of evidence.
#
# Chosen: one excursion may be a collection, two a coincidence; the fourth costs a slow rank a few more steps.
# Two neighbouring steps make an excursion; single spikes (garbage collection) do not reach half the
# threshold; many of them at a rank that was calm count by themselves (``_OFTEN``).
SUSPECT = 3
CERTAIN = 4


# Chosen: a window in a thousand, over all ranks.
_CHANCE = 1e-3

# Far steps among so many up to which a rank counts as calm. Chosen: one by chance, and so many steps that
# what is beyond chance shows twice in them; what one rank logs or saves for all is there from the start.
_LATELY = 60
_CALM = 1

# Far steps of a usual rank that are expected at least. Chosen: half a one, as of a rank that had none
# (Jeffreys' estimate).
_FEWEST = 0.5


@dataclass(frozen=True, slots=True)
class Intermittence:
    """The excursions of one rank: how many, how far back the first was (steps), the share of steps in them,
    whether they are ``single`` steps, and whether the rank was ``calm`` once.
    """

    count: int
    age: int
    share: float
    single: bool
    calm: bool


class IntermittenceCounter:
    """Counts per rank how often evidence rose above half the threshold, and single far steps where a rank
    that was calm has many of them, [ranks]."""

    def __init__(self, ranks: int) -> None:
        self._rose = np.zeros((WINDOW, ranks), dtype=bool)
        self._high = np.zeros((WINDOW, ranks), dtype=bool)
        self._single = np.zeros((WINDOW, ranks), dtype=bool)
        self._was_far = np.zeros(ranks, dtype=bool)
        self._is_over = np.ones(ranks, dtype=bool)
        self._steps = 0
        self._lately = np.zeros(ranks, dtype=np.int64)
        self._was_calm = np.zeros(ranks, dtype=bool)
        self._rises = np.zeros(ranks, dtype=np.int64)
        self._singles = np.zeros(ranks, dtype=np.int64)
        self._often = np.zeros(ranks, dtype=bool)
        self.count = np.zeros(ranks, dtype=np.int64)

    def update(self, high: Bools, far: Bools, *, read: Bools, gone: Bools | None = None) -> None:
        """Take for every rank whether its evidence is above half the threshold now, whether this step of it
        is ``far`` off, whether it was ``read`` at all, and whether its evidence is ``gone`` (None: where it
        is not above half).
        """
        slot = self._steps % WINDOW
        # Steps in a row are one: a rank that is slow and stays so is not off and on.
        single = far & ~self._was_far
        self._was_far = np.where(read, far, self._was_far)
        self._lately += single.astype(np.int64) - self._single[slot - _LATELY]
        self._was_calm |= read & (self._steps >= _LATELY) & (self._lately <= _CALM)
        rose = high & self._is_over
        self._is_over = (~high if gone is None else gone) | (self._is_over & ~high)
        self._rises += rose.astype(np.int64) - self._rose[slot]
        self._singles += single.astype(np.int64) - self._single[slot]
        self._rose[slot], self._high[slot], self._single[slot] = rose, high, single
        self._steps += 1
        self._often = self._singles >= self._beyond_usual()
        self.count = np.where(self._often, np.maximum(self._rises, self._singles), self._rises)

    def _beyond_usual(self) -> int:
        """Return how many single far steps healthy ranks do not have by chance."""
        least = beyond_chance(_FEWEST, _CHANCE / self.count.size)
        if self._singles.max() < least:
            return least
        usual = np.partition(self._singles, place := max(3 * self.count.size // 4 - 1, 0))[place]
        return beyond_chance(max(float(usual), _FEWEST), _CHANCE / self.count.size)

    @property
    def suspects(self) -> Bools:
        """Ranks that rose more often than healthy ones of this job ever do, [ranks].

        Collections and hiccups rise by chance, and in a tensor-parallel group with each of its ranks. With n
        healthy ranks, those that rose fewer than three times, and f rises of theirs in all, a healthy rank
        rises as often as a Poisson variable of mean (f + 0.5) / n: a suspect rose so often that among all
        ranks one does by chance in a thousand windows.
        """
        often = self.count >= SUSPECT
        if not often.any():
            return often
        healthy = self.count[~often]
        usual = (float(healthy.sum()) + 0.5) / max(healthy.size, 1)
        suspects: Bools = self.count >= max(SUSPECT, beyond_chance(usual, _CHANCE / self.count.size))
        return suspects

    def of(self, rank: int) -> Intermittence:
        """Return the excursions of one rank."""
        order = np.arange(self._steps - min(self._steps, WINDOW), self._steps) % WINDOW
        rose, high = self._rose[order, rank], self._high[order, rank]
        single = bool(self._often[rank])
        if single:
            rose, high = rose | self._single[order, rank], high | self._single[order, rank]
        first = np.flatnonzero(rose)
        age = len(order) - int(first[0]) if first.size else 0
        share = float(high[-age:].mean()) if age else 0.0
        return Intermittence(int(self.count[rank]), age, share, single, bool(self._was_calm[rank]))
