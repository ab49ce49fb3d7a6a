"""The open buckets of one source, which have changed and are dropped; what waits to be added to them."""

import math
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from store.telemetry.buckets import BUCKET_SECONDS


class Bucket(Protocol):
    """Aggregates over ten seconds; ``dirty`` if they changed since their rows were last written."""

    dirty: bool


B = TypeVar("B", bound=Bucket)


def changed(held: dict[float, B], before: float, forget: float) -> Iterator[tuple[float, B]]:
    """Yield (start, bucket) of the dirty buckets that end by ``before``, in order, and mark them clean.

    Drop those that end by ``forget``.
    """
    for start, bucket in sorted(held.items(), key=lambda item: item[0]):
        if bucket.dirty and start + BUCKET_SECONDS <= before:
            bucket.dirty = False
            yield start, bucket
        if start + BUCKET_SECONDS <= forget:
            del held[start]


W = TypeVar("W")


class BucketQueue(Generic[W]):
    """What waits for the rows of its bucket to be due, of all sources, by the bucket's start.

    ``fold`` adds what waits for one bucket, in the order in which it came. At most ``most`` waits.
    """

    def __init__(self, fold: Callable[[list[W]], None], most: int) -> None:
        self._fold = fold
        self._most = most
        self._waiting: dict[float, list[W]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, start: float, waiting: W) -> None:
        """Keep one for the bucket that begins at ``start``; fold all where too many wait."""
        self._waiting.setdefault(start, []).append(waiting)
        self._count += 1
        if self._count >= self._most:
            self.fold(math.inf)

    def fold(self, last: float) -> None:
        """Fold what waits for the buckets that begin by ``last``, in order: counters rise on from each."""
        for start in sorted(start for start in self._waiting if start <= last):
            waiting = self._waiting.pop(start)
            self._count -= len(waiting)
            self._fold(waiting)
