import pytest

from detectors.job.missing_rows import MissingRows

EVERYONE = set(range(16))


def silent(gone, *, steps, seconds=1.0, node_reports=False):
    """Return the steps after which each rank of ``gone`` is lost, silent from step 50 on."""
    rows, found = MissingRows(), dict[int, int]()
    for n in range(50 + steps):
        rows.update(EVERYONE if n < 50 else EVERYONE - set(gone), n * seconds)
        for rank in rows.lost(n * seconds, rows.absent if node_reports else ()):
            found.setdefault(rank, n - 49)
    return found


@pytest.mark.parametrize(
    ("seconds", "node_reports", "expected"),
    [(1.0, False, 60), (20.0, False, 8), (0.2, True, 50), (1.0, True, 20), (20.0, True, 8)],
)
def test_a_silent_rank_is_lost_after_steps_and_seconds(seconds, node_reports, expected):
    """Eight steps and a minute; where its node's other rows arrive, some twenty steps and ten seconds."""
    assert silent([5], steps=100, seconds=seconds, node_reports=node_reports) == {5: expected}


def test_a_rank_that_is_back_is_not_lost():
    """Its next row ends it."""
    rows = MissingRows()
    for n in range(200):
        rows.update(EVERYONE if n < 50 else EVERYONE - {5}, float(n))
    assert rows.lost(199.0, ()) == [5]
    assert rows.update(EVERYONE, 200.0) == ([], [5])
    assert rows.lost(200.0, ()) == []


def test_many_ranks_are_missing_at_once_for_the_telemetry():
    """More than a fifth, or half where they are of one machine; one of four ranks is a rank."""
    rows = MissingRows()
    rows.update(EVERYONE, 0.0)
    assert not rows.too_many([0, 1, 2])
    assert rows.too_many([0, 1, 2, 3])
    assert not rows.too_many(range(8), of_one_machine=True)
    assert rows.too_many(range(9), of_one_machine=True)
    few = MissingRows()
    few.update({0, 1, 2, 3}, 0.0)
    assert not few.too_many([3])
    assert few.too_many([2, 3])


def test_a_rank_that_is_expected_and_never_comes_is_lost():
    """As if it had been seen when the attempt began."""
    rows = MissingRows()
    rows.expect([5], 0.0)
    found = [
        (n, rank)
        for n in range(100)
        for rank in (rows.update(EVERYONE - {5}, float(n)), *rows.lost(float(n), ()))[1:]
    ]
    assert found[0] == (60, 5)
