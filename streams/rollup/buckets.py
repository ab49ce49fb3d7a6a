"""The open buckets of one source: which have changed, and which are dropped."""

from collections.abc import Iterator
from typing import Protocol, TypeVar

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
