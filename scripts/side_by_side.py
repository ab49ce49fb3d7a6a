"""Pytest plugin: how `make test` divides the tests among the processes of pytest-xdist.

A file is one unit, so that its fixtures are made once. A slow test with real servers waits most of its time:
it is a unit of its own, and these are spread over the first part of the run so that other tests fill the
waits; so are the files with slow tests, so that no long one is left at the end. A test marked `alone`
measures time or memory: it runs at the end, while the other processes are idle.
"""

import fcntl
from collections.abc import Generator, Mapping

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

ALONE = "alone"
# Workers see the marks of a test; the scheduler's process gets only its name and reads the unit from here.
CACHE_KEY = "slowrank/units"

# Shares of the units among which slow ones begin (chosen: what comes after them outlasts the last).
SINGLES_END, FILES_END = 0.6, 0.4


class Units(LoadFileScheduling):  # type: ignore[misc] # xdist is not typed
    """Hands out the units in the order in which the processes collected them."""

    def schedule(self) -> None:
        """Divide what was collected, and from then on hand out the next unit."""
        self.config.option.loadscopereorder = False
        self._units: dict[str, str] = self.config.cache.get(CACHE_KEY, {})
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return self._units.get(nodeid) or str(super()._split_scope(nodeid))


def unit_of(item: pytest.Item) -> str:
    """Return the unit of a test: ``alone``, its own name (slow, with servers), or else its file."""
    marks = {mark.name for mark in item.iter_markers()}
    if ALONE in marks:
        return ALONE
    return item.nodeid if {"integration", "slow"} <= marks else item.nodeid.partition("::")[0]


def is_slow(item: pytest.Item) -> bool:
    """Return whether a test is marked as slow."""
    return item.get_closest_marker("slow") is not None


def spread(units: Mapping[str, bool]) -> list[str]:
    """Order the units: slow ones (True), single tests and files, evenly among the rest; ``alone`` last."""
    slow = [unit for unit in units if units[unit] and unit != ALONE]
    kinds = (
        ([unit for unit in slow if "::" in unit], SINGLES_END),
        ([unit for unit in slow if "::" not in unit], FILES_END),
        ([unit for unit in units if not units[unit] and unit != ALONE], 1.0),
    )
    placed = [(end * k / len(kind), unit) for kind, end in kinds for k, unit in enumerate(kind)]
    return [unit for _, unit in sorted(placed)] + [ALONE] * (ALONE in units)


# Last: by then other plugins have set marks and deselected tests.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests by their units."""
    if not hasattr(config, "workerinput"):
        return
    units: dict[str, list[pytest.Item]] = {}
    for item in items:
        units.setdefault(unit_of(item), []).append(item)
    slow = {unit: any(map(is_slow, mine)) for unit, mine in units.items()}
    items[:] = [item for unit in spread(slow) for item in units[unit]]
    if config.workerinput["workerid"] == "gw0":
        config.cache.set(CACHE_KEY, {item.nodeid: unit for unit in units for item in units[unit]})


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Units:
    """Hand out units."""
    return Units(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test with its fixtures under a shared lock; a test marked ``alone`` under an exclusive one."""
    with (item.config.cache.mkdir(ALONE) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if item.get_closest_marker(ALONE) else fcntl.LOCK_SH)
        return (yield)
