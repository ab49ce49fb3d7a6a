"""Step rows of one rank from its operations, without a training hook.

Between the ends of a step a rank is in an operation of any communicator (waiting for the others, then
transferring), which counts as wait, or it is in none, which counts as compute. The transfer takes all ranks
equally long. So the rank that the others wait for has the longest compute and the shortest wait.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from exporters.collector import Columns
from exporters.nccl.record import Communicator, Operation
from exporters.nccl.step_sequence import Span, StepSequence

# Communicators whose sequence is followed. Chosen: several for each kind of parallelism.
MAX_COMMUNICATORS = 64
# Operations held until their step ends. Chosen: a step with hundreds in each of 100 micro-batches.
MAX_BUSY = 65_536

# Of two communicators that with the longer step makes the rows: the sequence of the other is a part of one,
# such as a micro-batch of a tensor-parallel group. Chosen: alike up to what pauses and first steps differ by.
LONGER = 1.5
# Seconds of the longest. Chosen: more than a step of the largest models; what repeats more slowly are
# evaluations and checkpoints.
LONGEST_STEP = 120.0


@dataclass(slots=True)
class RankSteps:
    """The steps of one process: ``add`` takes its operations in order of their end and returns rows.

    Rows have no rank: which it is in the job, the communicator of the steps need not show.
    """

    members: dict[str, Communicator] = field(default_factory=dict)
    """The communicators of the process by their id, as it first used them."""

    pid: int = 0
    first: float = 0.0
    last: float = 0.0
    """When its first and its last operation ended (Unix s)."""

    _sequences: dict[str, StepSequence] = field(default_factory=dict)
    _leader: str = ""
    _until: float = 0.0
    _busy: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MAX_BUSY))

    @property
    def leader(self) -> str:
        """Id of the communicator whose collectives make the steps; empty while none repeats."""
        return self._leader

    @property
    def changes(self) -> int:
        """How often the sequence of a communicator changed, after which it is learned anew."""
        return sum(sequence.changes for sequence in self._sequences.values())

    def introduce(self, operations: Iterable[Operation]) -> None:
        """Note the communicators of operations that are long past."""
        for one in operations:
            if len(self.members) < MAX_COMMUNICATORS:
                self.members.setdefault(one.communicator.id, one.communicator)

    def add(self, operations: Sequence[Operation]) -> list[Columns]:
        """Return the rows of the steps that these operations complete."""
        if not operations:
            return []
        self.introduce(operations)
        self.pid = operations[-1].pid
        self.first = self.first or operations[0].stop
        self.last = max(self.last, operations[-1].stop)
        self._busy.extend((one.start, one.stop) for one in operations)
        spans: dict[str, list[Span]] = {}
        for id_, collectives in _by_communicator(operations).items():
            if id_ in self._sequences or len(self._sequences) < MAX_COMMUNICATORS:
                spans[id_] = self._sequences.setdefault(id_, StepSequence()).add(collectives)
        self._lead()
        # None twice where another communicator has come to lead.
        return [self._row(span) for span in spans.get(self._leader, []) if span.since >= self._until]

    def _lead(self) -> None:
        """Choose the communicator that makes the steps."""
        leading = self._sequences.get(self._leader)
        held = None if leading is None else leading.seconds
        for id_, sequence in self._sequences.items():
            seconds = sequence.seconds
            if seconds is None or seconds > LONGEST_STEP:
                continue
            if held is None or seconds > LONGER * held or (LONGER * seconds > held and self._wider(id_)):
                self._leader, held = id_, seconds

    def _wider(self, id_: str) -> bool:
        """Return whether a communicator is on more nodes than the leading one, or on as many and larger."""
        one, leading = self.members[id_], self.members[self._leader]
        return (one.nodes, one.ranks) > (leading.nodes, leading.ranks)

    def _row(self, span: Span) -> Columns:
        busy: list[tuple[float, float]] = []
        while self._busy and self._busy[0][1] <= span.until:
            busy.append(self._busy.popleft())
        # One that another communicator has begun may reach beyond the step.
        busy += [(start, stop) for start, stop in self._busy if start < span.until]
        self._until = span.until
        seconds, inside = span.until - span.since, _covered(busy, span.since, span.until)
        return {
            "step": span.number,
            "ts": span.until,
            "step_seconds": seconds,
            "compute_seconds": seconds - inside,
            "wait_seconds": inside,
        }


def _by_communicator(operations: Iterable[Operation]) -> Mapping[str, list[Operation]]:
    found: dict[str, list[Operation]] = {}
    for one in operations:
        if not one.pairwise:
            found.setdefault(one.communicator.id, []).append(one)
    return found


def _covered(intervals: Sequence[tuple[float, float]], since: float, until: float) -> float:
    """Return the seconds of [since, until] that lie in at least one interval."""
    covered, reached = 0.0, since
    for start, stop in sorted(intervals):
        start, stop = max(start, reached), min(stop, until)
        if stop > start:
            covered += stop - start
            reached = stop
    return covered
