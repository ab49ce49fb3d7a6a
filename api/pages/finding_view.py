"""What the page of a finding shows: the ``finding.v1`` object with every field that templates read."""

from collections.abc import Mapping
from typing import Any

from alerts.report.quantity import unit_of

LIVE = frozenset({"suspected", "open", "acknowledged"})

_FINDING: dict[str, Any] = {
    "title": "",
    "severity": "info",
    "status": "open",
    "kind": "",
    "detector": "",
    "resolved_at": None,
    "slowdown_ratio": None,
    "job_slowdown_ratio": None,
    "gpu_hours_lost": None,
    "gpu_hours_lost_per_hour": None,
    "cost_per_hour": None,
    "confidence": 0.0,
    "score": 0.0,
    "occurrences": 1,
    "detection_delay_seconds": 0.0,
    "shadow": False,
    "evidence": (),
    "suspects": (),
    "cause": None,
    "feedback": None,
    "no_steps_since": None,
}
_SUBJECT = {"cluster": "", "node": None, "job_id": None}
_EVIDENCE = {"baseline": None, "peers": None, "change_at": None, "note": ""}
_PEERS = {"rank_of_subject": None}
_CAUSE: dict[str, Any] = {"alternatives": {}, "ruled_out": ()}
_ACTION: dict[str, Any] = {"code": "", "text": "", "commands": (), "runbook_url": None}
_BLAST: dict[str, Any] = {"jobs": (), "ranks": 0, "nodes": 0, "other_findings": ()}


def shown(doc: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored finding with the fields that it leaves out, which templates must not lack."""
    cause = doc.get("cause")
    return {
        **_FINDING,
        **doc,
        "subject": {**_SUBJECT, **doc["subject"]},
        "onset_interval": doc.get("onset_interval") or [doc["onset"], doc["onset"]],
        "evidence": [_evidence(piece) for piece in doc.get("evidence") or ()],
        "cause": None if cause is None else {**_CAUSE, **cause},
        "action": {**_ACTION, **(doc.get("action") or {})},
        "blast_radius": {**_BLAST, **(doc.get("blast_radius") or {})},
    }


def _evidence(piece: Mapping[str, Any]) -> dict[str, Any]:
    peers = piece.get("peers")
    return {
        **_EVIDENCE,
        **piece,
        "unit": unit_of(piece["metric"], piece.get("unit")),
        "peers": None if peers is None else {**_PEERS, **peers},
    }
