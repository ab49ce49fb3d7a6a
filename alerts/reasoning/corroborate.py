"""When evidence suffices: an overwhelming source, two independent families, or both signals of a hang."""

import math
from collections.abc import Iterable

from alerts.cases.case import Case, slowed_part
from alerts.cases.lifecycle import NOTIFIED
from alerts.cases.update import is_repeat
from alerts.config import FindingConfig
from alerts.kind import Standing
from alerts.kinds import IDLE, PLANNED, RESCHEDULED, kind_of
from alerts.reasoning import hang
from slowrank.telemetry import HangVote, Subject, Suspicion

# How long machines must work again before a stop counts as over (``CERTAIN_SECONDS`` of
# ``detectors.job.progress``, a certain stall): a few samples at work are no new step.
WORK_SECONDS = 60.0

# For so long ranks may differ after their job has announced other work: they compile, search kernels and fill
# caches for its shapes. Chosen: some ten of the longest steps; a machine that becomes slow at just that time
# is named so much later.
WARM_UP_SECONDS = 120.0


def corroborated(case: Case, others: Iterable[Case], config: FindingConfig) -> bool:
    """Return whether the case may open, alone or with the other cases of its scope."""
    rule = case.rule
    if not case.active or _as_planned(case) or rule.reported_as == "evidence":
        return False
    if rule.hang:
        return hang.is_hang(_no_progress(case), _of_nodes(others))
    others = tuple(others)
    if any(other.active and other.kind in rule.not_beside for other in others):
        return False
    suspicions = case.suspicions()
    if rule.opens_alone or (
        any(s.overwhelming for s in suspicions) and not _warms_up(case, others, config.agree_within_seconds)
    ):
        return True
    families = _positive(suspicions)
    if not families:
        return False
    for other in others:
        if other.active and _at_once(case, other, config.agree_within_seconds) and same_place(case, other):
            families |= _positive(other.suspicions())
    if not rule.silence_counts:
        families.discard("silence")
    return len(families) >= 2


def suffices_alone(case: Case) -> bool:
    """Return whether a case opens without evidence of another family."""
    return case.rule.opens_alone or any(s.overwhelming for s in case.suspicions())


def excused(case: Case, others: Iterable[Case]) -> bool:
    """Return whether a case about a job is not to be reported.

    The job has changed by plan; or, if it was never found to hang, it has ended, pauses, or has stood still
    for too short a time. If it was found to hang before, what was reported then stands until this stop is
    found to be a hang as well.
    """
    if case.before_stop is not None or (_as_planned(case) and case.opened_at is None):
        return True
    if not case.rule.hang or case.opened_at is not None:
        return False
    return hang.early(_no_progress(case)) or hang.excused(_no_progress(case), _of_nodes(others))


def planned(case: Case, others: Iterable[Case], config: FindingConfig) -> bool:
    """Return whether a case that is not open yet began as its job announced a change."""
    if not case.rule.excused_by_plan or case.status != "suspected" or not case.active:
        return False
    declared = (s.onset for other in others if other.kind == PLANNED for s in other.suspicions())
    return any(abs(case.since - at) <= config.agree_within_seconds for at in declared)


def certain(case: Case, others: Iterable[Case]) -> bool:
    """Return whether a hang can be no pause any more."""
    return case.active and hang.certain(_no_progress(case), _of_nodes(others))


def is_open_about_job(case: Case) -> bool:
    """Return whether a job was found to hang, or to be slow without a culprit, and still does or is."""
    return (case.rule.hang or case.rule.no_culprit) and case.active and case.status in NOTIFIED


def awaits_next_attempt(case: Case, others: Iterable[Case]) -> bool:
    """Return whether a stop that was not found to be a hang is one where a machine of the job has failed."""
    if not case.rule.hang or case.status != "suspected" or not case.active:
        return False
    return hang.awaits_next_attempt(_no_progress(case), _of_nodes(others))


def over(case: Case, others: Iterable[Case]) -> bool:
    """Return whether the job of a hang has ended, so that nothing can be wrong any more."""
    return case.active and hang.ended(_no_progress(case), _of_nodes(others))


def released(case: Case, others: Iterable[Case]) -> bool:
    """Return whether a job that stands still has ended or has no machines any more."""
    return hang.ended(_no_progress(case), _of_nodes(others), how="released")


def gone(case: Case, others: Iterable[Case]) -> bool:
    """Return whether a job that stands still has ended or others have its machines: then it loses nothing."""
    return hang.ended(_no_progress(case), _of_nodes(others), how="reused")


def shown_by_machines(case: Case, others: Iterable[Case]) -> tuple[Suspicion, ...]:
    """Return what the machines of a hang have shown while it stands, without what was done about it."""
    idle = (other for other in others if other.kind == IDLE)
    return hang.while_it_stood(s for other in idle for s in other.suspicions_since(case.since))


def at_work_from(case: Case, others: Iterable[Case]) -> float:
    """Return from when on the machines of a job at a stop have worked for a minute again, infinite if not.

    It has moved then, although no source cleared: a job stage that was restarted an hour into the stop never
    raised it.
    """
    idle = (c for c in others if c.kind == IDLE and c.status != "expired" and c.cleared_at is not None)
    back = [c.cleared_at for c in idle if c.cleared_at is not None and c.cleared_at > case.since]
    return min(back, default=math.inf) + WORK_SECONDS


def already_ended(case: Case, s: Suspicion, others: Iterable[Case]) -> bool:
    """Return whether a suspicion is about a hang that is over, and only repeats it."""
    if not isinstance(s, HangVote) or not case.rule.hang or case.active:
        return False
    same_stop = case.cleared_at is None or s.onset <= case.cleared_at
    return is_repeat(case, s) or (same_stop and hang.ended((s,), _of_nodes(others)))


def same_place(a: Case, b: Case) -> bool:
    """Return whether one is about the other's GPU or node; telemetry kinds are about telemetry only."""
    if a.key == b.key or Standing.ASIDE in (a.rule.standing, b.rule.standing):
        return False
    return any(_same_gpu(one, two) for one in _places(a) for two in _places(b))


def same_unit(slow: Case, case: Case) -> bool:
    """Return whether a case is about the very GPU that is slow or one of a slow group, or about all of the
    slow node."""
    of_node = slow.subject.type == "node"
    if case.subject.type not in (("node",) if of_node else ("gpu", "rank")):
        return False
    return same_place(slow, case) and (of_node or _gpu(case.subject) is not None)


def related(a: Case, b: Case, config: FindingConfig) -> bool:
    """Return whether two cases of one scope have one cause.

    Either they began together, or the later one is a symptom that began while the earlier, a defect,
    was still there. Uneven work of a job explains nothing else that makes it slow or stops it, nor the
    other way round.
    """
    # The times first, which cost least: each case of a scope is compared with all others.
    return _dates_agree(a, b, config.agree_within_seconds) and same_place(a, b) and not _only_one_uneven(a, b)


def _dates_agree(a: Case, b: Case, window: float) -> bool:
    if _at_once(a, b, window):
        return True
    earlier, later = (a, b) if a.since <= b.since else (b, a)
    if earlier.cleared_at is not None and earlier.cleared_at < later.since - window:
        return False
    defect = earlier.rule.standing in (Standing.CAUSE, Standing.FATAL)
    return defect and later.rule.standing is Standing.SYMPTOM


def _only_one_uneven(a: Case, b: Case) -> bool:
    """Return whether of two cases of jobs that stopped, or are slow without a culprit, one is uneven work."""
    if not all(case.rule.no_culprit or case.rule.hang for case in (a, b)):
        return False
    one, two = (case.rule.no_culprit and "" in map(slowed_part, case.suspicions()) for case in (a, b))
    return one != two


def _warms_up(case: Case, others: Iterable[Case], window: float) -> bool:
    """Return whether a machine became slow as its job announced other work, and was not seen to be so after
    the warm-up."""
    if not case.rule.warms_up:
        return False
    planned = (s for other in others if other.kind == PLANNED for s in other.suspicions())
    announced = [s.onset for s in planned if s.detector == RESCHEDULED]
    return any(
        abs(case.since - at) <= window and case.last_seen_at < at + WARM_UP_SECONDS for at in announced
    )


def _as_planned(case: Case) -> bool:
    return case.by_plan and not any(kind_of(n).without_past for s in case.suspicions() for n in s.hypotheses)


def _no_progress(case: Case) -> list[HangVote]:
    return hang.votes_among(case.suspicions())


def _of_nodes(others: Iterable[Case]) -> list[HangVote]:
    idle = (other for other in others if other.kind == IDLE and other.active)
    return [vote for other in idle for vote in hang.votes_among(other.suspicions())]


def _at_once(a: Case, b: Case, window: float) -> bool:
    return abs(a.since - b.since) <= window


def _positive(suspicions: Iterable[Suspicion]) -> set[str]:
    # That telemetry is missing accuses no machine.
    return {s.family for s in suspicions if s.log_likelihood_ratio > 0 and s.family != "telemetry"}


def _places(case: Case) -> list[Subject]:
    """Return whom the case is about: of a group, which has only a part of its node, its ranks."""
    if case.subject.type != "group":
        return [case.subject]
    # A group is made of the suspicions of its ranks, or is one suspicion that lists them.
    ranks = [suspect.subject for s in case.suspicions() for suspect in s.suspects]
    return ranks or [s.subject for s in case.suspicions()]


def _same_gpu(a: Subject, b: Subject) -> bool:
    if a.rank is not None and b.rank is not None and (a.job_id, a.rank) != (b.job_id, b.rank):
        return False
    # Without a number it is the whole node, and so any of its GPUs.
    one, two = _gpu(a), _gpu(b)
    return one is None or two is None or one == two


def _gpu(subject: Subject) -> int | None:
    return subject.gpu_index if subject.gpu_index is not None else subject.local_rank
