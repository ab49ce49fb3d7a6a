"""How often Python looks for garbage that only its collector can find: cycles of objects."""

import gc

THRESHOLDS = (50_000, 20, 100)
"""As in ``gc.set_threshold``. Some seconds' records of a thousand nodes are so many new objects."""


def collect_seldom() -> None:
    """Leave what is loaded by now alone, and look for cycles less often in this process.

    Python looks after every 700 new objects and, now and then, at all there are. Records live until their
    second has passed and hold no cycles, so that it finds nothing, and what it goes through is gone from the
    cache: with 12,500 nodes that is a fifth of the time.
    """
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
