"""Applies the counter and state rules to the samples of many nodes."""

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median

import numpy as np

from alerts.report.quantity import quantity, unit_of
from slowrank.telemetry import Evidence, Subject, Suspicion
from slowrank.telemetry.schema import SAMPLE_SCHEMAS, Owner
from streams.columns import Mask
from streams.debounce import ConditionBank, Key
from streams.node.batch import Batch, Shape
from streams.node.conditions import at
from streams.node.config import NodeConfig
from streams.node.counters import Increase
from streams.node.detector import Found, Increases, Origin
from streams.node.rules.counter_rules import CountRule, StateRule
from streams.node.rules.state_rules import at_rest
from streams.suspicions import Claim

# Siblings that a comparison needs. Chosen: the median of fewer is one device's value.
MIN_SIBLINGS = 3

# Log of the false-alarm probability of a window. Chosen: 0.1 expected in one window of 100,000 devices.
LOG_CHANCE = math.log(1e-6)

# Time over which siblings show what is usual. Chosen: some events where a healthy port has a few an hour, as
# where packets take several paths.
USUAL_SECONDS = 3600.0


class _Window:
    """Increases of a counter within a window; their sum is exact, because counters are whole numbers."""

    def __init__(self) -> None:
        self._increases: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def add(self, ts: float, amount: float) -> None:
        self._increases.append((ts, amount))
        self._sum += amount

    def total(self, oldest: float) -> float:
        """Return the sum of the increases after ``oldest``; drop those before."""
        while self._increases and self._increases[0][0] <= oldest:
            self._sum -= self._increases.popleft()[1]
        return self._sum


class CountRules:
    """Counts increases of the counters of one kind of device within the windows of its rules.

    Rules on counters that the schema of the block lacks are ignored. Port rules open no finding alone on a
    host that has neither GPUs nor a job.
    """

    def __init__(
        self, owner: Owner, rules: Sequence[CountRule], shape: Shape, nodes: int, config: NodeConfig
    ) -> None:
        self._owner, self._rules = owner, tuple(rules)
        self._detectors = _detectors(rules)
        known = SAMPLE_SCHEMAS[shape.schema].block(owner).names
        # Rules keep their numbers where the schema lacks some counters: nodes carry them to other blocks.
        self._metrics = tuple(dict.fromkeys(rule.metric for rule in rules if rule.metric in known))
        self._by_metric = [
            [i for i, rule in enumerate(rules) if rule.metric == metric] for metric in self._metrics
        ]
        self.counters: Mapping[Owner, tuple[str, ...]] = {owner: self._metrics}
        self._seen: dict[int, dict[Key, _Window]] = {}
        # Of the rules that go by what is usual, the last hour.
        self._usual: dict[int, dict[Key, _Window]] = {}
        self._conditions = ConditionBank(nodes)

    def update(self, batch: Batch, increases: Increases) -> Found:
        """Add the increases of the batch to the windows; yield the rules that they satisfy."""
        # A sum without an addition can only fall: test only those that rose and those that hold.
        for k, keys in self._conditions.due(batch.index, self._risen(batch, increases[self._owner])):
            for key in sorted(keys):
                for s in self._observe(batch, k, key):
                    yield k, s

    def restart(self, node: int) -> None:
        """Counts of hardware faults survive a reboot."""

    def forget(self, node: int) -> None:
        """Drop the counts and conditions of a node."""
        self._seen.pop(node, None)
        self._usual.pop(node, None)
        self._conditions.forget(node)

    def carry(self, node: int, source: "CountRules", origin: Origin) -> None:
        """Take over counts and conditions, which are kept by device name."""
        self._conditions.carry(node, source._conditions, origin.row)
        if origin.row in source._seen:
            self._seen[node] = source._seen[origin.row]
        if origin.row in source._usual:
            self._usual[node] = source._usual[origin.row]

    def _observe(self, batch: Batch, k: int, key: Key) -> list[Suspicion]:
        node, ts, rule = int(batch.index[k]), float(batch.ts[k]), self._rules[key[0]]
        part, total = batch.part(self._owner), self._total(node, key, ts)
        trusted = bool(batch.fabric[k] or batch.in_job[k]) or self._owner != "nic"
        ids, count = part.ids, rule.count
        if rule.count_of is not None and total > 0:
            own = float(rule.count_of(part.columns)[k, ids[k].index(key[1])])
            # NaN where the device does not report what its limit depends on.
            count = own if own == own else count
        holds = total >= count
        if holds and rule.apart is not None:
            others = [(key[0], name) for name in self._at_work(batch, k) if name != key[1]]
            siblings = [self._total(node, other, ts) for other in others]
            usual = 0.0 if rule.usual is None else self._usual_count(node, others, ts)
            holds = _stands_out(rule, total, siblings, usual=usual)
        make = at(
            lambda: _count_claim(
                replace(rule, count=count),
                total,
                batch.subject(k, self._owner, key[1]),
                detector=self._detectors[key[0]],
                trusted=trusted,
            ),
            ts,
        )
        return self._conditions.observe(node, key, holds, ts, debounce=rule.debounce, make=make)

    def _at_work(self, batch: Batch, k: int) -> Sequence[str]:
        """Return the devices of the k-th sample without GPUs at rest, whose counters show no usual load."""
        part = batch.part(self._owner)
        if self._owner != "gpu":
            return part.ids[k]
        resting = at_rest(part.columns)[k].tolist()
        return [name for name, rests in zip(part.ids[k], resting, strict=True) if not rests]

    def _risen(self, batch: Batch, increase: Increase) -> list[tuple[int, Key]]:
        ids, risen, delta = batch.part(self._owner).ids, [], increase.of_all(self._metrics)
        for k, metric, column in zip(*(axis.tolist() for axis in np.nonzero(delta > 0)), strict=True):
            seen = self._seen.setdefault(int(batch.index[k]), {})
            for i in self._by_metric[metric]:
                key = (i, ids[k][column])
                ts, amount = float(batch.ts[k]), float(delta[k, metric, column])
                seen.setdefault(key, _Window()).add(ts, amount)
                if self._rules[i].usual is not None:
                    past = self._usual.setdefault(int(batch.index[k]), {})
                    past.setdefault(key, _Window()).add(ts, amount)
                risen.append((k, key))
        return risen

    def _total(self, node: int, key: Key, ts: float) -> float:
        window = self._seen.get(node, {}).get(key)
        return 0.0 if window is None else window.total(ts - self._rules[key[0]].window)

    def _usual_count(self, node: int, siblings: Sequence[Key], ts: float) -> float:
        """Return the mean count of the siblings in a window of the rule, over the last hour."""
        past = self._usual.get(node, {})
        counts = [past[key].total(ts - USUAL_SECONDS) if key in past else 0.0 for key in siblings]
        if not counts:
            return 0.0
        return sum(counts) / len(counts) * self._rules[siblings[0][0]].window / USUAL_SECONDS


class StateRules:
    """Tests the state rules of one kind of device; hosts only with GPUs, ports with GPUs or a job."""

    counters: Mapping[Owner, tuple[str, ...]] = {}

    def __init__(
        self, owner: Owner, rules: Sequence[StateRule], shape: Shape, nodes: int, config: NodeConfig
    ) -> None:
        self._owner, self._rules = owner, tuple(rules)
        self._conditions = ConditionBank(nodes)

    def update(self, batch: Batch, increases: Increases) -> Found:
        """Test the columns of the batch; yield the rules that have held long enough."""
        part, there = batch.part(self._owner), self._tested(batch)
        ids, columns = part.ids, part.columns
        holding = np.stack([rule.test(columns) for rule in self._rules]) & there
        if not holding.any() and not self._conditions.busy:
            return
        active = {(k, (rule, ids[k][i])) for rule, k, i in np.argwhere(holding).tolist()}
        for k, keys in self._conditions.due(batch.index, active):
            # Sorted: a set's order differs between processes, and findings must not.
            for key in sorted(keys):
                i = ids[k].index(key[1])
                if there[k, i]:
                    value = float(columns[self._rules[key[0]].metric][k, i])
                    for s in self._observe(batch, k, key, value, holds=(k, key) in active):
                        yield k, s

    def restart(self, node: int) -> None:
        """Conditions survive a reboot until they are read to be over."""

    def forget(self, node: int) -> None:
        """Drop the conditions of a node."""
        self._conditions.forget(node)

    def carry(self, node: int, source: "StateRules", origin: Origin) -> None:
        """Take over the conditions, which are kept by device name."""
        self._conditions.carry(node, source._conditions, origin.row)

    def _tested(self, batch: Batch) -> Mask:
        """Return which instances are tested, [n, instances]."""
        if self._owner == "gpu":
            return batch.gpu.there
        if self._owner == "host":
            return batch.fabric[:, None]
        return batch.nic.there & (batch.fabric | batch.in_job)[:, None]

    def _observe(self, batch: Batch, k: int, key: Key, value: float, *, holds: bool) -> list[Suspicion]:
        node, ts, rule = int(batch.index[k]), float(batch.ts[k]), self._rules[key[0]]
        make = at(lambda: _state_claim(rule, value, batch.subject(k, self._owner, key[1])), ts)
        return self._conditions.observe(node, key, holds, ts, debounce=rule.debounce, make=make)


def _stands_out(rule: CountRule, total: float, siblings: Sequence[float], *, usual: float) -> bool:
    """Return whether a count stands out from its siblings', of which so many are ``usual`` in a window."""
    if len(siblings) < MIN_SIBLINGS or rule.apart is None:
        return False
    common = median(siblings)
    if rule.usual is not None:
        # Many devices mean many windows: a count must be unlikely by itself before it is held against others.
        # Of few events the median of the siblings is mostly zero.
        expected = max(fmean(siblings), usual, rule.usual * rule.window / 86400.0)
        if not _beyond_chance(total, expected):
            return False
    return total >= rule.apart * common


def _beyond_chance(count: float, expected: float) -> bool:
    """Whether Chernoff's bound on the Poisson probability of ``count`` or more is below 1e-6."""
    return count > expected and count - expected - count * math.log(count / expected) < LOG_CHANCE


def _detectors(rules: Sequence[CountRule]) -> tuple[str, ...]:
    """Return the detector of each rule: with its limit where a counter has several rules, so that each is
    cleared independently."""
    several = {metric for metric, rules_of in Counter(rule.metric for rule in rules).items() if rules_of > 1}
    return tuple(
        f"counter.{r.metric}" + (f".{r.count:g}_in_{r.window:g}s" if r.metric in several else "")
        for r in rules
    )


def _count_claim(rule: CountRule, total: float, subject: Subject, *, detector: str, trusted: bool) -> Claim:
    symptom, unit = rule.symptom, unit_of(rule.metric, "1")
    seen = Evidence(
        metric=rule.metric,
        unit="1",
        detector="counter",
        value=total,
        note=f"in {rule.window:g} s, threshold {quantity(rule.count, unit)}",
    )
    note = f"{rule.metric} rose by {quantity(total, unit)} in {rule.window:g} s"
    rule_id = f"counter.{rule.metric}"
    claim = symptom.claim(
        subject, seen, detector=detector, catalogue_id="counters", rule_id=rule_id, note=note
    )
    return replace(claim, score=max(1.0, total / rule.count), overwhelming=symptom.overwhelming and trusted)


def _state_claim(rule: StateRule, value: float, subject: Subject) -> Claim:
    seen = Evidence(metric=rule.metric, unit="1", detector="state", value=value, note=rule.name)
    note = f"{rule.name} for {rule.debounce.hold:g} s or more"
    rule_id = f"state.{rule.name}"
    return rule.symptom.claim(
        subject, seen, detector=rule_id, catalogue_id="states", rule_id=rule_id, note=note
    )
