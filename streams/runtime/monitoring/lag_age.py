"""How old the oldest message is that a worker has not taken yet, by partition. Pure: times come in."""

from collections.abc import Mapping

from streams.runtime.kafka.message import PartitionId
from streams.runtime.monitoring.self_findings import Backlog


class LagAges:
    """Ages in seconds; all times are Unix seconds, those of messages are the log's.

    Where a partition was read to its end before, what waits has waited since it was first seen to. Where it
    never was, since a start with much to read, the oldest waits for at most as long as the last one that was
    taken is old, and at that it is counted.
    """

    def __init__(self) -> None:
        self._taken: dict[PartitionId, float] = {}
        self._caught_up: set[PartitionId] = set()
        self._backlogs: dict[PartitionId, Backlog] = {}

    def took(self, place: PartitionId, logged: float) -> None:
        """Record the time of a message that was taken."""
        self._taken[place] = logged

    def note(
        self, now: float, ends: Mapping[PartitionId, int], positions: Mapping[PartitionId, int]
    ) -> dict[PartitionId, float]:
        """Return the ages, from end offsets and the next offsets to be taken; drop other partitions."""
        self._backlogs = {place: self._backlogs.get(place, Backlog()) for place in ends}
        self._caught_up &= ends.keys()
        self._taken = {place: at for place, at in self._taken.items() if place in ends}
        return {place: self._age(place, now, end, positions.get(place, 0)) for place, end in ends.items()}

    def _age(self, place: PartitionId, now: float, end: int, position: int) -> float:
        seen = self._backlogs[place].note(now, {place: end}, {place: position})
        if position >= end:
            self._caught_up.add(place)
            return 0.0
        if place in self._caught_up:
            return seen
        return max(seen, now - self._taken.get(place, now))
