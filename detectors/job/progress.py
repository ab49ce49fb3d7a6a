"""The ``no_progress`` half of the hang rule: a job without a new step for longer than any pause explains.

With g the upper quartile of the last 256 gaps between new steps [s], p the longest pause that may be due
here and q the longest usual one (``pauses``), and d the delay with which rows are sent, a job without a new
step is

* suspected early after max(12, 4 g, 2 p) + d, which counts only where all of its machines spin besides;
* stalled after max(15, 5 g, 2 p) + d, three times that in its first 60 steps;
* certainly stalled after max(60, the above), or 120 s while it has shown few of its pauses;
* in its first 20 steps, certainly stalled after max(600, 10 times its longest gap) + d, and not before;
* stalled without any need of its nodes, where none of them sends samples, after max(120, 4 g, q) + d; in
  the first 20 steps of a later attempt after max(120, 10 g', 2 s) + d, with the usual gap g' of the attempt
  before and the longest gap s of first steps so far.

Where a few ranks did not arrive at the last step (``stopped_rows``), ``missing_due`` is when that suffices:
after max(60, 4 g) + d, whatever pause may be due, for a pause begins with all rows. Where ranks report the
step that they do not end (``arrivals``), ``stalled_due`` is when that suffices: once the job is stalled.

Deadlines are judged by their own time: however often event time is looked at, a stall is noticed at the same
moment. The limits are chosen: below the default time-out of collectives (10 minutes in PyTorch), above
most pauses. A hang needs ``nodes_idle`` besides (``alerts.reasoning.hang``).
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from detectors.job.pauses import Pauses

# Least allowances, and how many usual steps they are: the first for a job whose machines all spin for nothing
# besides (its steps are those of information as well), the second for any. Chosen: above collections and
# short checkpoints, which last some seconds.
EARLY_SECONDS, _EARLY_GAPS = 12.0, 4.0
STALL_SECONDS, _STALL_GAPS = 15.0, 5.0

# From when on a stall is no pause: in a job known for long, and in one that has shown few of its pauses.
# Chosen: minutes before the collectives' time-out of ten, which loses the job.
CERTAIN_SECONDS, CERTAIN_YOUNG_SECONDS = 60.0, 120.0

# From when on steps suffice, as information, where no node sends samples. Chosen: well below the time-out of
# collectives; unannounced pauses of minutes are found besides, in which such a job shows just the same.
ALONE_SECONDS = 120.0

# Times the longest pause seen that the next one may take. Chosen: storage is slow at times; a hang that
# begins in a pause is noticed so much later. Information does not wait for that: no multiple of the longest
# of a few pauses bounds the next, and one that came once or twice may have been a hang itself.
_ALLOWED_PAUSES = 2.0

# From when on ranks that did not arrive are waited for no more. Chosen: rows that a broken path delays mostly
# come within a minute; of slow steps, what makes a stall early (``_EARLY_GAPS``).
MISSING_SECONDS, _MISSING_GAPS = 60.0, 4.0

# Event time between two repeats of a certain stall while it lasts. A finding stage that is rebuilt from the
# last hour (``FINDING_WINDOW_SECONDS``) meets three. Longer than a suspicion lives (``FindingConfig``, 600
# s): a stall that no machine bears out expires between them, and repeats do not revive it.
REPEAT_SECONDS = 900.0

# After a day without a row a job is let go, and its stall repeated no more. Chosen: a job that stands still
# for longer is dead.
FORGET_SECONDS = 86_400.0

# A job known for long: so many seconds, or pauses. Chosen: by then it has mostly shown its pauses.
_KNOWN_SECONDS, _KNOWN_PAUSES = 1800.0, 3

# Exporters that send every second send a step within this time, which the allowances include.
_PROMPT_SECONDS = 2.0

# Place among the latest delays in sending of the one that counts. Chosen: the two largest may be an outage's.
_ODD = 3

# Share of the gaps that are no longer than the usual one. Chosen: where steps are of two kinds, as the
# rollouts and updates of reinforcement learning, their median is of either kind from one step to the next; a
# pause that comes less often than every fourth step has a rhythm of its own (``pauses``).
_USUAL = 0.75

# Before so many steps were seen usual steps are unknown. Chosen: the warm-up of ``StragglerConfig``;
# compiling and filling caches take as long as they do.
_LEARN_GAPS = 20

# Until then a stall is what lasts for so long, and for so many times the longest step so far. Chosen: the
# collectives' time-out in PyTorch, by which a job that hangs would have ended itself.
NEWBORN_SECONDS, _NEWBORN_GAPS = 600.0, 10.0

# Steps in which allowances are so many times as long. Chosen: a first checkpoint is not yet in the rhythm.
_YOUNG_GAPS = 60
_YOUNG_FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class Stall:
    """A job without a new step since ``since``, noticed at ``at``.

    ``score`` is the time without a step over what any job is allowed; ``certain``: no pause lasts so long;
    ``alone``: it suffices where no node sends samples.
    """

    since: float
    at: float
    score: float = 1.0
    certain: bool = False
    alone: bool = False


class StallWatch:
    """Watches the times of new steps of one job; before event time ``due`` there is nothing to look for."""

    def __init__(self, before: "StallWatch | None" = None) -> None:
        """Begin with the usual gap, and the longest of first steps, of ``before``, the attempt before."""
        self._before: float = 0.0 if before is None else before._paced
        self._starts: float = 0.0 if before is None else before._starts
        self._first: float | None = None
        self._last: float | None = None
        self.due = math.inf
        self._ahead: list[Stall] | None = None
        self._number = self._stride = 0
        self._gaps: deque[float] = deque(maxlen=256)
        self._usual = 0.0
        self._unsent: deque[float] = deque(maxlen=64)
        self._pauses = Pauses()

    def new_step(self, number: int, ts: float, *, sent: float | None = None) -> None:
        """Note step ``number``, not seen before, at ``ts``; it ends a stall.

        ``sent`` is when its row was sent (``ts`` where that is not known): exporters that send every ten
        seconds leave a job without rows for as long, and the job does not stand still meanwhile.
        """
        self._ahead = None
        self._unsent.append(0.0 if sent is None else sent - ts)
        self._first = ts if self._first is None else self._first
        if self._last is not None and ts > self._last:
            self._gaps.append(ts - self._last)
            if len(self._gaps) <= _LEARN_GAPS:
                self._starts = max(self._starts, ts - self._last)
            self._usual = sorted(self._gaps)[int(_USUAL * len(self._gaps))]
            self._pauses.step(number, ts, gap=ts - self._last, usual=self._usual)
        # A job may report every n-th step only: its next one is as many steps further on.
        self._number, self._stride = number, max(1, number - self._number)
        self._last = ts if self._last is None else max(self._last, ts)
        self.due = self._last + EARLY_SECONDS

    def resume(self, ts: float) -> None:
        """Count the time without a step from ``ts`` on: what was sent before it may be lost."""
        if self._last is not None and ts > self._last:
            self._ahead, self._last, self.due = None, ts, ts + EARLY_SECONDS

    def look(self, event_time: float) -> list[Stall]:
        """Return what event time has reached of a stall, each once: suspected early, noticed, certain, and
        then again every ``REPEAT_SECONDS``, until a job without a step would be let go.
        """
        if self._last is None or event_time < self.due:
            return []
        ahead = self._stalls(self._last) if self._ahead is None else self._ahead
        reached: list[Stall] = []
        while ahead and ahead[0].at <= event_time:
            stall, *ahead = ahead
            reached.append(stall)
            again = replace(stall, at=stall.at + REPEAT_SECONDS)
            if stall.alone and not ahead and again.at < stall.since + FORGET_SECONDS:
                ahead.append(again)
        self._ahead = ahead
        return reached

    @property
    def last(self) -> float:
        """Event time of the last new step, NaN before the first."""
        return math.nan if self._last is None else self._last

    @property
    def stalled_due(self) -> float:
        """Event time from which on the job counts as stalled."""
        if self._last is None:
            return math.inf
        return min(stall.at for stall in self._stalls(self._last) if stall.score >= 1.0)

    @property
    def missing_due(self) -> float:
        """Event time from which on ranks that did not arrive at the last step are evidence."""
        if self._last is None:
            return math.inf
        usual = self._usual if len(self._gaps) >= _LEARN_GAPS else max(self._gaps, default=math.inf)
        return self._last + max(MISSING_SECONDS, _MISSING_GAPS * usual) + self._delay

    @property
    def _delay(self) -> float:
        # The zeros make it three where fewer rows were seen.
        return max(0.0, sorted((0.0, 0.0, *self._unsent))[-_ODD] - _PROMPT_SECONDS)

    def _stalls(self, last: float) -> list[Stall]:
        unsent = self._delay
        if len(self._gaps) < _LEARN_GAPS:
            return list(self._newborn(last, unsent))
        due = self._pauses.before(self._number + self._stride, last)
        early, allowed, alone = (
            max(least, gaps * self._usual, pause)
            for least, gaps, pause in (
                (EARLY_SECONDS, _EARLY_GAPS, _ALLOWED_PAUSES * due.longest),
                (STALL_SECONDS, _STALL_GAPS, _ALLOWED_PAUSES * due.longest),
                (ALONE_SECONDS, _EARLY_GAPS, due.usual),
            )
        )
        if len(self._gaps) < _YOUNG_GAPS:
            # A young job has shown few of its pauses; in none do all machines spin for nothing.
            allowed *= _YOUNG_FACTOR
        certain = max(CERTAIN_SECONDS if self._known(last) else CERTAIN_YOUNG_SECONDS, allowed)
        # By when they are reached: where a pause makes two of them one, the surer is reported.
        return [
            Stall(last, last + after + unsent, score, certain=after >= certain, alone=after >= alone)
            for after in sorted({early, allowed, certain, alone})
            for score in (min(1.0, (after + unsent) / (allowed + unsent)),)
        ]

    def _newborn(self, last: float, unsent: float) -> Iterator[Stall]:
        """Yield the stalls of a job whose usual steps are unknown, but for those of its attempt before."""
        longest = max(self._gaps, default=0.0)
        certain = max(NEWBORN_SECONDS, _NEWBORN_GAPS * longest)
        alone = max(ALONE_SECONDS, _NEWBORN_GAPS * self._before, _ALLOWED_PAUSES * self._starts)
        if self._before and alone < certain:
            yield Stall(last, last + alone + unsent, alone=True)
        yield Stall(last, last + certain + unsent, certain=True, alone=True)

    @property
    def _paced(self) -> float:
        """The usual gap [s] of this attempt, or of the one before while it is unknown; 0 without any."""
        return self._usual if len(self._gaps) >= _LEARN_GAPS else self._before

    def _known(self, last: float) -> bool:
        """Whether the job has run for long, or paused several times: a new kind of pause is unlikely."""
        lived = last - (last if self._first is None else self._first)
        return lived >= _KNOWN_SECONDS or len(self._pauses) >= _KNOWN_PAUSES
