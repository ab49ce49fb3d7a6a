"""A case: the evidence about one kind at one subject, from the first suspicion until it is forgotten."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from alerts.cases.cost.gpu_hours_lost import GpuHoursLost
from alerts.cases.cost.slow_time import SlowTime
from alerts.cases.lifecycle import LIVE
from alerts.cases.source import Source, of_steps
from alerts.config import FindingConfig
from alerts.finding import Status, dedup_key
from alerts.kind import Kind
from alerts.kinds import IDLE, kind_of
from slowrank.telemetry import HangVote, Subject, Suspicion
from slowrank.telemetry.records import LONG_STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The state of one (subject, kind); immutable, moved on by ``update`` and by its scope.

    Times are event times. ``first_onset`` is part of the finding's id and never changes; ``onset`` is the
    earliest that a source reported while no other source outweighed it; ``since`` is the onset of the present
    activity, which is compared with those of other cases. ``cleared_at``: when the last source cleared.
    ``ready_at``: since when its evidence suffices while it is held back, for others of its rack, switch or
    node or for what explains it. ``flap_times``: the recent relapses.

    ``hurts``: it measurably slows a job down, and has for ``slow``. ``sustained``: that was worth a page once
    since it opened. ``made_of_ranks``: the case of a node or tensor-parallel group,
    gathered from its ranks' cases; the middle one dates it (``grouping``). ``leads_mates``: the slow others
    of its tensor-parallel group wait for this rank. ``certain``: a hang that was once known to be no pause.
    ``by_plan``: its present activity began as its job announced a change of its work.
    ``before_stop``: a job that was found to hang, as it was before it stopped anew; None once the new stop is
    found to be a hang as well. ``shown``: of a hang that is over, what its machines showed while it stood.
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
    account: GpuHoursLost = field(default_factory=GpuHoursLost)
    status: Status = "suspected"
    opened_at: float | None = None
    ended_at: float | None = None
    cleared_at: float | None = None
    ready_at: float | None = None
    occurrences: int = 1
    flaps: int = 0
    flap_times: tuple[float, ...] = ()
    intermittent: bool = False
    hurts: bool = False
    slow: SlowTime = field(default_factory=SlowTime)
    sustained: bool = False
    made_of_ranks: bool = False
    leads_mates: bool = False
    certain: bool = False
    by_plan: bool = False
    before_stop: Self | None = None
    shown: tuple[Suspicion, ...] = ()

    @property
    def rule(self) -> Kind:
        """The row of its kind."""
        return kind_of(self.kind)

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return self.status in LIVE

    @property
    def active(self) -> bool:
        """Whether any source still raises it."""
        return any(source.active for source in self.sources.values())

    def fresh_at(self, ts: float, config: FindingConfig) -> bool:
        """Return whether it is still raised and was reported lately: old evidence opens nothing."""
        return self.active and ts - self.last_seen_at <= config.suspected_expires_after_seconds

    @property
    def current(self) -> dict[str, Source]:
        """The active sources, or, when all have cleared, those that cleared last.

        Beside slow steps, hardware evidence counts only once it is confirmed by them: a rank that is slow
        also shows other levels than its siblings when the job pauses and it computes nothing.
        """
        last = max((source.until for source in self.sources.values()), default=math.inf)
        chosen = {name: source for name, source in self.sources.items() if source.until == last}
        timed = any(of_steps(source.latest) for source in chosen.values())
        return {n: s for n, s in chosen.items() if not timed or of_steps(s.latest) or s.confirmed}

    def suspicions(self) -> tuple[Suspicion, ...]:
        """Return the latest suspicions of the current sources."""
        return tuple(source.latest for source in self.current.values())

    def suspicions_since(self, ts: float) -> tuple[Suspicion, ...]:
        """Return the latest suspicions of the sources that were active after ``ts``."""
        return tuple(source.latest for source in self.sources.values() if source.until > ts)

    def accrued(self, ts: float) -> Self:
        """Return it with the cost of a stopped job until ``ts``."""
        account = self.account.accrued(ts, live=self.live)
        return self if account is self.account else replace(self, account=account)

    def released(self, ts: float) -> Self:
        """Return it for a stopped job that has no machines any more from ``ts`` on, or an earlier time."""
        account = self.account.released(ts, live=self.live)
        return self if account is self.account else replace(self, account=account)

    def moved(self, ts: float) -> Self:
        """Return it for a job that does not stand still any more, from ``ts`` on."""
        account = self.account.moved(ts, live=self.live)
        return self if account is self.account else replace(self, account=account)

    def without_stop(self) -> Self:
        """Return it without a stop that was over, or reported no more, before it was found to be a hang."""
        if self.before_stop is None:
            return self
        # What the stop cost is dropped, unless it is on the account of a case that explains it by now.
        account = self.before_stop.account
        lost, charged_to = min(self.account.lost, account.lost), self.account.charged_to
        return replace(self.before_stop, account=replace(account, lost=lost, charged_to=charged_to))

    def all_cleared(self, ts: float) -> Self:
        """Return it with every source cleared at ``ts``, unless it was before."""
        sources = {n: replace(s, until=ts) if s.active else s for n, s in self.sources.items()}
        cleared = ts if self.cleared_at is None else self.cleared_at
        return replace(self, sources=sources, cleared_at=cleared, account=replace(self.account, rate=0.0))


def case_kind(s: Suspicion) -> str:
    """Return the kind of the case that a suspicion belongs to: votes of nodes on a hang have their own."""
    return IDLE if isinstance(s, HangVote) and s.signal != "no_progress" else s.kind


def case_subject(s: Suspicion) -> Subject:
    """Return the subject of its case: what nodes report of a job is about the job, whichever node it was."""
    if kind_of(s.kind).of_job and s.subject.job_id is not None and s.subject.type != "job":
        return Subject(type="job", cluster=s.cluster, job_id=s.subject.job_id, attempt=s.subject.attempt)
    return s.subject


def case_key(s: Suspicion) -> str:
    """Return the dedup key of the finding that a suspicion argues for: it names the case."""
    part = slowed_part(s)
    return dedup_key(case_subject(s), case_kind(s)) + (f"/{part}" if part else "")


def slowed_part(s: Suspicion) -> str:
    """Return what of a slow job has become slow, where no machine stands out; empty for uneven work.

    Uneven work is how a job is built and lasts as long as the job does: under one key it would hide what
    happens later, or lend it its onset and cost.
    """
    if not kind_of(s.kind).no_culprit or not s.hypotheses:
        return ""
    likeliest = min(s.hypotheses, key=lambda name: (-s.hypotheses[name], name))
    if likeliest.partition(".")[0] == "imbalance":
        return ""
    return "transfers" if kind_of(likeliest).transfers == "slow" else "waits"


def in_single_steps(s: Suspicion) -> bool:
    """Return whether what is slow is so in single steps, again and again."""
    return any(e.metric.endswith(LONG_STEPS) for e in s.evidence)
