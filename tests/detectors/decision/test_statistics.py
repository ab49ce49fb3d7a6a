"""The parts of the decision core by themselves."""

import math

import numpy as np
import pytest

from detectors.decision.channels import LEAST_ROLE, Roles, low_quantile
from detectors.decision.explain import explain
from detectors.decision.families import Families
from detectors.decision.history import HELD, History
from detectors.decision.ladder import ORDERS, WINDOWS, Bursts
from detectors.decision.noise import FamilyNoise, spreads, t_glr
from detectors.decision.work import WorkFit
from tests.detectors.decision.jobs import layout, noise

EVERYBODY = np.ones(16, dtype=bool)
NOBODY = np.zeros(16, dtype=bool)


def families(where=None, ranks=16):
    """Return all families of a job."""
    return Families(where or layout(ranks), np.ones(ranks, dtype=bool), small=np.zeros(ranks, dtype=bool))


def test_an_atom_is_the_mean_of_its_members():
    """Single ranks first, then the sets of the other families."""
    means = families().means(np.arange(16.0))
    assert means[:18].tolist() == [*range(16), 3.5, 11.5]


def test_the_location_of_a_role_is_that_of_its_faster_part():
    """Six of ten ranks may be slow; missing ranks do not count."""
    values = np.array([[0.0] * 4 + [1.0] * 6, [0.0] * 4 + [np.nan] * 6])
    assert low_quantile(values).tolist() == pytest.approx([0.15, 0.0])


def test_ranks_of_small_roles_are_compared_with_the_job_less_what_is_usual():
    """A stage of two ranks with more work stands out by nothing."""
    labels = np.array([0, 0, 0, 0, 1, 1], dtype=np.intp)
    roles = Roles(labels, np.ones(6, dtype=bool))
    assert roles.small.tolist() == [False] * LEAST_ROLE + [True] * 2
    usual = np.array([0.0, 0.0, 0.0, 0.0, 0.5, 0.5])
    relative = roles.relative(np.array([0.1, 0.1, 0.1, 0.1, 0.6, 0.9]), usual)
    assert relative == pytest.approx([0.0, 0.0, 0.0, 0.0, 0.0, 0.3])


def filled(values):
    """Return a history of ``values`` [steps, ranks]."""
    history = History(values.shape[1])
    for row in values:
        history.append(row, present=np.ones(len(row), dtype=bool))
    return history


def test_a_lone_outlier_is_clipped_and_a_sustained_effect_is_not():
    """From its third step on a shift counts whole."""
    x = noise(100, 16, seed=1, sd=0.01)
    x[60, 2] += 1.0
    x[90:, 5] += 1.0
    history = filled(x)
    assert history.mean(30, 20)[2] < 0.02
    assert history.mean(0, 8)[5] == pytest.approx(1.0, abs=0.03)


def test_a_cut_effect_can_be_put_back():
    """The steps held forget it, and show it again."""
    x = noise(100, 16, seed=2, sd=0.01)
    x[80:, 3] += 0.2
    history = filled(x)
    history.shift(np.array([3]), -0.2, steps=20)
    assert history.mean(0, 20)[3] == pytest.approx(0.0, abs=0.01)
    history.shift(np.array([3]), 0.2, steps=20)
    assert history.last(20)[:, 3].mean() == pytest.approx(0.2, abs=0.01)


def test_a_history_holds_the_last_steps_only():
    """And a missing value is what is usual for the rank."""
    x = np.tile(np.arange(4.0), (HELD + 300, 1))
    x[-1, 2] = np.nan
    history = filled(x)
    assert history.steps == HELD
    assert history.seen == HELD + 300
    assert history.last(HELD).shape == (HELD, 4)
    assert history.last(1)[0].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_spreads_are_unbiased_and_blind_to_a_slow_half():
    """Of Gaussian values they are one; forty-five per cent far above change the lower one little."""
    draws = np.random.default_rng(3).standard_normal((400, 40))
    location, lower, upper = (figure.mean() for figure in spreads(draws))
    assert (location, lower, upper) == pytest.approx((0.0, 1.0, 1.0), abs=0.05)
    draws[:, :18] += 10.0
    assert spreads(draws)[1].mean() < 1.6


def test_evidence_of_a_scatter_known_from_little_is_little():
    """Student's t for few degrees of freedom, the Gaussian's z^2/2 for many."""
    z = np.array([6.0])
    assert t_glr(z, np.array([1e9])) == pytest.approx(18.0)
    assert t_glr(z, np.array([3.0]))[0] < 6.0
    assert t_glr(-z, np.array([3.0]))[0] == 0.0


def test_noise_is_calibrated_on_the_windows_themselves():
    """Means over correlated steps scatter more than single steps promise: no z of them is large."""
    x = noise(400, 64, seed=4, sd=0.01, rho=0.97)
    family = FamilyNoise(64, np.array([32], dtype=np.intp))
    which = np.array([0], dtype=np.intp)
    most = max(
        float(family.evidence(x[t - 32 : t].mean(axis=0)[None], which)[0].max()) for t in range(40, 400, 4)
    )
    assert most < 13.0


def test_a_burst_teaches_only_once_it_is_over():
    """Or a fault that lasts would pass for the next burst."""
    bursts, every, which = Bursts(16), families(), np.array([len(WINDOWS) - len(ORDERS)])
    for _ in range(50):
        bursts.update(NOBODY, aside=NOBODY)
    before = bursts.caps(which, every)[0, 0]
    lasting = np.arange(16) == 3
    for _ in range(40):
        bursts.update(lasting, aside=NOBODY)
    assert bursts.caps(which, every)[0, 0] >= before
    bursts.update(NOBODY, aside=NOBODY)
    assert bursts.caps(which, every)[0, 0] < before - 3.0


def test_sets_are_ranked_by_residual_and_accepted_by_their_own_noise():
    """The node leaves nothing unexplained, and is no cause while its family scatters as much."""
    r = np.zeros(32)
    r[8:16] = 0.1 + 0.002 * np.arange(8)
    every = families(ranks=32)

    def explained(accepted):
        return explain(every, r, 0.005, window=8, start=False, least=0.02, accepted=accepted)

    [node] = explained(lambda atom: True)
    assert node.unit == "node"
    assert node.machine == pytest.approx(1.0, abs=0.05)
    assert explained(lambda atom: every.atom(atom)[0].rule.unit != "node") == ()


def test_two_causes_take_two_sets():
    """A node, and a rank elsewhere with another effect."""
    r = np.zeros(32)
    r[8:16], r[20] = 0.1, 0.3
    found = explain(
        families(ranks=32), r, 0.005, window=8, start=False, least=0.02, accepted=lambda atom: True
    )
    assert {(e.unit, len(e.members), round(e.size, 2)) for e in found} == {("node", 8, 0.1), ("rank", 1, 0.3)}


@pytest.mark.parametrize("slow", [0.0, 0.5])
def test_a_slow_rank_leaves_no_ghost_in_the_fit_of_the_work(slow):
    """Huber's weight is on the residual: neither much work nor one slow rank bends the slope. That of what is
    not reported stays where it began."""
    fit = WorkFit()
    amounts, errors = noise(200, 16, seed=5, sd=0.2), noise(200, 16, seed=6, sd=0.01)
    for w, error in zip(amounts, errors, strict=True):
        y = 0.9 * w + error
        y[3] += slow
        fit.update(y, np.stack([w, np.full(16, math.nan)]))
    assert fit.slopes == pytest.approx([0.9, 1.0], abs=0.01)
