import numpy as np

from detectors.peers.history import History


def test_returns_the_last_rows_in_order_across_the_wrap():
    """However often the ring has turned, the last rows come oldest first and can be replaced."""
    history = History(4, 2, ("x", "y"))
    for n in range(11):
        history.push(x=np.array([n, -n], dtype=float), y=float(n))
    assert history.last("x", 3)[:, 0].tolist() == [8, 9, 10]
    assert history.last("y", 99)[:, 1].tolist() == [7, 8, 9, 10]
    history.overwrite(x=np.array([[1.0, 2.0], [3.0, 4.0]]))
    history.push(x=np.array([5.0, 6.0]), y=0.0)
    assert history.last("x", 4)[:, 0].tolist() == [8, 1, 3, 5]
