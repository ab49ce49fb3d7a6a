"""Slowness that goes from rank to rank."""

import numpy as np

from detectors.straggler.rotating_slowness import ROUND, SHORT, TIMES_LONGEST, WINDOW, RotatingSlowness


def after(spells, *, ranks=8):
    """Return the state after ``spells`` (rank, first step, steps) and the step after the last of them."""
    found, end = RotatingSlowness(), max(first + steps for _, first, steps in spells)
    for step in range(end + 1):
        slow = np.zeros(ranks, dtype=bool)
        for rank, first, steps in spells:
            slow[rank] |= first <= step < first + steps
            if step == first:
                found.begin(rank, step=step)
        found.update(step, slow=slow)
    return found, end


def test_a_round_of_spells_asks_for_patience():
    """Who comes next has to be slow for twice as long as the longest of the others."""
    found, _ = after([(0, 0, 5), (1, 5, 9), (2, 14, 7)])
    assert found.patience(3) == TIMES_LONGEST * 9


def test_a_rank_is_not_excused_by_its_own_spells():
    """One rank that is slow again and again, or two of them, make no round."""
    again = [(0, 10 * k, 5) for k in range(2 * ROUND)]
    assert after(again)[0].patience(0) == 0
    assert after([*again, (1, 100, 5), (2, 120, 5)])[0].patience(0) == 0


def test_a_fault_that_lasted_is_no_spell():
    """Three ranks that were slow for long, one after the other, were broken."""
    assert after([(0, 0, 80), (1, 80, 80), (2, 160, 80)])[0].patience(3) == 0


def test_who_is_slow_for_longer_than_a_spell_outlasts_it():
    """One spell is not enough; who is not known to have been slow for so short counts as slow for longer."""
    found, end = after([(0, 0, 5), (1, 10, 80), (2, 100, 60)])
    assert [found.outlasts(rank, step=end) for rank in range(4)] == [False, True, True, True]
    found.begin(2, step=end)
    assert [found.outlasts(2, step=end + steps) for steps in (SHORT, SHORT + 1)] == [False, True]


def test_spells_are_forgotten():
    """What went round long ago means nothing for today."""
    first, (found, _) = 5, after([(0, 0, 5), (1, 5, 5), (2, 10, 5)])
    found.update(first + WINDOW, slow=np.zeros(8, dtype=bool))
    assert found.patience(3) > 0
    found.update(first + WINDOW + 1, slow=np.zeros(8, dtype=bool))
    assert found.patience(3) == 0
