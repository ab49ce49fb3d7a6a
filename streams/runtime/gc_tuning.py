"""How often Python looks for garbage that only its collector can find: cycles of objects."""

import gc

NEW_OBJECTS = 50_000
"""Objects after which it looks among the new ones: some seconds of a few thousand nodes."""


def collect_seldom() -> None:
    """Leave alone what is loaded by now, and look for cycles less often in this process.

    Python looks among the new ones after every 700, and now and then among all there are. A decoded record
    leaves some tuples that live until their second has passed and hold no cycles: nothing is found, and what
    was gone through takes the place of others in the cache. A cycle lives longer for it.
    """
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)
