import numpy as np
import pytest

from detectors.workload import fit_tokens

RNG = np.random.default_rng(11)


def test_recovers_the_line_with_a_slow_rank_in_it():
    """Time per token is found although one rank of eight is slow in all its steps."""
    tokens = RNG.uniform(4000, 12000, (100, 8))
    seconds = (0.2 + 1e-4 * tokens) * np.exp(RNG.normal(0, 0.01, tokens.shape))
    seconds[:, 3] *= 1.3
    model = fit_tokens(seconds, tokens)
    assert model is not None
    assert model.per_token == pytest.approx(1e-4, rel=0.03)
    assert np.exp(model.log_expected(np.array([8000.0])))[0] == pytest.approx(1.0, rel=0.02)


def test_constant_tokens_explain_nothing():
    """Where every rank has the same work there is no line to fit."""
    assert fit_tokens(RNG.uniform(1, 2, (50, 4)), np.full((50, 4), 8192.0)) is None


def test_needs_enough_points_and_a_rising_line():
    """A handful of points, or more tokens in less time, give no model."""
    tokens = RNG.uniform(4000, 12000, (100, 4))
    assert fit_tokens(1.0 / tokens, tokens) is None
    assert fit_tokens(tokens[:2], tokens[:2]) is None
