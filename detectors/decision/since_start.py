"""Atoms that have been slow since the first step seen: nothing has changed, so only their peers show it."""

import math

import numpy as np
import numpy.typing as npt

from detectors.decision.families import Families
from detectors.decision.history import PAST, History
from detectors.decision.noise import FLOOR, spreads, t_glr

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

LEAST = {"node": math.log1p(0.08)}
LEAST_OTHER = math.log1p(0.045)
"""Least lasting excess: healthy ranks of a role differ by 0.1-0.8 % for good, nodes in their models and
power limits by several per cent."""

_NATS_A_STEP = 3.5
"""Evidence of one step is bounded: 15.5 nats take five steps, as many as warm-up rarely spares one rank."""

_FEW = 8
"""Steps up to which the quickest one counts; later the lower quartile."""

_LEAST_STEPS = 3


def is_due(history: History) -> bool:
    """Return whether the start is looked at in this step: each of the first 16, and ever more seldom."""
    seen = history.seen
    if not _LEAST_STEPS <= seen <= PAST:
        return False
    return seen <= 16 or seen % max(1, seen // 8) == 0


def at_start(history: History, families: Families, comparable: Bools) -> tuple[Floats, Floats, Floats]:
    """Return evidence and excess of all atoms [atoms] since the start, and the ranks' excess [ranks].

    With x_a the log ratio of atom a to its role, Q_a is the lower quartile of x_a over all steps (of up to
    eight: the minimum), so that nearly all of them must have been slow. z = (Q_a - location) / tau with
    location (q35) and spread across the atoms of the family now, and the evidence is the t-GLR of ``noise``
    with n - 1 degrees of freedom, at most 3.5 nats a step, none below 4.5 % (nodes: 8 %). An order statistic
    in place of the mean bears with warm-up, compilation and loading of the first steps, which last as long
    on all ranks but in some of the steps only. Atoms with members that have no peers of their role (not
    ``comparable``) take no part.
    """
    x = history.last(history.steps)
    quick = _low(x)
    lows = _low(families.means(x))
    sound = families.means(comparable.astype(np.float64)) == 1.0
    evidence, excess = np.zeros(families.atoms), np.zeros(families.atoms)
    for family in families.all:
        chosen = np.flatnonzero(sound[family.columns]) + family.columns.start
        if len(chosen) < 3:
            continue
        location, lower, upper = spreads(lows[None, chosen])
        tau = max(float(lower[0]), float(min(upper[0], 3.0 * lower[0])), FLOOR)
        excess[chosen] = lows[chosen] - location[0]
        found = t_glr(excess[chosen] / tau, np.array(len(chosen) - 1.0))
        enough = excess[chosen] >= LEAST.get(family.rule.unit, LEAST_OTHER)
        evidence[chosen] = np.where(enough, np.minimum(found, _NATS_A_STEP * history.seen), 0.0)
    single = families.ranks[comparable[families.ranks]]
    location = spreads(quick[None, single])[0] if len(single) >= 3 else np.zeros(1)
    return evidence, excess, np.where(comparable, quick - location[0], 0.0)


def _low(x: Floats) -> Floats:
    """Return what nearly all steps of ``x`` [steps, ...] exceed."""
    low: Floats = x.min(axis=0) if len(x) <= _FEW else np.quantile(x, 0.25, axis=0)
    return low
