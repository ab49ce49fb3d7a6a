"""Applies the counter and state rules to the samples of one node."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from slowrank.telemetry import Evidence, Subject, Suspicion
from slowrank.telemetry.schema import Block
from streams.arrays import Array, FloatArray
from streams.conditions import Conditions, Make, State
from streams.hardware_rules import CountRule, StateRule
from streams.suspicions import Claim

SubjectOf = Callable[[str], Subject]


class CountRules:
    """Counts increases of the counters of one block within the windows of its rules."""

    def __init__(self, rules: Sequence[CountRule], block: Block) -> None:
        self._rules = tuple(rules)
        counters = [c.name for c in block.columns if c.kind == "counter"]
        self._by_row: dict[int, list[int]] = {}
        for i, rule in enumerate(self._rules):
            self._by_row.setdefault(counters.index(rule.metric), []).append(i)
        self._rows = np.array(sorted(self._by_row), dtype=np.intp)
        self._seen: dict[tuple[int, str], deque[tuple[float, float]]] = {}
        self._conditions = Conditions()

    def update(
        self, ts: float, ids: Sequence[str], delta: FloatArray, *, subject: SubjectOf, trusted: bool = True
    ) -> list[Suspicion]:
        """Take the increases [counters, instances] at ``ts``; ``trusted`` False: nothing is overwhelming."""
        for row, column in zip(*np.nonzero(delta[self._rows] > 0), strict=True):
            for i in self._by_row[int(self._rows[row])]:
                entry = (ts, float(delta[self._rows[row], column]))
                self._seen.setdefault((i, ids[int(column)]), deque()).append(entry)
        found: list[Suspicion] = []
        for (i, instance), increases in list(self._seen.items()):
            rule = self._rules[i]
            while increases and increases[0][0] <= ts - rule.window:
                increases.popleft()
            total = sum(amount for _, amount in increases)
            claim = _count_claim(rule, total, subject(instance), trusted=trusted)
            found += self._conditions.observe(
                (i, instance), total >= rule.count, ts, timing=rule.timing, make=at(claim, ts)
            )
            if not increases and (i, instance) not in self._conditions.pending():
                del self._seen[i, instance]
        return found


class StateRules:
    """Holds the state rules of the GPUs of one node."""

    def __init__(self, rules: Sequence[StateRule]) -> None:
        self._rules = tuple(rules)
        self._conditions = Conditions()

    def update(
        self, ts: float, ids: Sequence[str], columns: Mapping[str, Array], *, subject: SubjectOf
    ) -> list[Suspicion]:
        """Take the columns [instances] at ``ts``."""
        position = {name: i for i, name in enumerate(ids)}
        active = {
            (rule, ids[int(column)])
            for rule, test in enumerate(self._rules)
            for column in np.flatnonzero(test.test(columns))
        }
        found: list[Suspicion] = []
        for key in sorted(active.union(self._conditions.pending())):
            rule, instance = self._rules[key[0]], key[1]
            if instance not in position:
                continue
            value = float(columns[rule.metric][position[instance]])
            claim = _state_claim(rule, value, subject(instance))
            found += self._conditions.observe(key, key in active, ts, timing=rule.timing, make=at(claim, ts))
        return found


def _count_claim(rule: CountRule, total: float, subject: Subject, *, trusted: bool) -> Claim:
    verdict = rule.verdict
    return Claim(
        detector=f"counter.{rule.metric}",
        family=verdict.family,
        kind=verdict.kind,
        subject=subject,
        weight=verdict.weight,
        score=max(1.0, total / rule.count),
        overwhelming=verdict.overwhelming and trusted,
        evidence=(
            Evidence(
                metric=rule.metric,
                unit="1",
                detector="counter",
                value=total,
                note=f"in {rule.window:g} s, threshold {rule.count:g}",
            ),
        ),
        note=f"{verdict.severity}: {rule.metric} rose by {total:g} in {rule.window:g} s",
    )


def _state_claim(rule: StateRule, value: float, subject: Subject) -> Claim:
    verdict = rule.verdict
    return Claim(
        detector=f"state.{rule.name}",
        family=verdict.family,
        kind=verdict.kind,
        subject=subject,
        weight=verdict.weight,
        score=2.0 if verdict.overwhelming else 1.0,
        overwhelming=verdict.overwhelming,
        evidence=(Evidence(metric=rule.metric, unit="1", detector="state", value=value, note=rule.name),),
        note=f"{verdict.severity}: {rule.name} for {rule.timing.hold:g} s or more",
    )


def at(claim: Claim, ts: float) -> Make:
    """Return how a condition writes its suspicion at event time ``ts``."""

    def make(state: State, onset: float) -> Suspicion:
        return claim.suspicion(state, ts=ts, onset=onset)

    return make
