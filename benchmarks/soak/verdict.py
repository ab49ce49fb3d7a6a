"""What a soak showed: which series are flat, which faults were found, and what else was. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from benchmarks.soak.plan import AWAY, Plan
from benchmarks.soak.trend import Trend, trend
from store.retention import ROLLUPS

# Of a run: means of so many parts are compared, without those of the warm-up, after which all that is kept
# for a time has been kept for that time.
PARTS, WARM_UP = 24, 6
LOOK_SECONDS = 5.0

# Rises over the parts that are compared which count as none, whatever their interval: as a share of the
# level, and in the series' own unit. Chosen: what allocators and indexes differ by from one run to the next.
SHARE, LEAST = 0.02, 0.5

ROLES = ("detect", "sink", "api", "notifier")
TABLES = (*ROLLUPS, "job_events", "ranks", "jobs", "nodes")
# All else grows with findings, which are kept for ever where they were open, and with days (``paces``).
FLAT = frozenset(
    [f"{role} MB" for role in ROLES]
    + ["detect behind, s", "sink behind, s", "jobs held", "jobs, MB", "nodes expected", "snapshots, MB"]
    + [f"{table} {what}" for table in TABLES for what in ("rows", "MB")]
)

# From a fault to its finding, and from a node's last record to its own.
FOUND_SECONDS, UNHEARD_SECONDS = 180.0, 400.0
# As many as event time may still stand still for, with those of a step.
END_SECONDS = 60.0
# The rest may differ: records of two topics meet within as many seconds of event time as the speed, so that
# a level is learnt from one sample or the next on; and a job is dropped when one on its partition takes its
# GPUs.
COMPARED = ("kind", "status", "dedup_key", "subject", "onset", "severity")
ABSENCE = frozenset({"exporter.stale", "node.silent"})


@dataclass(frozen=True, slots=True)
class Look:
    """The series at second ``at`` of event time, and the processor seconds of each role so far."""

    at: float
    values: Mapping[str, float]
    cpu: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run; ``opened`` are the ``finding.v1`` objects of the ``findings`` stored that were open some time.

    ``wrong`` is what differs from one process; ``late`` by how many seconds the sender was, at most.
    """

    looks: list[Look]
    records: int
    late: float
    unread: int
    dead_letters: int
    findings: int
    opened: list[dict[str, Any]]
    wrong: list[str]


@dataclass(frozen=True, slots=True)
class Course:
    """One series after the warm-up; ``trend`` is in hours, ``rises`` where it must not and does."""

    name: str
    first: float
    last: float
    trend: Trend
    must_be_flat: bool
    rises: bool


def courses(looks: Sequence[Look], seconds: float) -> list[Course]:
    """Return the course of every series in a run of so many seconds of event time.

    Raises ``ValueError`` where parts have no look.
    """
    parts: list[list[Look]] = [[] for _ in range(PARTS)]
    for look in looks:
        parts[min(PARTS - 1, int(look.at / seconds * PARTS))].append(look)
    if not all(parts[WARM_UP:]):
        raise ValueError("a part of the run has no look: take more --hours or less --speed")
    hours = [(n + 0.5) * seconds / PARTS / 3600.0 for n in range(WARM_UP, PARTS)]
    found = []
    for name in looks[-1].values:
        means = [float(np.mean([look.values[name] for look in part])) for part in parts[WARM_UP:]]
        line, flat = trend(hours, means), name in FLAT
        rises = flat and line.rises(hours[-1] - hours[0], max(SHARE * line.level, LEAST))
        found.append(Course(name, means[0], means[-1], line, flat, rises))
    return found


def settled(plan: Plan, *findings: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Mapping[str, Any]]]:
    """Return what is compared of two sides of findings, without those that changed at the end of the run.

    What is seen in its last seconds is not weighed while nothing follows.
    """
    end = plan.start + plan.seconds - END_SECONDS
    late = {id_ for side in findings for id_, doc in side.items() if _changed(doc) > end}
    return (
        {id_: {name: doc.get(name) for name in COMPARED} for id_, doc in side.items() if id_ not in late}
        for side in findings
    )


def missed(plan: Plan, findings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the faults of which no finding that was open names the GPU in time, as texts."""
    named = [
        (
            doc["subject"].get("node"),
            doc["subject"].get("gpu_index"),
            _ts(doc["onset"]),
            _ts(doc["last_seen_at"]),
        )
        for doc in findings
        if doc["kind"] not in ABSENCE
    ]
    return [
        f"GPU {gpu} of {node}, hot from second {at - plan.start:.0f} on"
        for (node, at), gpu in sorted(plan.hot().items())
        if not any(
            (node, gpu) == (its_node, its_gpu) and onset < at + FOUND_SECONDS and seen > at
            for its_node, its_gpu, onset, seen in named
        )
    ]


def unexplained(plan: Plan, findings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the findings that were open and name neither a hot GPU nor a node that was away, as texts."""
    hot: dict[object, list[tuple[float, float]]] = {}
    for (node, at), gpu in plan.hot(whole=False).items():
        hot.setdefault((node, gpu), []).append((at - FOUND_SECONDS, at + plan.runs))
    away: dict[object, list[tuple[float, float]]] = {}
    for node, since in plan.left():
        away.setdefault(node, []).append((since - AWAY, since + UNHEARD_SECONDS))
    found = []
    for doc in findings:
        subject, onset = doc["subject"], _ts(doc["onset"])
        node, gpu = subject.get("node"), subject.get("gpu_index")
        spans = away.get(node, []) if doc["kind"] in ABSENCE else hot.get((node, gpu), [])
        if not any(low <= onset <= high for low, high in spans):
            found.append(f"{doc['kind']} {doc['dedup_key']} from second {onset - plan.start:.0f} on")
    return found


def _changed(doc: Mapping[str, Any]) -> float:
    return max(_ts(doc[name]) for name in ("last_seen_at", "resolved_at") if doc.get(name))


def _ts(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
