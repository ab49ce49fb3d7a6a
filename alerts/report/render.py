"""A case and what supports it, as the public finding: title, severity, cost, cause and next action."""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from alerts import hang, tensor_group
from alerts.account import per_hour, untold
from alerts.action import action, watch
from alerts.advice import Loss, advice
from alerts.case import EVIDENCE_ONLY, Case
from alerts.config import FindingConfig
from alerts.cost import lost_per_hour
from alerts.finding import Action, BlastRadius, Cause, Finding, finding_id
from alerts.fusion import cause, confidence
from alerts.recovery import asked_for
from alerts.scope import Scope, group_key, supporting
from alerts.severity import isolated, milder, severity
from alerts.title import places, title
from slowrank.telemetry import Evidence, Subject, Suspicion
from slowrank.telemetry.records import Severity, Suspect

MAX_EVIDENCE = 24
MACHINES = ("gpu", "node", "rank", "group", "nic", "link")
SURE_ENOUGH = 0.7
"""From here on a finding may send people to a machine; below, advice to act would be a guess."""


@dataclass(frozen=True, slots=True)
class _Brief:
    """A case weighed with those that support it: ``own`` voices and all of them, and what they come to."""

    case: Case
    helpers: tuple[Case, ...]
    own: tuple[Suspicion, ...]
    voices: tuple[Suspicion, ...]
    kind: str
    subject: Subject
    confidence: float
    cause: Cause
    hurt: bool
    """Whether what the finding tells of slows a job."""
    last_seen_at: float
    lost: float
    """GPU-hours, up to ``last_seen_at``."""
    rate: float
    """GPU-hours lost an hour."""
    suspects: tuple[Suspect, ...]

    @property
    def job_slowdown_ratio(self) -> float | None:
        return _most(s.job_slowdown_ratio for s in self.voices)

    @property
    def slowdown_ratio(self) -> float | None:
        return _most(s.slowdown_ratio for s in self.own) or _most(s.slowdown_ratio for s in self.voices)


def render(scope: Scope, case: Case, config: FindingConfig, *, identity: str | None = None) -> Finding:
    """Return the finding of one case in its scope, under the id it was first shown by, if it was."""
    identity = identity or finding_id(case.key, case.first_onset)
    brief = _brief(scope, case, config)
    # What was never more than suspected costs nothing.
    counts = case.opened_at is not None and bool(brief.rate or brief.lost)
    return Finding(
        id=identity,
        dedup_key=case.key,
        group_key=group_key(scope, case, config) or (None if case.live else case.led_by),
        kind=brief.kind,
        title=_title(brief),
        severity=_severity(brief),
        status=case.status,
        subject=brief.subject,
        onset=case.onset[0],
        onset_lo=case.onset[1],
        onset_hi=case.onset[2],
        detected_at=case.first_seen_at if case.opened_at is None else case.opened_at,
        last_seen_at=brief.last_seen_at,
        resolved_at=case.ended_at,
        detector=min(brief.own, key=lambda s: (-s.log_likelihood_ratio, s.detector)).detector,
        config_hash=_config_hash(config),
        slowdown_ratio=brief.slowdown_ratio,
        job_slowdown_ratio=brief.job_slowdown_ratio,
        gpu_hours_lost=round(brief.lost, 4) if counts else None,
        gpu_hours_lost_per_hour=round(brief.rate, 4) if counts else None,
        cost_per_hour=_price(brief.rate, config),
        confidence=brief.confidence,
        score=max(s.score for s in brief.voices),
        evidence=(*_unnamed(brief), *_evidence(brief.voices))[:MAX_EVIDENCE],
        cause=brief.cause,
        suspects=brief.suspects,
        blast_radius=_blast(brief),
        action=_action(brief, config, identity),
        occurrences=case.occurrences,
        flaps=case.flaps,
    )


def _brief(scope: Scope, case: Case, config: FindingConfig) -> _Brief:
    helpers = supporting(scope, case, config)
    own = case.voices()
    voices = own + tuple(s for helper in helpers for s in helper.voices())
    led = [c for c in scope.cases.values() if c.rate and group_key(scope, c, config) == case.key]
    # What it has cost is told as of this moment.
    seen = max(c.last_seen_at for c in (case, *led))
    seen = max(seen, case.accounted_to) if case.stalled else seen
    kind = "straggler.intermittent" if case.intermittent and case.kind == "straggler.fail_slow" else case.kind
    return _Brief(
        case=case,
        helpers=helpers,
        own=own,
        voices=voices,
        kind=kind,
        subject=_named(case.subject, helpers),
        confidence=round(confidence(voices, config.prior_log_odds, calibration=config.calibration), 4),
        cause=cause(case.kind, voices),
        hurt=_hurt(case, helpers) and not isolated(kind, (s.severity for s in own)),
        last_seen_at=seen,
        lost=case.lost + math.fsum(untold(c, seen) for c in (case, *led)),
        rate=math.fsum(per_hour(c) for c in (case, *led)),
        suspects=_suspects(scope, case, helpers, voices),
    )


def _hurt(case: Case, helpers: Iterable[Case]) -> bool:
    """Return whether the case or one that supports it slows a job.

    A hang is no surer because its job is slow besides and no machine stands out.
    """
    weighed = (c for c in (case, *helpers) if case.kind != "hang.job" or c.kind != "straggler.job_wide")
    return any(c.hurts for c in weighed)


def _title(brief: _Brief) -> str:
    peers, peer = _peers(brief.case, brief.own)
    why, ratio = brief.cause.hypothesis, brief.slowdown_ratio
    own_past = not brief.case.made_of_ranks and any(_caught_up(s) for s in brief.own)
    kind = _code(brief.own) if brief.kind == "xid" else brief.kind
    return title(kind, brief.subject, ratio=ratio, peers=peers, peer=peer, own_past=own_past, hypothesis=why)


def _code(voices: tuple[Suspicion, ...]) -> str:
    """Return the code of the latest XID among those that the catalogue does not have (``xid.999``)."""
    latest = max(voices, key=lambda s: (s.ts, s.detector))
    return latest.evidence[0].metric if latest.evidence else latest.kind


def _caught_up(s: Suspicion) -> bool:
    """Return whether what ``s`` measured is slower than it was and as slow as its peers, who always were."""
    shown = s.evidence[0] if s.evidence else None
    if shown is None or shown.value is None or shown.peers is None or shown.baseline is None:
        return False
    half = 0.5 * (1.0 + (s.slowdown_ratio or 1.0))
    return half * shown.baseline.median <= shown.value < half * shown.peers.median


def _severity(brief: _Brief) -> Severity:
    stated: list[Severity | None] = [s.severity for s in brief.own]
    if brief.kind == "hang.job":
        stated = ["critical" if brief.case.certain else "info"]
    own = milder(brief.kind, stated)
    return severity(brief.kind, brief.subject, own=own, hurt=brief.hurt, confidence=brief.confidence)


def _action(brief: _Brief, config: FindingConfig, identity: str) -> Action:
    """Return what to do: what acting is worth is weighed only where a machine surely slows a job."""
    why, weighed = brief.cause.hypothesis, None
    if brief.hurt and brief.confidence >= SURE_ENOUGH and brief.subject.type in MACHINES:
        gpus, seconds = max(s.gpus for s in brief.voices), brief.case.last_seen_at - brief.case.since
        # While it is over, what it cost when it was there: it may be back.
        rate = brief.rate or lost_per_hour(gpus, brief.job_slowdown_ratio or 1.0)
        loss = Loss(gpus, rate, brief.lost, seconds)
        weighed = advice(why, loss, config.costs)
    if weighed is None and isolated(why, (s.severity for s in brief.voices if s.kind == why)):
        return watch(brief.subject)
    likely = _likeliest(brief)
    where = places(likely) if likely else None
    todo = asked_for(why, brief.voices)
    next_step = action(
        brief.kind, brief.subject, hypothesis=todo, finding_id=identity, advice=weighed, where=where
    )
    if len(likely) < 2:
        return next_step
    return replace(next_step, text=f"{next_step.text} One of them is slow; step times cannot tell which.")


def _likeliest(brief: _Brief) -> list[Subject]:
    """Return whom of a tensor-parallel group to look at: all that are as likely as any, by half."""
    if brief.subject.type != "group" or not brief.suspects:
        return []
    return [s.subject for s in brief.suspects if s.probability >= 0.5 * brief.suspects[0].probability]


def _unnamed(brief: _Brief) -> tuple[Evidence, ...]:
    """Return what is known of who it is where nobody can be named."""
    return (tensor_group.note(brief.suspects),) if brief.subject.type == "group" else hang.note(brief.voices)


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


def _suspects(
    scope: Scope, case: Case, helpers: tuple[Case, ...], voices: tuple[Suspicion, ...]
) -> tuple[Suspect, ...]:
    if case.subject.type == "group":
        return tensor_group.suspects(tensor_group.ranks_of(case, scope.cases), helpers)
    if case.kind == "hang.job":
        return hang.suspects(voices)
    return max(voices, key=lambda s: (bool(s.suspects), s.log_likelihood_ratio, s.detector)).suspects


def _blast(brief: _Brief) -> BlastRadius:
    return BlastRadius(
        jobs=tuple(sorted({s.subject.job_id for s in brief.voices if s.subject.job_id})),
        ranks=max(s.ranks for s in brief.voices),
        nodes=max(s.nodes for s in brief.voices),
        other_findings=tuple(
            finding_id(h.key, h.first_onset) for h in brief.helpers if h.kind not in EVIDENCE_ONLY
        ),
    )


def _peers(case: Case, voices: tuple[Suspicion, ...]) -> tuple[int | None, str]:
    """Return with how many the subject was compared, and what they are: a node's peers are nodes."""
    if case.subject.type == "node" and case.made_of_ranks:
        return max(s.nodes for s in voices) - 1, "other node"
    peers = max((e.peers.n for s in voices for e in s.evidence if e.peers is not None), default=None)
    if peers is not None and case.subject.type == "group":
        # Each rank was compared with its mates too.
        peers -= max(s.ranks_in_group for s in voices) - 1
    return peers, "peer"


def _most(values: Iterable[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


def _price(rate: float, config: FindingConfig) -> float | None:
    return None if config.gpu_hour_price is None or not rate else round(rate * config.gpu_hour_price, 2)


@lru_cache
def _config_hash(config: FindingConfig) -> str:
    return hashlib.sha256(repr(config).encode()).hexdigest()[:12]
