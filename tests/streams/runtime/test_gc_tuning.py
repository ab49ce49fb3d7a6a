import gc
import weakref

import pytest

from streams.runtime.gc_tuning import NEW_OBJECTS, collect_less_often


class Knot:
    """An object that holds on to itself."""

    def __init__(self):
        self.itself = self


@pytest.fixture
def thresholds():
    """Thresholds of this process, put back afterwards."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_cycles_are_found_later_but_found(thresholds):
    """Some thousand new objects start no look any more; what the threshold says does."""
    collect_less_often()
    gc.collect()
    gone = weakref.ref(Knot())
    some = [[0] for _ in range(5_000)]
    assert gone() is not None
    some += [[1] for _ in range(NEW_OBJECTS)]
    assert gone() is None
