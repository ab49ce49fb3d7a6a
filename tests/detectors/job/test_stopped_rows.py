import pytest

from detectors.job.stopped_rows import StoppedRows

RANKS = range(16)


def followed(steps=100, *, lost=()):
    """Return what was followed of a job; ``lost`` are (step, rank) without a row."""
    rows = StoppedRows()
    for n in range(steps):
        rows.update(frozenset(r for r in RANKS if (n, r) not in lost))
    return rows


def reached(*behind, newest=100):
    """Return the last step of each rank, of which some are one step behind."""
    return {rank: newest - (rank in behind) for rank in RANKS}


@pytest.mark.parametrize(
    ("behind", "expected"),
    [((5,), [5]), ((4, 5, 6, 7), [4, 5, 6, 7]), ((), []), (tuple(range(9)), [])],
)
def test_a_minority_that_did_not_arrive_is_named(behind, expected):
    """Where most did not arrive, those that did are the exception."""
    assert followed().absent(reached(*behind), 100, RANKS) == expected


@pytest.mark.parametrize("every", [10, 50])
def test_a_missing_row_is_no_evidence_where_rows_are_lost_anyway(every):
    """One in ten steps lacks a row, or one in fifty."""
    lost = {(n, n % 16) for n in range(5, 95, every)}
    assert followed(lost=lost).absent(reached(5), 100, RANKS) == ([] if every == 10 else [5])


def test_a_rank_that_was_silent_before_is_not_named():
    """It did not stop at the last step; its silence counts as a loss once it has ended."""
    gone = {(n, 3) for n in range(60, 100)}
    rows = followed(lost=gone)
    assert rows.absent(reached(3, 5), 100, RANKS) == [5]
    rows.update(frozenset(RANKS))
    assert rows.absent(reached(5), 100, RANKS) == []


def test_a_job_counts_from_its_first_steps():
    """A row lost early ends that."""
    assert followed(2).absent(reached(5), 100, RANKS) == [5]
    assert followed(4, lost={(2, 1)}).absent(reached(5), 100, RANKS) == []


def test_an_outage_of_a_node_is_as_many_steps_as_it_lasts():
    """Three ranks of it are missing in five of 300 steps: a sixtieth, and not a twentieth, of the steps."""
    rows = followed(300, lost={(n, rank) for n in range(200, 205) for rank in (4, 5, 6)})
    assert rows.absent(reached(5), 100, RANKS) == [5]


def test_a_later_attempt_loses_rows_as_the_one_before():
    """One in ten steps lacked a row: the first that is missing after a restart names nobody."""
    before = followed(lost={(n, n % 16) for n in range(5, 95, 10)})
    rows = StoppedRows(before)
    rows.update(frozenset(RANKS))
    assert rows.absent(reached(5), 100, RANKS) == []
