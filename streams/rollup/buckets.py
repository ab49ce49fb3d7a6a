"""The open buckets of one source: which have news to write, and which nobody will add to any more."""

from collections.abc import Iterator
from typing import Protocol, TypeVar

from store.telemetry.buckets import BUCKET_SECONDS


class Bucket(Protocol):
    """What a roll-up sums up over ten seconds; ``dirty`` since its rows were last written."""

    dirty: bool


B = TypeVar("B", bound=Bucket)


def changed(held: dict[float, B], before: float, forget: float) -> Iterator[tuple[float, B]]:
    """Yield start and bucket of what changed and ends by ``before``; drop what ends by ``forget``.

    They come in order of time, and are clean from then on.
    """
    for start, bucket in sorted(held.items(), key=lambda item: item[0]):
        if bucket.dirty and start + BUCKET_SECONDS <= before:
            bucket.dirty = False
            yield start, bucket
        if start + BUCKET_SECONDS <= forget:
            del held[start]
