"""The finding: one explained cause, as stored, served and delivered (public shape ``finding.v1``)."""

import hashlib
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from slowrank.telemetry.records import Evidence, Severity, Subject, Suspect

Status = Literal["suspected", "open", "acknowledged", "resolved", "expired"]

# The digits of a ULID: base 32 without I, L, O and U.
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


@dataclass(frozen=True, slots=True)
class Cause:
    """The most likely explanation, its share of all, the others above 5 %, and what was found fine.

    None, and left out of the JSON, where it is the finding's own kind and nothing else was weighed.
    """

    hypothesis: str
    confidence: float | None = None
    alternatives: dict[str, float] = field(default_factory=dict)
    ruled_out: tuple[str, ...] = ()


Decision = Literal["wait", "rebalance", "evict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Whether a slow machine is worth a restart: what it has cost, will cost, and what acting costs.

    ``heals_within_10_min`` and what is expected come from how long such faults last; a ``permanent`` one has
    neither.
    """

    decision: Decision
    gpu_hours_lost: float
    gpu_hours_to_rebalance: float
    gpu_hours_to_restart: float
    permanent: bool = False
    expected_remaining_seconds: float | None = None
    expected_gpu_hours: float | None = None
    heals_within_10_min: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """Nodes to evict together where none can be named: one is bad with ``probability``, the others are
    healthy."""

    nodes: tuple[str, ...]
    probability: float
    gpu_hours_to_restart: float


@dataclass(frozen=True, slots=True)
class Action:
    """What to do next; ``commands`` are to be copied by a person and never run by slowrank."""

    code: str
    text: str
    commands: tuple[str, ...] = ()
    runbook_url: str | None = None
    automatable: bool = False
    advice: Advice | None = None
    eviction: Eviction | None = None


@dataclass(frozen=True, slots=True)
class BlastRadius:
    """What the cause affects."""

    jobs: tuple[str, ...] = ()
    ranks: int = 0
    nodes: int = 0
    other_findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause with its evidence, cost and next action.

    Times are Unix seconds of event time here and RFC 3339 UTC in ``to_json``. ``id`` is derived from
    ``dedup_key`` and ``onset``, so that the same input gives the same id in every run. ``shadow``: a detector
    on trial opened it; it is recorded and never notified.
    """

    id: str
    dedup_key: str
    kind: str
    title: str
    severity: Severity
    status: Status
    subject: Subject
    onset: float
    onset_lo: float
    onset_hi: float
    detected_at: float
    last_seen_at: float
    detector: str
    detector_version: str = "1"
    config_hash: str = ""
    group_key: str | None = None
    resolved_at: float | None = None
    slowdown_ratio: float | None = None
    job_slowdown_ratio: float | None = None
    gpu_hours_lost: float | None = None
    gpu_hours_lost_per_hour: float | None = None
    cost_per_hour: float | None = None
    confidence: float = 0.0
    score: float = 0.0
    evidence: tuple[Evidence, ...] = ()
    cause: Cause | None = None
    suspects: tuple[Suspect, ...] = ()
    blast_radius: BlastRadius = BlastRadius()
    action: Action = Action("WATCH", "Watch it.")
    occurrences: int = 1
    flaps: int = 0
    shadow: bool = False
    as_of: float | None = None
    """Event time up to which all evidence is in this version; orders versions, is not part of the JSON."""

    def to_json(self) -> dict[str, Any]:
        """Return the ``finding.v1`` object: JSON-ready, None left out, times as RFC 3339 UTC."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        onset_lo, onset_hi = fields.pop("onset_lo"), fields.pop("onset_hi")
        del fields["as_of"]
        fields["schema"] = "finding.v1"
        # Outwards, so that a moment on the edge stays inside.
        fields["onset_interval"] = [
            rfc3339(math.floor(round(onset_lo * 1000, 2)) / 1000),
            rfc3339(math.ceil(round(onset_hi * 1000, 2)) / 1000),
        ]
        for name in ("onset", "detected_at", "last_seen_at", "resolved_at"):
            if fields[name] is not None:
                fields[name] = rfc3339(fields[name])
        fields["detection_delay_seconds"] = round(self.detected_at - self.onset, 3)
        fields["action"]["advice"] = _known(fields["action"]["advice"] or {}) or None
        fields["action"] = _known(fields["action"])
        fields["cause"] = _known(fields["cause"] or {}) or None
        return _known(fields)


def dedup_key(subject: Subject, kind: str) -> str:
    """Return cluster/subject type/stable hardware id/kind: the same cause has the same key for ever."""
    return f"{subject.cluster}/{subject.type}/{_hardware_id(subject) or subject.node or '-'}/{kind}"


def _hardware_id(subject: Subject) -> str:
    match subject.type:
        case "gpu":
            return subject.gpu_uuid or subject.serial or f"{subject.node}:{subject.gpu_index}"
        case "rank":
            return f"{subject.job_id}:{subject.rank}"
        case "group":
            return (
                f"{subject.job_id}:{subject.node or ''}:{subject.ranks or _coords_key(subject.coords or {})}"
            )
        case "job":
            return f"{subject.job_id}" + ("" if not subject.coords else f":{_coords_key(subject.coords)}")
        case "nic":
            return f"{subject.node}:{subject.nic}:{subject.port or ''}"
        case "link":
            return f"{subject.nic}:{subject.port}-{subject.peer_port}"
        case "rack":
            return f"{subject.rack}"
        case "node" if subject.ranks is not None:
            return f"{subject.job_id}:{subject.ranks}"
        case "switch":
            return f"{subject.switch or ''}" + (f":{subject.rail}" if subject.rail else "")
        case _:
            return ""


def finding_id(key: str, onset: float) -> str:
    """Return ``fnd_`` and a ULID whose time is the onset (ms) and whose 80 random bits hash the dedup key."""
    # A ULID has 48 bits of time above 80 of chance; 26 digits are 130 bits, of which the first two are 0.
    milliseconds = max(0, int(onset * 1000)) & (2**48 - 1)
    entropy = int.from_bytes(hashlib.sha256(f"{key}@{milliseconds}".encode()).digest()[:10], "big")
    value = (milliseconds << 80) | entropy
    return "fnd_" + "".join(_CROCKFORD[(value >> shift) & 31] for shift in range(125, -1, -5))


def rfc3339(ts: float) -> str:
    """Return Unix seconds as RFC 3339 UTC with milliseconds where there are any."""
    moment = datetime.fromtimestamp(round(ts, 3), UTC)
    spec = "milliseconds" if moment.microsecond else "seconds"
    return moment.isoformat(timespec=spec).replace("+00:00", "Z")


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _coords_key(coords: dict[str, int]) -> str:
    return ",".join(f"{name}={coords[name]}" for name in sorted(coords))
