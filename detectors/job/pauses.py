"""When a job stands still by habit: checkpoints and evaluations, learnt from when they came and how long.

A job that pauses every hundred steps may pause where the next hundred is full, and nowhere else; then a hang
between two checkpoints is not mistaken for a checkpoint.

A gap above max(4 s, 3 usual gaps) is a pause; the last 32 are kept. The pattern is the longest period P of
steps (a difference of pauses, or the greatest common divisor of all) such that 75 % of the pauses, k of them,
fall within a step of one phase, and (P / 3)^(k - 2) >= 25: the first pause gives the phase, the second the
period, and each further one fits by chance in three of P cases. Without a pattern in steps, pauses whose
starts are regular in time to 10 % are due by the clock; otherwise one may come at any time. Of those in no
rhythm the two longest are exceptions, and the third is usual. Pauses are forgotten after 256 steps, or three
usual distances, without one. All limits are chosen.
"""

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# A gap above both is a pause. Chosen: shorter ones end before a hang is considered (``progress``, 12 s).
PAUSE_GAPS = 3.0
PAUSE_SECONDS = 4.0

# Chosen: several periods of two or three kinds of pauses.
_KEPT = 32

# Steps, or usual distances, without a pause after which those seen count no more. Chosen: the steps that the
# other baselines of a job look back on (``StragglerConfig.history``), and two pauses missed.
_FORGOTTEN_STEPS = 256
_FORGOTTEN_PERIODS = 3.0

# Chosen: a pattern allows a pause at three steps of each period; in a shorter one hardly any step is left
# out.
_SHORTEST_PERIOD = 5

# Share by which pauses that go by the clock may be early. Chosen: they wait for the end of a step.
_REGULAR = 0.1

# Place among pauses without a rhythm of the longest that is a habit. Chosen: up to two may be faults that
# passed.
_HABIT = 3

# A pattern counts if most pauses are in it, and as many by chance are one in so many cases (chosen).
_EXPLAINED = 0.75
_CHANCE = 25


@dataclass(frozen=True, slots=True)
class Pause:
    """A long gap that ended with step ``number`` at ``ts``."""

    number: int
    ts: float
    seconds: float


class Due(NamedTuple):
    """The ``longest`` pause [s] that the next may be like, and the longest that is ``usual``; 0: none."""

    longest: float = 0.0
    usual: float = 0.0


class PausePattern(NamedTuple):
    """Pauses come before the steps that leave ``phase`` when divided by ``period``."""

    period: int
    phase: int

    def has(self, number: int) -> bool:
        """Whether a pause before step ``number``, or a neighbour of it, would be in the pattern."""
        return (number - self.phase + 1) % self.period <= 2


class Pauses:
    """The latest long gaps between the steps of one job.

    >>> pauses = Pauses()
    >>> for number in range(1, 401):
    ...     pauses.step(number, 10.0 * number, gap=30.0 if number % 100 == 0 else 1.0, usual=1.0)
    >>> pauses.before(450, 4500.0).longest, pauses.before(500, 5000.0).longest
    (0.0, 30.0)
    """

    def __init__(self) -> None:
        self._pauses: deque[Pause] = deque(maxlen=_KEPT)
        self._first: int | None = None

    def __len__(self) -> int:
        return len(self._pauses)

    def step(self, number: int, ts: float, *, gap: float, usual: float) -> None:
        """Take that step ``number`` came ``gap`` seconds after the last one; ``usual`` seconds are usual."""
        self._first = number if self._first is None else min(self._first, number)
        if gap > max(PAUSE_SECONDS, PAUSE_GAPS * usual):
            self._pauses.append(Pause(number, ts, gap))
        elif self._pauses and number - self._pauses[-1].number > self._memory(self._first):
            self._pauses.clear()

    def before(self, number: int, ts: float) -> Due:
        """Return which pauses one from ``ts`` until step ``number`` may be like."""
        pattern, late = self._pattern(), self._late(ts)
        if pattern is None and late is False:
            return Due()
        in_rhythm, others = list[float](), list[float]()
        for pause in self._pauses:
            regular = bool(late) if pattern is None else pattern.has(pause.number)
            (in_rhythm if regular else others).append(pause.seconds)
        if pattern is not None and not pattern.has(number):
            in_rhythm = []
        habit = sorted((0.0, 0.0, 0.0, *others))[-_HABIT]
        return Due(max((*in_rhythm, *others), default=0.0), max((*in_rhythm, habit)))

    def _pattern(self) -> PausePattern | None:
        """Return the longest period that explains most pauses, and more of them than chance would."""
        numbers = [pause.number for pause in self._pauses]
        steps = [round(n) for n in _differences(numbers)]
        if len(steps) < 2:
            return None
        # Pauses of several kinds (every 100 and every 250 steps) all fall on multiples of what they share.
        for period in sorted({*steps, math.gcd(*steps)}, reverse=True):
            if period < _SHORTEST_PERIOD:
                break
            pattern = PausePattern(period, Counter(n % period for n in numbers).most_common(1)[0][0])
            explained = sum(pattern.has(n) for n in numbers)
            # The first gives the phase and the second the period; each further one is in it by chance in
            # three of ``period`` cases.
            if explained >= _EXPLAINED * len(numbers) and (period / 3) ** (explained - 2) >= _CHANCE:
                return pattern
        return None

    def _late(self, ts: float) -> bool | None:
        """Whether it is time for a pause; None where pauses do not go by the clock."""
        begun = [pause.ts - pause.seconds for pause in self._pauses]
        apart = _differences(begun)
        if len(apart) < 3:
            return None
        period = sorted(apart)[len(apart) // 2]
        if any(abs(s - period) > _REGULAR * period for s in apart):
            return None
        return ts - begun[-1] >= (1.0 - 2 * _REGULAR) * period

    def _memory(self, first: int) -> float:
        """Return after how many steps without a pause those seen so far do not count any more."""
        spaced = _differences([first, *(pause.number for pause in self._pauses)])
        return max(float(_FORGOTTEN_STEPS), _FORGOTTEN_PERIODS * max(spaced))


def _differences(values: Sequence[float]) -> list[float]:
    return [b - a for a, b in zip(values, list(values)[1:], strict=False)]
