"""Applies the counter and state rules to the samples of many nodes."""

import math
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from slowrank.telemetry import Evidence, Subject, Suspicion
from streams.arrays import Array, Mask
from streams.batch import Batch, Columns
from streams.conditions import ConditionBank, Key, Make, State
from streams.counters import Increase
from streams.hardware_rules import CountRule, StateRule
from streams.suspicions import Claim, Place

SubjectOf = Callable[[Place, str], Subject]

Ids = Sequence[tuple[str, ...]]
"""The names of the instances by sample."""

Found = Iterable[tuple[int, Suspicion]]
"""Suspicions, each with the number of the sample in its batch."""


MIN_SIBLINGS = 3
"""With fewer, nobody can tell what is common."""

# The chance (p < 1e-6) beyond which a count is no bad luck.
LOG_CHANCE = math.log(1e-6)


class _Window:
    """Increases of a counter; their sum is exact, because counters are whole numbers."""

    def __init__(self) -> None:
        self._increases: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def add(self, ts: float, amount: float) -> None:
        self._increases.append((ts, amount))
        self._sum += amount

    def total(self, oldest: float) -> float:
        """Return the sum of what came after ``oldest``; what came before is dropped."""
        while self._increases and self._increases[0][0] <= oldest:
            self._sum -= self._increases.popleft()[1]
        return self._sum


class CountRules:
    """Counts increases of the counters of one block within the windows of its rules.

    Rules of metrics that are not ``known`` to the schema of the nodes say nothing.
    """

    def __init__(
        self,
        rules: Sequence[CountRule],
        nodes: int,
        subject: SubjectOf,
        *,
        known: Container[str],
        fabric_only: bool = False,
    ) -> None:
        self._rules, self._subject, self._fabric_only = tuple(rules), subject, fabric_only
        # Rules keep their numbers where the schema lacks the metrics of some: nodes move on with those.
        self.metrics = tuple(dict.fromkeys(rule.metric for rule in rules if rule.metric in known))
        self._by_metric = [
            [i for i, rule in enumerate(rules) if rule.metric == metric] for metric in self.metrics
        ]
        self._seen: dict[int, dict[Key, _Window]] = {}
        self._conditions = ConditionBank(nodes)

    def update(self, batch: Batch, ids: Ids, columns: Columns, rise: Increase) -> Found:
        """Take the columns of a batch and what they rose by; instances are ``ids`` by sample.

        With ``fabric_only`` nothing is overwhelming on an ordinary host.
        """
        # A sum can only fall where nothing was added, so that only what rose or already holds is looked at.
        for k, keys in self._conditions.due(batch.index, self._risen(batch, ids, rise)):
            for key in sorted(keys):
                for s in self._observe(batch, ids, columns, (k, key)):
                    yield k, s

    def forget(self, node: int) -> None:
        """Drop everything of a node."""
        self._seen.pop(node, None)
        self._conditions.forget(node)

    def carry(self, node: int, source: "CountRules", row: int) -> None:
        """Take over a node that was ``row`` of another bank."""
        self._conditions.carry(node, source._conditions, row)
        if row in source._seen:
            self._seen[node] = source._seen[row]

    def _observe(self, batch: Batch, ids: Ids, columns: Columns, at_key: tuple[int, Key]) -> list[Suspicion]:
        k, key = at_key
        node, ts, rule = int(batch.index[k]), float(batch.ts[k]), self._rules[key[0]]
        total, trusted = self._total(node, key, ts), bool(batch.fabric[k]) or not self._fabric_only
        count = rule.count
        if rule.count_of is not None and total > 0:
            own = float(rule.count_of(columns)[k, ids[k].index(key[1])])
            count = own if own == own else count
        holds = total >= count
        if holds and rule.apart is not None:
            siblings = [self._total(node, (key[0], name), ts) for name in ids[k] if name != key[1]]
            holds = _stands_out(rule, total, siblings)
        make = at(
            lambda: _count_claim(
                replace(rule, count=count), total, self._subject(batch.place(k), key[1]), trusted=trusted
            ),
            ts,
        )
        return self._conditions.observe(node, key, holds, ts, timing=rule.timing, make=make)

    def _risen(self, batch: Batch, ids: Ids, rise: Increase) -> list[tuple[int, Key]]:
        # The counters of the rules come first in the bank; others (energy, bytes, waits) are not for rules.
        risen, delta = [], rise.delta[:, : len(self.metrics)]
        for k, metric, column in zip(*(axis.tolist() for axis in np.nonzero(delta > 0)), strict=True):
            seen = self._seen.setdefault(int(batch.index[k]), {})
            for i in self._by_metric[metric]:
                key = (i, ids[k][column])
                seen.setdefault(key, _Window()).add(float(batch.ts[k]), float(delta[k, metric, column]))
                risen.append((k, key))
        return risen

    def _total(self, node: int, key: Key, ts: float) -> float:
        window = self._seen.get(node, {}).get(key)
        return 0.0 if window is None else window.total(ts - self._rules[key[0]].window)


class StateRules:
    """Holds the state rules of one kind of device."""

    def __init__(self, rules: Sequence[StateRule], nodes: int, subject: SubjectOf) -> None:
        self._rules, self._subject = tuple(rules), subject
        self._conditions = ConditionBank(nodes)

    def update(self, batch: Batch, ids: Ids, columns: Mapping[str, Array], there: Mask) -> Found:
        """Take the columns [n, instances]; nothing is said of an instance that is not ``there``."""
        holding = np.stack([rule.test(columns) for rule in self._rules]) & there
        active = {(k, (rule, ids[k][i])) for rule, k, i in np.argwhere(holding).tolist()}
        for k, keys in self._conditions.due(batch.index, active):
            for key in sorted(keys):
                i = ids[k].index(key[1])
                if there[k, i]:
                    value = float(columns[self._rules[key[0]].metric][k, i])
                    for s in self._observe(batch, k, key, value, holds=(k, key) in active):
                        yield k, s

    def forget(self, node: int) -> None:
        """Drop everything of a node."""
        self._conditions.forget(node)

    def carry(self, node: int, source: "StateRules", row: int) -> None:
        """Take over a node that was ``row`` of another bank."""
        self._conditions.carry(node, source._conditions, row)

    def _observe(self, batch: Batch, k: int, key: Key, value: float, *, holds: bool) -> list[Suspicion]:
        node, ts, rule = int(batch.index[k]), float(batch.ts[k]), self._rules[key[0]]
        make = at(lambda: _state_claim(rule, value, self._subject(batch.place(k), key[1])), ts)
        return self._conditions.observe(node, key, holds, ts, timing=rule.timing, make=make)


def _stands_out(rule: CountRule, total: float, siblings: Sequence[float]) -> bool:
    if len(siblings) < MIN_SIBLINGS or rule.apart is None:
        return False
    common = median(siblings)
    if rule.usual is not None and not _beyond_chance(total, max(common, rule.usual * rule.window / 86400.0)):
        return False
    return total >= rule.apart * common


def _beyond_chance(count: float, expected: float) -> bool:
    """Whether Chernoff's bound on the Poisson probability of so many, or more, is below one in a million."""
    return count > expected and count - expected - count * math.log(count / expected) < LOG_CHANCE


def _count_claim(rule: CountRule, total: float, subject: Subject, *, trusted: bool) -> Claim:
    verdict = rule.verdict
    seen = Evidence(
        metric=rule.metric,
        unit="1",
        detector="counter",
        value=total,
        note=f"in {rule.window:g} s, threshold {rule.count:g}",
    )
    note = f"{rule.metric} rose by {total:g} in {rule.window:g} s"
    claim = verdict.claim(subject, seen, detector=f"counter.{rule.metric}", note=note)
    return replace(claim, score=max(1.0, total / rule.count), overwhelming=verdict.overwhelming and trusted)


def _state_claim(rule: StateRule, value: float, subject: Subject) -> Claim:
    seen = Evidence(metric=rule.metric, unit="1", detector="state", value=value, note=rule.name)
    note = f"{rule.name} for {rule.timing.hold:g} s or more"
    return rule.verdict.claim(subject, seen, detector=f"state.{rule.name}", note=note)


def at(claim: Callable[[], Claim], ts: float) -> Make:
    """Return how a condition writes its suspicion at event time ``ts``; the claim is made only then."""

    def make(state: State, onset: float) -> Suspicion:
        return claim().suspicion(state, ts=ts, onset=onset)

    return make
