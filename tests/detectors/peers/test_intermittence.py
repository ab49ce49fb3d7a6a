import numpy as np
import pytest

from detectors.peers.intermittence import WINDOW, IntermittenceCounter

NEVER, ALWAYS = np.zeros(1, dtype=bool), np.ones(1, dtype=bool)


def test_counts_rises_within_the_window():
    """Every rise counts once, however long it lasts, and is forgotten after the window."""
    excursions = IntermittenceCounter(2)
    for step in range(60):
        excursions.update(np.array([step % 20 < 3, False]), NEVER, read=ALWAYS)
    assert excursions.count.tolist() == [3, 0]
    found = excursions.of(0)
    assert (found.count, found.age) == (3, 60)
    assert found.share == 9 / 60
    for _ in range(WINDOW):
        excursions.update(np.array([False, False]), NEVER, read=ALWAYS)
    assert excursions.count.tolist() == [0, 0]
    assert excursions.of(0).age == 0


def test_age_and_share_go_back_to_the_first_rise_of_the_window():
    """What is older than 200 steps is forgotten, what came before the first rise does not thin the share."""
    excursions = IntermittenceCounter(1)
    for step in range(250):
        excursions.update(np.array([step in (20, 21, 100, 101, 220, 221)]), NEVER, read=ALWAYS)
    found = excursions.of(0)
    assert (found.count, found.age, found.share) == (2, 150, 4 / 150)


def test_evidence_that_goes_up_and_down_is_one_excursion():
    """It has to be gone before it counts as having come again."""
    evidence = np.array([0, 0, 2, 4, 3, 4, 2, 4, 0, 4, 0, 0])
    excursions = IntermittenceCounter(1)
    counts = []
    for level in evidence:
        excursions.update(np.array([level >= 3.5]), NEVER, read=ALWAYS, gone=np.array([level <= 0]))
        counts.append(int(excursions.count[0]))
    assert counts == [0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("usual", "suspected"), [([0] * 36, 3), ([0] * 30 + [1] * 6, 5), ([0, 1, 2] * 12, 8)]
)
def test_who_rises_no_more_often_than_others_do_by_chance_is_no_suspect(usual, suspected):
    """The first rank rises ever again, the others as often as told: from when it is suspected."""
    excursions = IntermittenceCounter(1 + len(usual))
    for rise in range(suspected):
        high = np.array([True, *(rise < often for often in usual)])
        excursions.update(high, np.zeros_like(high), read=np.ones_like(high))
        assert excursions.suspects.tolist() == [rise + 1 == suspected] + [False] * len(usual)
        excursions.update(np.zeros_like(high), np.zeros_like(high), read=np.ones_like(high))


def test_counts_what_is_counted_by_hand():
    """After every step the count is that of the rises among the last 200 steps."""
    high = np.random.default_rng(5).random((500, 3)) < 0.2
    rose = high & ~np.concatenate((np.zeros((1, 3), bool), high[:-1]))
    excursions = IntermittenceCounter(3)
    for step in range(500):
        excursions.update(high[step], NEVER, read=ALWAYS)
        assert excursions.count.tolist() == rose[max(step - 199, 0) : step + 1].sum(axis=0).tolist()


def off_and_on(every, *, since, steps=300):
    """Return the excursions of two ranks: of the first, every so many steps is far off from one step on."""
    excursions = IntermittenceCounter(2)
    for step in range(steps):
        far = step >= since and step % every == 0
        excursions.update(np.zeros(2, dtype=bool), np.array([far, False]), read=ALWAYS)
    return excursions


def test_single_steps_count_where_healthy_ranks_have_none():
    """Every second to every fifteenth step far off is slowness that comes and goes; fewer are hiccups."""
    for every in (2, 3, 5, 10, 15):
        found = off_and_on(every, since=100)
        assert found.count[0] > 10
        assert found.suspects.tolist() == [True, False]
        assert abs(found.of(0).share - 1 / every) < 0.02
        assert found.of(0).single
    assert not off_and_on(50, since=100).count[0]


def test_a_rank_is_calm_that_had_none_at_first():
    """One that logs or saves for all every few steps has always done so."""
    assert [off_and_on(4, since=since).of(0).calm for since in (100, 0)] == [True, False]


def test_slow_for_good_is_not_off_and_on():
    """A hundred far steps in a row are one change, also after they have ended."""
    excursions = IntermittenceCounter(2)
    for step in range(400):
        excursions.update(np.zeros(2, dtype=bool), np.array([100 <= step < 200, False]), read=ALWAYS)
        assert not excursions.count.any()


def test_steps_that_were_not_read_are_no_return():
    """Of a rank that is slow for good and read every second time, each step read is not a new one far off."""
    excursions = IntermittenceCounter(2)
    for step in range(300):
        far = read = np.array([step >= 100 and step % 2 == 0, False])
        excursions.update(np.zeros(2, dtype=bool), far, read=ALWAYS if step < 100 else read)
    assert not excursions.count.any()


def test_what_all_ranks_know_is_the_work():
    """Far steps of most ranks, often, seldom, or each in its own period, are no rank's."""
    rng = np.random.default_rng(2)
    periods = rng.integers(20, 120, 16)
    for far in (
        rng.random((600, 16)) < 0.3,
        rng.random((600, 16)) < 0.02,
        (np.arange(600)[:, None] + rng.integers(0, 120, 16)) % periods == 0,
    ):
        excursions = IntermittenceCounter(16)
        for step in far:
            excursions.update(np.zeros(16, dtype=bool), step, read=np.ones(16, dtype=bool))
            assert not excursions.count.any()
