"""The steps in the collectives of one communicator: repetitions of their sequence.

All ranks of a communicator issue the same collectives, so that they find the same steps. A step reaches from
the end of one collective to that of the same one in the next repetition: a moment that all ranks share.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from exporters.nccl.period import Kind, least_rotation, step_period
from exporters.nccl.record import Operation

# Collectives in which the sequence is looked for. Chosen: three steps with four in each of 500 layers.
MAX_HISTORY = 6144
# Collectives before the first search: three steps with two each.
FIRST_LOOK = 6

# Smaller collectives belong to no sequence: losses and norms that are exchanged now and then, and barriers.
# Inspector writes them only with NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES, which has this default.
MIN_BYTES = 8192

# Steps in which two that take ``LONGEST`` times the median show that the sequence was too short: equal
# buckets, of which one is preceded by the compute of the step. One alone is a pause, as are those afterwards.
# Chosen: more than the equal buckets of two steps.
LONGEST = 3.0
PROBATION = 64

# Share of the collectives that a sequence must cover. Chosen: below what evaluations leave of most jobs, and
# above what a layer of FSDP covers of its steps, in forward or backward: two thirds.
COVERED = 0.7

# Seconds that a sequence may be away before another takes its place. Chosen: longer than most evaluations,
# whose collectives differ and are no steps of training.
LAPSE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Span:
    """One step: its number, and when it began and ended (Unix s)."""

    number: int
    since: float
    until: float


@dataclass(slots=True)
class _Pattern:
    """A step's collectives in order, and how far the present step is; None while they are interrupted."""

    kinds: list[Kind]
    stride: int
    """Numbers of the first collective's function in one step, those of small collectives included."""

    at: int | None = 0
    steps: list[float] = field(default_factory=list)
    """Seconds of the first steps."""

    covered: int = 0
    total: int = 0
    """Collectives of whole or present repetitions, and all, since the sequence was found."""

    @property
    def covers(self) -> bool:
        """Return whether the sequence is that of most collectives."""
        return self.covered >= COVERED * self.total

    def count(self, covered: int) -> None:
        """Count one more collective, which is of the sequence or not."""
        self.total, self.covered = self.total + 1, self.covered + covered
        if self.total > MAX_HISTORY:
            self.total, self.covered = self.total // 2, self.covered // 2

    def too_short(self, seconds: float) -> bool:
        """Return whether a step of these seconds shows that the sequence is a part of the step."""
        if len(self.steps) >= PROBATION:
            return False
        self.steps.append(seconds)
        longest = LONGEST * median(self.steps)
        return seconds > longest and sum(each > longest for each in self.steps) > 1


@dataclass(slots=True)
class StepSequence:
    """Follows one communicator: ``add`` takes its collectives in order of their end and returns its steps.

    ``changes`` counts how often the sequence changed, after which it is learned anew.
    """

    changes: int = 0
    _history: deque[Operation] = field(default_factory=lambda: deque(maxlen=MAX_HISTORY))
    _least: int = FIRST_LOOK
    _look_at: int = FIRST_LOOK
    _pattern: _Pattern | None = None
    _since: float | None = None
    _interrupted_at: float = 0.0

    @property
    def seconds(self) -> float | None:
        """Median of the first steps, None while no sequence is known."""
        return None if self._pattern is None or not self._pattern.steps else median(self._pattern.steps)

    def add(self, collectives: Iterable[Operation]) -> list[Span]:
        """Return the steps that these collectives complete."""
        found: list[Span] = []
        for one in collectives:
            if one.size < MIN_BYTES:
                continue
            self._history.append(one)
            found += self._follow(one)
            if self._pattern is None and len(self._history) >= min(self._look_at, MAX_HISTORY):
                found += self._learn()
        return found

    def _forget(self) -> None:
        """Learn anew."""
        self.changes += 1
        self._pattern, self._since = None, None
        self._look_at = max(self._least, len(self._history) + 1)

    def _learn(self) -> list[Span]:
        """Look for the sequence; with one found, return the steps in which it was found."""
        # Again when half as much has come, which keeps the cost linear.
        self._look_at = len(self._history) * 3 // 2
        history = list(self._history)
        # The first steps may differ, or the steps before a change: half of what there is must repeat.
        for start in (0, len(history) // 4, len(history) // 2):
            tail = history[start:]
            period = step_period([_kind(one) for one in tail], [one.stop for one in tail])
            if period is not None:
                first, self._pattern = _pattern(tail, period)
                return [span for one in tail[first:] for span in self._follow(one)]
        if len(history) == MAX_HISTORY:
            # Else each further collective would be a search.
            self._history = deque(history[MAX_HISTORY // 2 :], MAX_HISTORY)
        return []

    def _follow(self, one: Operation) -> Iterator[Span]:
        pattern = self._pattern
        if pattern is None:
            return
        if pattern.at is None:
            self._resume(one, pattern)
            return
        if _kind(one) != pattern.kinds[pattern.at]:
            pattern.at, self._since, self._interrupted_at = None, None, one.stop
            self._resume(one, pattern)
            return
        pattern.count(1)
        if pattern.at == 0:
            yield from self._complete(one, pattern)
        pattern.at = (pattern.at + 1) % len(pattern.kinds)

    def _resume(self, one: Operation, pattern: _Pattern) -> None:
        """Go on after the first whole repetition that follows an interruption; without one learn anew."""
        size = len(pattern.kinds)
        last = [self._history[i] for i in range(-min(size, len(self._history)), 0)]
        whole = [_kind(each) for each in last] == pattern.kinds
        pattern.count(size if whole else 0)
        if whole:
            pattern.at, self._since = 0, last[0].stop
        elif not pattern.covers:
            self._forget()
        elif one.stop - self._interrupted_at > LAPSE_SECONDS:
            # What is of before would have to repeat as well.
            self._history.clear()
            self._forget()

    def _complete(self, one: Operation, pattern: _Pattern) -> Iterator[Span]:
        """Yield the step that ends with ``one``, the first of its sequence."""
        since, self._since = self._since, one.stop
        if since is None or one.stop <= since:
            return
        if pattern.too_short(one.stop - since):
            self._least = min(2 * self._least, MAX_HISTORY)
            self._forget()
            return
        yield Span(one.number // pattern.stride, since, one.stop)


def _kind(one: Operation) -> Kind:
    return one.function, one.size


def _pattern(history: Sequence[Operation], period: int) -> tuple[int, _Pattern]:
    """Return where in ``history`` the first step begins, and the pattern; all ranks agree on both."""
    kinds = [_kind(one) for one in history[:period]]
    first = least_rotation(kinds)
    numbers = [one.number for one in history[first::period]]
    stride = max(1, min(later - one for one, later in pairwise(numbers)))
    # A sequence that repeats within the step begins at several places: at that of the least remainder.
    begins = [i for i in range(period) if kinds[i:] + kinds[:i] == kinds[first:] + kinds[:first]]
    first = min(begins, key=lambda i: history[i].number % stride)
    return first, _Pattern(kinds[first:] + kinds[:first], stride)
