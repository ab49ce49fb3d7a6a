"""When all ranks of a tensor-parallel group became slow together: one of them is slow, and the others wait.

Where ``compute_seconds`` includes the group's collectives, step times do not show which. A group that spans
nodes comes from the job stage as one suspicion, because a scope holds the cases of one node.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from alerts.cases.case import Case
from alerts.cases.gathered import made, revived, slow_together
from alerts.config import FindingConfig
from alerts.kind import Standing
from alerts.reasoning.corroborate import same_place
from alerts.reasoning.fusion import family_votes, softmax
from slowrank.telemetry import Evidence, Subject, Suspicion
from slowrank.telemetry.records import Suspect

GroupId = tuple[str | None, tuple[tuple[str, int], ...]]
"""The job, and the coordinates that the ranks of a group share, or where on its node or in it they begin."""

# Log-odds of the rank that is clearly slower than its mates (chosen: as one weak hardware sign).
_SLOWEST = 2.0

# Log-odds of hardware evidence that names a rank of a group (chosen: a single XID 74; a temperature that rose
# is less).
_SUFFICES = 1.5


def timing_of(case: Case) -> Suspicion | None:
    """Return the suspicion that compares a rank's times with its tensor-parallel group, if it is in one."""
    if case.made_of_ranks or "group" not in case.rule.gathered_into:
        return None
    return _of_a_rank(case)


def _of_a_rank(case: Case) -> Suspicion | None:
    # It stays in its group when its times are normal again and another source still holds.
    return next((v.latest for v in case.sources.values() if v.latest.ranks_in_group >= 2), None)


def group_of(case: Case) -> GroupId | None:
    """Return the group that the case is about, or whose rank it is about."""
    timing = _of_a_rank(case) if case.subject.type == "group" else timing_of(case)
    if timing is not None:
        return timing.subject.job_id, shared(timing.subject) or _place(timing)
    return (case.subject.job_id, shared(case.subject)) if case.subject.type == "group" else None


def is_mate(case: Case, group: Case) -> bool:
    """Return whether ``case`` is about a rank of what ``group`` is about, or leads as the slowest."""
    if group.subject.type != "group" and not group.leads_mates:
        return False
    return case.key != group.key and timing_of(case) is not None and group_of(case) == group_of(group)


def found(cases: Mapping[str, Case], ts: float, config: FindingConfig) -> dict[str, Case]:
    """Return the cases of groups that have come to be slow together, or are led by their slowest rank."""
    mates: dict[tuple[str, GroupId], list[Case]] = {}
    for _, case in sorted(cases.items()):
        group_id = group_of(case)
        if group_id is not None and not case.made_of_ranks:
            mates.setdefault((case.kind, group_id), []).append(case)
    groups = {(c.kind, group_of(c)): c for c in cases.values() if c.subject.type == "group"}
    taken = {case.key for case in groups.values() if case.live}
    changes = [_changed(ranks, groups.get(key), taken, ts, config) for key, ranks in mates.items()]
    return {case.key: case for changed in changes for case in changed}


def _changed(
    ranks: list[Case], group: Case | None, taken: Collection[str], ts: float, config: FindingConfig
) -> Iterable[Case]:
    over = [replace(c, leads_mates=False) for c in ranks if c.leads_mates and not c.live]
    if (group is not None and group.active and group.live) or any(c.leads_mates and c.live for c in ranks):
        return over
    timing = {c.key: s for c in ranks if c.fresh_at(ts, config) and (s := timing_of(c)) in c.suspicions()}
    fresh = {key: s for key, s in timing.items() if s is not None}
    leader = next((c for c in ranks if c.key in fresh and fresh[c.key].mates == "less_slow"), None)
    if leader is not None:
        return [*over, replace(leader, leads_mates=True)]
    together = slow_together((c for c in ranks if c.key in fresh), config)
    size = max((s.ranks_in_group for s in fresh.values()), default=math.inf)
    if len(together) < size or any(fresh[c.key].mates != "as_slow" for c in together):
        return over
    whole = made(_subject(together[0]), together, ts) if group is None else revived(group, together)
    # Without coordinates a node has one finding of a group at a time: its subject would be the same.
    if group is None and whole.key in taken:
        return over
    # It is held no longer than its ranks would have been.
    middle = together[(len(together) - 1) // 2]
    ready = min((c.ready_at for c in together if c.ready_at is not None), default=None)
    return [*over, replace(whole, ready_at=ready, since=middle.since)]


def ranks_of(group: Case, cases: Mapping[str, Case]) -> tuple[Case, ...]:
    """Return the ranks that a group consists of, also those that are well again; of any other case none."""
    if group.subject.type != "group":
        return ()
    mates = (case for _, case in sorted(cases.items()) if case.kind == group.kind)
    return tuple(case for case in mates if is_mate(case, group))


def suspects(mates: Collection[Case], helpers: Collection[Case]) -> tuple[Suspect, ...]:
    """Return the ranks of a group, likeliest first: alike, but for what hardware shows and who is slowest."""
    odds = {m.key: _log_odds(m, helpers) for m in mates}
    shares = softmax(odds) if odds else {}
    listed = sorted(mates, key=lambda m: (-shares[m.key], m.subject.rank or 0, m.key))
    return tuple(Suspect(subject=m.subject, probability=round(shares[m.key], 4)) for m in listed)


def culprit(
    group: Case, mates: Collection[Case], helpers: Collection[Case], config: FindingConfig
) -> Case | None:
    """Return the one rank of a group that hardware accuses, if it accuses no other and step times do not.

    What its GPU has shown since long before the group became slow is not why.
    """
    recent = [h for h in helpers if h.since >= group.since - config.agree_within_seconds]
    votes = {m.key: vote for m in mates if (vote := _hardware_vote(m, recent)) > 0.0}
    slowest = {m.key for m in mates if (timing := timing_of(m)) is not None and timing.mates == "less_slow"}
    if len(votes) != 1 or max(votes.values()) < _SUFFICES or not slowest <= votes.keys():
        return None
    return next(m for m in mates if m.key in votes)


def slowed_by(one: Case, mates: Collection[Suspect]) -> Evidence:
    """Return why the whole group of the rank that is named is slow."""
    others = ", ".join(str(m.subject.rank) for m in mates if m.subject.rank != one.subject.rank)
    return Evidence(
        metric="tensor_group.ranks",
        unit="1",
        detector="tensor_group",
        value=float(len(mates)),
        note=f"ranks {others} of its tensor-parallel group wait for it within their compute_seconds: they "
        "became slow with it, and no telemetry of their GPUs shows why",
    )


def note(mates: Collection[Suspect]) -> Evidence:
    """Return why no single rank is named."""
    return Evidence(
        metric="tensor_group.ranks",
        unit="1",
        detector="tensor_group",
        value=float(len(mates)),
        note="they became slow together, and equally: they wait for each other within their compute_seconds; "
        "which one is slow, step times do not show",
    )


def _log_odds(mate: Case, helpers: Collection[Case]) -> float:
    """Return how much more than its mates a rank is to blame."""
    timing = timing_of(mate)
    slowest = _SLOWEST if timing is not None and timing.mates == "less_slow" else 0.0
    return slowest + _hardware_vote(mate, helpers)


def _hardware_vote(mate: Case, helpers: Collection[Case]) -> float:
    """Return how strongly hardware accuses a rank, in log-odds.

    A GPU that waits draws less power, too: only what would explain slowness counts.
    """
    votes = family_votes(
        s for h in helpers if _is_hardware(h) and same_place(mate, h) for s in h.suspicions()
    )
    return math.fsum(max(votes[family], 0.0) for family in sorted(votes))


def _is_hardware(case: Case) -> bool:
    one_gpu = case.subject.gpu_index is not None or case.subject.rank is not None
    return one_gpu and case.active and case.rule.standing in (Standing.CAUSE, Standing.FATAL)


def _subject(rank: Case) -> Subject:
    timing = timing_of(rank)
    assert timing is not None
    first = _place(timing)[0][1] if not timing.subject.node and not timing.subject.coords else None
    return Subject(
        type="group",
        cluster=timing.subject.cluster,
        node=timing.subject.node,
        job_id=timing.subject.job_id,
        attempt=timing.subject.attempt,
        coords=dict(shared(timing.subject)) or None,
        rack=timing.subject.rack,
        ranks=None if first is None else f"{first}-{first + timing.ranks_in_group - 1}",
    )


def _place(timing: Suspicion) -> tuple[tuple[str, int], ...]:
    """Return where on its node the group of a rank without coordinates begins, or in the job where no row
    names its node: its ranks are in a row."""
    subject, size = timing.subject, timing.ranks_in_group
    name, place = ("local_rank", subject.local_rank) if subject.node else ("rank", subject.rank)
    return () if place is None else ((name, place // size * size),)


def shared(subject: Subject) -> tuple[tuple[str, int], ...]:
    """Return the coordinates that a rank has in common with its tensor-parallel group."""
    return tuple(sorted((k, v) for k, v in (subject.coords or {}).items() if k != "tp"))
