"""Which units explain the ranks' excesses: the fewest sets that leave the least unexplained."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from detectors.decision.families import MACHINES, Families, Family, Unit

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

_MOST_LOSS = 60.0
"""Nats of one rank, at most: one rank that fits no set must not decide between sets."""

_UNEVEN = 0.2
"""Share of a set's effect by which its members may differ: one cause need not slow all alike."""

_A_SET = 3.0
"""Nats that each set costs besides its family: the fewest sets that do."""

_ALIKE = 0.75
"""Share of a set's members that must lie near its median."""

_MOVED = 0.55
"""Share of the job beyond which no rank is named: the job as a whole has changed, or the unchanged ranks
cannot be identified."""

_MOST_SETS = 16
"""Chosen: a job in which more units fail at once has failed as a whole."""


_CLASS = 0.35
"""Share of the effect within which units are equally slow (as within a set)."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One unit and the probability that it is what is at fault."""

    unit: Unit
    members: tuple[int, ...]
    probability: float


@dataclass(frozen=True, slots=True)
class Explained:
    """One set of ``members`` slow by ``size`` (log), and all hypotheses about it, likeliest first.

    ``ruled_out`` are the units that were weighed and are less likely than 1 %.
    """

    unit: Unit
    members: tuple[int, ...]
    size: float
    hypotheses: tuple[Hypothesis, ...]
    ruled_out: tuple[Unit, ...]

    @property
    def machine(self) -> float:
        """Probability that hardware is at fault."""
        return sum(h.probability for h in self.hypotheses if h.unit in MACHINES)


def explain(
    families: Families,
    excess: Floats,
    noise: float,
    *,
    window: int,
    start: bool,
    least: float,
    accepted: Callable[[int], bool],
) -> tuple[Explained, ...]:
    """Explain the ranks' ``excess`` r [ranks, logs] over a window by as few sets as do; largest gain first.

    Greedy with residuals: of all atoms S, with delta the median of r over S, that one is taken whose

        gain = sum over S of [min(r^2 / 2 s^2, 60) - min((r - delta)^2 / 2 (s^2 + (0.2 delta)^2), 60)]
               - ln n_family - 1/2 ln L - 3 - prior          [nats]

    is the greatest; its delta is then taken off its members, and so on while a gain is positive. s is the
    ``noise`` of a rank over a window of L steps, min(., 60) bounds what one rank contributes, 0.2 delta
    allows members to differ. Three quarters of them must lie near delta. This is the two-part code of
    minimum description length over a dictionary of sets (orthogonal matching pursuit with a prior).

    Atoms are ranked by what they leave unexplained, but ``accepted`` (by column) by the noise of their own
    family, which alone includes what members share. Where more than 55 % of the job has moved nothing is
    returned. Gains of the atoms that share members with the chosen one give the probabilities: sets of the
    same members differ by their priors alone and are all reported.
    """
    scale = float(np.max(excess[families.ranks], initial=0.0))
    moved = np.abs(excess[families.ranks]) > max(3.0 * noise, 0.5 * scale, least)
    if moved.mean() > _MOVED:
        return ()
    found: list[Explained] = []
    residual = excess.copy()
    for _ in range(_MOST_SETS):
        gains, sizes = _gains(families, residual, noise, window=window, start=start, least=least)
        best = int(np.argmax(gains))
        if gains[best] <= 0.0 or not accepted(best):
            break
        found.append(_explained(families, gains, best, float(sizes[best])))
        residual[families.atom(best)[1]] -= sizes[best]
    return tuple(found)


def without_classes(found: Sequence[Explained], *, known: bool) -> tuple[Explained, ...]:
    """Return what was so since the start, with units that are slow by design as blocks of the job.

    Several units of one family that are equally slow from the start are a class of machines (another model,
    a power limit), not as many faults. Without coordinates (not ``known``) a set of ranks that is slow from
    the start may be a pipeline stage, and so may several ranks.
    """
    several = sum(len(e.members) for e in found) > 1
    return tuple(
        replace(e, unit="block", hypotheses=(Hypothesis("block", e.members, 1.0),))
        if (several and not known) or _is_class(e, found)
        else e
        for e in found
    )


def _is_class(one: Explained, found: Sequence[Explained]) -> bool:
    alike = [e for e in found if e.unit == one.unit and abs(e.size - one.size) <= _CLASS * one.size]
    return len(alike) >= (3 if one.unit == "rank" else 2)


def _gains(
    families: Families, residual: Floats, noise: float, *, window: int, start: bool, least: float
) -> tuple[Floats, Floats]:
    """Return gain [nats] and size [logs] of every atom; no gain is -inf."""
    gains, sizes = np.full(families.atoms, -np.inf), np.zeros(families.atoms)
    means = families.means(residual)
    for family in families.all:
        cost = _A_SET + math.log(len(family)) + 0.5 * math.log(window)
        cost += family.rule.prior_at_start if start else family.rule.prior
        columns = np.flatnonzero(means[family.columns] >= 0.5 * least) + family.columns.start
        for column in columns:
            r = residual[family.members[column - family.columns.start]]
            size = float(np.median(r))
            near = np.abs(r - size) <= max(3.0 * noise, 0.35 * size)
            if size >= least and near.mean() >= _ALIKE:
                gains[column] = _gain(r, size, noise) - cost
                sizes[column] = size
    return gains, sizes


def _gain(r: Floats, size: float, noise: float) -> float:
    before = np.minimum(r**2 / (2 * noise**2), _MOST_LOSS)
    after = np.minimum((r - size) ** 2 / (2 * (noise**2 + (_UNEVEN * size) ** 2)), _MOST_LOSS)
    return float((before - after).sum())


def _explained(families: Families, gains: Floats, best: int, size: float) -> Explained:
    """Return the best atom with all that it might be instead."""
    _, members = families.atom(best)
    chosen = set(members.tolist())
    rivals = [
        (float(gains[column]), *families.atom(column))
        for column in np.flatnonzero(np.isfinite(gains)).tolist()
        if not chosen.isdisjoint(families.atom(column)[1].tolist())
    ]
    rivals.sort(key=lambda rival: -rival[0])
    weights = np.exp(np.array([gain for gain, _, _ in rivals]) - gains[best])
    weights /= weights.sum()
    likely = tuple(
        Hypothesis(family.rule.unit, tuple(m.tolist()), float(weight))
        for (_, family, m), weight in zip(rivals, weights, strict=True)
        if weight >= 0.01
    )
    unit = likely[0].unit
    weighed = {family.rule.unit for family in families.all if _covers(family, chosen)}
    ruled_out = tuple(sorted(weighed - {h.unit for h in likely}))
    return Explained(unit, tuple(sorted(chosen)), size, likely, ruled_out)


def _covers(family: Family, members: set[int]) -> bool:
    return any(not members.isdisjoint(m.tolist()) for m in family.members)
