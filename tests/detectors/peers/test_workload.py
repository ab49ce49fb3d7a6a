import numpy as np
import pytest

from detectors.peers.workload import WorkModel, fit_work

RNG = np.random.default_rng(11)

UNTOLD = np.full((100, 8), np.nan)


def packed(tokens):
    """Sums of squared lengths of batches of ``tokens`` [n, m] cut into eight sequences each."""
    lengths = RNG.dirichlet(np.full(8, 0.5), tokens.shape) * tokens[..., None]
    return (lengths**2).sum(axis=-1)


def noisy(seconds):
    return seconds * np.exp(RNG.normal(0, 0.01, seconds.shape))


def test_recovers_the_line_with_a_slow_rank_in_it():
    """Time per token is found although one rank of eight is slow in all its steps."""
    tokens = RNG.uniform(4000, 12000, (100, 8))
    seconds = noisy(0.2 + 1e-4 * tokens)
    seconds[:, 3] *= 1.3
    model = fit_work(seconds, tokens, UNTOLD)
    assert model is not None
    assert model.per_token == pytest.approx(1e-4, rel=0.03)
    assert model.per_square == 0.0
    expected = model.log_expected(np.array([8000.0]), np.array([np.nan]))
    assert np.exp(expected)[0] == pytest.approx(1.0, rel=0.02)


def test_recovers_the_time_per_token_and_per_square():
    """Where both vary each gets its own share, with a slow rank among eight."""
    tokens = RNG.uniform(4000, 12000, (100, 8))
    squares = packed(tokens)
    seconds = noisy(0.2 + 1e-4 * tokens + 2e-8 * squares)
    seconds[:, 3] *= 1.3
    model = fit_work(seconds, tokens, squares)
    assert model is not None
    assert model.per_token == pytest.approx(1e-4, rel=0.05)
    assert model.per_square == pytest.approx(2e-8, rel=0.05)


@pytest.mark.parametrize("tokens", [np.full((100, 8), 8192.0), UNTOLD], ids=["constant", "untold"])
def test_squares_explain_what_tokens_cannot(tokens):
    """With the same tokens everywhere, or none reported, the lengths of the sequences explain it."""
    squares = packed(np.full((100, 8), 1e7))
    seconds = noisy(0.5 + 1e-14 * squares)
    model = fit_work(seconds, tokens, squares)
    assert model is not None
    assert model.per_token == 0.0
    assert model.per_square == pytest.approx(1e-14, rel=0.03)
    expected = np.exp(model.log_expected(tokens, squares))
    assert np.median(seconds / expected) == pytest.approx(1.0, rel=0.01)


def test_what_takes_less_time_the_more_there_is_of_it_is_left_out():
    """Of two amounts the one with a negative time is dropped, and the fit is that of the other alone."""
    tokens = RNG.uniform(4000, 12000, (100, 8))
    rising, falling = packed(tokens), 1e8 - packed(tokens)
    by_tokens = noisy(0.5 + 1e-4 * tokens - 2e-9 * rising)
    alone = fit_work(by_tokens, tokens, UNTOLD)
    assert alone is not None
    assert fit_work(by_tokens, tokens, rising) == alone
    by_squares = noisy(3.0 - 1e-4 * tokens + 2e-8 * falling)
    alone = fit_work(by_squares, UNTOLD, falling)
    assert alone is not None
    assert fit_work(by_squares, tokens, falling) == alone


def test_an_amount_that_a_rank_does_not_report_is_left_out():
    """Squares that one rank leaves out take nothing from what the tokens of all explain."""
    tokens = RNG.uniform(4000, 12000, (100, 8))
    squares = packed(tokens)
    seconds = noisy(0.2 + 1e-4 * tokens + 2e-8 * squares)
    squares[:15, 5] = np.nan
    assert fit_work(seconds, tokens, squares) == fit_work(seconds, tokens, UNTOLD)
    assert fit_work(seconds, tokens, squares) is not None


def test_only_amounts_that_count_must_be_known():
    """An amount without a time per unit may be missing; one with it leaves the expectation unknown."""
    known, missing = np.array([100.0]), np.array([np.nan])
    assert WorkModel(1.0, per_token=0.01).log_expected(known, missing) == pytest.approx(np.log(2.0))
    assert WorkModel(1.0, per_square=0.01).log_expected(missing, known) == pytest.approx(np.log(2.0))
    assert np.isnan(WorkModel(1.0, per_token=0.01, per_square=0.01).log_expected(known, missing)).all()


def test_constant_work_explains_nothing():
    """Where every rank has the same work there is no line to fit."""
    seconds, same = RNG.uniform(1, 2, (100, 8)), np.full((100, 8), 8192.0)
    assert fit_work(seconds, same, UNTOLD) is None
    assert fit_work(seconds, same, same * 4096) is None


def test_needs_enough_points_and_a_rising_line():
    """A handful of points, or more work in less time, give no model."""
    tokens = RNG.uniform(4000, 12000, (100, 8))
    assert fit_work(1.0 / tokens, tokens, UNTOLD) is None
    assert fit_work(1.0 / tokens, tokens, packed(tokens)) is None
    assert fit_work(tokens[:2], tokens[:2], packed(tokens)[:2]) is None


def test_amounts_below_zero_are_no_work():
    """Whatever a process sends for an amount, there is a model or none, and never an error."""
    seconds, plus_minus = RNG.uniform(1, 2, (100, 8)), np.tile([1.0, -1.0], (100, 4))
    assert fit_work(seconds, plus_minus, -plus_minus) is None
