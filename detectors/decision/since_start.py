"""Atoms that have been slow since the first step seen: nothing has changed, so only their peers show it."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from detectors.decision.families import Families
from detectors.decision.history import PAST, History
from detectors.decision.ladder import THRESHOLD
from detectors.decision.noise import FLOOR, spreads, t_glr

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

LEAST = {"node": math.log1p(0.08)}
LEAST_OTHER = math.log1p(0.045)
"""Least lasting excess: healthy ranks of a role differ by 0.1-0.8 % for good, nodes in their models and
power limits by several per cent."""

_NATS_A_STEP = 3.5
"""Evidence of one step is bounded: 15.5 nats take five steps, as many as warm-up rarely spares one rank."""

_FEW = 8
"""Steps up to which the quickest one counts; later the lower quartile."""

_LEAST_STEPS = 3
"""Steps before nothing is computed. Chosen: with the bound above fewer than five never suffice."""

_WITHIN, _WITHIN_FREEDOM = 0.008, 20.0
"""Spread of lasting differences within a role, and how surely it is known: healthy ranks of a role differ by
0.1-0.8 % for good. Chosen: 7 % then stand out, and 4.5 % do not."""

_LONG = 16
"""Chosen: of so many steps the median counts, for warm-up fills no half of them."""

_LEAST_ROLES, _MOST_STEPS = 3, 64
"""Chosen: of two roles that differ within, neither shows what is usual; and what was so from the start has
shown within as many steps."""


def rank_bytes() -> int:
    """Return the bytes that the first steps take for each rank, where roles are small."""
    return _MOST_STEPS * 8


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


class SmallRoles:
    """Ranks with one or two peers in their role, compared with these over the first steps.

    ``groups`` hold the members of each such role. With d_rt the log ratio of rank r to the median of its
    peers in step t, and low_r its lower quartile over the steps (as in ``at_start``; from 16 on the median),

        z_r = low_r / tau, tau = max(0.8 %, 1.4826 median over roles of max over members |median_t d_rt|),

    and the evidence is the t-GLR with 20 degrees of freedom: the spread is that of what roles differ by
    within, of which there are few, so that a prior stands for most of it. Where more than a third of the
    roles stand out, or there are fewer than three, nobody does.
    """

    def __init__(self, groups: Sequence[Ints]) -> None:
        self._groups = groups if len(groups) >= _LEAST_ROLES else ()
        self._rows: list[Floats] = []

    def push(self, values: Floats) -> None:
        """Take the log seconds [ranks] of a step, one of the first ``_MOST_STEPS``."""
        if self._groups and len(self._rows) < _MOST_STEPS:
            self._rows.append(values)

    def strongest(self, seen: int) -> tuple[int, float, float] | None:
        """Return who stands out most after ``seen`` steps: rank, log ratio to its peers and evidence; None
        where nobody does."""
        if not self._groups or not _LEAST_STEPS <= seen == len(self._rows):
            return None
        low, apart = np.full(len(self._rows[0]), -np.inf), []
        for group in self._groups:
            x = np.stack([row[group] for row in self._rows])
            d = np.stack([x[:, i] - np.median(np.delete(x, i, axis=1), axis=1) for i in range(len(group))], 1)
            middle = np.median(d, axis=0)
            low[group] = np.nan_to_num(middle if len(d) >= _LONG else _low(d), nan=-np.inf)
            apart.append(np.nan_to_num(np.abs(middle).max()))
        tau = max(_WITHIN, 1.4826 * float(np.median(apart)))
        evidence = np.minimum(t_glr(low / tau, np.array(_WITHIN_FREEDOM)), _NATS_A_STEP * seen)
        over = (evidence > THRESHOLD) & (low >= LEAST_OTHER)
        best = int(np.argmax(np.where(over, evidence, -np.inf)))
        if not over.any() or 3 * sum(over[group].any() for group in self._groups) > len(self._groups) + 2:
            return None
        return best, float(low[best]), float(evidence[best])


def _low(x: Floats) -> Floats:
    """Return what nearly all steps of ``x`` [steps, ...] exceed."""
    low: Floats = x.min(axis=0) if len(x) <= _FEW else np.quantile(x, 0.25, axis=0)
    return low
