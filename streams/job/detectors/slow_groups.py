"""Groups of ranks that are slow as one, mostly over several nodes, as the decision core explains them."""

from collections.abc import Mapping

import msgspec

from detectors.straggler.core import Ints, SlowGroup, SlowRank
from detectors.straggler.slow_groups import FAMILIES
from slowrank.telemetry import Subject, Suspicion
from slowrank.telemetry.records import Suspect
from streams.job.aspect import Aspect, Key
from streams.job.detector import OfCore
from streams.job.detectors.slow_ranks import PART, suspicion_of
from streams.job.rows.step_aligner import Step
from streams.job.suspicions import STEPS, dated
from streams.job.view import JobView, spans

GROUP = Aspect("slow group", outlast_job=True, cost="rank")

# Ranks of a slow group that are listed. Chosen: eight nodes, which are evicted together at most.
MOST_SUSPECTS = 64

# Chosen: the nodes of ``MOST_SUSPECTS`` ranks.
_NAMED_NODES = 8

# Chosen: what a title holds.
_NAMED_RANKS = 8


class SlowGroups(OfCore):
    """Groups that are slow as one, and their ranks, which open nothing by themselves."""

    aspects = (GROUP, PART)

    def step(self, view: JobView, step: Step) -> Mapping[Key, Suspicion]:
        """Return the groups that are slow as one and the ranks that are so as a part of them."""
        at, standing = step.closed_at, dict[Key, Suspicion]()
        for family, members in view.core.slow_groups():
            # First member and family: a number that a group keeps whichever ranks the job has.
            key = (GROUP, view.roster[int(members[0])] * len(FAMILIES) + FAMILIES.index(family))
            last = view.standing(GROUP).get(key)
            if last is None or view.open.is_due(key, at) or self._escalates(view, last, members):
                group = view.core.describe_group(family, members)
                last = last if group is None else _group_suspicion(view, group, at)
            if last is not None:
                standing[key] = last
        for slow in view.result.slow:
            rank = view.roster[slow.rank]
            if view.core.is_part(slow.timing, slow.rank):
                standing[PART, rank] = _part_suspicion(view, slow, at)
        recovered = {view.roster[i] for timing, i in view.result.recovered if timing == "compute"}
        for key in view.standing(PART):
            if key[1] not in recovered and view.core.is_part("compute", view.roster.index(key[1])):
                standing[key] = view.open.refreshed(key, at)
        return standing

    def _escalates(self, view: JobView, last: Suspicion, members: Ints) -> bool:
        return not last.overwhelming and any(view.core.is_alone("compute", int(rank)) for rank in members)


def _group_suspicion(view: JobView, group: SlowGroup, at: float) -> Suspicion:
    """Build a group that is slow as one: what its middle rank rests on, with all of its ranks as suspects."""
    ranks = [view.subject(view.roster[i]) for i in group.members.tolist()]
    order = sorted(range(len(ranks)), key=lambda i: (-group.likely[i], i))[:MOST_SUSPECTS]
    middle = suspicion_of(view, group.middle, at)
    machines = {rank.node for rank in ranks}
    nodes = sorted(node for node in machines if node is not None)
    return msgspec.structs.replace(
        middle,
        subject=Subject(
            type="group",
            cluster=view.cluster,
            node=nodes[0] if len(machines) == len(nodes) == 1 else None,
            job_id=view.job_id,
            attempt=view.attempt,
            coords=(shared := _shared(ranks, group.family)),
            ranks=None if shared else _listed([view.roster[i] for i in group.members.tolist()]),
        ),
        ranks_on_node=0,
        ranks_likely_on_node=0,
        ranks_in_group=0,
        mates="",
        suspects=tuple(
            Suspect(subject=ranks[i], probability=round(float(group.likely[i]), 4)) for i in order
        ),
        note="; ".join(filter(None, (_of_group(group, nodes), middle.note))),
    )


def _shared(ranks: list[Subject], family: str) -> dict[str, int] | None:
    """Return the coordinates that identify a group: what its ranks have in common."""
    coords = [at.coords or {} for at in ranks]
    shared = dict(sorted(set(coords[0].items()).intersection(*(at.items() for at in coords[1:]))))
    if family == "replica":
        return {"dp": coords[0]["dp"]} if "dp" in coords[0] else None
    if family == "ep" and "dp" in coords[0] and "dp" not in shared:
        # Expert groups divide the data-parallel ranks: they are numbered, as in Megatron-LM.
        shared["edp"] = coords[0]["dp"] // len(ranks)
    return shared or None


def _listed(ranks: list[int]) -> str:
    """Return which ranks a group has that no coordinates tell: few of them tell it from others."""
    more = f" and {len(ranks) - _NAMED_RANKS} more" if len(ranks) > _NAMED_RANKS else ""
    return spans(ranks[:_NAMED_RANKS]) + more


def _of_group(group: SlowGroup, nodes: list[str]) -> str:
    return f"{len(group.members)} ranks on {', '.join(nodes[:_NAMED_NODES])} became slow as one"


def _part_suspicion(view: JobView, slow: SlowRank, at: float) -> Suspicion:
    """Build that a rank is slow as a part of its group: it supports what its hardware shows."""
    rank, kind = view.roster[slow.rank], "straggler.of_group"
    return msgspec.structs.replace(
        dated(view, view.subject(rank), kind, catalogue_id="peer_step", since=slow.onset, at=at),
        detector=f"{STEPS}.part",
        family="timing",
        onset_lo=slow.onset_lo,
        onset_hi=slow.onset_hi,
        score=round(slow.score, 3),
        slowdown_ratio=round(slow.ratio, 4),
        job_slowdown_ratio=round(slow.job_ratio, 4),
        # As a cause it is none, beside what hardware shows.
        hypotheses={"straggler.fail_slow": 0.0},
        note="slow as one with the other ranks of its group",
    )
