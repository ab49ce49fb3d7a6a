"""A case and what supports it, as the public finding: title, severity, cost, cause and next action."""

import hashlib
from collections.abc import Iterable

from alerts.action import action
from alerts.case import Case
from alerts.config import FindingConfig
from alerts.finding import BlastRadius, Finding, finding_id
from alerts.fusion import cause, confidence
from alerts.scope import Scope, group_key, supporting
from alerts.severity import IMPACT, severity
from alerts.title import title
from slowrank.telemetry import Evidence, Subject, Suspicion

MAX_EVIDENCE = 24


def render(scope: Scope, case: Case, config: FindingConfig, *, identity: str | None = None) -> Finding:
    """Return the finding of one case in its scope, under the id it was first shown by, if it was."""
    identity = identity or finding_id(case.key, case.first_onset)
    helpers = supporting(scope, case, config)
    own = case.voices()
    voices = own + tuple(s for helper in helpers for s in helper.voices())
    sure = round(confidence(voices, config.prior_log_odds), 4)
    why = cause(case.kind, voices)
    job_ratio = _most(s.job_slowdown_ratio for s in voices)
    ratio = _most(s.slowdown_ratio for s in own) or _most(s.slowdown_ratio for s in voices)
    lost, rate = (max(c.lost for c in (case, *helpers)), max(c.rate for c in (case, *helpers)))
    subject = _named(case.subject, helpers)
    kind = "straggler.intermittent" if case.intermittent and case.kind == "straggler.fail_slow" else case.kind
    gates = job_ratio is not None and job_ratio >= IMPACT and sure >= 0.7
    return Finding(
        id=identity,
        dedup_key=case.key,
        group_key=group_key(scope, case, config),
        kind=kind,
        title=title(kind, subject, ratio=ratio, peers=_peers(own), hypothesis=why.hypothesis),
        severity=severity(kind, subject, job_slowdown=job_ratio, confidence=sure),
        status=case.status,
        subject=subject,
        onset=case.onset[0],
        onset_lo=case.onset[1],
        onset_hi=case.onset[2],
        detected_at=case.first_seen_at if case.opened_at is None else case.opened_at,
        last_seen_at=case.last_seen_at,
        resolved_at=case.ended_at,
        detector=min(own, key=lambda s: (-s.log_likelihood_ratio, s.detector)).detector,
        config_hash=_config_hash(config),
        slowdown_ratio=ratio,
        job_slowdown_ratio=job_ratio,
        gpu_hours_lost=round(lost, 4) if rate or lost else None,
        gpu_hours_lost_per_hour=round(rate, 4) if rate or lost else None,
        cost_per_hour=_price(rate, config),
        confidence=sure,
        score=max(s.score for s in voices),
        evidence=_evidence(voices),
        cause=why,
        blast_radius=_blast(voices, tuple(finding_id(h.key, h.first_onset) for h in helpers)),
        action=action(kind, subject, hypothesis=why.hypothesis, gates_job=gates, finding_id=identity),
        occurrences=case.occurrences,
        flaps=case.flaps,
    )


def _named(subject: Subject, helpers: tuple[Case, ...]) -> Subject:
    """Return the subject with the GPU's serial and UUID, where a helper about the same GPU knows them."""
    for helper in helpers:
        known = helper.subject
        same = subject.gpu_index is not None and known.gpu_index == subject.gpu_index
        if same and known.gpu_uuid and not subject.gpu_uuid:
            fields = {name: getattr(subject, name) for name in subject.__struct_fields__}
            fields |= {"gpu_uuid": known.gpu_uuid, "serial": subject.serial or known.serial}
            return Subject(**fields)
    return subject


def _evidence(voices: tuple[Suspicion, ...]) -> tuple[Evidence, ...]:
    chosen: dict[tuple[str, str], tuple[float, float, Evidence]] = {}
    for s in voices:
        for e in s.evidence:
            held = chosen.get((e.detector, e.metric))
            if held is None or (s.score, s.ts) > held[:2]:
                chosen[e.detector, e.metric] = (s.score, s.ts, e)
    return tuple(chosen[key][2] for key in sorted(chosen))[:MAX_EVIDENCE]


def _blast(voices: tuple[Suspicion, ...], others: tuple[str, ...]) -> BlastRadius:
    return BlastRadius(
        jobs=tuple(sorted({s.subject.job_id for s in voices if s.subject.job_id})),
        ranks=max(s.ranks for s in voices),
        nodes=max(s.nodes for s in voices),
        other_findings=others,
    )


def _peers(voices: tuple[Suspicion, ...]) -> int | None:
    return max((e.peers.n for s in voices for e in s.evidence if e.peers is not None), default=None)


def _most(values: Iterable[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


def _price(rate: float, config: FindingConfig) -> float | None:
    return None if config.gpu_hour_price is None or not rate else round(rate * config.gpu_hour_price, 2)


def _config_hash(config: FindingConfig) -> str:
    return hashlib.sha256(repr(config).encode()).hexdigest()[:12]
