"""How long records have waited for a consumer group, by what it has committed. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from streams.runtime.kafka.message import PartitionId


class Waiting:
    """The age of the oldest record that is not committed, counted from when it was first seen."""

    def __init__(self) -> None:
        self._seen: dict[PartitionId, deque[tuple[float, int]]] = {}
        self._longest = 0.0

    def note(self, now: float, ends: Mapping[PartitionId, int], read: Mapping[PartitionId, int]) -> None:
        """Take where the partitions end now, and up to where they have been read."""
        for place, end in ends.items():
            seen = self._seen.setdefault(place, deque())
            while seen and seen[0][1] <= read.get(place, 0):
                seen.popleft()
            if end > max(read.get(place, 0), seen[-1][1] if seen else 0):
                seen.append((now, end))
            if seen:
                self._longest = max(self._longest, now - seen[0][0])

    def longest(self) -> float:
        """Return the greatest age since the last call, in seconds."""
        longest, self._longest = self._longest, 0.0
        return longest
