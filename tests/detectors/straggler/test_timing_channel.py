import numpy as np
import pytest

from detectors.peers.peers import PeerGroups
from detectors.straggler.evidence.timing_channel import QUIET_STEPS, Noise, TimingChannel, fit_noise

RNG = np.random.default_rng(3)
ONE_ROLE = PeerGroups.of(np.zeros(8, dtype=int))


def test_noise_is_pooled_and_inflated_for_autocorrelation():
    """A rank's sigma is the group's, and grows by (1 + rho)/(1 - rho) where the noise repeats itself."""
    white = RNG.normal(0, 0.02, (400, 8))
    repeating = np.zeros((400, 8))
    for s in range(1, 400):
        repeating[s] = 0.6 * repeating[s - 1] + 0.8 * white[s]
    plain = fit_noise(white, ONE_ROLE, floor=0.005, prior=1.0).sigma
    inflated = fit_noise(repeating, ONE_ROLE, floor=0.005, prior=1.0).sigma
    assert plain == pytest.approx(np.full(8, 0.02), rel=0.1)
    assert inflated == pytest.approx(np.full(8, 0.02 * np.sqrt(1.6 / 0.4)), rel=0.2)


def test_few_samples_move_the_centre_little():
    """With three steps seen, the usual spread between ranks counts for more than what was measured."""
    x = RNG.normal(0, 0.02, (3, 8)) + 0.05
    wary = fit_noise(x, ONE_ROLE, floor=0.005, prior=0.005).center
    assert (np.abs(wary) < 0.02).all()
    assert fit_noise(x, ONE_ROLE, floor=0.005, prior=1.0).center == pytest.approx(np.full(8, 0.05), abs=0.03)


def test_centres_that_are_clearly_apart_stay_where_they_are():
    """Ranks that all differ by more than noise explains are not drawn together: it would look like change."""
    lasting = np.linspace(-0.1, 0.1, 8)
    x = np.random.default_rng(5).normal(0, 0.02, (20, 8)) + lasting
    assert fit_noise(x, ONE_ROLE, floor=0.005, prior=0.006).center == pytest.approx(lasting, abs=0.015)


def test_the_centre_of_another_class_is_not_drawn_to_the_others():
    """Eight of 32 ranks at 1.7 times the others' time: what is left would look like a change of a tenth."""
    lasting = np.repeat([0.0, np.log(1.7)], [24, 8])
    x = np.random.default_rng(6).normal(0, 0.02, (40, 32)) + lasting
    everyone = PeerGroups.of(np.zeros(32, dtype=np.intp))
    assert fit_noise(x, everyone, floor=0.01, prior=0.006).center == pytest.approx(lasting, abs=0.025)


def test_quiet_noise_is_held_at_the_floor_and_unread_ranks_stay_finite():
    """Identical values have the floor as noise; a rank never read gets the group's."""
    x = np.zeros((20, 8))
    x[:, 2] = np.nan
    noise = fit_noise(x, ONE_ROLE, floor=0.005, prior=1.0)
    assert np.isfinite(noise.sigma).all()
    assert noise.sigma == pytest.approx(np.full(8, 0.005), rel=0.06)


def test_slow_ranks_keep_their_baseline():
    """What a slow rank does must not become usual."""
    channel = TimingChannel(8)
    channel.refit(Noise(np.zeros(8), np.full(8, 0.01), 20), largest_move=None)
    channel.raised[3] = True
    channel.refit(Noise(np.full(8, 0.1), np.full(8, 0.01), 40), largest_move=None)
    assert channel.noise is not None
    assert channel.noise.center.tolist() == [0.1] * 3 + [0.0] + [0.1] * 4


def test_slowness_ends_after_twenty_quiet_steps():
    """Evidence gone for twenty steps lowers the rank, once."""
    channel = TimingChannel(2)
    channel.raised[1] = True
    settled = [channel.settle() for _ in range(25)]
    assert settled[19] == [1]
    assert sum(len(s) for s in settled) == 1
    assert not channel.raised.any()


def test_a_slowdown_is_one_excursion_however_noisy_its_steps_are():
    """Of 3 % at a noise of 0.7 %, which is 4 sigmas, and fewer in the steps that are noisier."""
    channel = TimingChannel(8)
    channel.refit(Noise(np.zeros(8), np.full(8, 0.007), 20), largest_move=None)
    for step in range(40):
        slow = np.where(np.arange(8) == 3, 0.017, 0.0)
        channel.weigh(slow, sigma=np.full(8, 0.0076 if step % 2 else 0.007), smallest=0.0)
    assert channel.intermittence.count.tolist() == [0, 0, 0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(("believed", "counted"), [(True, 0), (False, 4)])
def test_far_steps_of_a_rank_that_is_known_to_be_slow_are_no_slowness_off_and_on(believed, counted):
    """It is nearer to them than the others are; one that is only suspected may be slow in those alone."""
    channel = TimingChannel(8)
    channel.refit(Noise(np.zeros(8), np.full(8, 0.01), 20), largest_move=None)
    channel.find(3, size=0.03)
    channel.believed[3] = believed
    for step in range(160):
        x = np.where(np.arange(8) == 3, 0.12 if step % 40 in (20, 21) else 0.0, 0.0)
        channel.weigh(x, sigma=np.full(8, 0.01), smallest=0.0)
    assert channel.intermittence.count.tolist() == [0, 0, 0, counted, 0, 0, 0, 0]


@pytest.mark.parametrize("far", [0, 40])
def test_far_steps_against_other_peers_are_no_rate_of_these(far):
    """A quarter of the ranks was off, until all were compared with others."""
    channel, sigma = TimingChannel(64), np.full(64, 0.01)
    channel.refit(Noise(np.zeros(64), sigma, 100), largest_move=None)
    for step in range(100):
        off = 0.06 * (np.arange(64) < 16) * (step < far)
        channel.weigh(off, sigma=sigma, smallest=0.0, steady=True)
    channel.forget()
    channel.refit(Noise(np.zeros(64), sigma, 100), largest_move=None)
    for step in range(20):
        channel.weigh(
            np.where(np.arange(64) == 3, 0.08, 0.0) * (step > 15), sigma=sigma, smallest=0.0, steady=True
        )
    assert channel.change.best[3] >= channel.h


def test_a_rank_recovers_though_noise_leaves_small_evidence():
    """At a noise of 3 % the evidence of a slowdown by 3 % hardly ever goes; that of one by 40 % does."""
    rng, channel = np.random.default_rng(4), TimingChannel(8)
    sigma = np.full(8, 0.03)
    channel.refit(Noise(np.zeros(8), sigma, 100), largest_move=None)
    recovered = []
    for step in range(120):
        x = rng.normal(0, 0.03, 8)
        x[3] += 0.34 * (step < 20)
        channel.weigh(x, sigma=sigma, smallest=0.0)
        if step == 5:
            channel.find(3, size=0.34)
        recovered += [(step, rank) for rank in channel.settle()]
    assert [rank for _, rank in recovered] == [3]
    assert recovered[0][0] <= 20 + 3 * QUIET_STEPS


def test_who_is_slow_by_less_than_when_it_was_found_has_not_recovered():
    """Evidence that makes a suspicion is not quiet, whatever the rank was slow by before."""
    channel, sigma = TimingChannel(8), np.full(8, 0.01)
    channel.find(3, size=0.34)
    for _ in range(100):
        x = np.zeros(8)
        x[3] = 0.08
        channel.weigh(x, sigma=sigma, smallest=0.0)
        assert channel.settle() == []
