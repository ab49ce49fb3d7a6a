"""The bank against its scalar definition and the reference, on both kernels."""

import importlib.util
import math
import subprocess
import sys

import numpy as np
import pytest

from detectors.bocpd import Bocpd, BocpdConfig
from detectors.bocpd_bank import BocpdBank, resolve_backend
from detectors.bocpd_reference import run_length_posterior

needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")
BACKENDS = ["numpy", pytest.param("numba", marks=needs_numba)]
SMALL = BocpdConfig(hazard=1 / 50, slots=16, cap=40)


def hostile() -> np.ndarray:
    """Shifts, a variance change, spikes, scattered gaps, rows without any value and a series never read."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=(300, 7))
    x[120:, :3] += 3
    x[200:, 2] *= 3
    x[50, 1], x[51, 1], x[220, 0] = 40.0, -40.0, 1e9
    x[rng.random(x.shape) < 0.1] = np.nan
    x[60:66] = np.nan
    x[:80, 4] = np.nan
    x[:, 5] = np.nan
    return x


@pytest.mark.parametrize("backend", BACKENDS)
def test_equals_the_scalar_form(backend):
    """Absorbing, capping, rebasing, spikes and gaps: the bank's posterior is the scalar's to 1e-4."""
    x = hostile()
    bank = BocpdBank(x.shape[1], config=SMALL, backend=backend)
    scalars = [Bocpd(SMALL) for _ in range(x.shape[1])]
    for row in x:
        probability = bank.update(row)
        for i, scalar in enumerate(scalars):
            assert probability[i] == pytest.approx(scalar.update(row[i]), abs=1e-4)
            expected, got = scalar.posterior(), bank.posterior(i)
            assert expected.keys() == got.keys()
            assert all(abs(expected[age] - got[age]) < 1e-4 for age in expected)


@pytest.mark.parametrize(
    ("backend", "dtype", "limit"),
    [
        ("numpy", np.float64, 1e-11),
        ("numpy", np.float32, 1e-4),
        pytest.param("numba", np.float32, 1e-4, marks=needs_numba),
    ],
)
@pytest.mark.parametrize("slots", [100, 200, 500])
def test_equals_the_reference_before_truncation(backend, dtype, limit, slots):
    """For t < slots the posterior over all ages is the untruncated one."""
    config = BocpdConfig(hazard=1 / 250, slots=slots, kappa0=1.0, alpha0=1.0, beta0=1.0)
    x = np.random.default_rng(2).normal(size=slots - 1)
    x[slots // 2 :] += 2
    reference = run_length_posterior(x, config)
    bank = BocpdBank(1, config=config, backend=backend, dtype=dtype)
    for t, value in enumerate(x):
        bank.update([value])
        if t % 7 == 0 or t == len(x) - 1:
            posterior = bank.posterior(0)
            assert max(abs(posterior[n] - reference[t, n - 1]) for n in posterior) < limit


@pytest.mark.parametrize("backend", BACKENDS)
def test_posterior_survives_long_stretches_with_a_cap(backend):
    """Thousands of samples past the cap, float32 weights still agree with the float64 scalar."""
    config = BocpdConfig(slots=8, cap=30)
    x = np.random.default_rng(3).normal(size=3000)
    x[2990:] += 4
    bank, scalar = BocpdBank(1, config=config, backend=backend), Bocpd(config)
    got = bank.update_batch(x[:, None])[:, 0]
    expected = [scalar.update(value) for value in x]

    assert np.abs(got - expected).max() < 1e-3


@needs_numba
def test_kernels_agree_across_blocks():
    """Both kernels give the same probabilities for more series than one block holds."""
    x = np.random.default_rng(4).normal(size=(150, 1100))
    x[90:, ::3] += 3
    x[np.random.default_rng(5).random(x.shape) < 0.02] = np.nan
    numpy_bank, numba_bank = (BocpdBank(1100, config=SMALL, backend=b) for b in ("numpy", "numba"))

    assert np.abs(numpy_bank.update_batch(x) - numba_bank.update_batch(x)).max() < 1e-4


@pytest.mark.parametrize("backend", BACKENDS)
def test_batch_equals_single_updates(backend):
    """Chunking does not matter: bit for bit the same probabilities."""
    x = hostile()
    whole, single = BocpdBank(7, config=SMALL, backend=backend), BocpdBank(7, config=SMALL, backend=backend)

    np.testing.assert_array_equal(whole.update_batch(x), np.array([single.update(row) for row in x]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gaps_of_neighbours_do_not_matter(backend):
    """A series' posterior depends on its own samples only, whatever is missing beside it."""
    x = hostile()[:, 0]
    alone = BocpdBank(1, config=SMALL, backend=backend)
    beside = BocpdBank(3, config=SMALL, backend=backend)
    for t, value in enumerate(x):
        alone.update([value])
        beside.update([0.1 if t % 2 else math.nan, value, math.nan])

    expected, got = alone.posterior(0), beside.posterior(1)
    assert expected.keys() == got.keys()
    assert all(abs(expected[age] - got[age]) < 1e-5 for age in expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("age", [3, 20])
def test_accept_seed_and_rescale_follow_the_scalar(backend, age):
    """Acceptance, inside and beyond the ring, moves the bank as it moves the scalar form."""
    x = np.random.default_rng(6).normal(size=80)
    x[60:] += 4
    bank, scalar = BocpdBank(2, config=SMALL, backend=backend), Bocpd(SMALL)
    for value in x:
        bank.update([value, 0.0])
        scalar.update(value)
    samples = x[-age:].tolist()
    bank.accept(0, age, samples)
    scalar.accept(age, samples)
    for value in np.random.default_rng(7).normal(4, 1, size=30):
        assert bank.update([value, 0.0])[0] == pytest.approx(scalar.update(value), abs=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rescale_keeps_weights_and_the_future(backend):
    """Expressing a series in another unit changes neither its posterior nor, with the unit, what it says
    later."""
    x = np.random.default_rng(8).normal(size=90)
    x[85:] += 5
    plain, moved = (BocpdBank(1, config=SMALL, backend=backend) for _ in range(2))
    plain.update_batch(x[:40, None])
    moved.update_batch(x[:40, None])
    before = moved.posterior(0)

    moved.rescale(0, 0.25, 1.1)

    after = moved.posterior(0)
    assert all(abs(before[age] - after[age]) < 1e-5 for age in before)
    a, b = plain.update_batch(x[40:, None]), moved.update_batch((x[40:, None] - 0.25) / 1.1)
    assert (a[-1] > 0.9) == (b[-1] > 0.9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_seeded_series_knows_its_past(backend):
    """A seeded series has one run of that age and says so until something changes."""
    samples = np.random.default_rng(9).normal(size=60).tolist()
    bank = BocpdBank(2, backend=backend)
    bank.seed(0, samples)

    assert bank.posterior(0) == {60: 1.0}
    assert bank.regime_age.tolist() == [60, 0]
    assert bank.update([0.1, math.nan])[0] < 1e-3
    assert [bank.update([5.0, math.nan])[0] > 0.9 for _ in range(5)][-1]
    assert bank.onset(0).age == 5


@pytest.mark.parametrize("backend", BACKENDS)
def test_isolated_spikes_raise_nothing_when_clipped(backend):
    """1 % spikes, clipped to 4 sigma as the change detector does, never reach the alarm in 60,000 samples."""
    rng = np.random.default_rng(10)
    x = rng.normal(size=(600, 100))
    x[rng.random(x.shape) < 0.01] = 4.0
    bank = BocpdBank(100, backend=backend)

    assert (bank.update_batch(x) > 0.9).mean() < 5e-5


def test_refuses_what_does_not_fit():
    """Wrong shapes, unknown backends and foreign snapshots raise ValueError."""
    bank = BocpdBank(3, backend="numpy")
    with pytest.raises(ValueError, match="expected"):
        bank.update([1.0])
    with pytest.raises(ValueError, match="does not fit"):
        bank.restore(BocpdBank(4, backend="numpy").snapshot())
    with pytest.raises(ValueError, match="backend"):
        resolve_backend("cupy")  # type: ignore[arg-type]  # the wrong name is the test
    with pytest.raises(ValueError, match="at least one"):
        BocpdBank(0)


@needs_numba
def test_float64_is_numpy_only():
    """The numba kernel is written for float32 and says so."""
    with pytest.raises(ValueError, match="float32 only"):
        BocpdBank(1, backend="numba", dtype=np.float64)


def test_works_without_numba():
    """With numba blocked, "auto" is numpy, importing the bank loads no numba, and asking for it is an
    ImportError."""
    code = """
import sys
sys.modules["numba"] = None
from detectors.bocpd_bank import BocpdBank
bank = BocpdBank(2)
assert bank.backend == "numpy"
for x in [0.1, -0.2, 0.3, 0.0, -0.1, 0.2, 6.0, 6.1, 5.9]:
    p = bank.update([x, 0.0])
assert p[0] > 0.9 > p[1], p
try:
    BocpdBank(2, backend="numba")
except ImportError:
    print("ok")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert run.stdout == "ok\n", run.stderr


def test_importing_the_bank_does_not_import_numba():
    """numba costs a second to import; only building a bank may pay it."""
    code = "import sys, detectors.change; print('numba' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert run.stdout == "False\n"
