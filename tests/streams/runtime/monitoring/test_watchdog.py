import pytest

from streams.runtime.monitoring.health import Health
from streams.runtime.monitoring.watchdog import Watchdog


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def dog(clock):
    return Watchdog(Health("detect", clock))


def test_an_idle_worker_is_well(dog, clock):
    """With nothing to read, silence is no sign of anything."""
    clock.now += 10_000
    assert dog.verdict(0, assigned=True) is None


def test_a_worker_that_leaves_messages_lying_is_stuck(dog, clock):
    """Thirty seconds with messages waiting and none taken are a stall."""
    clock.now += 29
    assert dog.verdict(5, assigned=True) is None
    clock.now += 2
    assert "none was taken" in (dog.verdict(5, assigned=True) or "")


def test_taking_without_committing_is_a_stall(dog, clock):
    """Messages that flow while no offset is committed for a minute would all come again."""
    for _ in range(61):
        clock.now += 1
        dog.health.took("t")
    assert "none was committed" in (dog.verdict(5, assigned=True) or "")
    dog.note_committed({("t", 0): 60})
    assert dog.verdict(5, assigned=True) is None


@pytest.mark.parametrize("taken", [True, False])
def test_what_comes_after_a_pause_is_given_its_time(dog, clock, taken):
    """An exporter that was away for minutes ends no worker when it is back; one that stalls then is ended."""
    dog.health.took("t")
    clock.now += 1
    dog.note_committed({("t", 0): 1})
    for _ in range(200):
        clock.now += 1
        assert dog.verdict(0, assigned=True) is None
    clock.now += 1
    for second in range(59 if taken else 29):
        if taken:
            dog.health.took("t")
        assert dog.verdict(5, assigned=True) is None, second
        clock.now += 1
    clock.now += 3
    if taken:
        dog.health.took("t")
    assert dog.verdict(5, assigned=True) is not None


def test_a_spare_worker_takes_over_only_what_is_left_lying(dog, clock):
    """Two minutes count from when the messages came, not from the last commit before a pause."""
    for _ in range(300):
        clock.now += 1
        assert dog.verdict(0, assigned=False) is None
    clock.now += 119
    assert dog.verdict(5, assigned=False) is None
    clock.now += 2
    assert "the group took none" in (dog.verdict(5, assigned=False) or "")


def test_waiting_for_a_server_is_no_stall(dog, clock):
    """While the database is away the worker says so; afterwards its patience starts anew."""
    with dog.health.waiting("database"), dog.health.waiting("kafka"):
        clock.now += 600
        assert dog.verdict(5, assigned=True) is None
    assert dog.verdict(5, assigned=True) is None
    assert dog.health.report()["waiting_for"] == []
    clock.now += 31
    assert dog.verdict(5, assigned=True)


def test_a_spare_worker_is_well_while_others_commit(dog, clock):
    """Without partitions of its own a worker is stuck only when the whole group leaves messages lying."""
    for offset in range(30):
        clock.now += 60
        dog.note_committed({("t", 0): offset})
        assert dog.verdict(5, assigned=False) is None
    clock.now += 121
    assert "the group took none" in (dog.verdict(5, assigned=False) or "")
