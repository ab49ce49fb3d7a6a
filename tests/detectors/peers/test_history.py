import pickle

import numpy as np
import pytest

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


def test_columns_are_those_of_the_last_rows():
    """One column, or several, in double precision as all of them are."""
    history = History(4, 3, ("x",), single=("x",))
    for n in range(6):
        history.push(x=np.array([n, 0.1 * n, -n]))
    last = history.last("x", 3)
    assert history.columns("x", 3, 1).tolist() == last[:, 1].tolist()
    assert history.columns("x", 9, slice(None, None, 2)).tolist() == history.last("x", 9)[:, ::2].tolist()
    assert history.columns("x", 3, 1).dtype == np.float64


@pytest.mark.parametrize("change", [lambda h: h.push(x=1.0), lambda h: h.overwrite(x=np.ones((2, 1)))])
def test_what_is_derived_from_rows_is_kept_until_they_change(change):
    """Many ranks ask for the same in one step: it is made once."""
    history, made = History(4, 1, ("x",)), list[str]()
    for n in range(2):
        history.push(x=float(n))

    def make():
        made.append("made")
        return len(made)

    assert [history.once(key, make) for key in ("a", "b", "a", "a")] == [1, 2, 1, 1]
    change(history)
    assert history.once("a", lambda: "again") == "again"


def test_a_snapshot_holds_nothing_that_is_derived():
    """It is made anew in the next step."""
    history = History(4, 1, ("x",))
    history.push(x=2.0)
    history.once("a", lambda: 1)
    restored = pickle.loads(pickle.dumps(history))
    assert restored.once("a", lambda: 2) == 2
    assert restored.last("x", 1).tolist() == [[2.0]]
