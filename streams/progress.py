"""Key A of the hang rule: a job that makes no progress, and ranks that fall silent while the others advance.

Deadlines are judged by their own time: however often event time is looked at, a stall is noticed at the same
moment. Pauses the job has shown before (checkpoints, sampled steps) are learnt and allowed for.
"""

import math
from collections import deque
from dataclasses import dataclass

MIN_SILENCE_SECONDS = 15.0
_LEARN_GAPS = 20
_EARLY_FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class Stall:
    """A job without a new step since ``since``, noticed at ``at``."""

    since: float
    at: float


class Progress:
    """Watches the times of new steps of one job."""

    def __init__(self) -> None:
        self.stalled: Stall | None = None
        self._last: float | None = None
        self._gaps: deque[float] = deque(maxlen=256)

    def new_step(self, ts: float) -> None:
        """Note a step not seen before at ``ts``; it ends a stall."""
        self.stalled = None
        if self._last is not None and ts > self._last:
            self._gaps.append(ts - self._last)
        self._last = ts if self._last is None else max(self._last, ts)

    def look(self, event_time: float) -> Stall | None:
        """Return a stall whose deadline event time has reached, once."""
        if self.stalled or self._last is None or event_time < self._last + self._allowed():
            return None
        self.stalled = Stall(self._last, self._last + self._allowed())
        return self.stalled

    def _allowed(self) -> float:
        if len(self._gaps) < _LEARN_GAPS:
            return math.inf
        usual = sorted(self._gaps)[len(self._gaps) // 2]
        early = _EARLY_FACTOR if len(self._gaps) < 3 * _LEARN_GAPS else 1.0
        return early * max(MIN_SILENCE_SECONDS, 5.0 * usual, 2.0 * max(self._gaps))


class Presence:
    """Finds ranks whose steps are missing while the others advance."""

    def __init__(self) -> None:
        self.absent: dict[int, int] = {}
        self._last_seen: dict[int, tuple[int, float]] = {}
        self._closed = 0
        self._missed = 0
        self._expected = 0

    def step(self, ranks: set[int], ts: float) -> tuple[list[int], list[int]]:
        """Note who reported the step closed at ``ts``; return ranks newly judged silent, and ranks back
        again.
        """
        self._closed += 1
        back = [r for r in sorted(ranks) if self.absent.pop(r, None) is not None]
        for rank in ranks:
            self._last_seen[rank] = (self._closed, ts)
        gone = [r for r in self._last_seen if r not in ranks]
        self._missed += sum(1 for r in gone if r not in self.absent)
        self._expected += len(self._last_seen) - len(self.absent)
        new = [r for r in sorted(gone) if r not in self.absent and self._is_silent(r, ts)]
        for rank in new:
            self.absent[rank] = self._last_seen[rank][0]
        if len(self.absent) > 0.2 * len(self._last_seen):
            return [], back
        return new, back

    def last_seen(self, rank: int) -> float:
        """Event time of the last row of ``rank``."""
        return self._last_seen[rank][1]

    def _is_silent(self, rank: int, ts: float) -> bool:
        """Demand a run of missed steps that the file's or network's usual losses cannot explain."""
        closed, seen = self._last_seen[rank]
        loss = min(max(self._missed / max(self._expected, 1), 0.01), 0.9)
        run = max(5, math.ceil(math.log(1e-6 / len(self._last_seen)) / math.log(loss)))
        return self._closed - closed >= run and ts - seen > 5.0
