"""A case and what supports it, as the public finding: title, severity, cost, cause and next action."""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from alerts.cases import likely_node, tensor_group
from alerts.cases.case import Case, in_single_steps
from alerts.cases.explaining import explaining_key, supporting
from alerts.cases.scope import Scope
from alerts.config import FindingConfig
from alerts.finding import Action, BlastRadius, Cause, Finding, finding_id
from alerts.kinds import IDLE, kind_of
from alerts.reasoning import hang
from alerts.reasoning.calibration import Basis
from alerts.reasoning.corroborate import shown_by_machines
from alerts.reasoning.fusion import basis_of, cause, confidence
from alerts.reasoning.sustained import is_sustained
from alerts.report.action import action, watch
from alerts.report.advice import Loss, advice
from alerts.report.cost import lost_per_hour
from alerts.report.eviction import eviction, in_words
from alerts.report.recovery import asked_for
from alerts.report.severity import impact, severity
from alerts.report.slow_group import model_of, nodes_of, slow_group
from alerts.report.title import places, title
from alerts.stated_severity import isolated, milder
from slowrank.telemetry import Evidence, Subject, Suspicion
from slowrank.telemetry.records import Severity, Suspect

# Pieces of evidence in a finding (chosen: what a person reads).
MAX_EVIDENCE = 24

# Of a group on one node, made of its ranks' cases, and of one over several nodes.
_ONE_OF_THEM = {
    True: "One of them is slow; step times do not show which.",
    False: "One of them is slow and the others wait for it, or all became slow by what they share (a switch, "
    "storage, their batch); step times do not show which.",
}

# The probability from which one rank is reported not to have arrived: what a detector gives the only one that
# is behind (``detectors.job.waits.arrivals``), and shares among several, rounded to four digits.
_SURELY, _ROUNDING = 0.9, 0.5e-4

MACHINES = ("gpu", "node", "rank", "group", "nic", "link")


@dataclass(frozen=True, slots=True)
class Sources:
    """All that the finding of a ``case`` is made from.

    ``explained_by``: dedup key of the open finding that explains it. ``helpers``: the cases whose evidence it
    shows. ``charged``: the cases whose losses it has. ``ranks``: those of a tensor-parallel group.
    """

    case: Case
    explained_by: str | None
    helpers: tuple[Case, ...]
    charged: tuple[Case, ...]
    ranks: tuple[Case, ...]


@dataclass(frozen=True, slots=True)
class _Brief:
    """A case with its supporting cases: its ``own`` suspicions, those of all, and what they amount to."""

    case: Case
    helpers: tuple[Case, ...]
    own: tuple[Suspicion, ...]
    suspicions: tuple[Suspicion, ...]
    kind: str
    subject: Subject
    basis: Basis
    confidence: float
    cause: Cause
    hurt: bool
    """Whether its cause slows a job."""
    sustained: bool
    """Whether that is worth a page."""
    last_seen_at: float
    lost: float
    """GPU-hours, up to ``last_seen_at``."""
    rate: float
    """GPU-hours lost an hour."""
    suspects: tuple[Suspect, ...]
    culprit: Case | None
    """The rank of a group that is named instead of the group."""

    @property
    def job_slowdown_ratio(self) -> float | None:
        return _most(s.job_slowdown_ratio for s in self.suspicions)

    @property
    def sure(self) -> bool:
        """Whether acting is weighed against waiting: for less than an error, that advice would be a guess."""
        return impact(self.confidence, self.basis) != "warning"

    @property
    def slowdown_ratio(self) -> float | None:
        return _most(s.slowdown_ratio for s in self.own) or _most(s.slowdown_ratio for s in self.suspicions)


def sources_of(scope: Scope, case: Case, config: FindingConfig) -> Sources:
    """Return what the finding of a case in its scope is made from."""
    charges = (c for c in scope.cases.values() if c.account.rate)
    return Sources(
        case,
        explaining_key(scope, case, config),
        supporting(scope, case, config),
        tuple(c for c in charges if explaining_key(scope, c, config) == case.key),
        tensor_group.ranks_of(case, scope.cases),
    )


def render(sources: Sources, config: FindingConfig, *, identity: str | None = None) -> Finding:
    """Return the finding of one case, under the id it was first shown by, if it was."""
    case = sources.case
    identity = identity or finding_id(case.key, case.first_onset)
    brief = _brief(sources, config)
    # A finding that was only ever suspected costs nothing.
    counts = case.opened_at is not None and bool(brief.rate or brief.lost)
    return Finding(
        id=identity,
        dedup_key=case.key,
        group_key=sources.explained_by or (None if case.live else case.account.charged_to),
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
        score=max(s.score for s in brief.suspicions),
        evidence=(*_unnamed(brief), *_evidence(brief.suspicions, brief.subject))[:MAX_EVIDENCE],
        cause=brief.cause,
        suspects=brief.suspects,
        blast_radius=_blast(brief),
        action=_action(brief, config, identity),
        occurrences=case.occurrences,
        flaps=case.flaps,
    )


def _brief(sources: Sources, config: FindingConfig) -> _Brief:
    case, helpers = sources.case, sources.helpers
    own = case.suspicions()
    suspicions = own + _of_helpers(case, helpers)
    if case.rule.hang and case.opened_at is not None:
        suspicions = hang.until_found(suspicions, _found_at(case, case.opened_at))
    accounts = (case, *sources.charged)
    seen = max(c.last_seen_at for c in accounts)
    seen = max(seen, case.account.accrued_to) if case.account.stalled else seen
    kind = (case.intermittent and case.rule.relapsing_as) or case.kind
    hurt = _hurt(case, helpers) and not isolated(kind, (s.severity for s in own))
    basis = basis_of(suspicions, hurt=hurt)
    counted = hang.weighed(suspicions) if case.rule.hang else suspicions
    culprit = _culprit(sources, config)
    sure = confidence(counted, config.prior_log_odds, basis=basis, calibration=config.calibration)
    return _Brief(
        case=case,
        helpers=helpers,
        own=own,
        suspicions=suspicions,
        kind=kind,
        subject=_numbered(
            _named(case.subject if culprit is None else culprit.subject, helpers), sources.ranks
        ),
        basis=basis,
        confidence=round(sure, 4),
        cause=_cause(case, own, suspicions),
        hurt=hurt,
        sustained=is_sustained((case, *helpers), suspicions),
        last_seen_at=seen,
        lost=case.account.lost,
        rate=math.fsum(c.account.per_hour(live=c.live) for c in accounts),
        suspects=_suspects(sources, suspicions),
        culprit=culprit,
    )


def _culprit(sources: Sources, config: FindingConfig) -> Case | None:
    """Return the rank that its hardware names, of a tensor-parallel group on one node."""
    case = sources.case
    if case.subject.type != "group" or not case.made_of_ranks:
        return None
    return tensor_group.culprit(case, sources.ranks, sources.helpers, config)


def _of_helpers(case: Case, helpers: Iterable[Case]) -> tuple[Suspicion, ...]:
    """Return what supporting cases show; of the machines of a hang all that they showed while it stood."""
    if not case.rule.hang or case.opened_at is None:
        return tuple(s for helper in helpers for s in helper.suspicions())
    others = tuple(s for helper in helpers if helper.kind != IDLE for s in helper.suspicions())
    return others + (case.shown or shown_by_machines(case, helpers))


def _cause(case: Case, own: tuple[Suspicion, ...], suspicions: tuple[Suspicion, ...]) -> Cause:
    """Return the likeliest explanation; ranks that have a GPU model in common carry no other stage."""
    likeliest = cause(case.kind, suspicions)
    if likeliest.hypothesis != "imbalance.stage" or model_of(own) is None:
        return likeliest
    return replace(likeliest, hypothesis="imbalance.model")


def _found_at(case: Case, opened_at: float) -> float:
    """Return when the present stop was found to be a hang, for a later one than the first the latest time."""
    return opened_at if opened_at >= case.since else case.since + hang.EXPLAINED_SECONDS


def _hurt(case: Case, helpers: Iterable[Case]) -> bool:
    """Return whether the case or one that supports it slows a job.

    A hang is no surer because its job is slow besides and no machine stands out.
    """
    hang = case.rule.hang
    return any(c.hurts for c in (case, *helpers) if not (hang and c.rule.no_culprit))


def _title(brief: _Brief) -> str:
    peers, peer = _peers(brief.case, brief.own)
    why, ratio = brief.cause.hypothesis, brief.slowdown_ratio
    own_past = not brief.case.made_of_ranks and any(_caught_up(s) for s in brief.own)
    kind = _code(brief.own) if brief.kind == "xid" else brief.kind
    return title(
        kind,
        brief.subject,
        ratio=ratio,
        peers=peers,
        peer=peer,
        own_past=own_past,
        hypothesis=why,
        awaited=_awaited(brief),
        stops=brief.case.flaps + 1,
        by_nodes=hang.only_by_nodes(brief.own),
        model=model_of(brief.own),
        nodes=nodes_of(brief.own),
        single_steps=any(map(in_single_steps, brief.own)),
        some=_some(brief),
    )


def _some(brief: _Brief) -> tuple[int, int] | None:
    """Return how many ranks a node's case is made of and how many its job has there, where not all are."""
    if not brief.case.made_of_ranks or brief.subject.type != "node" or brief.subject.job_id is None:
        return None
    ranks = len({s.subject.rank for s in brief.own})
    beside = max(s.ranks_on_node or s.ranks_likely_on_node for s in brief.own)
    return (ranks, beside) if ranks < beside else None


def _awaited(brief: _Brief) -> tuple[Subject, ...]:
    """Return the rank that a stopped job surely waits for, or those of one node among which it surely is."""
    surest = [s for s in brief.suspects if s.probability >= _SURELY] or list(brief.suspects)
    ranks = sorted((s.subject for s in surest), key=lambda s: s.rank or 0)
    nodes = {s.node for s in ranks}
    if any(s.rank is None for s in ranks) or (len(ranks) > 1 and (len(nodes) > 1 or None in nodes)):
        return ()
    sure = math.fsum(s.probability for s in surest) >= _SURELY - _ROUNDING * len(surest)
    return tuple(ranks) if sure else ()


def _code(suspicions: tuple[Suspicion, ...]) -> str:
    """Return the code of the latest XID among those that the catalogue does not have (``xid.999``)."""
    latest = max(suspicions, key=lambda s: (s.ts, s.detector))
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
    if kind_of(brief.kind).hang:
        stated = ["critical"] if brief.case.certain else ["info", *stated]
    own = milder(brief.kind, stated)
    return severity(
        brief.kind,
        brief.subject,
        own=own,
        hurt=brief.hurt,
        sustained=brief.sustained,
        confidence=brief.confidence,
        basis=brief.basis,
    )


def _action(brief: _Brief, config: FindingConfig, identity: str) -> Action:
    """Return what to do: what acting is worth is weighed only where a machine surely slows a job."""
    why, weighed, again = brief.cause.hypothesis, None, _cause_is_back(brief)
    if brief.hurt and brief.sure and brief.subject.type in MACHINES:
        gpus, seconds = max(s.gpus for s in brief.suspicions), brief.case.last_seen_at - brief.case.since
        # While it is over, its cost while it lasted: it may return.
        rate = brief.rate or lost_per_hour(gpus, brief.job_slowdown_ratio or 1.0)
        loss = Loss(gpus, rate, brief.lost, seconds)
        weighed = advice(why, loss, config.costs, again=again)
    if weighed is None and isolated(why, (s.severity for s in brief.suspicions if s.kind == why)):
        return watch(brief.subject)
    likely = _likeliest(brief)
    where = places(likely) if likely else None
    todo = asked_for(why, brief.suspicions)
    if why in ("imbalance.stage", "imbalance.model", "imbalance.machine"):
        todo, where = slow_group(brief.subject, brief.suspicions)
    elif why == "imbalance.slowed_machine":
        where = nodes_of(brief.suspicions)
    next_step = action(
        brief.kind,
        brief.subject,
        hypothesis=todo,
        finding_id=identity,
        advice=weighed,
        where=where,
        pages=_severity(brief) == "critical",
        again=again,
    )
    if len(likely) >= 2:
        next_step = replace(next_step, text=f"{next_step.text} {_ONE_OF_THEM[brief.case.made_of_ranks]}")
    return _isolating(next_step, brief, config)


def _cause_is_back(brief: _Brief) -> bool:
    """Return whether the likeliest cause was over and is back: a machine may be slow again for another."""
    cases = (brief.case, *brief.helpers)
    return any(case.flaps for case in cases if case.kind == brief.cause.hypothesis)


def _isolating(next_step: Action, brief: _Brief, config: FindingConfig) -> Action:
    """Return the next step with the nodes to evict together, where one of several is at fault in a job or in
    a group over several nodes."""
    of_group = brief.subject.type == "group" and not brief.case.made_of_ranks
    if not (of_group or brief.subject.type == "job") or brief.case.opened_at is None:
        return next_step
    if kind_of(brief.cause.hypothesis).all_slow:
        return next_step
    suspects = brief.suspects
    if of_group:
        if not brief.sure:
            return next_step
        suspects = tuple(
            Suspect(subject=s.subject, probability=s.probability * brief.confidence) for s in suspects
        )
    gpus = max(s.gpus for s in brief.suspicions)
    chosen = eviction(suspects, gpus=gpus, costs=config.costs)
    if chosen is None:
        return next_step
    return replace(next_step, text=f"{next_step.text} {in_words(chosen)}", eviction=chosen)


def _likeliest(brief: _Brief) -> list[Subject]:
    """Return the ranks of a group that are at least half as likely as the likeliest; all, if most are."""
    if brief.subject.type != "group" or not brief.suspects:
        return []
    likely = [s.subject for s in brief.suspects if s.probability >= 0.5 * brief.suspects[0].probability]
    return [s.subject for s in brief.suspects] if 2 * len(likely) > len(brief.suspects) else likely


def _unnamed(brief: _Brief) -> tuple[Evidence, ...]:
    """Return the evidence for suspects where no single machine is named, for one without a name, or for the
    rank that is named of a group."""
    if brief.culprit is not None:
        return (tensor_group.slowed_by(brief.culprit, brief.suspects),)
    if brief.subject.type == "group":
        return (tensor_group.note(brief.suspects),) if brief.case.made_of_ranks else ()
    if brief.subject.ranks is not None:
        return (likely_node.note(brief.subject.ranks, len({s.subject.rank for s in brief.own})),)
    return hang.note(brief.suspicions)


def _named(subject: Subject, helpers: tuple[Case, ...]) -> Subject:
    """Return the subject with the GPU's serial and UUID, where a helper about the same GPU has them."""
    for helper in helpers:
        other = helper.subject
        same = subject.gpu_index is not None and other.gpu_index == subject.gpu_index
        if same and other.gpu_uuid and not subject.gpu_uuid:
            serial = subject.serial or other.serial
            return _with(subject, gpu_uuid=other.gpu_uuid, serial=serial)
    return subject


def _with(subject: Subject, **changes: str | None) -> Subject:
    fields = {name: getattr(subject, name) for name in subject.__struct_fields__}
    return Subject(**(fields | changes))


def _numbered(subject: Subject, ranks: Iterable[Case]) -> Subject:
    """Return a group without coordinates with the ranks that it consists of: "8-11", or "8,11"."""
    numbers = sorted(case.subject.rank for case in ranks if case.subject.rank is not None)
    if subject.type != "group" or subject.coords or subject.ranks or not numbers:
        return subject
    first, last = numbers[0], numbers[-1]
    in_a_row = len(numbers) > 1 and numbers == list(range(first, last + 1))
    return _with(subject, ranks=f"{first}-{last}" if in_a_row else ",".join(map(str, numbers)))


def _evidence(suspicions: tuple[Suspicion, ...], subject: Subject) -> tuple[Evidence, ...]:
    """Return the strongest of each metric; of two groups of a job, that of the ``subject`` itself."""
    chosen: dict[tuple[str, str], tuple[bool, float, float, Evidence]] = {}
    for s in suspicions:
        own = s.subject.type != "job" or s.subject.coords == subject.coords
        for e in s.evidence:
            held = chosen.get((e.detector, e.metric))
            if held is None or (own, s.score, s.ts) > held[:3]:
                chosen[e.detector, e.metric] = (own, s.score, s.ts, e)
    return tuple(chosen[key][3] for key in sorted(chosen))[:MAX_EVIDENCE]


def _suspects(sources: Sources, suspicions: tuple[Suspicion, ...]) -> tuple[Suspect, ...]:
    if sources.case.subject.type == "group" and sources.case.made_of_ranks:
        return tensor_group.suspects(sources.ranks, sources.helpers)
    if sources.case.rule.hang:
        return hang.suspects(suspicions)
    return max(suspicions, key=lambda s: (bool(s.suspects), s.log_likelihood_ratio, s.detector)).suspects


def _blast(brief: _Brief) -> BlastRadius:
    return BlastRadius(
        jobs=tuple(sorted({s.subject.job_id for s in brief.suspicions if s.subject.job_id})),
        ranks=max(s.ranks for s in brief.suspicions),
        nodes=max(s.nodes for s in brief.suspicions),
        other_findings=tuple(
            finding_id(h.key, h.first_onset) for h in brief.helpers if h.rule.reported_as != "evidence"
        ),
    )


def _peers(case: Case, suspicions: tuple[Suspicion, ...]) -> tuple[int | None, str]:
    """Return with how many the subject was compared, and what they are: a node's peers are nodes."""
    if case.subject.node and case.subject.type == "node" and case.made_of_ranks:
        return max(s.nodes for s in suspicions) - 1, "other node"
    peers = max((e.peers.n for s in suspicions for e in s.evidence if e.peers is not None), default=None)
    if peers is not None and case.made_of_ranks:
        # Each rank was compared with its mates too.
        likely = case.subject.type == "node"
        peers -= max(s.ranks_likely_on_node if likely else s.ranks_in_group for s in suspicions) - 1
    return peers, "peer"


def _most(values: Iterable[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


def _price(rate: float, config: FindingConfig) -> float | None:
    return None if config.gpu_hour_price is None or not rate else round(rate * config.gpu_hour_price, 2)


@lru_cache
def _config_hash(config: FindingConfig) -> str:
    return hashlib.sha256(repr(config).encode()).hexdigest()[:12]
