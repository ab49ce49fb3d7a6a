"""Applies the event rules to the discrete events of one node: bursts are one fault, repeats count."""

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from slowrank.telemetry import Evidence, NodeEvent, Subject, Suspicion
from streams.hardware_rules import EVENT_RULES, REPEAT_OFFENDER, UNKNOWN_XID, EventRule, Verdict
from streams.suspicions import Claim, Place

BURST_SECONDS = 5.0
"""One fault writes many lines to the kernel log: what comes so soon after another is the same."""

MAX_SUBJECTS = 1024
"""Whose faults are remembered for one node; subjects come from messages, and must not fill the memory."""


_FaultKey = tuple[str, Hashable]
"""The code, and the subject."""


class EventRules:
    """Counts the faults that events tell of: a burst on one subject within five seconds is one fault."""

    def __init__(self) -> None:
        self._bursts: dict[Hashable, tuple[float, float]] = {}
        self._faults: dict[_FaultKey, deque[float]] = {}
        self._seen: deque[tuple[Hashable, ...]] = deque(maxlen=512)

    def update(self, event: NodeEvent) -> list[Suspicion]:
        """Take one event, in any order and any number of times; return what it gives rise to."""
        identity = (event.boot_id, event.seq, event.ts, event.code, _key(_event_subject(event)))
        if identity in self._seen:
            return []
        self._seen.append(identity)
        rule = EVENT_RULES.get(event.code, UNKNOWN_XID if event.code.startswith("xid.") else None)
        if rule is None:
            return []
        subject = _event_subject(event)
        faults = self._count(rule, (event.code, _key(subject)), event.ts)
        if rule.shared and self._is_shared(rule, event, _key(subject)):
            faults = 0
        verdict, found = _judged(rule, event.code, faults), []
        if self._worse_than_burst(_key(subject), event.ts, verdict.weight):
            found.append(_claim(event, subject, verdict).suspicion("raise", ts=event.ts, onset=event.ts))
        return [*found, *(self._repeats(event, subject) if rule.fatal else ())]

    def _is_shared(self, rule: EventRule, event: NodeEvent, key: Hashable) -> bool:
        """Return whether another GPU of the node told of the same not long before or after."""
        return any(
            held[0] == event.code and held[1] != key and abs(event.ts - faults[-1]) <= rule.window
            for held, faults in self._faults.items()
        )

    def _repeats(self, event: NodeEvent, subject: Subject) -> list[Suspicion]:
        key = ("fatal", _key(subject))
        held = self._faults.get(key)
        if held and abs(event.ts - held[-1]) <= REPEAT_OFFENDER.burst:
            # However long a driver repeats itself, it has failed once: a quiet hour comes before the next.
            held[-1] = max(held[-1], event.ts)
            return []
        faults = self._count(REPEAT_OFFENDER, key, event.ts)
        if subject.type != "gpu" or faults < REPEAT_OFFENDER.faults:
            return []
        claim = _claim(event, subject, REPEAT_OFFENDER.verdict)
        claim = replace(claim, note=f"{faults} fatal XIDs on this GPU within 24 hours")
        return [claim.suspicion("raise", ts=event.ts, onset=event.ts)]

    def _count(self, rule: EventRule, key: _FaultKey, ts: float) -> int:
        # No rule counts more than five.
        faults = self._faults.setdefault(key, deque(maxlen=64))
        if not faults or abs(ts - faults[-1]) > rule.burst:
            faults.append(ts)
            _drop_oldest(self._faults)
        while faults[0] < ts - rule.window:
            faults.popleft()
        return len(faults)

    def _worse_than_burst(self, key: Hashable, ts: float, weight: float) -> bool:
        last, worst = self._bursts.get(key, (-math.inf, 0.0))
        same = abs(ts - last) <= BURST_SECONDS
        self._bursts[key] = (max(ts, last), max(weight, worst) if same else weight)
        _drop_oldest(self._bursts)
        return not same or weight > worst


def _judged(rule: EventRule, code: str, faults: int) -> Verdict:
    verdict = rule.verdict
    kind = code if verdict.kind == "xid" else verdict.kind
    if faults >= rule.faults:
        return Verdict(kind, verdict.family, verdict.severity, verdict.weight)
    return Verdict(kind, verdict.family, "info", verdict.weight / 2)


def _claim(event: NodeEvent, subject: Subject, verdict: Verdict) -> Claim:
    seen = Evidence(metric=event.code, unit="1", detector="event", value=1.0, note=_text(event))
    return verdict.claim(subject, seen, detector=f"event.{event.source}", note=event.code)


def _event_subject(event: NodeEvent) -> Subject:
    told = event.subject
    job = told.get("job_id")
    place = Place(event.cluster, event.node, None if job is None else str(job))
    if told.get("gpu_index") is not None:
        return place.gpu(str(told["gpu_index"]))
    if told.get("gpu_uuid"):
        return place.gpu(str(told["gpu_uuid"]))
    if told.get("nic"):
        return place.nic(f"{told['nic']}/{told['port']}" if told.get("port") else str(told["nic"]))
    return place.whole_node()


def _key(subject: Subject) -> Hashable:
    return subject.type, subject.gpu_index, subject.gpu_uuid, subject.nic, subject.port


def _text(event: NodeEvent) -> str:
    return (event.message or event.raw)[:400]


def _drop_oldest(held: dict[Any, Any]) -> None:
    if len(held) > MAX_SUBJECTS:
        del held[next(iter(held))]
