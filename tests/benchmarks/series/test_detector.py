"""The score for metrics about which nothing is known."""

import math
from copy import deepcopy

import numpy as np
import pytest

from benchmarks.series.detector import SeriesDetector
from tests.detectors.state import same

MINUTE = 60.0

# A score that one healthy sample in ten thousand should reach.
RARE = 0.4


def scores(x: np.ndarray, *, interval: float = MINUTE, detector: SeriesDetector | None = None) -> np.ndarray:
    detector = detector or SeriesDetector()
    return np.array([detector.update(interval * t, value) for t, value in enumerate(x.tolist())])


def noise(kind: str, samples: int = 3000) -> np.ndarray:
    rng = np.random.default_rng(5)
    if kind == "heavy":
        return 100 + rng.standard_t(3, samples)
    if kind == "counted":
        return rng.poisson(0.05, samples).astype(float)
    if kind == "still":
        return np.round(20 + 0.01 * rng.normal(size=samples), 1)
    x = rng.normal(size=samples)
    if kind == "correlated":
        for t in range(1, samples):
            x[t] += 0.9 * x[t - 1]
    return 1e9 + 1e6 * x


@pytest.mark.parametrize("kind", ["normal", "heavy", "correlated", "counted"])
def test_healthy_noise_rarely_scores(kind):
    """Whatever the noise, at most a few samples of 3,000 reach the score of one in ten thousand."""
    assert int((scores(noise(kind)) >= RARE).sum()) <= 3


@pytest.mark.parametrize(
    ("change", "within"),
    [("spike", 1), ("step", 10), ("small step", 30), ("louder", 30), ("silent", 60)],
)
def test_each_kind_of_change_scores(change, within):
    """A spike, a large and a small step, a louder and a suddenly constant series score soon after onset."""
    x, onset = noise("normal"), 2500
    if change == "spike":
        x[onset] += 1e7
    elif change == "step":
        x[onset:] += 6e6
    elif change == "small step":
        x[onset:] += 2e6
    elif change == "louder":
        x[onset:] = 1e9 + 5 * (x[onset:] - 1e9)
    else:
        x[onset:] = x[onset]
    found = scores(x)

    assert found[onset : onset + within].max() >= RARE
    assert found[onset - 500 : onset].max() < found[onset : onset + within].max()


def test_a_missing_peak_of_the_day_scores():
    """A noon like midnight is surprising in a metric with a daily course, though its level is an everyday
    one."""
    t = np.arange(288 * 10)
    x = 100 + 30 * np.sin(t / 288 * math.tau) + np.random.default_rng(6).normal(size=t.size)
    x[288 * 8 + 60 : 288 * 8 + 90] = 100.0 + np.random.default_rng(7).normal(size=30)
    found = scores(x, interval=300.0)

    assert int(found[288 * 4 :].argmax()) in range(288 * 4 + 60, 288 * 4 + 90)


def test_one_score_per_episode():
    """A lasting step scores only while it becomes more anomalous: until the short mean has arrived."""
    x = noise("normal")
    x[2500:] += 8e6
    found = scores(x)

    assert found[2510:2650].max() == 0.0
    assert (np.diff(found[2500:2510][found[2500:2510] > 0]) > 0).all()


def test_does_not_depend_on_unit_and_offset():
    """Another unit gives the same scores."""
    x = np.random.default_rng(8).standard_t(3, 1500)
    np.testing.assert_allclose(scores(x), scores(1000.0 * x + 7.0), atol=1e-6)


def test_is_causal():
    """What comes later changes no score."""
    x = noise("heavy", 1500)
    np.testing.assert_array_equal(scores(x)[:1000], scores(x[:1000]))


def test_missing_late_and_repeated_samples_change_nothing():
    """NaN, infinities, rows not newer than the last and times that are none leave score and state alone."""
    detector, plain = SeriesDetector(), SeriesDetector()
    for t, value in enumerate(noise("heavy", 400).tolist()):
        expected = plain.update(MINUTE * t, value)
        assert detector.update(MINUTE * t, value) == expected
        for when, what in ((t + 0.5, math.nan), (t + 0.5, math.inf), (t, 1e9), (t - 3, 1e9), (math.nan, 1.0)):
            assert detector.update(MINUTE * when, what) == 0.0

    assert same(plain, detector)


def test_a_gap_is_no_jump():
    """After a long gap the series is not compared with the sample before it."""
    rng = np.random.default_rng(9)
    walk = np.cumsum(rng.normal(size=1000))
    detector = SeriesDetector()
    for t, value in enumerate(walk.tolist()):
        detector.update(MINUTE * t, value)
    jumped = deepcopy(detector)

    assert detector.update(MINUTE * 1100, walk[-1] + 12.0) < RARE
    assert jumped.update(MINUTE * 1000, walk[-1] + 12.0) >= RARE
