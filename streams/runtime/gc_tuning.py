"""Frequency of Python's cyclic garbage collector."""

import gc

# Allocations between collections of the youngest generation: seconds of records of a few thousand nodes.
NEW_OBJECTS = 50_000


def collect_less_often() -> None:
    """Exclude all objects that exist now from collection, and collect less often in this process.

    By default Python collects after every 700 allocations. Decoded records leave tuples that live for seconds
    and hold no cycles: collections find nothing and evict the CPU cache. Cycles are freed later in exchange.
    """
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)
