"""How the snapshots of a worker do: for the metrics and the health file."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from streams.runtime.kafka.message import PartitionId


@dataclass(slots=True)
class SnapshotCounts:
    """Snapshots ``loaded``, ``refused`` by reason, ``written`` and ``failed`` to be; CPU ``seconds`` spent.

    ``at`` is when (Unix seconds) the last snapshot of each partition was taken, ``sizes`` its bytes.
    """

    loaded: int = 0
    written: int = 0
    failed: int = 0
    seconds: float = 0.0
    refused: Counter[str] = field(default_factory=Counter)
    at: dict[PartitionId, float] = field(default_factory=dict)
    sizes: dict[PartitionId, int] = field(default_factory=dict)

    def wrote(self, place: PartitionId, size: int, *, at: float) -> None:
        """Count a snapshot of so many bytes."""
        self.written += 1
        self.at[place], self.sizes[place] = at, size

    def retain(self, places: Iterable[PartitionId]) -> None:
        """Forget partitions that another worker has."""
        kept = set(places)
        self.at = {place: at for place, at in self.at.items() if place in kept}
        self.sizes = {place: size for place, size in self.sizes.items() if place in kept}
