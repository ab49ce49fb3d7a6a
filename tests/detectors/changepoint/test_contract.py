"""What every online detector must do, whatever it detects."""

import doctest
import importlib
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.series.detector import SeriesDetector
from detectors.changepoint.acceptance import ChangeConfig
from detectors.changepoint.bank import BocpdBank
from detectors.changepoint.bocpd import BocpdConfig
from detectors.changepoint.cusum import CusumBank
from detectors.changepoint.detector import ChangeDetectorBank
from detectors.changepoint.standardise import Scale
from detectors.changepoint.winsorise import Winsoriser
from detectors.node.idle_node import IdleNodeBank, NodeReading
from tests.detectors.state import same, state

SERIES = 3
Detector = tuple[Callable[[], Any], Callable[[Any, int, np.ndarray], Any]]
SMALL = BocpdConfig(slots=16, cap=40)


def feed_quiet(detector: IdleNodeBank, t: int, x: np.ndarray) -> Any:
    """Take a row as the NIC rate and the power of two GPUs on each node."""
    full = np.stack((5.0 + x, 5.0 + x), axis=1)
    one = np.where(np.isnan(full), np.nan, 1.0)
    quiet = detector.update(
        np.arange(SERIES),
        NodeReading(
            ts=np.full(SERIES, float(t)),
            nic=1e8 * (5.0 + x),
            power=full,
            utilization=one,
            tensor=full / 10.0,
            memory=one,
        ),
    )
    return quiet.held.tolist(), np.nan_to_num(quiet.since, nan=-99.0).tolist()


DETECTORS: dict[str, Detector] = {
    "bocpd-numpy": (
        lambda: BocpdBank(SERIES, config=SMALL, backend="numpy"),
        lambda detector, t, x: detector.update(x).tolist(),
    ),
    "bocpd-auto": (
        lambda: BocpdBank(SERIES, config=SMALL),
        lambda detector, t, x: detector.update(x).tolist(),
    ),
    "cusum": (lambda: CusumBank(SERIES), lambda detector, t, x: detector.update(x).tolist()),
    "clip": (
        lambda: Winsoriser(SERIES, limit=4.0, run=3),
        lambda detector, t, x: np.nan_to_num(detector(x), nan=-99.0).tolist(),
    ),
    "change": (
        lambda: ChangeDetectorBank([Scale()] * SERIES, config=ChangeConfig(warmup=5, baseline=20)),
        lambda detector, t, x: detector.update(float(t), x),
    ),
    "series": (SeriesDetector, lambda detector, t, x: detector.update(float(t), float(x[0]))),
    "quiet": (lambda: IdleNodeBank(SERIES, 2), feed_quiet),
}

each_detector = pytest.mark.parametrize(("make", "feed"), DETECTORS.values(), ids=DETECTORS.keys())


def rows() -> np.ndarray:
    x = np.random.default_rng(31).normal(size=(160, SERIES))
    x[90:, 0] += 6
    x[100:110, 1] = np.nan
    x[120, 2] = 50.0
    return x


def run(detector: Any, feed: Any, x: np.ndarray, start: int = 0) -> list[Any]:
    return [feed(detector, start + t, row.copy()) for t, row in enumerate(x)]


@each_detector
def test_is_deterministic(make, feed):
    """The same input gives the same output and the same state, bit for bit."""
    one, other = make(), make()

    assert run(one, feed, rows()) == run(other, feed, rows())
    assert same(one, other)


@each_detector
@pytest.mark.parametrize("cut", [1, 40, 97])
def test_continues_from_a_snapshot(make, feed, cut):
    """A detector read back from a pickle, as workers keep it, goes on as the one it was taken from."""
    x = rows()
    one = make()
    run(one, feed, x[:cut])
    other = pickle.loads(pickle.dumps(one))

    assert run(one, feed, x[cut:], start=cut) == run(other, feed, x[cut:], start=cut)
    assert same(one, other)


@each_detector
def test_keeps_no_hold_of_its_input(make, feed):
    """The detector neither writes to the caller's array nor reads it after the call."""
    one, other = make(), make()
    buffer = np.empty(SERIES)
    for t, row in enumerate(rows()):
        buffer[:] = row
        feed(one, t, buffer)
        assert np.array_equal(buffer, row, equal_nan=True)
        buffer[:] = -1e6
        feed(other, t, row.copy())

    assert same(one, other)


@each_detector
def test_survives_rows_without_any_value(make, feed):
    """A detector that has seen only NaN, and one that meets NaN rows later, answer without an error."""
    detector = make()
    for t in range(5):
        feed(detector, t, np.full(SERIES, math.nan))
    run(detector, feed, rows(), start=5)
    feed(detector, 1000, np.full(SERIES, math.nan))


@each_detector
def test_series_do_not_influence_each_other(make, feed):
    """What one series does leaves no trace in the others' state."""
    calm, wild = make(), make()
    x = rows()
    y = x.copy()
    y[:, 0] = 1e3 * np.sin(np.arange(len(x)))
    run(calm, feed, x)
    run(wild, feed, y)
    a, b = state(calm), state(wild)
    for name in a:
        if a[name].ndim and a[name].shape[-1] == SERIES:
            np.testing.assert_array_equal(a[name][..., 1:], b[name][..., 1:])


DOCUMENTED = """
tests.detectors.changepoint.scalar_bocpd detectors.changepoint.bank detectors.changepoint.detector
detectors.changepoint.winsorise detectors.changepoint.cusum detectors.node.idle_node
detectors.node.running_median benchmarks.series.daily benchmarks.series.detector benchmarks.series.tail
"""


@pytest.mark.parametrize("module", DOCUMENTED.split())
def test_documented_examples_run(module):
    """The example in each detector's docstring prints what the docstring shows."""
    result = doctest.testmod(importlib.import_module(module))

    assert result.attempted > 0
    assert result.failed == 0
