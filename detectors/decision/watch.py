"""One channel of a job: its history, the noise of each family, and who is slow in it until it recovers."""

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from detectors.decision.channels import Roles
from detectors.decision.explain import Explained, Hypothesis, explain, without_classes
from detectors.decision.families import Families, Layout
from detectors.decision.history import PAST, History
from detectors.decision.ladder import THRESHOLD, WINDOWS, Bursts, Recent, climb, threshold
from detectors.decision.noise import FLOOR, FamilyNoise
from detectors.decision.since_start import SmallRoles, at_start, is_due

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

SMALL_EFFECT = math.log(1.03)
_OF_JOB = 0.3
"""Below 3 %, the job must have become slower by this share of the effect: what harms nobody is no fault."""

_AGAIN = 2.5
_ABRUPT = math.log(1.06)
"""A unit held slow is a new event where its effect rises to 2.5 times and by 6 %; less is the same one."""

_RECOVERED = 0.35
"""Share of the effect below which the unit has recovered (chosen: half way would flap)."""

_RECOVERY_STEPS = (6, 12, 24, 48)
"""Steps over which recovery is judged: the fewest whose noise is a third of the effect at most."""


@dataclass(slots=True)
class Held:
    """A unit that is slow: ``effects`` [members] are what is taken off its values, ``since`` the step (count
    of steps seen) of its onset, ``explained`` as it was when found. ``usual``: values are compared with the
    unit's own from the start, which contain the effect."""

    explained: Explained
    ranks: Ints
    effects: Floats
    since: int
    start: bool
    evidence: float
    checked: int = 0
    usual: bool = False


@dataclass(slots=True)
class Changes:
    """What a step gave rise to: units newly slow and units recovered."""

    found: list[Held] = field(default_factory=list)
    recovered: list[Held] = field(default_factory=list)


class Watch:
    """Follows one channel of ``roles``; ``present`` [ranks] report it.

    ``least`` is the least effect, in logs, ``every`` how many steps pass between two looks; with ``start``
    what has been so since the start is weighed too.
    """

    def __init__(
        self,
        layout: Layout,
        present: Bools,
        roles: Roles,
        *,
        least: float,
        every: int = 1,
        start: bool = True,
    ) -> None:
        self.families = Families(layout, present, small=roles.small)
        self.history = History(layout.ranks)
        self.held: list[Held] = []
        self.noises = [FamilyNoise(len(family), WINDOWS) for family in self.families.all]
        self._present, self._comparable = present, present & ~roles.small
        self._small = SmallRoles(roles.small_groups if start else ())
        self._least = least
        self._start, self._every = start, every
        self._coords = layout.coords
        self._bursts = Bursts(layout.ranks)
        self._recent = Recent(self.families)
        self._offset = np.zeros(layout.ranks)
        self._tau = np.full(len(WINDOWS), FLOOR)
        self._pace: list[float] = []

    @property
    def slow(self) -> Bools:
        """Who is slow, as explained, [ranks]."""
        slow = np.zeros(len(self._offset), dtype=np.bool_)
        for held in self.held:
            slow[held.ranks] = True
        return slow

    def pace(self) -> Floats:
        """Return how much longer than its role each rank has taken lately, [ranks], logs."""
        return self.history.mean(0, PAST) + self._offset

    def resume(self, rank: int, effect: float) -> Held:
        """Hold a rank slow that was found so before."""
        known = Explained("rank", (rank,), effect, (Hypothesis("rank", (rank,), 1.0),), ())
        held = Held(known, np.array([rank]), np.array([effect]), 0, False, 0.0)
        self.held.append(held)
        self._offset[rank] += effect
        return held

    def update(self, x: Floats, own: Floats, *, pace: float) -> Changes:
        """Take the next step: values [ranks] relative to the role, as they are, and the job's log step."""
        self._small.push(own)
        self.history.append(x - self._offset, present=self._present)
        self._recent.push(self.history)
        self._pace = [*self._pace[-2 * PAST :], pace]
        self._bursts.update(self.history.outlier, aside=self.slow)
        changes = Changes(recovered=self._settle())
        found = self._climb() or self._look_at_start() or self._look_at_small_roles()
        for held in found:
            if self._hold(held):
                changes.found.append(held)
        return changes

    def _climb(self) -> list[Held]:
        """Weigh the statistics that are due; explain the strongest crossing."""
        families, rungs = self.families, climb(self.history, self.families, self._recent, every=self._every)
        if not len(rungs.which):
            return []
        evidence = np.zeros_like(rungs.values)
        for number, (family, noise) in enumerate(zip(families.all, self.noises, strict=True)):
            if len(family) < 2:
                continue
            g, tau = noise.evidence(rungs.values[:, family.columns], rungs.which)
            evidence[:, family.columns] = g - family.rule.prior - math.log(max(1.0, len(family) / 8))
            if number == 0:
                self._tau[rungs.which] = tau
        excess = evidence - threshold(WINDOWS[rungs.which])[:, None]
        if not (excess > 0).any():
            return []
        capped = np.minimum(evidence, self._bursts.caps(rungs.which, families))
        excess = capped - threshold(WINDOWS[rungs.which])[:, None]
        excess[rungs.values < self._least] = -np.inf
        row, column = np.unravel_index(int(np.argmax(excess)), excess.shape)
        if excess[row, column] <= 0:
            return []
        over: Bools = np.any(excess > 0, axis=0)
        return self._explain(int(WINDOWS[rungs.which[row]]), int(column), over, float(excess[row, column]))

    def _explain(self, window: int, column: int, over: Bools, evidence: float) -> list[Held]:
        steps = self._date(window, column)
        if self.history.steps - steps < 4:
            return []
        r = self.history.mean(0, steps) - self.history.mean(steps, PAST)
        # The size is that of values as measured: a clipped one may be less than is there.
        raw = np.median(self.history.last(steps), axis=0) - self.history.mean(steps, PAST)
        r = np.where(raw > r, raw, r)
        r[~self._present] = 0.0
        named = float(r[self.families.atom(column)[1]].mean())
        if named < SMALL_EFFECT and not self._harms(steps, named):
            return []
        found = explain(
            self.families,
            r,
            self._noise(steps),
            window=steps,
            start=False,
            least=self._least,
            accepted=lambda atom: self._accepted(atom, over),
        )
        return [self._as_held(e, r, steps, start=False, evidence=evidence) for e in found]

    def _look_at_start(self) -> list[Held]:
        """Weigh who has been slow since the first step."""
        history = self.history
        if not self._start or not is_due(history) or not self._comparable.any():
            return []
        evidence, _, r = at_start(history, self.families, self._comparable)
        for family in self.families.all:
            evidence[family.columns] -= max(family.rule.prior_at_start, 0.0)
        over = evidence > THRESHOLD
        if not over.any():
            return []
        single = self.families.all[0]
        noise = float(np.quantile(np.abs(r[self.families.ranks]), 0.5)) * 1.4826
        assert single.rule.unit == "rank"
        found = explain(
            self.families,
            r,
            max(noise, FLOOR),
            window=history.steps,
            start=True,
            least=math.log1p(0.045),
            accepted=lambda atom: self._accepted(atom, over),
        )
        best = float(evidence.max()) - THRESHOLD
        classes = without_classes(found, known=bool(self._coords))
        return [self._as_held(e, r, history.steps, start=True, evidence=best) for e in classes]

    def _look_at_small_roles(self) -> list[Held]:
        """Weigh who has been slower than its one or two peers since the first step."""
        seen = self.history.seen
        found = self._small.strongest(seen) if is_due(self.history) else None
        if found is None or self.slow[found[0]]:
            return []
        rank, size, evidence = found
        members, unit = (rank,), Hypothesis("rank", (rank,), 1.0)
        explained = Explained("rank", members, size, (unit,), ("stage",))
        return [Held(explained, np.array(members), np.array([size]), 0, True, evidence, seen, usual=True)]

    def _accepted(self, atom: int, over: Bools) -> bool:
        """Return whether an atom, or most of its members by themselves, exceed the noise of their family."""
        if over[atom]:
            return True
        place = np.searchsorted(self.families.ranks, self.families.atom(atom)[1])
        return bool(over[place].mean() >= 0.75)

    def _as_held(self, e: Explained, r: Floats, steps: int, *, start: bool, evidence: float) -> Held:
        ranks = np.array(e.members, dtype=np.intp)
        return Held(e, ranks, r[ranks], self.history.seen - steps, start, evidence, self.history.seen)

    def _hold(self, held: Held) -> bool:
        """Cut an effect from the history and hold its unit slow; return whether it is a new event."""
        if held.usual:
            self.held.append(held)
            return True
        steps = self.history.seen - held.since
        self.history.shift(held.ranks, -held.effects, steps=steps)
        self._recent.renew(self.history)
        self._offset[held.ranks] += held.effects
        same = next((h for h in self.held if np.array_equal(h.ranks, held.ranks)), None)
        if same is None:
            self.held.append(held)
            return True
        before, more = float(np.median(same.effects)), float(np.median(held.effects))
        same.effects = same.effects + held.effects
        if before + more >= _AGAIN * before and more >= _ABRUPT:
            same.since, same.evidence = held.since, held.evidence
            held.effects = same.effects
            return True
        return False

    def _settle(self) -> list[Held]:
        """Return the units that have recovered, and put the values since back as they were."""
        over = []
        for held in self.held:
            steps = self._recovery_steps(float(np.median(held.effects)))
            if self.history.seen - held.checked < steps or steps > self.history.steps:
                continue
            left = np.median(self.history.mean(0, steps)[held.ranks] + held.effects)
            if left < _RECOVERED * float(np.median(held.effects)):
                self._offset[held.ranks] -= held.effects
                self.history.shift(held.ranks, held.effects, steps=steps)
                self._recent.renew(self.history)
                over.append(held)
        if over:
            self.held = [held for held in self.held if not any(held is o for o in over)]
        return over

    def _recovery_steps(self, size: float) -> int:
        return next((n for n in _RECOVERY_STEPS if self._noise(n) <= size / 3), _RECOVERY_STEPS[-1])

    def _date(self, window: int, column: int) -> int:
        """Return how many steps ago the excess of an atom began: the most likely length of a last part that
        lies above what was before it."""
        history = self.history
        most = min(history.steps - 4, 2 * window + 8)
        members = self.families.atom(column)[1]
        usual = float(history.mean(min(window, most), PAST)[members].mean())
        x = history.last(most)[:, members].mean(axis=1) - usual
        x = np.minimum(x, np.median(x[-window:]) * 2 + 4 * history.spread)
        sums = np.cumsum(x[::-1])
        gains = np.where(sums > 0, sums**2, 0.0) / np.arange(1, most + 1)
        return int(np.argmax(gains)) + 1

    def _noise(self, steps: int) -> float:
        """Return the noise of a rank's mean over ``steps`` steps."""
        means = WINDOWS[:15]
        return float(self._tau[max(0, int(np.searchsorted(means, steps, side="right")) - 1)])

    def _harms(self, steps: int, effect: float) -> bool:
        pace = np.array(self._pace)
        if len(pace) - steps < 4:
            return False
        slower = np.nanmedian(pace[-steps:]) - np.nanmedian(pace[-steps - PAST : -steps])
        return bool(slower > _OF_JOB * effect)
