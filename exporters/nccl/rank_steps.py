"""Step rows of one rank from its collectives, without a training hook.

All ranks of a communicator issue the same collectives. A step is one repetition of their sequence, from the
end of one collective to that of the same one in the next repetition: a moment that all ranks share. Between
them a rank is in a collective (waiting for the last rank, then transferring), which counts as wait, or it is
not, which counts as compute. The transfer takes all ranks equally long. So the rank that the others wait for
has the longest compute and the shortest wait.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from exporters.collector import Columns
from exporters.nccl.period import Kind, least_rotation, step_period
from exporters.nccl.record import Collective

# Collectives in which the sequence is looked for. Chosen: three steps with four in each of 500 layers.
MAX_HISTORY = 6144
# Collectives before the first search: three steps with two each.
FIRST_LOOK = 6

# Steps in which one that takes ``LONGEST`` times the median shows that the sequence was too short: equal
# buckets, of which one is preceded by the compute of the step. Afterwards it is a pause. Chosen: more than
# the equal buckets of a step.
LONGEST = 3.0
PROBATION = 64


@dataclass(slots=True)
class _Pattern:
    """A step's collectives in order, and how far the present step is."""

    kinds: list[Kind]
    stride: int
    """Numbers of the first collective's function in one step, those of small collectives included."""

    at: int = 0
    steps: list[float] = field(default_factory=list)
    """Seconds of the first steps."""

    def too_short(self, seconds: float) -> bool:
        """Return whether a step of these seconds shows that the sequence is a part of the step."""
        if len(self.steps) >= PROBATION:
            return False
        self.steps.append(seconds)
        return seconds > LONGEST * median(self.steps)


@dataclass(slots=True)
class RankSteps:
    """The steps of one process: ``add`` takes its collectives in order of their end and returns rows.

    ``changes`` counts how often the sequence changed, after which it is learned anew.
    """

    changes: int = 0
    _leading: tuple[int, str] = (0, "")
    _counts: Counter[str] = field(default_factory=Counter)
    _history: deque[Collective] = field(default_factory=lambda: deque(maxlen=MAX_HISTORY))
    _least: int = FIRST_LOOK
    _look_at: int = FIRST_LOOK
    _pattern: _Pattern | None = None
    _since: float | None = None
    _busy: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MAX_HISTORY))

    @property
    def communicator(self) -> tuple[int, str]:
        """Number of ranks and id of the communicator whose collectives make the steps."""
        return self._leading

    def add(self, collectives: Sequence[Collective]) -> list[Columns]:
        """Return the rows of the steps that these collectives complete."""
        rows: list[Columns] = []
        self._busy.extend((one.start, one.stop) for one in collectives)
        for one in collectives:
            if self._leads(one):
                self._history.append(one)
                rows += self._follow(one)
        if self._pattern is None and len(self._history) >= min(self._look_at, MAX_HISTORY):
            rows += self._learn()
        return rows

    def _leads(self, one: Collective) -> bool:
        """Return whether it is of the communicator with most ranks, and of those with most collectives."""
        ranks, communicator = self._leading
        if one.ranks < ranks:
            return False
        self._counts[one.communicator] += 1
        # By far, so that two alike do not take turns.
        more = self._counts[one.communicator] > 2 * self._counts[communicator]
        if one.communicator != communicator and (one.ranks > ranks or more):
            self._leading = one.ranks, one.communicator
            self._history.clear()
            self._forget()
        return one.communicator == self._leading[1]

    def _forget(self) -> None:
        self._pattern, self._since = None, None
        self._look_at = max(self._least, len(self._history) + 1)

    def _learn(self) -> list[Columns]:
        """Look for the sequence; with one found, return the rows of what it was found in."""
        # Again when half as much has come, which keeps the cost linear.
        self._look_at = len(self._history) * 3 // 2
        history = list(self._history)
        # The first steps may differ, or the steps before a change: half of what there is must repeat.
        for start in (0, len(history) // 4, len(history) // 2):
            tail = history[start:]
            period = step_period([_kind(one) for one in tail], [one.stop for one in tail])
            if period is not None:
                first, self._pattern = _pattern(tail, period)
                return [row for one in tail[first:] for row in self._follow(one)]
        return []

    def _follow(self, one: Collective) -> Iterator[Columns]:
        pattern = self._pattern
        if pattern is None:
            return
        if _kind(one) != pattern.kinds[pattern.at]:
            self.changes += 1
            self._forget()
            return
        if pattern.at == 0:
            yield from self._complete(one, pattern)
        pattern.at = (pattern.at + 1) % len(pattern.kinds)

    def _complete(self, one: Collective, pattern: _Pattern) -> Iterator[Columns]:
        """Yield the row of the step that ends with ``one``, the first of its sequence."""
        since, self._since = self._since, one.stop
        busy: list[tuple[float, float]] = []
        while self._busy and self._busy[0][1] <= one.stop:
            busy.append(self._busy.popleft())
        if since is None or one.stop <= since:
            return
        seconds = one.stop - since
        if pattern.too_short(seconds):
            self.changes += 1
            self._least = min(2 * self._least, MAX_HISTORY)
            self._forget()
            return
        inside = _covered(busy, since, one.stop)
        yield {
            "step": one.number // pattern.stride,
            "rank": one.rank,
            "ts": one.stop,
            "step_seconds": seconds,
            "compute_seconds": seconds - inside,
            "wait_seconds": inside,
        }


def _kind(one: Collective) -> Kind:
    return one.function, one.size


def _pattern(history: Sequence[Collective], period: int) -> tuple[int, _Pattern]:
    """Return where in ``history`` the first step begins, and the pattern; all ranks agree on both."""
    kinds = [_kind(one) for one in history[:period]]
    first = least_rotation(kinds)
    numbers = [one.number for one in history[first::period]]
    stride = max(1, min(later - one for one, later in pairwise(numbers)))
    # A sequence that repeats within the step begins at several places: at that of the least remainder.
    begins = [i for i in range(period) if kinds[i:] + kinds[:i] == kinds[first:] + kinds[:first]]
    first = min(begins, key=lambda i: history[i].number % stride)
    return first, _Pattern(kinds[first:] + kinds[:first], stride)


def _covered(intervals: Sequence[tuple[float, float]], since: float, until: float) -> float:
    """Return the seconds of [since, until] that lie in at least one interval."""
    covered, reached = 0.0, since
    for start, stop in sorted(intervals):
        start, stop = max(start, reached), min(stop, until)
        if stop > start:
            covered += stop - start
            reached = stop
    return covered
