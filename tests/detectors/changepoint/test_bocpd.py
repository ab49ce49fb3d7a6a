"""The scalar detector against the untruncated reference, and its behaviour sample by sample."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.speed.bocpd_reference import run_length_posterior
from detectors.changepoint.bocpd import BocpdConfig, Onset, onset_of, run_statistics
from detectors.changepoint.state import EXPECTED_LOSS, tables_of
from tests.detectors.changepoint.scalar_bocpd import Bocpd

UNIT = BocpdConfig(hazard=1 / 50, slots=300, kappa0=1.0, alpha0=1.0, beta0=1.0)


def two_regimes(samples: int = 250, shift: float = 2.0) -> np.ndarray:
    x = np.random.default_rng(0).normal(size=samples)
    x[samples // 2 :] += shift
    return x


@pytest.mark.parametrize("config", [UNIT, BocpdConfig(hazard=1e-6, slots=300)], ids=["unit", "default"])
def test_equals_the_untruncated_reference(config):
    """With as many slots as samples the posterior is the reference's to 1e-11."""
    x = two_regimes()
    reference = run_length_posterior(x, config)
    detector = Bocpd(config)
    for t, value in enumerate(x):
        detector.update(value)
        posterior = detector.posterior()

        assert max(abs(posterior[n] - reference[t, n - 1]) for n in posterior) < 1e-11


def test_reference_equals_fast_bocpd_with_folded_index():
    """fast-bocpd starts with two identical runs; folded into one its posterior is the reference's."""
    fast_bocpd = pytest.importorskip("fast_bocpd")
    x = two_regimes()
    reference = run_length_posterior(x, UNIT)
    peer = fast_bocpd.BOCPD(fast_bocpd.GaussianNIG(0, 1, 1, 1), fast_bocpd.ConstantHazard(50.0), 300)
    for t, value in enumerate(x):
        posterior, _ = peer.update(value)
        posterior[t] += posterior[t + 1]

        assert np.abs(posterior[: t + 1] - reference[t, : t + 1]).max() < 1e-11


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-20, 20), min_size=1, max_size=60))
def test_telescoped_evidence_is_the_product_of_predictives(samples):
    """offset[n] - alpha_n·log(beta·shrink) is the log evidence of the run plus its expected loss."""
    config = BocpdConfig()
    tables = tables_of(config, "float64")
    run = Bocpd(config)
    log_evidence, n = 0.0, len(samples)
    mu, beta = config.mu0, config.beta0
    for k, x in enumerate(samples):
        kappa, alpha = config.kappa0 + k, config.alpha0 + k / 2
        scale2 = beta * (kappa + 1) / (alpha * kappa)
        z2 = (x - mu) ** 2 / scale2
        log_evidence += (
            math.lgamma(alpha + 0.5)
            - math.lgamma(alpha)
            - 0.5 * math.log(2 * alpha * math.pi * scale2)
            - (alpha + 0.5) * math.log1p(z2 / (2 * alpha))
        )
        mu, beta = run_statistics(samples[: k + 1], config)
        run.update(x)
    _, _, shrink, power, offset = tables.by_age[:, n]
    telescoped = offset - power * math.log(beta * shrink) - (n - 1) * math.log1p(-config.hazard)

    assert telescoped == pytest.approx(log_evidence + n * EXPECTED_LOSS, abs=1e-8)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(math.nan)), min_size=1, max_size=80))
def test_posterior_is_a_distribution(samples):
    """Whatever comes in, the posterior sums to one and the alarm mass is a probability."""
    detector = Bocpd(BocpdConfig(slots=8, cap=20))
    for x in samples:
        probability = detector.update(x)

        assert -1e-12 <= probability <= 1 + 1e-12
    if not all(map(math.isnan, samples)):
        assert sum(detector.posterior().values()) == pytest.approx(1.0)


def test_nan_changes_nothing():
    """A missing sample leaves the posterior as it was."""
    detector = Bocpd()
    for x in (0.3, -0.2, 0.1):
        detector.update(x)
    before = detector.posterior()

    detector.update(math.nan)

    assert detector.posterior() == before


def test_absorbing_keeps_the_weight():
    """Truncated to 16 slots, the mass of the last ages stays close to the reference's: nothing is dropped."""
    x = two_regimes()
    config = BocpdConfig(hazard=1 / 250, slots=16)
    reference = run_length_posterior(x, config)
    detector = Bocpd(config)
    for t, value in enumerate(x):
        detector.update(value)
        young = sum(p for age, p in detector.posterior().items() if age < 10)

        assert young == pytest.approx(reference[t, :9].sum(), abs=0.05)


def test_capped_run_forgets():
    """At the cap the mean of the oldest run follows a slow drift with the cap's memory, not with 1/n."""
    config = BocpdConfig(hazard=1e-12, slots=8, cap=20)
    detector = Bocpd(config)
    for t in range(400):
        detector.update(0.01 * t)
    oldest = max(detector._runs(), key=lambda run: run.age)

    assert oldest.age > 20
    assert 0.01 * 399 - oldest.mu < 0.5


def test_accept_moves_the_regime_and_keeps_older_runs():
    """After accepting an onset the mass of new runs is zero and runs before it keep their weight."""
    detector = Bocpd()
    for x in [0.1, -0.3, 0.2, 0.0, 0.1, -0.1, 6.0, 6.2, 5.9]:
        detector.update(x)
    older = {age: p for age, p in detector.posterior().items() if age > 3}

    detector.accept(3, [6.0, 6.2, 5.9])

    assert detector.probability == 0.0
    assert {age: p for age, p in detector.posterior().items() if age > 3} == older
    with pytest.raises(LookupError):
        detector.onset()
    assert detector.update(6.1) < 0.1


def test_onset_interval_is_contiguous_and_holds_nine_tenths():
    """The interval grows from the MAP towards the heavier side until it holds 90 %."""
    assert onset_of([2, 3, 4, 9], [0.1, 0.5, 0.35, 0.05]) == Onset(3, 2, 4, 0.5)
    assert onset_of([5], [1.0]) == Onset(5, 5, 5, 1.0)


@pytest.mark.parametrize("bad", [{"hazard": 0.0}, {"slots": 1}, {"slots": 600}, {"kappa0": 0.0}])
def test_rejects_impossible_configuration(bad):
    """Configurations without a meaning are refused at construction."""
    with pytest.raises(ValueError, match=r"must be|need|hazard is"):
        BocpdConfig(**bad)
