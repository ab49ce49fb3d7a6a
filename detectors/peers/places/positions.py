"""Positions of the model that ranks show without coordinates: every k-th rank takes longer at the same steps.

An expert that is popular for a while, or a larger batch, takes all ranks longer that work on it, and later
others. Layouts number ranks by nested dimensions: with b ranks in a tensor-parallel group, k positions and
stages of n ranks, rank r is at floor(r / b) mod k of stage floor(r / n). Which b, k and n a job has shows in
what ranks have in common over time. With x [steps, ranks] the log ratios to the role, less each rank's median
and limited to 3 robust sigmas, and for the classes c that divide the roles, in each step,

    W = sum of (x - mean over c)^2 / (ranks - classes),
    B = sum over c of u_c (mean over c - mean over its role)^2,

u_c the ranks of the class over b, or its machines where fewer and not each class has as many ranks on each of
them, for what is on one machine has more in common: mean B / mean W is d = classes - roles where positions
mean nothing, one rank or machine being slow or not (analysis of variance, Fisher 1925). Positions are real
where it exceeds the quantile of chi-squared with d degrees of freedom that noise exceeds in one of 100 jobs.
All steps count as one observation: of noise that lasts for hundreds of steps about one is independent. Of
several partitions the one of fewest classes counts whose W is within a tenth of the least.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from detectors.peers.peers import MIN_PEERS, PeerGroups
from detectors.peers.places.roles import is_regular
from detectors.robust import nan_median

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

# Ranks of a tensor-parallel group and stages in published jobs, and the most positions that are sought.
_TENSOR, _STAGES, _MOST = (1, 2, 4, 8), (1, 2, 4, 8, 16), 64

# Robust sigmas. Chosen: pauses and slow ranks do not outweigh what ranks have in common.
_LIMIT = 3.0

# Chosen: chance that positions are seen in noise, over all partitions; ranks then have fewer peers.
_CHANCE = 0.01

# Chosen: 32 steps of 1,024 ranks show a fifth of the noise.
_MOST_VALUES = 2**15

# Chosen: the variance within classes is known to some per cent.
_NEAR = 1.1

# Chosen: share of ranks that the role of their position may not fit.
_MISFITS = 0.1

# Whole machines that must be alike to be taken for a position (``shards``).
_MACHINES = 3


# What one group or machine has in common is its own.
_UNITS = 2


@dataclass(frozen=True, slots=True)
class Positions:
    """``partitions`` are all that may be positions: b, the stage and the class of each rank, [ranks];
    ``node`` [ranks] are the ranks' machines, ``stages`` all that may be stages, each [ranks]. Without
    coordinates ``cuts`` are the partitions whose classes have three tensor-parallel groups each, those of the
    fewest classes first.
    """

    partitions: tuple[tuple[int, Ints, Ints], ...]
    node: Ints
    stages: tuple[Ints, ...] = ()
    cuts: tuple[Ints, ...] = ()

    @classmethod
    def from_coords(cls, coords: Mapping[str, Ints], node: Ints) -> "Positions":
        """Build from the positions of each rank, -1 = unknown: experts alone change what they do."""
        experts = coords.get("ep", np.zeros(0, dtype=np.intp))
        if not experts.size or experts.min() < 0 or not np.ptp(experts):
            return cls((), node)
        # Ranks of a tensor-parallel group have more in common than their expert.
        each = int(coords["tp"].max(initial=0)) + 1 if "tp" in coords else 1
        return cls(((max(each, 1), np.zeros_like(experts), experts),), node)

    @classmethod
    def from_numbers(cls, numbers: Ints, node: Ints) -> "Positions":
        """Build from the ranks' numbers in their job: every b, k and s that divide the number of ranks."""
        world = int(numbers.max(initial=0)) + 1
        found: dict[bytes, tuple[int, Ints, Ints]] = {}
        stages = {
            world // s: np.asarray(numbers // (world // s), dtype=np.intp) for s in _STAGES if world % s == 0
        }
        for n, stage in stages.items():
            for b in (b for b in _TENSOR if n % b == 0):
                # A class of one tensor-parallel group is that group, which may be slow.
                for k in (k for k in range(2, min(n // b // 2, _MOST * n // world) + 1) if n // b % k == 0):
                    label = np.asarray(stage * k + numbers // b % k, dtype=np.intp)
                    found.setdefault(label.tobytes(), (b, stage, label))
        cuts = [label for b, _, label in found.values() if world >= _MACHINES * b * (label.max() + 1)]
        cuts.sort(key=lambda label: int(label.max()))
        return cls(tuple(found.values()), node, tuple(stages.values())[1:], tuple(cuts))

    def refine(self, x: Floats, groups: PeerGroups) -> PeerGroups | None:
        """Return the ``groups`` divided by position, by log ratios ``x`` [steps, ranks] to them; None where
        no position shows, or it would leave a rank too few peers."""
        if not self.partitions:
            return None
        # Steps all over what is held: positions of large jobs show in few.
        own = np.nan_to_num(x - nan_median(x))[:: max(x.size // _MOST_VALUES, 1)]
        limit = _LIMIT * 1.4826 * float(np.median(np.abs(own)))
        own = np.clip(own, -limit, limit)
        chance = _CHANCE / len(self.partitions)
        proven: list[tuple[float, PeerGroups]] = []
        for parents, classes, units in self._finer(groups):
            within, is_proven = _explained(own, parents, classes, units, chance)
            if is_proven:
                proven.append((within, classes))
        if not proven:
            return None
        most = _NEAR * min(within for within, _ in proven)
        return min((finer for within, finer in proven if within <= most), key=lambda finer: finer.sizes.size)

    def regular(self, roles: Ints) -> Ints:
        """Return ``roles`` [ranks] with the few ranks put right that do not fit the positions of nearly all.

        Roles learnt from ranks' usual times leave out who was held up meanwhile.
        """
        if all(is_regular(roles == role) for role in range(1, int(roles.max(initial=0)) + 1)):
            return roles
        machines = np.asarray(PeerGroups.of(self.node).index, dtype=np.intp)
        labels = [*self.stages, *(label for *_, label in self.partitions)]
        # Roles of whole machines, of two models, are right as they are.
        fits = [_Fit.of(label, roles) for label in (*labels, machines)]
        for stage in self.stages:
            # A stage may begin within a machine; the ranks that it divides into few are fitted to nothing.
            parts = np.asarray(PeerGroups.of(machines * (stage.max() + 1) + stage).index, dtype=np.intp)
            fit = _Fit.of(parts, roles)
            fits.append(replace(fit, open=int(np.count_nonzero(fit.few & ~fits[len(labels)].few))))
        fits = [fit for fit in fits if 2 * np.count_nonzero(fit.few) < roles.size]
        best = min(fits, key=lambda fit: (fit.misfits + fit.open, fit.misfits, fit.classes), default=None)
        return roles if best is None or best.misfits > _MISFITS * roles.size else best.roles

    def _finer(self, groups: PeerGroups) -> Iterator[tuple[PeerGroups, PeerGroups, Floats]]:
        """Yield stages of the groups, their positions, and the independent units of each of these."""
        nodes = PeerGroups.of(self.node)
        for b, stage, label in self.partitions:
            parents, classes = (PeerGroups.of(p * groups.sizes.size + groups.index) for p in (stage, label))
            if classes.sizes.size == parents.sizes.size or classes.narrowest <= MIN_PEERS:
                continue
            table = np.zeros((classes.sizes.size, nodes.sizes.size))
            np.add.at(table, (classes.index, nodes.index), 1.0)
            machines = np.count_nonzero(table, axis=1)
            whole = (table > 1) & (table == nodes.sizes)
            if (whole.any(axis=1) & (machines < _MACHINES)).any():
                continue
            # Where all classes of a stage have ranks on all of its machines, what these share cancels out.
            parent = parents.index[classes.members[:, 0]]
            on = [table[parent == p] for p in range(parents.sizes.size)]
            even = np.array([(np.ptp(t, axis=0) <= (t.min(axis=0) > 0)).all() for t in on])
            units = np.minimum(classes.sizes / b, np.where(even[parent], np.inf, machines))
            # Within a role a class may be left with one tensor-parallel group or machine, which may be slow.
            if units.min() >= _UNITS:
                yield parents, classes, units


@dataclass(frozen=True, slots=True)
class _Fit:
    """``roles`` [ranks] as most ranks of each of some ``classes`` have them, others being ``misfits``.

    Those of a class of ``few``, as the last machine may have, fit any roles and keep theirs; ``open`` counts
    those of them that other classes would decide.
    """

    roles: Ints
    few: Bools
    misfits: int
    classes: int
    open: int = 0

    @classmethod
    def of(cls, label: Ints, roles: Ints) -> "_Fit":
        """Fit ``roles`` to the classes ``label``, each [ranks]."""
        table = np.zeros((label.max() + 1, roles.max() + 1), dtype=np.intp)
        np.add.at(table, (label, roles), 1)
        few = (table.sum(axis=1) <= MIN_PEERS)[label]
        fitting = np.where(few, roles, table.argmax(axis=1)[label])
        return cls(fitting, few, int(np.count_nonzero(fitting != roles)), len(table))


def _explained(
    x: Floats, roles: PeerGroups, classes: PeerGroups, units: Floats, chance: float
) -> tuple[float, bool]:
    """Return the variance of ``x`` [steps, ranks] within ``classes``, and whether their ranks have more in
    common than by ``chance``."""
    ranks, count = classes.index.size, classes.sizes.size
    order, first = np.argsort(classes.index, kind="stable"), np.cumsum(classes.sizes) - classes.sizes
    means = np.add.reduceat(x[:, order], first, axis=1) / classes.sizes
    within = float(np.sum(x**2) - np.sum(classes.sizes * means**2)) / (len(x) * (ranks - count))
    role = roles.index[classes.members[:, 0]]
    share = np.zeros((count, roles.sizes.size))
    share[np.arange(count), role] = classes.sizes / roles.sizes[role]
    between = float(np.sum(units * (means - (means @ share)[:, role]) ** 2)) / len(x)
    freedom = count - roles.sizes.size
    return within, bool(between > _chi_squared(freedom, chance) * within)


def _chi_squared(freedom: int, chance: float) -> float:
    """Return the quantile that chi-squared exceeds by ``chance`` (Wilson and Hilferty 1931)."""
    part = 2.0 / (9.0 * freedom)
    return float(freedom * (1.0 - part + NormalDist().inv_cdf(1.0 - chance) * math.sqrt(part)) ** 3)
