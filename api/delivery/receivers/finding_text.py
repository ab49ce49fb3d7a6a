"""Texts about a finding that several receivers show."""

from collections.abc import Mapping
from typing import Any

from api.delivery.receivers.receiver import Finding

_ENDED = frozenset({"resolved", "expired"})
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def has_ended(finding: Finding) -> bool:
    """Return whether the finding is resolved or expired."""
    return finding.get("status") in _ENDED


def subject_path(subject: Mapping[str, Any]) -> str:
    """Return a short path to the subject, such as ``gpu-0423/gpu/5``."""
    kind = str(subject.get("type", "node"))
    instance = {
        "gpu": subject.get("gpu_index"),
        "rank": subject.get("rank"),
        "group": _shared_coordinates(subject) or subject.get("ranks"),
        "node": subject.get("ranks"),
        "job": subject.get("job_id"),
        "nic": subject.get("nic"),
        "rack": subject.get("rack"),
        "switch": subject.get("switch") or subject.get("rail"),
    }.get(kind)
    # A group over several nodes, or a node without a name, is known by its job.
    of_job = kind == "group" or subject.get("ranks") is not None
    where = subject.get("node") or (subject.get("job_id") if of_job else None)
    parts = (where, kind, instance)
    return "/".join(str(part) for part in parts if part is not None)


def facts(finding: Finding) -> list[tuple[str, str]]:
    """Return onset, cost, cause and blast radius as pairs of a name and a text."""
    cause, blast = finding.get("cause"), finding.get("blast_radius", {})
    per_hour, so_far = finding.get("gpu_hours_lost_per_hour"), finding.get("gpu_hours_lost")
    cost = "not gating a job" if per_hour is None else f"{per_hour:.1f} GPU-h per hour"
    if so_far is not None:
        cost += f", {so_far:.1f} so far"
    share = cause.get("confidence") if cause else None
    why = str(cause.get("hypothesis")) if cause else "not known"
    why += "" if share is None else f" ({100 * share:.0f} %)"
    jobs = ", ".join(map(str, blast.get("jobs", ())[:3])) or "no job"
    return [
        ("Since", str(finding.get("onset", "unknown"))),
        ("Cost", cost),
        ("Why", why),
        ("Blast radius", f"{jobs}, {blast.get('ranks', 0)} ranks"),
    ]


def escaped(text: object, limit: int) -> str:
    """Return text with the control characters of HTML and Slack escaped, cut to ``limit`` UTF-16 units."""
    found, used = [], 0
    for character in str(text):
        shown = _ESCAPES.get(character, character if character.isprintable() else " ")
        used += len(shown) + (character > "\uffff")
        if used > limit:
            break
        found.append(shown)
    return "".join(found)


def _shared_coordinates(subject: Mapping[str, Any]) -> str:
    # A node may have several groups; the coordinates common to all ranks of one identify it.
    return ",".join(f"{name}={at}" for name, at in sorted((subject.get("coords") or {}).items())) or "all"
