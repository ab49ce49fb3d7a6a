"""How far the clocks of a job's nodes are off, by the ends of common steps.

The ranks of a synchronous job end a step together. With t_n the time of node n's first row of a step, in its
own clock, and a_n by how much that clock is known to be ahead:

    e_n = t_n - median of (t_m - a_m) over the nodes m that sent the step.

Where two steps agree about e_n, the times of the node are moved by it from then on: a step waits five seconds
for late rows, by the clock of whoever is ahead, and would otherwise be closed without the others.
``streams.files.node_clocks`` does the same for a file as a whole.
"""

from statistics import median

# Errors that are put right. Chosen: less than half of the wait for late rows; and workers that count their
# steps by themselves, which no clock explains, may have begun at any time.
LEAST_SECONDS, MOST_SECONDS = 2.0, 300.0

# Numbers of steps that are compared. Chosen: two of them are so far apart that workers of different pace are
# seen to drift.
_EVERY = 4

# Steps in which it is seen which nodes there are. Chosen: rows come once a second, and few steps are shorter
# than an eighth of that.
_LEARN = 8

# Share of an error, or seconds, by which two steps may differ about it. Chosen: a steady clock varies with
# the end of the step alone.
_SHARE, _SECONDS = 0.05, 0.5

# Steps compared whose rows have not all come. Chosen: 64 steps in all, minutes of short ones.
_MOST_OPEN = 16


class NodeClocks:
    """Learns the errors of the clocks of a job's nodes, each once, when the node has come."""

    def __init__(self) -> None:
        self._begin: int | None = None
        self._ends: dict[int, dict[str, float]] = {}
        self._nodes: set[str] = set()
        self._first: dict[str, float] = {}
        self._ahead: dict[str, float] = {}

    def ahead(self, node: str) -> float:
        """Return by how many seconds the clock of ``node`` is ahead, 0 where that is not known."""
        return self._ahead.get(node, 0.0)

    def note(self, node: str, number: int, ts: float) -> bool:
        """Take the time ``ts`` of a row of step ``number``, by the node's own clock; return whether it shows
        that a clock is off."""
        if number % _EVERY or (node in self._nodes and len(self._ahead) == len(self._nodes)):
            return False
        self._nodes.add(node)
        if self._begin is None:
            self._begin = number + _LEARN
        if number < self._begin:
            return False
        ends = self._ends.setdefault(number, {})
        ends.setdefault(node, ts)
        if 1 < len(ends) == len(self._nodes):
            return self._compare(self._ends.pop(number))
        return len(self._ends) > _MOST_OPEN and self._compare(self._ends.pop(min(self._ends)))

    def renumber(self) -> None:
        """Take that the job counts its steps anew."""
        self._begin = None
        self._ends.clear()

    def _compare(self, ends: dict[str, float]) -> bool:
        if len(ends) < 2:
            return False
        now = median(ts - self.ahead(node) for node, ts in ends.items())
        known = {node: ts - now for node, ts in ends.items() if node not in self._ahead}
        again = {node: error for node, error in known.items() if node in self._first}
        found = {n: error if _is_clock(error, self._first[n]) else 0.0 for n, error in again.items()}
        self._ahead |= found
        self._first |= known
        return any(found.values())


def _is_clock(error: float, before: float) -> bool:
    steady = abs(error - before) <= max(_SHARE * abs(error), _SECONDS)
    return steady and LEAST_SECONDS <= abs(error) <= MOST_SECONDS
