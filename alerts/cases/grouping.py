"""When nearly all ranks of a node are slow, the node is: cases made of ranks', as in ``tensor_group``.

Where rows name no node it may be a likely one (``likely_node``).
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from alerts.cases import tensor_group
from alerts.cases.case import Case
from alerts.cases.gathered import began_together, made, refreshed, revived, slow_together
from alerts.cases.likely_node import equally_slow, likely_ranks
from alerts.config import FindingConfig
from slowrank.telemetry import Subject, Suspicion

_ONE_GPU = ("rank", "gpu")

# Chosen: a rank that is half again as slow as its node has something of its own.
_AS_SLOW = 1.5

# Chosen: what slows a whole node slows its ranks by about the same, measured in few steps. Some that are
# slowed by more times as much as others have a cause of their own, unless both are small.
_ALIKE, _NEARLY = 3.0, 0.05


def grouped(member: Case, group: Case, config: FindingConfig) -> bool:
    """Return whether ``member`` is one of the slow ranks, or the group of them, that ``group`` is about."""
    if member.kind != group.kind or not (_is_part(member, group) or tensor_group.is_mate(member, group)):
        return False
    ended = group.cleared_at if not group.active else None
    if ended is not None and member.since > ended:
        return False
    began = member.since >= group.since or began_together(member, group, config)
    return began or (_is_node(group) and _is_no_slower(member, group))


def _is_no_slower(member: Case, node: Case) -> bool:
    """Return whether a rank that was slow before its ``node`` is about as slow as this is now.

    Of a node that slows down gradually, one rank may show it long before the others.
    """
    own, of_node = (_slowdown(case) for case in (member, node))
    return member.active and own is not None and of_node is not None and own <= _AS_SLOW * of_node


def _slowdown(case: Case) -> float | None:
    """Return by how much the middle one of a case's ranks is slow; None where no times accuse it."""
    shown = sorted(s.slowdown_ratio - 1.0 for s in case.suspicions() if s.slowdown_ratio is not None)
    return shown[len(shown) // 2] if shown else None


def slow_with_leader(mate: Case, leader: Case, config: FindingConfig) -> bool:
    """Return whether ``mate`` is slow on and off, since the rank that it waits for was first slow."""
    if not leader.leads_mates or leader.rule.relapsing_as != mate.kind:
        return False
    began = mate.since >= leader.first_onset - config.agree_within_seconds
    return began and tensor_group.is_mate(mate, leader)


def members_of(group: Case, cases: Mapping[str, Case], config: FindingConfig) -> tuple[Case, ...]:
    """Return the cases of ranks that a case is made of or leads; most cases have none."""
    if not (group.made_of_ranks or group.leads_mates):
        return ()
    ranks = (case for _, case in sorted(cases.items()) if not case.made_of_ranks)
    return tuple(case for case in ranks if grouped(case, group, config))


def held_for_others(case: Case, cases: Mapping[str, Case], config: FindingConfig) -> bool:
    """Return whether others became slow together with the case's ranks, and all may be before long."""
    if case.subject.type == "group":
        return any(among_slow_ranks(m, cases, config) for m in members_of(case, cases, config))
    return among_slow_ranks(case, cases, config) or _among_mates(case, cases)


def among_slow_ranks(case: Case, cases: Mapping[str, Case], config: FindingConfig) -> bool:
    """Return whether other ranks of the node became slow together with this one: all may be, before long.

    Where all of them were until lately, the first of them to be slow again is enough.
    """
    if not _is_measured(case):
        return False
    if any(_is_node(c) and c.kind == case.kind and c.live and not c.active for c in cases.values()):
        return True
    others = [c for c in cases.values() if c.kind == case.kind and c.active and _is_measured(c)]
    together = [c for c in others if began_together(c, case, config)]
    jobs = _jobs_of(together)
    return len(together) > 1 and _running(jobs) >= config.node_group_size and _elsewhere(jobs)


def with_groups(cases: Mapping[str, Case], ts: float, config: FindingConfig) -> Mapping[str, Case]:
    """Return the cases with those made of ranks brought up to date, or made once enough ranks are slow."""
    # Sorted, as a set's order differs between processes (docs/decisions/0006).
    for kind in sorted({c.kind for c in cases.values() if "node" in c.rule.gathered_into}):
        cases = _with_node(kind, cases, ts, config)
    live = [c for c in cases.values() if c.subject.type == "group" and c.live]
    cases = {**cases, **{c.key: refreshed(c, members_of(c, cases, config)) for c in live}}
    nodes = [c for c in cases.values() if _is_node(c) and c.active]
    # The ranks of a node's case are not gathered into smaller groups.
    free = {k: c for k, c in cases.items() if not any(grouped(c, node, config) for node in nodes)}
    return {**cases, **tensor_group.found(free, ts, config)}


def _among_mates(case: Case, cases: Mapping[str, Case]) -> bool:
    """Return whether the mates of a rank look as slow as it, though not all of them are found to be yet.

    Where they were until lately, the first of them to be slow again is enough.
    """
    timing = tensor_group.timing_of(case)
    if timing is None:
        return False
    before = (c for c in cases.values() if c.live and not c.active)
    return timing.mates == "as_slow" or any(tensor_group.is_mate(case, c) for c in before)


def _with_node(kind: str, cases: Mapping[str, Case], ts: float, config: FindingConfig) -> Mapping[str, Case]:
    existing = next((c for c in cases.values() if _is_node(c) and c.kind == kind), None)
    if existing is not None and existing.live:
        existing = refreshed(existing, members_of(existing, cases, config))
        cases = {**cases, existing.key: existing}
        if existing.active:
            return cases
    fresh = [c for c in cases.values() if c.kind == kind and _is_measured(c) and c.fresh_at(ts, config)]
    together = slow_together(fresh, config)
    if not _fill_node(together, config):
        return cases
    group = revived(existing, together) if existing is not None else made(_node_of(together), together, ts)
    if existing is None and group.key in cases:
        return cases  # a detector reports the node itself
    return {**cases, group.key: group}


def _is_node(case: Case) -> bool:
    return case.made_of_ranks and case.subject.type == "node"


def _is_part(member: Case, group: Case) -> bool:
    """Return whether a node's case may be made of the member, or of its ranks."""
    return _is_node(group) and (member.subject.type == "group" or _groupable(member))


def _groupable(case: Case) -> bool:
    if "node" not in case.rule.gathered_into or case.subject.type not in _ONE_GPU:
        return False
    return bool(case.subject.node) or any(likely_ranks(s) for s in case.suspicions())


def _is_measured(case: Case) -> bool:
    """Return whether the rank's own times accuse it: a GPU at low power may wait for the slow one."""
    return _groupable(case) and any(_beside(s) for s in case.suspicions())


def _fill_node(slow: tuple[Case, ...], config: FindingConfig) -> bool:
    """Return whether nearly everything that runs on the node is slow, and other nodes would have shown it."""
    if len(slow) < config.node_group_size:
        return False
    jobs = _jobs_of(slow)
    if not (slow[0].subject.node or equally_slow(slow)):
        return False
    return _elsewhere(jobs) and _alike(slow) >= config.node_group_share * _running(jobs)


def _alike(slow: tuple[Case, ...]) -> int:
    """Return how many of the slow ranks are about equally slow, with those of which no times are known."""
    sizes = sorted(size for case in slow if (size := _slowdown(case)) is not None)
    reach = (max(_ALIKE * size, size + _NEARLY) for size in sizes)
    alike = max((bisect_right(sizes, most) - n for n, most in enumerate(reach)), default=0)
    return len(slow) - len(sizes) + alike


def _jobs_of(slow: Iterable[Case]) -> list[Suspicion]:
    """Return for each job of the slow ranks the suspicion with the largest job size."""
    jobs: dict[str | None, Suspicion] = {}
    for case in slow:
        jobs[case.subject.job_id] = max(case.suspicions(), key=lambda s: (_beside(s), s.nodes))
    return list(jobs.values())


def _running(jobs: Iterable[Suspicion]) -> int:
    """Return how many ranks of the jobs run on the node."""
    return sum(_beside(s) for s in jobs)


def _beside(s: Suspicion) -> int:
    """Return how many ranks of the job run on its subject's node, or likely do; 0 where that is not known."""
    return s.ranks_on_node or s.ranks_likely_on_node


def _elsewhere(jobs: Iterable[Suspicion]) -> bool:
    """Return whether all jobs run on other nodes too; what is likely one of them is not all of its job."""
    return all(s.nodes >= 2 or s.ranks_likely_on_node for s in jobs)


def _node_of(members: tuple[Case, ...]) -> Subject:
    first = members[0].subject
    jobs = {m.subject.job_id for m in members}
    return Subject(
        type="node",
        cluster=first.cluster,
        node=first.node,
        ranks=next((ranks for s in members[0].suspicions() if (ranks := likely_ranks(s))), None),
        job_id=first.job_id if len(jobs) == 1 else None,
        rack=first.rack,
    )
