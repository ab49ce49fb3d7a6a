"""How one suspicion changes its case: opened, refreshed, resumed after a pause, or cleared."""

import math
from collections.abc import Mapping
from dataclasses import replace

from alerts.cases.case import Case, case_key, case_kind, case_subject
from alerts.cases.cost.gpu_hours_lost import GpuHoursLost
from alerts.cases.cost.slow_time import SlowTime
from alerts.cases.lifecycle import transition
from alerts.cases.source import (
    Source,
    latest_announced,
    loss_rate,
    new_loss,
    refreshed,
    source_id,
    with_confirmed,
    with_first_past,
)
from alerts.config import FindingConfig
from alerts.harm import harm, hurts
from alerts.kinds import kind_of
from slowrank.telemetry import HangVote, Suspicion


def update(case: Case | None, s: Suspicion, config: FindingConfig) -> Case | None:
    """Return the case after one suspicion; suspicions come in order of event time."""
    if s.state == "clear":
        return None if case is None else _cleared(case, s)
    if case is None:
        return _opened(s)
    if case.rule.hang and case.opened_at is None and not case.active:
        # A stop that was over before it was found to be a hang is no part of the next one, but for the id,
        # which may have been shown.
        return replace(_opened(s), first_onset=case.first_onset)
    accrued = case.accrued(s.ts)
    if not case.active:
        accrued = _resumed(accrued, s, config)
    before = accrued.sources.get(source_id(s))
    s = with_first_past(before, s, case.first_seen_at)
    sources = latest_announced({**accrued.sources, source_id(s): refreshed(before, s)})
    sources = with_confirmed(sources, s, config)
    slows = _hurts(case.kind, sources, case.hurts)
    return replace(
        accrued,
        # Sorted, so that the order in which sources came in does not show in a finding (docs/decisions/0006).
        sources=dict(sorted(sources.items())),
        onset=accrued.onset if _outweighed(accrued, s) else min(accrued.onset, _onset(s)),
        since=min(accrued.since, s.onset),
        last_seen_at=max(accrued.last_seen_at, s.ts),
        cleared_at=None,
        account=_charged(accrued.account, new_loss(before, s), case.kind, sources, s),
        hurts=slows,
        slow=_slowed(accrued.slow, sources, s, hurts=slows),
    )


def is_repeat(case: Case, vote: HangVote) -> bool:
    """Return whether a source reports what it reported last: the same onset, certainty, weight and score."""
    before = case.sources.get(source_id(vote))
    last = None if before is None else before.latest
    if not isinstance(last, HangVote):
        return False
    return _reported(last) == _reported(vote)


def _reported(vote: HangVote) -> tuple[float, bool, bool, float]:
    return vote.onset, vote.certain, vote.alone, vote.score


def _charged(
    account: GpuHoursLost, loss: float, kind: str, sources: Mapping[str, Source], s: Suspicion
) -> GpuHoursLost:
    stops = kind_of(kind).hang
    rate, gpus = loss_rate(sources.values()), s.gpus if stops else 0
    return replace(account, lost=account.lost + loss, rate=rate, gpus=gpus, stalled=stops)


def _outweighed(case: Case, s: Suspicion) -> bool:
    """Return whether another source is stronger than ``s``: weaker evidence does not change the onset."""
    own = source_id(s)
    others = (source.latest for name, source in case.sources.items() if name != own)
    return any(other.log_likelihood_ratio > s.log_likelihood_ratio for other in others)


def _opened(s: Suspicion) -> Case:
    sources, kind = {source_id(s): refreshed(None, s)}, case_kind(s)
    # A stop costs from its onset on, before it was detected.
    account = _charged(GpuHoursLost(accrued_to=min(s.onset, s.ts)), new_loss(None, s), kind, sources, s)
    slows = _hurts(kind, sources, False)
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
        account=account,
        hurts=slows,
        slow=_slowed(SlowTime(), sources, s, hurts=slows),
    )
    return fresh.accrued(s.ts)


def _resumed(case: Case, s: Suspicion, config: FindingConfig) -> Case:
    recent = (*(t for t in case.flap_times if s.ts - t <= config.flap_within_seconds), s.ts)
    # A job that still stands has been counted up to then; any other loses nothing between two spells.
    accrued_to = case.account.accrued_to if case.account.stalled else min(s.onset, s.ts)
    hang = case.rule.hang
    return replace(
        case,
        # Each stop has to be found a hang: the next pause of a job that hung once is no relapse.
        status="suspected" if hang else transition(case.status, "raised_again"),
        before_stop=case if hang else None,
        shown=(),
        ended_at=None,
        since=s.onset,
        flaps=case.flaps + 1,
        flap_times=recent,
        # ``case`` is as it was before the relapse: a hang that had ended has to be proved again.
        certain=case.certain and case.live,
        by_plan=False,
        # What slows the job again within the recovery of a finding adds to what it has cost so far.
        slow=case.slow if case.live else case.slow.anew(),
        sustained=case.sustained and case.live,
        intermittent=case.intermittent or len(recent) >= config.flap_count,
        account=replace(case.account, accrued_to=accrued_to, released_at=math.inf),
    )


def _cleared(case: Case, s: Suspicion) -> Case:
    name = source_id(s)
    # Whatever clears first, the job moves again: its stop costs no more.
    case = case.moved(s.ts)
    if name not in case.sources or not case.sources[name].active:
        return case
    sources = {**case.sources, name: replace(case.sources[name], until=s.ts, cleared=True)}
    lost = case.account.lost + new_loss(case.sources[name], s)
    account = replace(case.account, lost=lost, rate=loss_rate(sources.values()))
    cleared_at = None if any(source.active for source in sources.values()) else s.ts
    cleared = replace(case, sources=sources, cleared_at=cleared_at, account=account)
    return cleared if cleared_at is None else cleared.without_stop()


def _hurts(kind: str, sources: Mapping[str, Source], before: bool) -> bool:
    if kind_of(kind).reported_as == "evidence":
        return False
    latest = (source.latest for source in sources.values() if source.active)
    return any(hurts(harm(s.job_slowdown_ratio, s.slowdown_ratio), before) for s in latest)


def _slowed(slow: SlowTime, sources: Mapping[str, Source], s: Suspicion, *, hurts: bool) -> SlowTime:
    """Return for how long a case has slowed its job, with what ``s`` adds."""
    if harm(s.job_slowdown_ratio, s.slowdown_ratio) is None:
        return slow
    if not hurts:
        return slow.passed(s.ts)
    active = (source.latest for source in sources.values() if source.active)
    ratios = (harm(other.job_slowdown_ratio, other.slowdown_ratio) for other in active)
    return slow.extended(s.onset, s.ts, max(ratio for ratio in ratios if ratio is not None))


def _onset(s: Suspicion) -> tuple[float, float, float]:
    return (s.onset, s.onset_lo, s.onset_hi)
