import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.changepoint.llr_cusum import (
    LARGE,
    CusumConfig,
    LlrCusumBank,
    locate_onset,
    locate_onsets,
    threshold,
)

H = threshold(16, 5, 1e-6)
steps = st.lists(
    st.one_of(st.just(float("nan")), st.floats(-0.5, 2.0)),
    min_size=1,
    max_size=60,
)


class LlrCusum:
    """The scalar definition for one rank, and the oracle of ``LlrCusumBank``.

    >>> e = LlrCusum(h=20.0)
    >>> [round(max(e.update(0.10, sigma=0.01)), 1) for _ in range(3)]
    [6.7, 13.3, 20.0]
    """

    def __init__(self, h: float, config: CusumConfig | None = None) -> None:
        self.h = h
        self.config = config or CusumConfig()
        self.levels = [0.0] * len(self.config.effects)

    def update(self, x: float, *, sigma: float, most: float = 0.0) -> list[float]:
        """Take the log ratio to peers less its baseline; return the evidence per effect. NaN: no change.

        ``most`` is what one step may move the evidence for a ``LARGE`` effect by, where that is more than the
        usual share.
        """
        if math.isnan(x):
            return list(self.levels)
        cfg = self.config
        share = self.h * cfg.clip_share
        for k, effect in enumerate(cfg.effects):
            delta = math.log1p(effect)
            if delta < cfg.min_effect_sigmas * sigma:
                self.levels[k] = 0.0
                continue
            bound = max(most, share) if effect >= LARGE else share
            value = min(x, delta + cfg.limit_sigmas * sigma)
            # Log likelihood ratio of a normal x with mean delta against mean 0.
            step = delta / sigma**2 * (value - delta / 2)
            level = self.levels[k] + min(max(step, -bound), bound)
            self.levels[k] = min(max(level, 0.0), cfg.cap * self.h)
        return list(self.levels)


@settings(deadline=None)
@given(st.lists(steps, min_size=1, max_size=4), st.floats(0.003, 0.2), st.floats(0.0, H))
def test_bank_agrees_with_the_scalar_definition(series, sigma, most):
    """The vectorised bank gives, rank by rank, what the scalar definition gives."""
    length = max(len(s) for s in series)
    x = np.full((length, len(series)), np.nan)
    for i, s in enumerate(series):
        x[: len(s), i] = s
    bank = LlrCusumBank(len(series), H)
    scalars = [LlrCusum(H) for _ in series]
    for row in x:
        bank.update(row, sigma=np.full(len(series), sigma), most=most)
        found = [e.update(v, sigma=sigma, most=most) for e, v in zip(scalars, row, strict=True)]
        expected = np.array(found).T
        assert bank.levels == pytest.approx(expected)


def test_one_spike_never_alarms_and_is_taken_back_by_one_healthy_step():
    """A step may bring at most a third of the threshold; a healthy one takes it back while the noise is
    small.
    """
    bank = LlrCusumBank(1, H)
    sigma = np.array([0.005])
    assert bank.update(np.array([3.0]), sigma=sigma)[0] <= H / 3 + 1e-9
    assert bank.update(np.array([0.0]), sigma=sigma)[0] == 0.0


@pytest.mark.parametrize(("slowdown", "share"), [(1.10, 1 / 3), (1.25, 0.45), (2.0, 0.45)])
def test_a_step_far_off_may_count_more_where_such_steps_are_rare(slowdown, share):
    """``most`` raises the limit of a single step for large effects; the small ones keep theirs."""
    bank = LlrCusumBank(1, H)
    found = bank.update(np.log([slowdown]), sigma=np.array([0.005]), most=0.45 * H)[0]
    assert found == pytest.approx(share * H)


def test_a_ceiling_bounds_what_a_step_adds_and_not_what_it_takes():
    """Where far steps are frequent one counts as much as it surprises; a healthy one takes all of it back."""
    bank = LlrCusumBank(1, H)
    levels = [bank.update(np.array([x]), sigma=np.array([0.005]), ceiling=2.0)[0] for x in (0.4, 0.4, 0.0)]
    assert levels == pytest.approx([2.0, 4.0, 0.0])


def test_no_larger_share_for_far_steps_lowers_the_usual_one():
    """Three of them make a suspicion as ever."""
    bank = LlrCusumBank(1, H)
    for _ in range(3):
        bank.update(np.array([0.4]), sigma=np.array([0.005]), most=1.0)
    assert bank.best[0] == pytest.approx(H)


@pytest.mark.parametrize(
    ("sigma", "slowdown", "steps"), [(0.005, 1.03, 4), (0.01, 1.03, 12), (0.01, 1.05, 5), (0.04, 1.10, 16)]
)
def test_delay_follows_effect_over_noise(sigma, slowdown, steps):
    """The median alarm comes within the steps that the effect and the noise allow, never before three."""
    delays = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        bank = LlrCusumBank(1, threshold(1000, 5, 1e-6))
        taken = 0
        while bank.best[0] < bank.h and taken < 200:
            bank.update(np.array([np.log(slowdown) + rng.normal(0, sigma)]), sigma=np.array([sigma]))
            taken += 1
        delays.append(taken)
    assert min(delays) >= 3
    assert np.median(delays) <= steps


def test_healthy_noise_with_spikes_stays_quiet():
    """In a million rank-steps, 1 % of them spiked, at most a handful cross the threshold of suspicion."""
    rng = np.random.default_rng(5)
    bank = LlrCusumBank(1000, threshold(1000, 5, 1e-6))
    sigma, over = np.full(1000, 0.01), 0
    for _ in range(1000):
        x = rng.normal(0, 0.01, 1000) + np.where(rng.random(1000) < 0.01, rng.uniform(0.05, 1.0, 1000), 0.0)
        over += int((bank.update(x, sigma=sigma) >= bank.h).sum())
    assert over <= 5


def test_missing_steps_change_nothing():
    """Evidence stays as it is through steps that were not read."""
    bank = LlrCusumBank(2, H)
    sigma = np.array([0.01, 0.01])
    before = bank.update(np.array([0.05, 0.05]), sigma=sigma).copy()
    assert bank.update(np.array([np.nan, 0.0]), sigma=sigma)[0] == before[0]


def test_effects_below_the_noise_are_not_tested():
    """With 10 % noise no evidence is gathered for 3 %."""
    bank = LlrCusumBank(1, H)
    bank.update(np.array([0.2]), sigma=np.array([0.1]))
    assert bank.levels[0, 0] == 0.0
    assert bank.levels[3, 0] > 0.0


@pytest.mark.parametrize("sigma", [0.005, 0.02, 0.05])
def test_onset_interval_covers_the_truth(sigma):
    """The 90 % interval holds the first slow step in about 90 % of cases."""
    covered = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        x = rng.normal(0, sigma, 60)
        x[40:] += np.log(1.10)
        onset = locate_onset(x, sigma)
        covered += onset.low <= 40 <= onset.high
    assert covered / 200 >= 0.87


def test_the_age_of_evidence_is_that_of_the_oldest_at_the_cap():
    """Noise that for one step leaves small effects untested dates no slowdown anew."""
    bank = LlrCusumBank(1, h=20.0)
    for step in range(60):
        bank.update(np.array([0.7]), sigma=np.array([0.15 if step == 30 else 0.02]))
    assert bank.age_of(0) == 60


@pytest.mark.parametrize("unread", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_many_onsets_are_dated_as_one_by_one(count, unread):
    """Whatever the lengths of their windows, their noise, and what was not read."""
    rng = np.random.default_rng([count, int(10 * unread)])
    sigma = rng.choice([0.003, 0.01, 0.1], count).tolist()
    windows = [rng.normal(0.0, noise, rng.integers(1, 256)) for noise in sigma]
    for x in windows:
        x[rng.integers(len(x)) :] += rng.choice([0.0, 0.03, 0.3])
        x[rng.random(len(x)) < unread] = np.nan
    one_by_one = [locate_onset(x, noise) for x, noise in zip(windows, sigma, strict=True)]
    assert locate_onsets(windows, sigma) == one_by_one
