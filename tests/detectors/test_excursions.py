import numpy as np

from detectors.excursions import WINDOW, Excursions


def test_counts_rises_within_the_window():
    """Every rise counts once, however long it lasts, and is forgotten after the window."""
    excursions = Excursions(2)
    for step in range(60):
        excursions.update(np.array([step % 20 < 3, False]))
    assert excursions.count.tolist() == [3, 0]
    found = excursions.of(0)
    assert (found.count, found.age) == (3, 60)
    assert found.share == 9 / 60
    for _ in range(WINDOW):
        excursions.update(np.array([False, False]))
    assert excursions.count.tolist() == [0, 0]
    assert excursions.of(0).age == 0


def test_age_and_share_go_back_to_the_first_rise_of_the_window():
    """What is older than 200 steps is forgotten, what came before the first rise does not thin the share."""
    excursions = Excursions(1)
    for step in range(250):
        excursions.update(np.array([step in (20, 21, 100, 101, 220, 221)]))
    found = excursions.of(0)
    assert (found.count, found.age, found.share) == (2, 150, 4 / 150)


def test_counts_what_is_counted_by_hand():
    """After every step the count is that of the rises among the last 200 steps."""
    high = np.random.default_rng(5).random((500, 3)) < 0.2
    rose = high & ~np.concatenate((np.zeros((1, 3), bool), high[:-1]))
    excursions = Excursions(3)
    for step in range(500):
        excursions.update(high[step])
        assert excursions.count.tolist() == rose[max(step - 199, 0) : step + 1].sum(axis=0).tolist()
