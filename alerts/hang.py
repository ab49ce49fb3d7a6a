"""The hang rule: a job that makes no progress AND machines that do not work; and whom the others wait for."""

import math
from collections.abc import Collection, Iterable

from slowrank.telemetry import Evidence, Suspicion
from slowrank.telemetry.records import Suspect

NODE_SHARE = 0.9
PROOF = 1.0
"""Weight from which a vote turns key B; a weaker one says that a node is part of a hang, if there is one."""

BOTH = 2.0
"""Score from which a vote stands on no bytes and on GPUs that spin for nothing together."""

RELEASED = 2.0
"""Score of a vote that a node which a job has left has another job by now, or none; below, the processes of
the job are gone and the node is still its own."""

LASTING = 3.0
"""Score from which both have held for most of a minute: an evaluation and then a checkpoint stall for longer,
and only the checkpoint looks like a hang."""

ONSET_APART_SECONDS = 1.5
"""Nodes are read once a second at moments of their own: closer onsets have no order."""

LONGEST_PAUSE_SECONDS = 600.0
"""A declared pause longer than this may hang like anything else."""

DECLARED_BEFORE_SECONDS = 5.0
"""How long before the last step's row was told the pause after it may have been declared."""

UNHEARD = "silence.unheard"
"""The detector of a vote that neither turns key B nor holds it: nothing is heard of the node. It is about the
job that the node last named, in whichever attempt."""

HEARD_SHARE = 0.5
"""Of fewer of its machines nothing is concluded about a job."""

_SPINNING = "gpu.spinning_ratio"

CLOCK = "host.clock_offset_seconds"
"""The evidence of a vote that the clock of its node is known to be off."""
# Shares of a node's GPUs: from the first on it spins with the others, below the second it does not. More
# than the second is also how many of the nodes must spin for one that does not to stand out.
_SPINS, _SPINS_NOT = 0.9, 0.5
# Nodes named at most.
_NAMED = 3

_AMONG_NAMED = 0.9
"""Probability that one of them is who the others wait for: the lower bound of 59 in 60 simulated hangs
(`python -m benchmarks quality --part hang`, seeds 1590 to 1619 and 1640 to 1669)."""


def both_keys(stopped: Collection[Suspicion], idle: Collection[Suspicion]) -> bool:
    """Return whether the job makes no progress AND at least 90 % of its machines do not work, or all of which
    anything is heard.

    A stall that is suspected early takes machines that neither send nor compute.
    """
    votes = _proofs(idle, BOTH if early(stopped) else 0.0)
    return _quiet(stopped, votes, _unheard(idle)) and not excused(stopped, idle)


def certain(stopped: Collection[Suspicion], idle: Collection[Suspicion]) -> bool:
    """Return whether a hang can be no pause that the job has not shown before.

    Machines that neither send nor compute for long are sooner known not to pause than those of which one
    is known: an evaluation, which sends nothing, may take minutes. One machine that has long been quiet is
    none where others are heard of: its exporter may have frozen while it did not work.
    """
    unheard = _unheard(idle)
    stalled = any(s.severity == "critical" for s in stopped)
    if stalled and _quiet(stopped, _proofs(idle, LASTING), unheard):
        return True
    return _quiet(stopped, [s for s in _proofs(idle, 0.0) if s.severity == "critical"], unheard)


def early(stopped: Collection[Suspicion]) -> bool:
    """Return whether the job stands still for less than any job is allowed to."""
    return all(s.score < 1.0 for s in stopped)


def excused(stopped: Collection[Suspicion], idle: Collection[Suspicion]) -> bool:
    """Return whether the job makes no progress because it has ended or has declared a pause."""
    since, now = _since(stopped), max((s.ts for s in (*stopped, *idle)), default=0.0)
    return ended(stopped, idle) or any(
        s.detector == "job.paused" and s.onset >= since and now - s.onset < LONGEST_PAUSE_SECONDS
        for s in idle
    )


def ended(stopped: Collection[Suspicion], idle: Collection[Suspicion], *, left_by: float = 0.0) -> bool:
    """Return whether the job has ended since its last step: it said so, or it has left its machines.

    ``left_by``: the least score of a vote that counts as having been left.
    """
    since, nodes = _since(stopped), max((s.nodes for s in stopped), default=math.inf)
    # What was said before the last step is about an earlier attempt.
    told = [s for s in idle if s.onset >= since]
    left = {s.subject.node for s in told if s.detector == "quiet.ended" and s.score >= left_by}
    needed = min(NODE_SHARE * nodes, _asked(nodes, _unheard(idle) - left))
    return any(s.detector == "job.ended" for s in told) or 0 < len(left) >= needed


def released(stopped: Collection[Suspicion], idle: Collection[Suspicion]) -> bool:
    """Return whether the job has ended for good: nodes that wait for its next attempt are still its own."""
    return ended(stopped, idle, left_by=RELEASED)


def suspects(voices: Iterable[Suspicion]) -> tuple[Suspect, ...]:
    """Return who stands out among the quiet nodes of a hung job, likeliest first; nothing if nobody does."""
    votes = _votes(voices)
    reasons = _standing_out(votes)
    subjects = {s.subject.node: s.subject for s in votes}
    share = _AMONG_NAMED / max(sum(len(whys) for whys in reasons.values()), 1)
    ranked = sorted(reasons, key=lambda node: -len(reasons[node]))
    return tuple(
        Suspect(subject=subjects[node], probability=round(share * len(reasons[node]), 4)) for node in ranked
    )


def note(voices: Iterable[Suspicion]) -> tuple[Evidence, ...]:
    """Return why they stand out."""
    reasons = _standing_out(_votes(voices))
    if not reasons:
        return ()
    told = "; ".join(f"{node}: {', '.join(whys)}" for node, whys in reasons.items())
    return (
        Evidence(metric="hang.suspects", unit="1", detector="hang", value=float(len(reasons)), note=told),
    )


def _votes(voices: Iterable[Suspicion]) -> list[Suspicion]:
    return sorted(
        (s for s in voices if s.kind == "hang.job" and s.subject.node and s.log_likelihood_ratio > 0),
        key=lambda s: (s.onset, s.subject.node or ""),
    )


def _standing_out(votes: list[Suspicion]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for node, why in (*_not_spinning(votes), *_first(votes)):
        reasons.setdefault(node, []).append(why)
    return {node: reasons[node] for node in [*reasons][:_NAMED]}


def _since(stopped: Iterable[Suspicion]) -> float:
    return min((s.onset for s in stopped), default=math.inf) - DECLARED_BEFORE_SECONDS


def _proofs(idle: Iterable[Suspicion], score: float) -> list[Suspicion]:
    return [s for s in idle if s.log_likelihood_ratio >= PROOF and s.score >= score]


def _unheard(idle: Iterable[Suspicion]) -> set[str | None]:
    return {s.subject.node for s in idle if s.detector == UNHEARD}


def _quiet(stopped: Collection[Suspicion], votes: Collection[Suspicion], unheard: set[str | None]) -> bool:
    """Tell whether enough machines vote for a hang.

    One machine may be an exception in a job of three or more: the one that all others wait for often
    neither spins nor answers. Machines that are unheard of cannot vote: where they are more than the
    exceptions, as a rack without power, all others must.
    """
    if not stopped or not votes:
        return False
    nodes = max(s.nodes for s in stopped)
    needed: float = min(math.ceil(NODE_SHARE * nodes), nodes - 1 if nodes >= 3 else nodes)
    needed = min(needed, _asked(nodes, unheard - {s.subject.node for s in votes}))
    return max(_nodes(votes), *(s.nodes for s in votes)) >= needed


def _asked(nodes: float, unheard: set[str | None]) -> float:
    """Return how many of so many machines can be asked; all of them where too few are heard of."""
    heard = nodes - len(unheard)
    return heard if heard >= HEARD_SHARE * nodes else nodes


def _nodes(voices: Iterable[Suspicion]) -> int:
    return len({s.subject.node for s in voices if s.subject.node})


def _not_spinning(votes: list[Suspicion]) -> list[tuple[str, str]]:
    """Name nodes with GPUs that do not spin where most nodes spin: spinning GPUs wait for somebody else."""
    spinning = {s.subject.node or "": e for s in votes for e in s.evidence if e.metric == _SPINNING}
    waiting = [e for e in spinning.values() if e.value >= _SPINS]
    if len(waiting) <= _SPINS_NOT * len(spinning):
        return []
    odd = sorted((e.value, node, e.note) for node, e in spinning.items() if e.value < 1.0)
    return [
        (node, "does not spin while the others do" if value < _SPINS_NOT else f"spins on {note}")
        for value, node, note in odd
    ]


def _first(votes: list[Suspicion]) -> list[tuple[str, str]]:
    """Name the node that fell quiet first, where that is clear, and all clocks are right."""
    if any(e.metric == CLOCK for s in votes for e in s.evidence):
        return []
    if len(votes) < 3 or votes[1].onset - votes[0].onset <= ONSET_APART_SECONDS:
        return []
    earlier = votes[1].onset - votes[0].onset
    return [(votes[0].subject.node or "", f"fell quiet {earlier:.1f} s before the others")]
