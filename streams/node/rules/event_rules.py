"""Applies the event rules to the discrete events of one node: bursts are one fault, repeats count."""

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from alerts.kinds import kind_of
from slowrank.telemetry import Evidence, NodeEvent, Subject, Suspicion
from slowrank.telemetry.hardware.event_grades import NONE, blocked_since, graded, recovery_action
from streams.node.rules.counter_rules import Symptom
from streams.node.rules.event_tables import EVENT_RULES, REPEAT_OFFENDER, UNKNOWN_XID, EventRule
from streams.suspicions import Claim, subject_of

# Lines of the kernel log so close together are one fault. Chosen: one fault writes many lines within a
# second.
BURST_SECONDS = 5.0

# Subjects remembered for one node. Chosen: they come from messages, and memory must be bounded.
MAX_SUBJECTS = 1024

# Actions of the kinds that neither a reset nor a reboot repairs.
LASTING = ("CONTACT_SUPPORT", "HARDWARE_INSPECTION")

BOOT = "host.boot"
HUNG_TASK = "host.hung_task"
RECOVERED = f"xid.154{NONE}"

_FaultKey = tuple[str, Hashable]
"""The rule, or the kind, and the subject."""


class EventRules:
    """Counts the faults in the events of one node; a burst on one subject is one fault.

    Suspicions about a GPU end when its driver asks for no recovery any more, and those about the node and its
    devices when the node has booted since.
    """

    def __init__(self) -> None:
        self._bursts: dict[_FaultKey, tuple[float, float]] = {}
        self._faults: dict[_FaultKey, deque[float]] = {}
        self._seen: deque[tuple[Hashable, ...]] = deque(maxlen=512)
        self._raised: dict[_FaultKey, tuple[float, Claim]] = {}
        self._ends: dict[Hashable, tuple[float, float]] = {}

    def update(self, event: NodeEvent) -> list[Suspicion]:
        """Process one event; events may come in any order and repeatedly."""
        subject = subject_of(event)
        key = _key(subject)
        identity = (event.boot_id, event.seq, event.ts, event.code, key)
        if identity in self._seen:
            return []
        self._seen.append(identity)
        name = graded(event.code, _text(event))
        if name == BOOT:
            return self._end(None, _booted(event), event.ts)
        if name == RECOVERED:
            return self.recovered(subject, event.ts, event.ts)
        unknown = name not in EVENT_RULES and event.code.startswith("xid.")
        rule = UNKNOWN_XID if unknown else EVENT_RULES.get(name)
        if rule is None:
            return []
        # Codes come from outside: all that have no rule count as one fault of their GPU, to bound the number.
        fault = (rule.symptom.kind if unknown else name, key)
        faults = self._count(rule, fault, event.ts)
        if rule.shared and self._is_shared(rule, fault, event.ts):
            faults = 0
        symptom, found = _judged(rule, faults), []
        if self._worse_than_burst((symptom.kind, key), event.ts, symptom.weight):
            found += self._raise(_claim(event, name, subject, symptom), event.ts, began=_began(event))
        return [*found, *(self._repeats(event, subject) if rule.fatal else ())]

    def recovered(self, subject: Subject, before: float, ts: float) -> list[Suspicion]:
        """Clear at ``ts`` the suspicions of events before ``before`` (event time) about a GPU that works
        again."""
        return self._end(_key(subject), before, ts)

    def _raise(self, claim: Claim, ts: float, *, began: tuple[float, float]) -> list[Suspicion]:
        key = _key(claim.subject)
        # A kind has one suspicion on a subject: a milder event must not replace a worse one.
        _, worst = self._raised.get((claim.kind, key), (ts, claim))
        if worst.note != claim.note and worst.weight > claim.weight:
            claim = worst
        found = [claim.suspicion("raise", ts=ts, onset=began[1], interval=began)]
        ended = [
            end for end in (self._ends.get(key), self._ends.get(None)) if end is not None and ts < end[0]
        ]
        if ended and _ends_with_a_reset(claim.kind):
            return [*found, claim.suspicion("clear", ts=max(at for _, at in ended), onset=ts)]
        first, _ = self._raised.get((claim.kind, key), (ts, claim))
        self._raised[claim.kind, key] = (min(first, ts), claim)
        _drop_oldest(self._raised)
        return found

    def _end(self, key: Hashable, before: float, ts: float) -> list[Suspicion]:
        self._ends[key] = max(self._ends.get(key, (before, ts)), (before, ts))
        _drop_oldest(self._ends)
        over = [
            held
            for held, (at, _) in self._raised.items()
            if key in (None, held[1]) and at < before and _ends_with_a_reset(held[0])
        ]
        for held in over:
            self._bursts.pop(held, None)
        return [c.suspicion("clear", ts=max(ts, at), onset=at) for at, c in map(self._raised.pop, over)]

    def _is_shared(self, rule: EventRule, fault: _FaultKey, ts: float) -> bool:
        """Return whether another GPU of the node had the same fault not long before or after."""
        return any(
            held[0] == fault[0] and held[1] != fault[1] and abs(ts - faults[-1]) <= rule.window
            for held, faults in self._faults.items()
        )

    def _repeats(self, event: NodeEvent, subject: Subject) -> list[Suspicion]:
        key = ("fatal", _key(subject))
        held = self._faults.get(key)
        if held and abs(event.ts - held[-1]) <= REPEAT_OFFENDER.burst:
            # A driver that repeats its message has failed once: an hour without it precedes the next fault.
            held[-1] = max(held[-1], event.ts)
            return []
        faults = self._count(REPEAT_OFFENDER, key, event.ts)
        if subject.type != "gpu" or faults < REPEAT_OFFENDER.faults:
            return []
        claim = _claim(event, event.code, subject, REPEAT_OFFENDER.symptom)
        claim = replace(claim, note=f"{faults} fatal XIDs on this GPU within 24 hours")
        return [claim.suspicion("raise", ts=event.ts, onset=event.ts)]

    def _count(self, rule: EventRule, key: _FaultKey, ts: float) -> int:
        # The largest ``faults`` of a rule is 32.
        faults = self._faults.setdefault(key, deque(maxlen=64))
        if not faults or abs(ts - faults[-1]) > rule.burst:
            faults.append(ts)
            _drop_oldest(self._faults)
        while faults[0] < ts - rule.window:
            faults.popleft()
        return len(faults)

    def _worse_than_burst(self, key: _FaultKey, ts: float, weight: float) -> bool:
        last, worst = self._bursts.get(key, (-math.inf, 0.0))
        same = abs(ts - last) <= BURST_SECONDS
        self._bursts[key] = (max(ts, last), max(weight, worst) if same else weight)
        _drop_oldest(self._bursts)
        return not same or weight > worst


def _judged(rule: EventRule, faults: int) -> Symptom:
    symptom = rule.symptom
    if faults >= rule.faults:
        return symptom
    return rule.first or Symptom(symptom.kind, symptom.family, "info", symptom.weight / 2)


def _claim(event: NodeEvent, name: str, subject: Subject, symptom: Symptom) -> Claim:
    value = 1.0
    if event.code == "xid.154":
        asked = recovery_action(_text(event))
        value = -1.0 if asked is None else float(asked)
    seen = Evidence(metric=name, unit="1", detector="event", value=value, note=_text(event))
    return symptom.claim(
        subject,
        seen,
        detector=f"event.{event.source}",
        catalogue_id="events",
        # An unknown code has no rule that could be switched off.
        rule_id=f"event.{name}" if name in EVENT_RULES else "",
        note=name,
    )


def _ends_with_a_reset(kind: str) -> bool:
    return kind != REPEAT_OFFENDER.symptom.kind and kind_of(kind).action not in LASTING


def _booted(event: NodeEvent) -> float:
    """Return when the node booted (Unix seconds); the event itself is dated by the start of its exporter."""
    booted = event.subject.get("booted")
    return float(booted) if isinstance(booted, int) else -math.inf


def _began(event: NodeEvent) -> tuple[float, float]:
    """Return the interval in which began what an event reports."""
    return blocked_since(_text(event), event.ts) if event.code == HUNG_TASK else (event.ts, event.ts)


def _key(subject: Subject) -> Hashable:
    return subject.type, subject.gpu_index, subject.gpu_uuid, subject.nic, subject.port


def _text(event: NodeEvent) -> str:
    return (event.message or event.raw)[:400]


def _drop_oldest(held: dict[Any, Any]) -> None:
    if len(held) > MAX_SUBJECTS:
        del held[next(iter(held))]
