"""Findings that open, escalate, are acknowledged, end and relapse at random times, stored as workers do."""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from psycopg_pool import ConnectionPool

from alerts.config import FindingConfig
from alerts.finding import Finding, dedup_key, finding_id
from benchmarks.delivery.states import Truth
from slowrank.telemetry.records import Severity, Subject
from store.findings import findings

Step = Literal["open", "escalate", "acknowledge", "resolve", "reopen"]

# Shares of the findings that take each step (chosen: most go the whole way, and every last step occurs).
ESCALATED, ACKNOWLEDGED, RESOLVED, REOPENED = 0.9, 0.3, 0.8, 0.15


@dataclass(frozen=True, slots=True, order=True)
class Planned:
    """A step of finding number ``number``, ``at`` seconds after the start."""

    at: float
    number: int
    step: Step


def plan(count: int, seconds: float, chance: random.Random) -> list[Planned]:
    """Return the steps of ``count`` findings within ``seconds``, in order of time."""
    steps: list[Planned] = []
    for number in range(count):
        taken: list[Step] = ["open"]
        taken += ["escalate"] * (chance.random() < ESCALATED)
        if chance.random() < ACKNOWLEDGED:
            taken.insert(chance.randint(1, len(taken)), "acknowledge")
        if chance.random() < RESOLVED:
            taken.append("resolve")
            taken += ["reopen"] * (chance.random() < REOPENED)
        times = sorted(chance.uniform(0, seconds) for _ in taken)
        steps += [Planned(at, number, step) for at, step in zip(times, taken, strict=True)]
    heapq.heapify(steps)
    return [heapq.heappop(steps) for _ in range(len(steps))]


class Feed:
    """Stores the planned steps; ``truth`` is what it has made of each finding."""

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        self._pool = pool
        self._onset = round(time.time() - 60, 3)
        self._made: dict[int, Finding] = {}
        self._acknowledged: set[int] = set()
        self._steps = 0

    def run(self, steps: list[Planned], until_stopped: Callable[[], bool]) -> None:
        """Take each step at its time, until all are taken or ``until_stopped`` returns True."""
        began = time.monotonic()
        for step in steps:
            while (wait := began + step.at - time.monotonic()) > 0:
                if until_stopped():
                    return
                time.sleep(min(wait, 0.1))
            self.take(step)

    def take(self, planned: Planned) -> None:
        """Take one step."""
        self._steps += 1
        if planned.step == "acknowledge":
            made = self._made[planned.number]
            with self._pool.connection() as conn:
                findings.acknowledge(conn, made.id, findings.Edit("on call", datetime.now(UTC)))
            self._acknowledged.add(planned.number)
            return
        made = self._changed(planned)
        with self._pool.connection() as conn:
            change = findings.save(conn, made, FindingConfig())
        if change is None or change.finding_id != made.id:
            raise RuntimeError(f"step {planned} changed nothing")
        self._made[planned.number] = made

    @property
    def truth(self) -> list[Truth]:
        """What each finding is now."""
        return [
            Truth(made.id, made.title, self._status(number), made.severity)
            for number, made in self._made.items()
        ]

    def _status(self, number: int) -> str:
        made = self._made[number]
        # A relapse needs another acknowledgement.
        acknowledged = number in self._acknowledged and made.occurrences == 1 and made.status == "open"
        return "acknowledged" if acknowledged else made.status

    def _changed(self, planned: Planned) -> Finding:
        # Each version is newer than the one before, whatever the clock does.
        seen_at = round(max(time.time(), self._onset + 30 + 0.001 * self._steps), 3)
        if planned.step == "open":
            return self._opened(planned.number, seen_at)
        made = replace(self._made[planned.number], last_seen_at=seen_at)
        if planned.step == "resolve":
            return replace(made, status="resolved", resolved_at=seen_at)
        if planned.step == "reopen":
            return replace(made, status="open", resolved_at=None, occurrences=made.occurrences + 1)
        return replace(made, severity=_worse(made.severity))

    def _opened(self, number: int, seen_at: float) -> Finding:
        node = f"n{number:04}"
        subject = Subject(type="gpu", cluster="c", node=node, gpu_index=number % 8, job_id="j")
        key = dedup_key(subject, "straggler.fail_slow")
        return Finding(
            id=finding_id(key, self._onset),
            dedup_key=key,
            kind="straggler.fail_slow",
            title=f"{node} GPU {number % 8} is 1.31x slower than 127 peers",
            severity="warning" if number % 2 else "error",
            status="open",
            subject=subject,
            onset=self._onset,
            onset_lo=self._onset - 1,
            onset_hi=self._onset + 1,
            detected_at=self._onset + 20,
            last_seen_at=seen_at,
            detector="peer_step",
            slowdown_ratio=1.31,
            gpu_hours_lost=1.0,
            gpu_hours_lost_per_hour=30.3,
            confidence=0.97,
        )


def _worse(severity: Severity) -> Severity:
    return "critical" if severity == "error" else "error"
