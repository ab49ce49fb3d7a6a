"""A case: everything heard about one kind at one subject, from the first raise until it is forgotten."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from alerts.account import accounted, added, moved
from alerts.config import FindingConfig
from alerts.finding import Status, dedup_key
from alerts.lifecycle import LIVE, transition
from alerts.severity import hurts
from slowrank.telemetry import Subject, Suspicion


@dataclass(frozen=True, slots=True)
class Source:
    """One detector's voice in a case: what it last said while it was over its threshold.

    ``until``: when it cleared, infinite while it holds. ``borne_out``: whether steps were slow when what it
    says began, or while it held.
    """

    latest: Suspicion
    until: float = math.inf
    borne_out: bool = False

    @property
    def active(self) -> bool:
        """Whether it has not cleared."""
        return self.until == math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The state of one (subject, kind); immutable, moved on by ``hear`` and by its scope.

    ``first_onset`` names the finding for ever; ``onset`` is the earliest any source put it that no other one
    outweighed then; ``since`` is the onset of the present activity, against which other cases are matched.
    ``lost`` counts GPU-hours, ``rate`` how many slow steps cost an hour; ``led_by`` is the case that told its
    story last and has what it ``lost``. ``stalled``: the job of a hang, of ``gpus``, stands still, which is
    in ``lost`` up to ``accounted_to``. ``hurts``: whether it measurably slows a job down.
    ``made_of_ranks``: a node's or a tensor-parallel group's case gathered from its ranks' cases, of which the
    middle one dates it (see ``grouping``). ``leads_mates``: it is known to be the one that the slow others of
    its group wait for. ``ready_at``: since when its evidence suffices, while it is held back for others of
    its rack, switch or node, or for what explains it. ``certain``: whether a hang found was ever known to be
    no pause. ``by_plan``: whether its present activity began as its job changed by plan.
    """

    key: str
    kind: str
    subject: Subject
    first_seen_at: float
    first_onset: float
    onset: tuple[float, float, float]
    since: float
    last_seen_at: float
    sources: Mapping[str, Source]
    status: Status = "suspected"
    opened_at: float | None = None
    ended_at: float | None = None
    cleared_at: float | None = None
    occurrences: int = 1
    flaps: int = 0
    flap_times: tuple[float, ...] = ()
    intermittent: bool = False
    lost: float = 0.0
    rate: float = 0.0
    gpus: int = 0
    stalled: bool = False
    accounted_to: float = 0.0
    led_by: str | None = None
    hurts: bool = False
    made_of_ranks: bool = False
    leads_mates: bool = False
    ready_at: float | None = None
    certain: bool = False
    by_plan: bool = False

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return self.status in LIVE

    @property
    def active(self) -> bool:
        """Whether any source still raises it."""
        return any(source.active for source in self.sources.values())

    def fresh_at(self, ts: float, config: FindingConfig) -> bool:
        """Return whether it is still raised and was heard of lately: old news opens nothing."""
        return self.active and ts - self.last_seen_at <= config.suspected_expires_after_seconds

    @property
    def speaking(self) -> dict[str, Source]:
        """The sources that are active, or, when all have cleared, those that cleared last.

        What a machine shows beside its slow steps is left out until it is borne out: a rank that is slow
        shows other levels than its siblings also when the job pauses, and no longer computes.
        """
        last = max((source.until for source in self.sources.values()), default=math.inf)
        chosen = {name: source for name, source in self.sources.items() if source.until == last}
        timed = any(of_steps(source.latest) for source in chosen.values())
        return {n: s for n, s in chosen.items() if not timed or of_steps(s.latest) or s.borne_out}

    def voices(self) -> tuple[Suspicion, ...]:
        """Return what the sources say that speak."""
        return tuple(source.latest for source in self.speaking.values())


IDLE = "hang.idle"
"""Inside only: the kind of the case that gathers key B of a hang. It is evidence and never a finding."""

CONGESTION = "congestion"
"""What the nodes of a job say of its network: evidence of why the job is slow, and never a finding."""

PLANNED = "job.planned"
"""That a job declares a change of its work: what is other than it was from then on is meant so, and it is
never a finding."""

EVIDENCE_ONLY = frozenset({IDLE, CONGESTION, PLANNED})
OF_JOB = frozenset({"hang.job", CONGESTION, PLANNED})
"""Kinds that are about the job, whichever node reports them."""

NO_PROGRESS = frozenset({"timing", "job", "silence"})
"""Families that can turn key A of a hang; the others turn key B: the machines do not work."""


def case_kind(s: Suspicion) -> str:
    """Return the kind of the case that hears the suspicion."""
    return IDLE if s.kind == "hang.job" and s.family not in NO_PROGRESS else s.kind


def case_subject(s: Suspicion) -> Subject:
    """Return whom the case is about: what nodes say of a job is about the job, whichever node reports it."""
    if s.kind in OF_JOB and s.subject.job_id is not None and s.subject.type != "job":
        return Subject(type="job", cluster=s.cluster, job_id=s.subject.job_id, attempt=s.subject.attempt)
    return s.subject


def case_key(s: Suspicion) -> str:
    """Return the dedup key of the finding the suspicion argues for: it names the case."""
    return dedup_key(case_subject(s), case_kind(s))


def hear(case: Case | None, s: Suspicion, config: FindingConfig) -> Case | None:
    """Return the case after one suspicion; suspicions come in order of event time."""
    if s.state == "clear":
        return None if case is None else _cleared(case, s)
    if case is None:
        return _opened(s)
    heard = accounted(case, s.ts)
    if not case.active:
        heard = _resumed(heard, s, config)
    stops = case.kind == "hang.job"
    sources = _borne_out({**heard.sources, voice(s): _source(heard, s)}, s, config)
    return replace(
        heard,
        # In an order of their own: who spoke first must not show in a finding (docs/decisions/0006).
        sources=dict(sorted(sources.items())),
        onset=heard.onset if _outweighed(heard, s) else min(heard.onset, _onset(s)),
        since=min(heard.since, s.onset),
        last_seen_at=max(heard.last_seen_at, s.ts),
        cleared_at=None,
        lost=heard.lost + added(heard.sources.get(voice(s)), s),
        rate=_rate(sources),
        gpus=s.gpus if stops else 0,
        stalled=stops,
        hurts=_hurts(case.kind, sources, case.hurts),
    )


def repeats(case: Case, s: Suspicion) -> bool:
    """Return whether a source says what it said last: of the same onset, and no surer."""
    before = case.sources.get(voice(s))
    if before is None:
        return False
    last = before.latest
    return (last.onset, last.severity, last.score) == (s.onset, s.severity, s.score)


def of_steps(s: Suspicion) -> bool:
    """Return whether it is step times that speak of a slow machine."""
    return s.kind == "straggler.fail_slow" and s.family == "timing"


def _source(case: Case, s: Suspicion) -> Source:
    """Return the source of ``s``; what has been borne out stays so while it holds."""
    before = case.sources.get(voice(s))
    if before is None or not before.active or before.latest.onset != s.onset:
        return Source(s)
    return replace(before, latest=s)


def _borne_out(sources: dict[str, Source], s: Suspicion, config: FindingConfig) -> dict[str, Source]:
    """Return the sources after ``s`` was heard: what machines show is weighed against the slow steps.

    It is borne out by steps that became slow with it, or that were slow after it began and before it was
    last told: a pause has none.
    """
    if s.kind != "straggler.fail_slow":
        return sources
    steps = [source.latest for source in sources.values() if source.active and of_steps(source.latest)]
    if not steps:
        return sources

    def bears(slow: Suspicion, shown: Suspicion) -> bool:
        together = abs(slow.onset - shown.onset) <= config.agree_within_seconds
        return together or shown.onset_hi < slow.ts <= shown.ts

    return {
        name: replace(source, borne_out=source.borne_out or any(bears(slow, source.latest) for slow in steps))
        for name, source in sources.items()
    }


def _outweighed(case: Case, s: Suspicion) -> bool:
    """Return whether another source says more than ``s``: what only supports it does not date it anew."""
    own = voice(s)
    others = (source.latest for name, source in case.sources.items() if name != own)
    return any(other.log_likelihood_ratio > s.log_likelihood_ratio for other in others)


def _opened(s: Suspicion) -> Case:
    sources = {voice(s): Source(s)}
    kind = case_kind(s)
    fresh = Case(
        key=case_key(s),
        kind=kind,
        subject=case_subject(s),
        first_seen_at=s.ts,
        first_onset=s.onset,
        onset=_onset(s),
        since=s.onset,
        last_seen_at=s.ts,
        sources=sources,
        lost=added(None, s),
        rate=_rate(sources),
        gpus=s.gpus if kind == "hang.job" else 0,
        stalled=kind == "hang.job",
        hurts=_hurts(kind, sources, False),
        # A stop costs from its onset on, before anybody noticed.
        accounted_to=min(s.onset, s.ts),
    )
    return accounted(fresh, s.ts)


def _resumed(case: Case, s: Suspicion, config: FindingConfig) -> Case:
    recent = (*(t for t in case.flap_times if s.ts - t <= config.flap_within_seconds), s.ts)
    return replace(
        case,
        status=transition(case.status, "raised_again"),
        ended_at=None,
        since=s.onset,
        flaps=case.flaps + 1,
        flap_times=recent,
        # `case` is as it was before the relapse: a hang that had ended has to be proved again.
        certain=case.certain and case.live,
        by_plan=False,
        intermittent=case.intermittent or len(recent) >= config.flap_count,
        accounted_to=case.accounted_to if case.stalled else min(s.onset, s.ts),
    )


def _cleared(case: Case, s: Suspicion) -> Case:
    name = voice(s)
    case = moved(case, s.ts)
    if name not in case.sources or not case.sources[name].active:
        return case
    lost = case.lost + added(case.sources[name], s)
    sources = {**case.sources, name: replace(case.sources[name], until=s.ts)}
    quiet = not any(source.active for source in sources.values())
    cleared_at = s.ts if quiet else None
    return replace(case, sources=sources, cleared_at=cleared_at, lost=lost, rate=_rate(sources))


def silenced(case: Case, ts: float) -> Case:
    """Return the case with no source that raises it any more, from ``ts`` on."""
    sources = {
        name: replace(source, until=ts) if source.active else source for name, source in case.sources.items()
    }
    cleared = ts if case.cleared_at is None else case.cleared_at
    return replace(case, sources=sources, cleared_at=cleared, rate=0.0)


def _rate(sources: Mapping[str, Source]) -> float:
    return math.fsum(s.latest.lost.gpus for s in sources.values() if s.active and s.latest.lost)


def _hurts(kind: str, sources: Mapping[str, Source], before: bool) -> bool:
    if kind in EVIDENCE_ONLY:
        return False
    return any(hurts(s.latest.job_slowdown_ratio, before) for s in sources.values() if s.active)


def _onset(s: Suspicion) -> tuple[float, float, float]:
    return (s.onset, s.onset_lo, s.onset_hi)


def voice(s: Suspicion) -> str:
    """Return the name of the source within its case: one detector may speak of a job from many nodes."""
    return f"{s.detector}/{s.family}/{s.subject.node or ''}"
