"""When nearly all ranks of a node are slow, the node is: the node's case, made of its ranks' cases."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from alerts.case import Case
from alerts.config import FindingConfig
from alerts.finding import dedup_key
from alerts.lifecycle import transition
from slowrank.telemetry import Subject, Suspicion

KINDS = ("straggler.fail_slow", "data.loader_slow")
_ONE_GPU = ("rank", "gpu")


def grouped(member: Case, group: Case, config: FindingConfig) -> bool:
    """Return whether ``member`` is one of the slow ranks that ``group``, a node's case, is made of."""
    if not _is_group(group) or member.kind != group.kind or not _groupable(member):
        return False
    began = group.since - config.agree_within_seconds
    ended = group.cleared_at if not group.active else None
    return member.since >= began and (ended is None or member.since <= ended)


def members_of(group: Case, cases: Mapping[str, Case], config: FindingConfig) -> tuple[Case, ...]:
    """Return the rank cases in a node's case; a case of any other kind has none."""
    if not _is_group(group):
        return ()
    return tuple(case for _, case in sorted(cases.items()) if grouped(case, group, config))


def among_slow_ranks(case: Case, cases: Mapping[str, Case], config: FindingConfig) -> bool:
    """Return whether other ranks of the node became slow together with this one: all may be, before long.

    Where all of them were until lately, the first of them to be slow again is enough.
    """
    if not _is_measured(case):
        return False
    if any(_is_group(c) and c.kind == case.kind and c.live and not c.active for c in cases.values()):
        return True
    others = [c for c in cases.values() if c.kind == case.kind and c.active and _is_measured(c)]
    together = [c for c in others if abs(c.since - case.since) <= config.agree_within_seconds]
    jobs = _jobs_of(together)
    return len(together) > 1 and _running(jobs) >= config.node_group_size and _elsewhere(jobs)


def with_node_group(cases: Mapping[str, Case], ts: float, config: FindingConfig) -> Mapping[str, Case]:
    """Return the cases with the node's cases brought up to date, or made once enough ranks are slow."""
    for kind in KINDS:
        cases = _with_group(kind, cases, ts, config)
    return cases


def _with_group(kind: str, cases: Mapping[str, Case], ts: float, config: FindingConfig) -> Mapping[str, Case]:
    existing = next((c for c in cases.values() if _is_group(c) and c.kind == kind), None)
    if existing is not None and existing.live:
        existing = _refreshed(existing, members_of(existing, cases, config))
        cases = {**cases, existing.key: existing}
        if existing.active:
            return cases
    fresh = [c for c in cases.values() if c.kind == kind and _is_measured(c) and c.fresh_at(ts, config)]
    together = _slow_together(fresh, config)
    if not _is_node(together, config):
        return cases
    group = _revived(existing, together) if existing is not None else _made(together, ts)
    if existing is None and group.key in cases:
        return cases  # a detector speaks for the node itself
    return {**cases, group.key: _refreshed(group, together)}


def _is_group(case: Case) -> bool:
    return case.made_of_ranks


def _groupable(case: Case) -> bool:
    return case.kind in KINDS and case.subject.type in _ONE_GPU and bool(case.subject.node)


def _is_measured(case: Case) -> bool:
    """Return whether the rank's own times accuse it: a GPU at low power may wait for the slow one."""
    return _groupable(case) and any(s.ranks_on_node for s in case.voices())


def _slow_together(fresh: list[Case], config: FindingConfig) -> tuple[Case, ...]:
    slow = sorted(fresh, key=lambda c: (c.since, c.key))
    best: tuple[Case, ...] = ()
    for first in slow:
        window = tuple(c for c in slow if 0 <= c.since - first.since <= config.agree_within_seconds)
        best = max(best, window, key=len)
    return best


def _is_node(slow: tuple[Case, ...], config: FindingConfig) -> bool:
    """Return whether nearly everything that runs on the node is slow, and other nodes would have shown it."""
    if len(slow) < config.node_group_size:
        return False
    jobs = _jobs_of(slow)
    return _elsewhere(jobs) and len(slow) >= config.node_group_share * _running(jobs)


def _jobs_of(slow: Iterable[Case]) -> list[Suspicion]:
    """Return of each job that slow ranks belong to what tells most about its size."""
    jobs: dict[str | None, Suspicion] = {}
    for case in slow:
        jobs[case.subject.job_id] = max(case.voices(), key=lambda s: (s.ranks_on_node, s.nodes))
    return list(jobs.values())


def _running(jobs: Iterable[Suspicion]) -> int:
    """Return how many ranks of the jobs run on the node."""
    return sum(s.ranks_on_node for s in jobs)


def _elsewhere(jobs: Iterable[Suspicion]) -> bool:
    """Return whether all jobs run on other nodes too."""
    return all(s.nodes >= 2 for s in jobs)


def _made(members: tuple[Case, ...], ts: float) -> Case:
    first = members[0]
    jobs = {m.subject.job_id for m in members}
    subject = Subject(
        type="node",
        cluster=first.subject.cluster,
        node=first.subject.node,
        job_id=first.subject.job_id if len(jobs) == 1 else None,
        rack=first.subject.rack,
    )
    return Case(
        key=dedup_key(subject, first.kind),
        kind=first.kind,
        subject=subject,
        first_seen_at=ts,
        first_onset=first.onset[0],
        onset=_onset(members),
        since=first.since,
        last_seen_at=ts,
        sources={},
        made_of_ranks=True,
    )


def _revived(group: Case, members: tuple[Case, ...]) -> Case:
    status = transition(group.status, "raised_again")
    return replace(group, status=status, ended_at=None, since=min(m.since for m in members))


def _refreshed(group: Case, members: tuple[Case, ...]) -> Case:
    if not members:
        return group
    # A job waits once for all slow ranks of a node: their losses are one and do not add up.
    costliest = max(members, key=lambda m: (m.lost, m.rate, m.key))
    quiet = not any(m.active for m in members)
    return replace(
        group,
        sources={f"{m.key}|{voice}": source for m in members for voice, source in m.sources.items()},
        last_seen_at=max(m.last_seen_at for m in members),
        cleared_at=max(m.cleared_at or 0.0 for m in members) if quiet else None,
        flaps=max(m.flaps for m in members),
        lost=costliest.lost,
        rate=costliest.rate,
        hurts=any(m.hurts for m in members),
    )


def _onset(members: tuple[Case, ...]) -> tuple[float, float, float]:
    """Return the onset of the middle rank: one may have been in trouble before the others."""
    return sorted(m.onset for m in members)[(len(members) - 1) // 2]
