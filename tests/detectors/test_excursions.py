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
