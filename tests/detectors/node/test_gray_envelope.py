"""The healthy region of many features."""

from importlib.util import find_spec

import msgspec
import numpy as np
import pytest

from detectors.node.gray_envelope import Envelope, fit_envelope

# Not importorskip: importing it takes a second of every process that collects the tests.
pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is not installed")

NAMES = tuple(f"f{i}" for i in range(12))


def healthy(windows, seed=0):
    """Windows of twelve features of which the first three move together, with some that are far out."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 1, (windows, 12))
    z[:, :3] += rng.normal(0, 2, (windows, 1))
    return z


@pytest.fixture(scope="module")
def region():
    """What is learnt from healthy windows."""
    return fit_envelope(healthy(6000), NAMES)


def test_healthy_windows_stay_inside(region):
    """Of other healthy windows at most one in a thousand lies outside."""
    assert np.mean(region.distances(healthy(20_000, seed=1)) > region.threshold) <= 1e-3


def test_weak_signs_together_are_seen(region):
    """Eight features off by two and a half sigmas each, none of them remarkable, lie outside."""
    z = healthy(500, seed=2)
    z[:, 4:] += 2.5
    assert np.mean(np.abs(z[:, 4:]) > 6) <= 0.01
    assert np.mean(region.distances(z) > region.threshold) >= 0.9


def test_what_moves_together_is_usual_and_apart_is_not(region):
    """Three features that always move together may move far; one of them moving alone is far out."""
    together, alone = np.zeros((2, 1, 12))
    together[0, :3], alone[0, :3] = 5.0, (5.0, -5.0, 5.0)
    assert region.distances(together)[0] < region.threshold < region.distances(alone)[0]


def test_the_feature_that_matters_is_named_first(region):
    """Leaving it out takes away most of the distance."""
    z = np.zeros(12)
    z[7], z[9] = 9.0, 2.0
    (first, share), (second, _), *_ = region.contributions(z)
    assert (first, second) == ("f7", "f9")
    assert 0.8 < share < 1.0


def test_what_was_not_read_counts_as_usual(region):
    """A window with nothing read lies in the middle, one with gaps is judged by the rest."""
    gap = np.full((1, 12), np.nan)
    assert region.distances(gap)[0] < 1.0
    gap[0, 4] = 12.0
    assert region.distances(gap)[0] > region.threshold


def test_features_that_do_not_vary_are_left_out():
    """A constant, or one never read, is no part of the region."""
    z = healthy(1000)
    z[:, 5], z[:, 6] = 0.0, np.nan
    assert fit_envelope(z, NAMES).features == tuple(n for n in NAMES if n not in ("f5", "f6"))


@pytest.mark.parametrize("z", [np.zeros((0, 12)), healthy(200), np.zeros((1000, 12))])
def test_too_little_is_refused(z):
    """Without windows, with few of them, or with none that varies, nothing is learnt."""
    with pytest.raises(ValueError, match="too few"):
        fit_envelope(z, NAMES)


def test_a_region_is_the_same_after_a_file(region):
    """Fitting again and reading from JSON give the same numbers, to the last bit."""
    assert fit_envelope(healthy(6000), NAMES) == region
    assert msgspec.json.decode(msgspec.json.encode(region), type=Envelope) == region
