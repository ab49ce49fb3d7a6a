"""Key A of the hang rule: a job that makes no progress, and ranks that fall silent while the others advance.

Deadlines are judged by their own time: however often event time is looked at, a stall is noticed at the same
moment. ``pauses`` says how long a job may stand still where it is.
"""

import math
from collections import deque
from collections.abc import Set
from dataclasses import dataclass, replace

from streams.job_table import FORGET_SECONDS
from streams.pauses import Pauses

EARLY_SECONDS, _EARLY_GAPS = 12.0, 4.0
STALL_SECONDS, _STALL_GAPS = 15.0, 5.0
"""Least allowances, and how many usual steps they are: the first for a job whose machines all spin for
nothing besides, the second for any."""

CERTAIN_SECONDS, CERTAIN_YOUNG_SECONDS = 60.0, 120.0
"""From when on a stall is no pause: in a job known for long, and in one that has shown few of its pauses."""

REPEAT_SECONDS = 900.0
"""Event time between two repeats of a certain stall while it lasts. A finding stage that is rebuilt from the
last hour (``FINDING_WINDOW_SECONDS``) meets three. Longer than a suspicion lives (``FindingConfig``, 600 s):
a stall that no machine bears out expires between them, and repeats do not revive it."""

_KNOWN_SECONDS, _KNOWN_PAUSES = 1800.0, 3
_PROMPT_SECONDS = 2.0
"""Exporters that send every second tell of a step within this time, which the allowances include."""

_ODD = 3
"""Of the latest delays in sending, the largest that counts: two may be those of an outage."""

_LEARN_GAPS = 20
"""Before so many steps were seen usual steps say nothing: compiling and filling caches take as they do."""

NEWBORN_SECONDS, _NEWBORN_GAPS = 600.0, 10.0
"""Until then a stall is what lasts for so long, and for so many times the longest step so far."""

_YOUNG_GAPS = 60
_YOUNG_FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class Stall:
    """A job without a new step since ``since``, noticed at ``at``.

    ``score`` is the time without a step over what any job is allowed; ``certain``: no pause lasts so long.
    """

    since: float
    at: float
    score: float = 1.0
    certain: bool = False


class Progress:
    """Watches the times of new steps of one job."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._last: float | None = None
        self._ahead: list[Stall] | None = None
        self._number = self._stride = 0
        self._gaps: deque[float] = deque(maxlen=256)
        self._usual = 0.0
        self._unsent: deque[float] = deque(maxlen=64)
        self._pauses = Pauses()

    def new_step(self, number: int, ts: float, *, sent: float | None = None) -> None:
        """Note step ``number``, not seen before, at ``ts``; it ends a stall.

        ``sent`` is when its row was sent (``ts`` where that is not known): exporters that send every ten
        seconds leave a job without news for as long, and the job does not stand still meanwhile.
        """
        self._ahead = None
        self._unsent.append(0.0 if sent is None else sent - ts)
        self._first = ts if self._first is None else self._first
        if self._last is not None and ts > self._last:
            self._gaps.append(ts - self._last)
            self._usual = sorted(self._gaps)[len(self._gaps) // 2]
            self._pauses.step(number, ts, gap=ts - self._last, usual=self._usual)
        self._number, self._stride = number, max(1, number - self._number)
        self._last = ts if self._last is None else max(self._last, ts)

    def look(self, event_time: float) -> list[Stall]:
        """Return what event time has reached of a stall, each once: suspected early, noticed, certain, and
        then again every ``REPEAT_SECONDS``, until a job without a step would be let go.
        """
        if self._last is None or event_time < self._last + EARLY_SECONDS:
            return []
        ahead = self._stalls(self._last) if self._ahead is None else self._ahead
        reached: list[Stall] = []
        while ahead and ahead[0].at <= event_time:
            stall, *ahead = ahead
            reached.append(stall)
            again = replace(stall, at=stall.at + REPEAT_SECONDS)
            if stall.certain and again.at < stall.since + FORGET_SECONDS:
                ahead.append(again)
        self._ahead = ahead
        return reached

    def _stalls(self, last: float) -> list[Stall]:
        # The zeros make it three where fewer rows were seen.
        unsent = max(0.0, sorted((0.0, 0.0, *self._unsent))[-_ODD] - _PROMPT_SECONDS)
        if len(self._gaps) < _LEARN_GAPS:
            newborn = max(NEWBORN_SECONDS, _NEWBORN_GAPS * max(self._gaps, default=0.0)) + unsent
            return [Stall(last, last + newborn, certain=True)]
        pause = self._pauses.allowed_before(self._number + self._stride, last)
        early, allowed = (
            max(least, gaps * self._usual, pause)
            for least, gaps in ((EARLY_SECONDS, _EARLY_GAPS), (STALL_SECONDS, _STALL_GAPS))
        )
        if len(self._gaps) < _YOUNG_GAPS:
            # A young job has shown few of its pauses; in none do all machines spin for nothing.
            allowed *= _YOUNG_FACTOR
        certain = max(CERTAIN_SECONDS if self._known(last) else CERTAIN_YOUNG_SECONDS, allowed)
        early, allowed, certain = early + unsent, allowed + unsent, certain + unsent
        # By when they are reached: where a pause makes two of them one, the surer is told.
        found = {
            early: Stall(last, last + early, early / allowed),
            allowed: Stall(last, last + allowed),
            certain: Stall(last, last + certain, certain=True),
        }
        return list(found.values())

    def _known(self, last: float) -> bool:
        """Tell whether the job has run for long, or paused several times: a new kind of pause is unlikely."""
        lived = last - (last if self._first is None else self._first)
        return lived >= _KNOWN_SECONDS or len(self._pauses) >= _KNOWN_PAUSES


class Presence:
    """Finds ranks whose steps are missing while the others advance."""

    def __init__(self) -> None:
        self.absent: dict[int, int] = {}
        self._last_seen: dict[int, tuple[int, float]] = {}
        self._closed = 0
        self._missed = 0
        self._expected = 0

    def step(self, ranks: Set[int], ts: float) -> tuple[list[int], list[int]]:
        """Note who reported the step closed at ``ts``; return ranks newly judged silent, and ranks back
        again.
        """
        self._closed += 1
        back = sorted(r for r in self.absent if r in ranks)
        for rank in back:
            del self.absent[rank]
        self._last_seen |= dict.fromkeys(ranks, (self._closed, ts))
        gone = self._last_seen.keys() - ranks if len(self._last_seen) > len(ranks) else set()
        self._missed += len(gone - self.absent.keys())
        self._expected += len(self._last_seen) - len(self.absent)
        new = [r for r in sorted(gone) if r not in self.absent and self._is_silent(r, ts)]
        for rank in new:
            self.absent[rank] = self._last_seen[rank][0]
        # So many at once are a fault of the telemetry and not of the ranks.
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
        # So many misses in a row happen by chance to any of the ranks in less than one of a million steps.
        run = max(5, math.ceil(math.log(1e-6 / len(self._last_seen)) / math.log(loss)))
        return self._closed - closed >= run and ts - seen > 5.0
