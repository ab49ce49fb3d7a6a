"""Slowness that goes from rank to rank."""

import numpy as np
import pytest

from detectors.peers.rotating_slowness import (
    LONG_WINDOW,
    OVER,
    ROUND,
    SHORT,
    TIMES_LONGEST,
    WINDOW,
    RotatingSlowness,
)


def after(spells, *, ranks=8, size=0.3):
    """Return the state when ``spells`` (rank, first step, steps) have shown to be over, and that step."""
    found, end = RotatingSlowness(ranks), max(first + steps for _, first, steps in spells) + OVER - 1
    for step in range(end + 1):
        x = np.zeros(ranks)
        for rank, first, steps in spells:
            x[rank] += size * (first <= step < first + steps)
            if step == first:
                found.begin(rank, step=step, size=size)
        found.update(step, change=x, lasting=np.full(ranks, np.nan))
    return found, end


def test_a_round_of_spells_asks_for_patience():
    """Who comes third has to be slow for twice as long as the longest of the others."""
    assert after([(0, 0, 5)])[0].patience(3) == 0
    found, _ = after([(0, 0, 5), (1, 6, 9)])
    assert [found.patience(rank) for rank in (0, 1, 3)] == [0, 0, TIMES_LONGEST * 9]


def test_a_spell_is_over_when_the_rank_is_not_slow_any_more():
    """Small evidence left does not join two spells to one; a step that is not read ends none."""
    found = RotatingSlowness(8)
    found.begin(0, step=0, size=0.3)
    for step, ratio in enumerate([0.3] * 12 + [0.02] * OVER):
        assert found.outlasts(0, step=step + SHORT + 1)
        found.update(step, change=np.full(8, ratio), lasting=np.full(8, np.nan))
    assert not found.outlasts(0, step=100)
    found.begin(1, step=20, size=0.3)
    for step in range(20, 40):
        found.update(step, change=np.full(8, np.nan), lasting=np.full(8, np.nan))
    assert found.outlasts(1, step=20 + SHORT + 1)


def test_a_rank_is_not_excused_by_its_own_spells():
    """One rank that is slow again and again is broken, also where two others were slow once."""
    again = [(0, 20 * k, 5) for k in range(2 * ROUND)]
    assert after(again)[0].patience(0) == 0
    assert after([*again, (1, 130, 5), (2, 150, 5)])[0].patience(0) == 0


def test_spells_that_begin_together_have_one_cause():
    """A machine whose ranks were slow twice is no rotation: another rank is reported as soon as ever."""
    machine = [(rank, first + rank % 2, 10) for rank in range(4) for first in (0, 50)]
    assert after(machine)[0].patience(7) == 0
    assert after([*machine, (5, 90, 10)])[0].patience(7) == TIMES_LONGEST * 10


def test_those_whose_spells_were_a_rotation_are_excused():
    """Once a third rank was slow for a spell, so are the first two; who is slow still, is not."""
    found, end = after([(0, 0, 12), (1, 15, 12), (2, 30, 12)])
    found.begin(3, step=end, size=0.3)
    assert [found.excuses(rank) for rank in range(5)] == [True, True, True, False, False]
    assert found.visited == [0, 1, 2]
    two, _ = after([(0, 0, 12), (1, 15, 12)])
    assert not two.excuses(0)
    assert two.visited == []


def test_a_fault_that_lasted_is_no_spell():
    """Three ranks that were slow for long, one after the other, were broken."""
    assert after([(0, 0, 80), (1, 90, 80), (2, 180, 80)])[0].patience(3) == 0


def test_who_is_slow_for_longer_than_a_spell_outlasts_it():
    """One spell is not enough; who is not known to have been slow for so short counts as slow for longer."""
    found, end = after([(0, 0, 5), (1, 10, 80), (2, 100, 60)])
    assert [found.outlasts(rank, step=end) for rank in range(4)] == [False, True, True, True]
    found.begin(2, step=end, size=0.3)
    assert [found.outlasts(2, step=end + steps) for steps in (SHORT, SHORT + 1)] == [False, True]


def test_spells_are_forgotten():
    """What went round long ago means nothing for today."""
    nothing = np.zeros(8)
    first, (found, _) = 11, after([(0, 0, 5), (1, 6, 5), (2, 12, 5)])
    found.update(first + WINDOW, change=nothing, lasting=nothing)
    assert found.patience(3) > 0
    found.update(first + WINDOW + 10, change=nothing, lasting=nothing)
    assert found.patience(3) == 0


def test_spells_by_less_than_half_say_nothing_of_a_slower_rank():
    """What goes from rank to rank makes them about as slow: what wanders by 5 % hides no fault of 20 %."""
    found, _ = after([(0, 0, 5), (1, 6, 9)], size=0.05)
    assert [found.patience(3, size=size) for size in (0.05, 0.099, 0.101, 0.2)] == [18, 18, 0, 0]


@pytest.mark.parametrize(
    ("spells", "size", "steps", "expected"),
    [
        ([(0, 0, 100), (1, 150, 120)], 0.3, 50, True),
        # Short and long ones count alike; those of one machine are one, and so is one other.
        ([(0, 0, 10), (1, 20, 120)], 0.3, 50, True),
        ([(0, 0, 100), (1, 0, 100)], 0.3, 50, False),
        ([(0, 0, 100)], 0.3, 50, False),
        # One of them is its own, or they were slow by much less or more.
        ([(0, 0, 100), (3, 150, 120)], 0.3, 50, False),
        ([(0, 0, 100), (1, 150, 120)], 0.7, 50, False),
        ([(0, 0, 100), (1, 150, 120)], 0.1, 50, False),
        # It is slow for longer than work stayed anywhere.
        ([(0, 0, 100), (1, 150, 120)], 0.3, 240, True),
        ([(0, 0, 100), (1, 150, 120)], 0.3, 241, False),
        # They were slow mostly at once; the next one may be dated some steps early.
        ([(0, 0, 100), (1, 30, 120)], 0.3, 50, False),
        ([(0, 0, 100), (1, 97, 120)], 0.3, 50, True),
        # Of three of which one lasted beside the others, these two came in turn.
        ([(0, 0, 250), (1, 10, 60), (2, 80, 60)], 0.3, 50, True),
        ([(0, 0, 250), (1, 10, 60), (2, 80, 60)], 0.3, 121, False),
        # Work stays popular for minutes: who is slow for longer had a fault.
        ([(0, 0, LONG_WINDOW), (1, LONG_WINDOW, 100)], 0.3, 50, True),
        ([(0, 0, LONG_WINDOW + 1), (1, LONG_WINDOW + 10, 100)], 0.3, 50, False),
    ],
)
def test_a_rank_that_is_the_next_of_long_spells_may_have_work_that_moves(spells, size, steps, expected):
    """An expert that stays popular makes one rank after the other slow for minutes; none has to wait."""
    found, _ = after(spells)
    assert found.by_turns(3, size=size, steps=steps) is expected
    assert found.patience(3) == 0


@pytest.mark.parametrize(
    ("since", "first", "size", "expected"),
    [
        (0, 94, 0.3, False),
        (0, 95, 0.3, True),
        (0, 105, 0.3, True),
        (0, 106, 0.3, False),
        # As slow as that or not; what is short and small is noise.
        (0, 100, 0.1, True),
        (0, 100, 0.7, True),
        (100 - SHORT, 100, 0.7, False),
        (100 - SHORT, 100, 0.5, True),
    ],
)
def test_a_rank_that_takes_over_from_another_may_have_its_work(since, first, size, expected):
    """Two that begin as they please are two faults."""
    found, own = RotatingSlowness(8), since
    for step in range(140):
        x = np.zeros(8)
        x[0] = 0.3 * (own <= step < 100)
        x[1] = size * (step >= first)
        for rank, since in ((0, own), (1, first)):
            if step == since + 2:
                found.begin(rank, step=since, size=0.3 if rank == 0 else size)
        found.update(step, change=x, lasting=np.full(8, np.nan))

    assert found.by_turns(1, size=size, steps=20) is expected


def test_a_rank_that_was_well_for_some_steps_is_slow_since_before():
    """Twice as long as the longest spell, 120 steps, and no longer, of which fewer are held."""
    (found, _), first = after([(0, 0, 100), (1, 150, 120)]), 300
    found.begin(3, step=first, size=0.3)
    for step in range(first, first + 300):
        x = np.zeros(8)
        x[3] = 0.3 * (step - first not in range(60, 65))
        found.update(step, change=x, lasting=np.full(8, np.nan))
        assert found.by_turns(3, size=0.3, steps=min(step - first, 50)) is (step - first <= 240)


def test_a_rank_may_take_over_from_one_whose_work_wandered():
    """It was well for some steps before."""
    found = RotatingSlowness(8)
    for step in range(120):
        x = np.zeros(8)
        x[0] = 0.3 * (step < 100 and not 60 <= step < 65)
        x[1] = 0.3 * (step >= 100)
        if step in (0, 102):
            found.begin(step // 100, step=step // 100 * 100, size=0.3)
        found.update(step, change=x, lasting=np.full(8, np.nan))

    assert found.by_turns(1, size=0.3, steps=20)


def test_a_rank_that_takes_over_is_slow_by_itself_after_some_time():
    """Popular experts linger for minutes, and no longer."""
    found, x = RotatingSlowness(8), np.zeros(8)
    for step in range(100 + LONG_WINDOW + 2):
        # In some steps it is well, too.
        x[:2] = 0.3 * (step < 100), 0.3 * (step >= 100 and (step % 50 >= OVER or step < 150))
        if step in (0, 100):
            found.begin(step // 100, step=step, size=0.3)
        found.update(step, change=x, lasting=np.full(8, np.nan))
        if step > 102:
            # No more steps are held.
            assert found.by_turns(1, size=0.3, steps=min(step - 100, 256)) is (step - 100 <= LONG_WINDOW)


def test_long_spells_are_forgotten_later_than_short_ones():
    found, end = after([(0, 0, 100), (1, 150, 120)])
    for step in range(end + 1, 270 + LONG_WINDOW + 2):
        assert found.by_turns(3, size=0.3, steps=5) is (step <= 100 + LONG_WINDOW + 1), step
        found.update(step, change=np.zeros(8), lasting=np.full(8, np.nan))
