"""A case and what supports it, as the public finding: title, severity, cost, cause and next action."""

import hashlib
from collections.abc import Iterable
from functools import lru_cache

from alerts.action import action, watch
from alerts.advice import Loss, advice
from alerts.case import Case
from alerts.config import FindingConfig
from alerts.finding import BlastRadius, Finding, finding_id
from alerts.fusion import cause, confidence
from alerts.hang import suspects
from alerts.scope import Scope, group_key, supporting
from alerts.severity import isolated, milder, severity
from alerts.title import title
from slowrank.telemetry import Evidence, Subject, Suspicion
from slowrank.telemetry.records import Severity

MAX_EVIDENCE = 24
MACHINES = ("gpu", "node", "rank", "nic", "link")
SURE_ENOUGH = 0.7
"""From here on a finding may send people to a machine; below, advice to act would be a guess."""


def render(scope: Scope, case: Case, config: FindingConfig, *, identity: str | None = None) -> Finding:
    """Return the finding of one case in its scope, under the id it was first shown by, if it was."""
    identity = identity or finding_id(case.key, case.first_onset)
    helpers = supporting(scope, case, config)
    own = case.voices()
    voices = own + tuple(s for helper in helpers for s in helper.voices())
    sure = round(confidence(voices, config.prior_log_odds, calibration=config.calibration), 4)
    why = cause(case.kind, voices)
    job_ratio = _most(s.job_slowdown_ratio for s in voices)
    ratio = _most(s.slowdown_ratio for s in own) or _most(s.slowdown_ratio for s in voices)
    lost, rate = (max(c.lost for c in (case, *helpers)), max(c.rate for c in (case, *helpers)))
    subject = _named(case.subject, helpers)
    kind = "straggler.intermittent" if case.intermittent and case.kind == "straggler.fail_slow" else case.kind
    hurt = _hurt(case, helpers) and not isolated(kind, (s.severity for s in own))
    peers, peer = _peers(case, own)
    weighed = None
    if hurt and sure >= SURE_ENOUGH and subject.type in MACHINES:
        loss = Loss(max(s.gpus for s in voices), job_ratio or 1.0, lost, case.last_seen_at - case.since)
        weighed = advice(why.hypothesis, loss, config.costs)
    stated: list[Severity | None] = [s.severity for s in own]
    if kind == "hang.job":
        stated = ["critical" if case.certain else "info"]
    once = isolated(why.hypothesis, (s.severity for s in voices if s.kind == why.hypothesis))
    return Finding(
        id=identity,
        dedup_key=case.key,
        group_key=group_key(scope, case, config),
        kind=kind,
        title=title(kind, subject, ratio=ratio, peers=peers, peer=peer, hypothesis=why.hypothesis),
        severity=severity(kind, subject, own=milder(kind, stated), hurt=hurt, confidence=sure),
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
        evidence=(*suspects(voices), *_evidence(voices))[:MAX_EVIDENCE],
        cause=why,
        suspects=max(voices, key=lambda s: (bool(s.suspects), s.log_likelihood_ratio, s.detector)).suspects,
        blast_radius=_blast(voices, tuple(finding_id(h.key, h.first_onset) for h in helpers)),
        action=watch(subject)
        if once and weighed is None
        else action(kind, subject, hypothesis=why.hypothesis, finding_id=identity, advice=weighed),
        occurrences=case.occurrences,
        flaps=case.flaps,
    )


def _hurt(case: Case, helpers: Iterable[Case]) -> bool:
    """Return whether what the finding tells of slows a job.

    A hang is no surer because its job is slow besides and no machine stands out.
    """
    weighed = (c for c in (case, *helpers) if case.kind != "hang.job" or c.kind != "straggler.job_wide")
    return any(c.hurts for c in weighed)


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


def _peers(case: Case, voices: tuple[Suspicion, ...]) -> tuple[int | None, str]:
    """Return with how many the subject was compared, and what they are: a node's peers are nodes."""
    if case.made_of_ranks:
        return max(s.nodes for s in voices) - 1, "other node"
    return max((e.peers.n for s in voices for e in s.evidence if e.peers is not None), default=None), "peer"


def _most(values: Iterable[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


def _price(rate: float, config: FindingConfig) -> float | None:
    return None if config.gpu_hour_price is None or not rate else round(rate * config.gpu_hour_price, 2)


@lru_cache
def _config_hash(config: FindingConfig) -> str:
    return hashlib.sha256(repr(config).encode()).hexdigest()[:12]
