"""Whether the findings of a cluster name a fault that was made: pure, from ``finding.v1`` objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Doc = Mapping[str, Any]

# States of a finding that was notified; a suspicion that never opened is none.
OPEN = ("open", "acknowledged", "resolved")
# Kinds about the telemetry of a node, which accuse no machine.
TELEMETRY = ("exporter.", "host.clock_skew", "self")


@dataclass(frozen=True, slots=True)
class Seen:
    """A finding as it was first seen open: ``at`` is the time by the clock of the rig [Unix seconds]."""

    at: float
    doc: Doc


@dataclass(frozen=True, slots=True)
class Target:
    """What was made faulty: a rank, its node, and the job that it belongs to."""

    unit: str
    rank: int
    node: str
    job: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """One run: seconds until the right finding was stored, None where none was; what else was found.

    ``event_seconds`` is the same by event time: how much of the telemetry the detector took.
    """

    delay_seconds: float | None
    event_seconds: float | None
    kind: str | None
    severity: str | None
    others: tuple[str, ...]


def judge(seen: Iterable[Seen], target: Target, kinds: frozenset[str], *, made_at: float) -> Verdict:
    """Judge one run by what was seen since ``made_at``.

    Right is the first finding of one of ``kinds`` that names the target: as its subject, or as the likeliest
    of its suspects. Every other finding about a machine is listed in ``others``, as ``kind subject``.
    """
    since = sorted((s for s in seen if s.at >= made_at), key=lambda s: s.at)
    right = [s for s in since if s.doc["kind"] in kinds and names(s.doc, target)]
    others = tuple(sorted({label(s.doc) for s in since if not names(s.doc, target)}))
    if not right:
        return Verdict(None, None, None, None, others)
    first = right[0]
    detected = datetime.fromisoformat(first.doc["detected_at"]).timestamp()
    return Verdict(
        first.at - made_at, detected - made_at, str(first.doc["kind"]), str(first.doc["severity"]), others
    )


def names(doc: Doc, target: Target) -> bool:
    """Return whether a finding names the target, alone or first of its suspects."""
    if _is(doc["subject"], target):
        return True
    suspects = doc.get("suspects") or []
    if not suspects:
        return False
    most = max(s["probability"] for s in suspects)
    first = [s["subject"] for s in suspects if s["probability"] == most]
    # Ranks of one node may be equally suspect; that more than one machine is, is no name.
    return any(_is(s, target) for s in first) and {s.get("node") for s in first} == {target.node}


def _is(subject: Doc, target: Target) -> bool:
    if target.unit == "rank":
        return subject.get("rank") == target.rank
    return subject.get("node") == target.node


def label(doc: Doc) -> str:
    """Return kind and subject in a few words."""
    subject = doc["subject"]
    place = next(
        (f"{k} {subject[k]}" for k in ("rank", "node", "job_id") if subject.get(k) is not None), "cluster"
    )
    return f"{doc['kind']} {place}"


def pages(docs: Iterable[Doc]) -> list[Doc]:
    """Return the findings that page someone."""
    return [doc for doc in docs if doc["severity"] == "critical"]


def accuses(doc: Doc) -> bool:
    """Return whether a finding names a machine or one of its devices, for more than its telemetry."""
    subject = doc["subject"]
    named = any(subject.get(place) is not None for place in ("rank", "node", "gpu_index"))
    return named and not doc["kind"].startswith(TELEMETRY)
