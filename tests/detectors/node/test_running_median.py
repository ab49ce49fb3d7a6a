import numpy as np
import pytest

from detectors.node.running_median import RunningMedian
from tests.detectors.state import same

LANES = np.arange(2)


def row(*values: float) -> np.ndarray:
    return np.array(values)[:, None]


def test_nothing_is_usual_before_a_few_means():
    """Without enough finished means the value is NaN."""
    usual = RunningMedian(2, 1, every=10.0, slots=4, least=3)
    for second in range(30):
        usual.update(LANES, np.full(2, float(second)), row(1.0, 2.0))
    assert np.isnan(usual.value).all()
    usual.update(LANES, np.full(2, 30.0), row(1.0, 2.0))
    assert usual.value.ravel().tolist() == [1.0, 2.0]


def test_a_minority_of_odd_means_moves_nothing():
    """One slot in five of something else leaves the median where it was; a majority moves it."""
    usual = RunningMedian(1, 1, every=1.0, slots=5, least=3)
    lane = np.array([0])
    seen = []
    for second, x in enumerate([5.0, 5.0, 5.0, 5.0, 0.0, 5.0, 0.0, 0.0, 0.0]):
        usual.update(lane, np.array([float(second)]), np.array([[x]]))
        seen.append(usual.value[0, 0])
    assert seen[5] == 5.0
    assert seen[8] == 0.0


def test_beats_with_no_period():
    """What alternates within a slot is seen at its mean, however the samples fall."""
    usual = RunningMedian(1, 1, every=10.0, slots=8, least=3)
    for second in range(100):
        usual.update(
            np.array([0]), np.array([float(second)]), np.array([[100.0 if second % 5 == 4 else 0.0]])
        )
    assert usual.value[0, 0] == 20.0


def test_lanes_keep_their_own_time():
    """A lane that is fed rarely, late or never does not disturb the other, and keeps its median."""
    usual = RunningMedian(2, 1, every=10.0, slots=4, least=1)
    usual.update(LANES, np.array([0.0, 1000.0]), row(1.0, 9.0))
    usual.update(LANES, np.array([10.0, 1010.0]), row(1.0, 9.0))
    for second in range(11, 100):
        usual.update(LANES[:1], np.array([float(second)]), row(3.0))
    assert usual.value.ravel().tolist() == [3.0, 9.0]


def test_what_was_not_read_is_left_out():
    """NaN samples do not enter their mean; a slot of NaN alone does not enter the median."""
    usual = RunningMedian(1, 1, every=2.0, slots=4, least=2)
    for second, x in enumerate([4.0, np.nan, np.nan, np.nan, 6.0, 6.0, 0.0]):
        usual.update(np.array([0]), np.array([float(second)]), np.array([[x]]))
    assert usual.value[0, 0] == 5.0


def test_a_reset_forgets_one_lane():
    """After a reset a lane learns anew while the other keeps its median."""
    usual = RunningMedian(2, 1, every=1.0, slots=4, least=1)
    for second in range(5):
        usual.update(LANES, np.full(2, float(second)), row(1.0, 2.0))
    usual.reset(LANES[:1])
    assert np.isnan(usual.value[0, 0])
    assert usual.value[1, 0] == 2.0


def test_refuses_what_makes_no_sense():
    """Slots and spans that cannot hold a median are refused."""
    with pytest.raises(ValueError, match="least"):
        RunningMedian(1, 1, slots=2, least=3)


def test_a_reset_lane_is_as_good_as_new():
    """What was gathered of an unfinished mean is forgotten too."""
    used, fresh = (RunningMedian(1, 1, every=4.0, slots=3, least=1) for _ in range(2))
    for second in range(7):
        used.update(LANES[:1], np.array([float(second)]), row(9.0))
    used.reset(LANES[:1])
    for second in range(20, 32):
        for usual in (used, fresh):
            usual.update(LANES[:1], np.array([float(second)]), row(float(second % 5)))
    assert same(used, fresh)


@pytest.mark.parametrize("bad", [{"every": 0.0}, {"every": -1.0}, {"least": 0}, {"slots": 2, "least": 3}])
def test_slots_without_time_are_refused(bad):
    """As many means as slots may be asked for, and no more."""
    with pytest.raises(ValueError, match="need every > 0"):
        RunningMedian(1, 1, **bad)
    assert RunningMedian(1, 1, slots=3, least=3).value.shape == (1, 1)
