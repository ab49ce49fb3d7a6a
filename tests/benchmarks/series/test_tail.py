"""The tail probability against laws whose tails are known."""

import numpy as np
import pytest

from benchmarks.series.tail import Tail, TailConfig


def surprises(f: np.ndarray, config: TailConfig | None = None) -> np.ndarray:
    tail = Tail(config)
    return np.array([tail.update(value) for value in f.tolist()])


@pytest.mark.parametrize("index", [0.15, 0.25, 0.5])
def test_is_calibrated_on_pareto_tails(index):
    """One healthy sample in a thousand surprises by 3, within a factor of two, whatever the tail's weight."""
    f = np.random.default_rng(1).random(40_000) ** -index
    share = float((surprises(f)[2000:] >= 3.0).mean())

    assert 0.0005 < share < 0.002


def test_overstates_nothing_on_light_tails():
    """A normal sample is less surprising than the Pareto law says: never more than one in a thousand at 3."""
    f = np.abs(np.random.default_rng(2).normal(size=40_000))

    assert float((surprises(f)[2000:] >= 3.0).mean()) < 0.001


def test_does_not_depend_on_the_unit():
    """Multiplying a series changes no surprise."""
    f = np.abs(np.random.default_rng(3).standard_t(3, size=3000))

    np.testing.assert_allclose(surprises(f), surprises(f * 1e6), atol=1e-9)


def test_a_burst_seen_before_is_no_surprise_to_a_still_metric():
    """Zeros with rare bursts of one size have a quantile of zero; each is less surprising than the one
    before."""
    f = np.zeros(3000)
    f[500::500] = 5.0
    found = surprises(f)

    assert found[500] > 10.0
    assert found[1000] < found[500] / 2
    assert (np.diff(found[500::500]) < 0).all()


def test_returns_nothing_before_it_has_a_past():
    """The first hundred samples give no score."""
    f = np.full(150, 1.0)
    f[50], f[120] = 1e6, 1e9

    assert surprises(f)[50] == 0.0
    assert surprises(f)[120] > 3.0
