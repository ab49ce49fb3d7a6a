"""Wait, rebalance or evict."""

import doctest
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import alerts.reasoning.calibration
import alerts.report.duration
from alerts.report.advice import Loss, advice, reason
from alerts.report.cost import ActionCosts, lost_per_hour, rebalance_cost, restart_cost
from alerts.report.duration import COMPUTE, CONGESTION, LARGE_JOB, Lognormal, law_of

COSTS = ActionCosts(restart_seconds=300, checkpoint_interval_seconds=600, rebalance_seconds=30)


@pytest.mark.parametrize("module", [alerts.reasoning.calibration, alerts.report.duration])
def test_examples(module):
    """The docstrings' figures are what comes out."""
    assert doctest.testmod(module) == (0, doctest.testmod(module).attempted)


@pytest.mark.parametrize(
    ("law", "heals"),
    [
        (COMPUTE, (0.73, 0.65, 0.46, 0.28)),
        (CONGESTION, (0.47, 0.45, 0.34, 0.21)),
        (LARGE_JOB, (0.21, 0.23, 0.19, 0.13)),
    ],
)
def test_chance_to_heal_within_ten_minutes(law, heals):
    """The chances at an age of 1, 5, 20 and 60 minutes are those derived from the laws."""
    chances = [law.heals_within(600, age=60 * minutes) for minutes in (1, 5, 20, 60)]
    assert chances == pytest.approx(heals, abs=0.011)


@pytest.mark.parametrize("age", [0.0, 30.0, 600.0, 7200.0])
def test_expected_remaining_time_agrees_with_the_chances(age):
    """It is the integral of the chance to last still longer."""
    step = 60.0
    lasts = [1.0 - COMPUTE.heals_within(k * step, age=age) for k in range(20_000)]
    assert COMPUTE.remaining(age=age) == pytest.approx(step * (math.fsum(lasts) - lasts[0] / 2), rel=0.02)


@given(st.floats(1, 1e5), st.floats(0.3, 3), st.floats(0, 1e12), st.floats(0, 1e9))
def test_durations_stay_finite(mean, sigma, age, horizon):
    """However old a fault is, its chances are probabilities and its remaining time is a time."""
    law = Lognormal(mean, sigma)
    assert 0.0 <= law.heals_within(horizon, age=age) <= 1.0
    assert 0.0 <= law.remaining(age=age) < math.inf


@given(st.floats(1, 1e5), st.floats(0.3, 3), st.floats(0, 1e6), st.lists(st.floats(0, 1e6), min_size=2))
def test_more_time_heals_more(mean, sigma, age, horizons):
    """The chance to end grows with the time it is given, from none within no time."""
    law = Lognormal(mean, sigma)
    chances = [law.heals_within(horizon, age=age) for horizon in (0.0, *sorted(horizons))]
    assert chances[0] == 0.0
    assert chances == sorted(chances)


def weigh(hypothesis, loss):
    """The advice where there is something to weigh."""
    weighed = advice(hypothesis, loss, COSTS)
    assert weighed is not None
    return weighed


def test_prices_of_the_ladder():
    """A restart costs its time, half a checkpoint interval and the wait for a spare, for every GPU."""
    assert restart_cost(1000, COSTS) == pytest.approx(1000 * 600 / 3600)
    assert restart_cost(1000, ActionCosts(queue_seconds=600)) == pytest.approx(1000 * 1800 / 3600)
    assert rebalance_cost(1000, COSTS) == pytest.approx(1000 * 30 / 3600)


def slow(gpus, slowdown, lost, age):
    """Return what a job of ``gpus`` loses that runs ``slowdown`` times slower."""
    return Loss(gpus, lost_per_hour(gpus, slowdown), lost, age)


def test_advice_turns_when_the_loss_has_paid_for_it():
    """A small loss waits, one that has cost a rebalancing rebalances, one that has cost a restart evicts."""
    price = restart_cost(8, COSTS)
    told = [
        weigh("straggler.fail_slow", loss)
        for loss in (slow(8, 1.02, 0.0, 1.0), slow(8, 1.2, 0.1 * price, 60.0), slow(8, 1.2, price, 60.0))
    ]
    assert [one.decision for one in told] == ["wait", "rebalance", "evict"]
    assert [reason(one).partition("expected, ")[2].partition(";")[0] for one in told] == [
        "which pays neither for moving work away (0.0667 GPU-h) nor for a restart (1.33 GPU-h)",
        "which pays for moving work away (0.0667 GPU-h) but not for a restart (1.33 GPU-h)",
        "which pays for a restart (1.33 GPU-h)",
    ]


def test_less_work_makes_no_transfer_faster():
    """Moving work away would be paid for, but does not help a slow port."""
    told = weigh("link.nic_slow", slow(8, 1.2, 0.1 * restart_cost(8, COSTS), 60.0))
    assert told.decision == "wait"
    assert "does not pay for a restart (1.33 GPU-h), and less work makes no transfer faster" in reason(told)


def test_expected_loss_does_not_wait_to_be_paid():
    """A fault that has lasted long lasts longer: what it is expected to cost is enough to act."""
    young, old = (weigh("straggler.fail_slow", slow(8, 1.2, 0.1, age)) for age in (60.0, 36_000.0))
    assert (young.decision, old.decision) == ("rebalance", "evict")
    assert young.expected_gpu_hours < young.gpu_hours_to_restart <= old.expected_gpu_hours
    assert young.heals_within_10_min > old.heals_within_10_min


def test_advice_adds_up():
    """What is expected is the rate times the time left, the chance is that of ten minutes; both are told."""
    rate, told = lost_per_hour(8, 1.2), weigh("throttle.thermal", slow(8, 1.2, 0.1, 600.0))
    assert told.expected_gpu_hours == pytest.approx(rate * COMPUTE.remaining(age=600.0) / 3600, abs=1e-4)
    assert told.heals_within_10_min == pytest.approx(COMPUTE.heals_within(600.0, age=600.0), abs=1e-4)
    assert reason(told) == (
        "When this was weighed 0.1 GPU-h were lost and 0.366 more expected, which pays for moving work away "
        "(0.0667 GPU-h) but not for a restart (1.33 GPU-h); 56% heal within 10 min."
    )


def test_what_does_not_heal_is_not_waited_for():
    """A narrowed PCIe link is evicted at once, and nothing is foretold about its end."""
    told = weigh("link.pcie_downgrade", slow(8, 1.1, 0.0, 5.0))
    assert (told.decision, told.permanent, told.expected_remaining_seconds) == ("evict", True, None)
    assert reason(told).startswith("It does not heal by itself")


def test_no_loss_no_advice():
    """Where no job is slower, there is nothing to weigh."""
    assert advice("straggler.fail_slow", slow(8, 1.0, 0.0, 5.0), COSTS) is None
    assert advice("straggler.fail_slow", slow(0, 2.0, 0.0, 5.0), COSTS) is None


@given(st.floats(1.01, 10), st.floats(1, 1e6))
def test_never_worse_than_twice_the_best_choice_known_afterwards(slowdown, lasts):
    """Whoever restarts when the loss has paid for it spends at most twice what the better choice costs."""
    rate = lost_per_hour(64, slowdown) / 3600.0
    price = restart_cost(64, COSTS)
    evicted_at = min(price / rate, lasts)
    spent = rate * evicted_at + (price if evicted_at < lasts else 0.0)
    assert weigh("x", slow(64, slowdown, price, 1.0)).decision == "evict"
    assert spent <= 2 * min(price, rate * lasts) + 1e-6


@pytest.mark.parametrize(
    ("hypothesis", "gpus", "law"),
    [("congestion", 64, CONGESTION), ("link.nic_slow", 64, CONGESTION), ("throttle.thermal", 64, COMPUTE),
     ("throttle.thermal", 512, LARGE_JOB)],
)  # fmt: skip
def test_law_follows_cause_and_size(hypothesis, gpus, law):
    """Congestion lasts longer than a slow GPU, and anything in a large job longer still."""
    assert law_of(hypothesis, gpus) == law
