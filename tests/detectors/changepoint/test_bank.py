"""The bank against its scalar definition and the reference, on both kernels."""

import importlib.util
import math
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.speed.bocpd_reference import run_length_posterior
from detectors.changepoint.bank import BocpdBank, resolve_backend
from detectors.changepoint.bocpd import BocpdConfig
from tests.detectors.changepoint.scalar_bocpd import Bocpd
from tests.detectors.state import same

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
    bank.accept(np.array([0]), [samples])
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

    moved.rescale(np.array([0]), np.array([0.25]), np.array([1.1]))

    after = moved.posterior(0)
    assert all(abs(before[age] - after[age]) < 1e-5 for age in before)
    a, b = plain.update_batch(x[40:, None]), moved.update_batch((x[40:, None] - 0.25) / 1.1)
    assert (a[-1] > 0.9) == (b[-1] > 0.9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_seeded_series_has_its_past(backend):
    """A seeded series has one run of that age until something changes."""
    samples = np.random.default_rng(9).normal(size=60).tolist()
    bank = BocpdBank(2, backend=backend)
    bank.seed(np.array([0]), np.array([samples]))

    assert bank.posterior(0) == {60: 1.0}
    assert bank.regime_age.tolist() == [60, 0]
    assert bank.update([0.1, math.nan])[0] < 1e-3
    assert [bank.update([5.0, math.nan])[0] > 0.9 for _ in range(5)][-1]
    assert bank.onsets(np.array([0]))[0][1].age == 5


@pytest.mark.parametrize("backend", BACKENDS)
def test_isolated_spikes_raise_nothing_when_clipped(backend):
    """1 % spikes, clipped to 4 sigma as the change detector does, never reach the alarm in 60,000 samples."""
    rng = np.random.default_rng(10)
    x = rng.normal(size=(600, 100))
    x[rng.random(x.shape) < 0.01] = 4.0
    bank = BocpdBank(100, backend=backend)

    assert (bank.update_batch(x) > 0.9).mean() < 5e-5


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shift", [1.5, 3.0])
def test_onset_interval_holds_the_truth_as_often_as_its_mass(backend, shift):
    """Over 400 shifts the true onset lies in the interval as often as its posterior mass predicts, within 4
    points: three standard errors where the mass is 90 %."""
    x = np.random.default_rng(12).normal(size=(260, 400))
    x[200:] += shift
    bank = BocpdBank(400, backend=backend)
    bank.update_batch(x[:200])
    held, mass, pending = [], [], set(range(400))
    for age, row in enumerate(x[200:], start=1):
        for i in pending & set(np.flatnonzero(bank.update(row) > 0.9).tolist()):
            ((_, onset),) = bank.onsets(np.array([i]))
            if onset.age < 3:
                continue
            posterior = {a: p for a, p in bank.posterior(i).items() if a < bank.regime_age[i]}
            inside = sum(p for a, p in posterior.items() if onset.newest <= a <= onset.oldest)
            mass.append(inside / sum(posterior.values()))
            held.append(onset.newest <= age <= onset.oldest)
            pending = pending - {i}

    assert len(held) > 390
    assert min(mass) >= 0.9 - 1e-6
    assert np.mean(held) == pytest.approx(np.mean(mass), abs=0.04)


def test_refuses_what_does_not_fit():
    """Wrong shapes and unknown backends raise ValueError."""
    bank = BocpdBank(3, backend="numpy")
    with pytest.raises(ValueError, match="expected"):
        bank.update([1.0])
    with pytest.raises(ValueError, match="backend"):
        resolve_backend("cupy")  # type: ignore[arg-type]  # the wrong name is the test
    with pytest.raises(ValueError, match="at least one"):
        BocpdBank(0)


@needs_numba
def test_float64_is_numpy_only():
    """The numba kernel refuses other types than float32."""
    with pytest.raises(ValueError, match="float32 only"):
        BocpdBank(1, backend="numba", dtype=np.float64)


def test_works_without_numba():
    """With numba blocked, "auto" is numpy, importing the bank loads no numba, and asking for it is an
    ImportError."""
    code = """
import sys
sys.modules["numba"] = None
from detectors.changepoint.bank import BocpdBank
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
    code = "import sys, detectors.changepoint.detector; print('numba' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert run.stdout == "False\n"


@pytest.mark.parametrize("backend", BACKENDS)
def test_groups_move_each_on_its_own_clock(backend):
    """Groups fed one by one, some at a time or all together end as banks of their own would."""
    x = np.stack([hostile(), hostile()[::-1], hostile() * 2], axis=1)
    rng = np.random.default_rng(5)
    bank = BocpdBank(7, groups=3, config=SMALL, backend=backend)
    alone = [BocpdBank(7, config=SMALL, backend=backend) for _ in range(3)]
    at = np.zeros(3, np.int64)
    while (at < len(x)).any():
        which = np.flatnonzero((at < len(x)) & (rng.random(3) < 0.6))
        probability = bank.update_groups(np.array([x[at[g], g] for g in which]).reshape(-1, 7), which)
        for row, group in zip(probability, which, strict=True):
            np.testing.assert_array_equal(row, alone[group].update(x[at[group], group]))
        at[which] += 1

    for i in range(21):
        assert bank.posterior(i) == alone[i // 7].posterior(i % 7)
    np.testing.assert_array_equal(bank.probability, np.concatenate([b.probability for b in alone]))
    np.testing.assert_array_equal(bank.regime_age, np.concatenate([b.regime_age for b in alone]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("count", [9, 16, 40])
def test_seeding_many_is_seeding_each(backend, count):
    """Several series seeded at once go on as if seeded one after the other."""
    x = np.random.default_rng(6).normal(size=(5, count))
    one, other = BocpdBank(5, config=SMALL, backend=backend), BocpdBank(5, config=SMALL, backend=backend)
    for bank in (one, other):
        bank.update_batch(np.ones((30, 5)))
    one.seed(np.arange(5), x)
    for i, samples in enumerate(x):
        other.seed(np.array([i]), samples[None])

    rows = np.random.default_rng(7).normal(size=(20, 5)) + 2
    np.testing.assert_allclose(one.update_batch(rows), other.update_batch(rows), atol=1e-6)
    assert all(one.posterior(i).keys() == other.posterior(i).keys() for i in range(5))


@pytest.mark.parametrize("backend", BACKENDS)
def test_accepting_many_is_accepting_each(backend):
    """Onsets, acceptance within and beyond the ring, and new units are the same, bit for bit, for several
    series at once and for one after the other."""
    x = np.random.default_rng(13).normal(size=(70, 40))
    ages = np.arange(40) % 20 + 1
    x += np.where(np.arange(70)[:, None] >= 70 - ages, 4.0, 0.0)
    together, each = (BocpdBank(20, groups=2, config=SMALL, backend=backend) for _ in range(2))
    together.update_batch(x)
    each.update_batch(x)
    which = np.flatnonzero((together.probability > 0.9) & (ages >= 3))
    samples = [x[70 - ages[i] :, i].tolist() for i in which]
    shift, scale = np.linspace(-4, 4, len(which)), np.linspace(0.5, 2, len(which))

    onsets = together.onsets(which)
    assert together.onsets(which, least_age=10) == [of for of in onsets if of[1].age >= 10]
    together.rescale(which, shift, scale)
    together.accept(which, samples)
    for k, i in enumerate(which):
        one = np.array([i])
        assert each.onsets(one) == [onsets[k]]
        each.rescale(one, shift[k : k + 1], scale[k : k + 1])
        each.accept(one, [samples[k]])

    assert len(which) > 30
    assert same(together, each)
