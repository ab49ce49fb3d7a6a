"""The hang rule: a job that makes no progress AND machines that do not work.

A job is hung when both independent signals agree:

* ``no_progress``: no step for longer than the job's own pauses explain. Raised by the job stage (step rows),
  by the steps of a job that stop while its node goes on, or by missing telemetry.
* ``nodes_idle``: the machines do not work. Each node votes: no bytes on its ports, GPUs without work, or GPUs
  that spin on a collective (full utilisation at low power). ``log_likelihood_ratio`` ≥ ``PROOF`` counts.

Of n nodes, k must vote, with k = min(⌈0.9 n⌉, n − 1 for n ≥ 3, n otherwise); nodes without telemetry are
excluded from n unless fewer than half of the nodes are left. Neither signal is enough alone: a checkpoint, an
evaluation or the end of the job stops the steps, and a node may be idle while its job goes on elsewhere. A
job that has ended, or has announced a pause of less than ten minutes, is no hang.

A hang is ``certain``, and pages, when the stall is ``critical`` (longer than any pause of the job so far) and
every vote has lasted for most of a minute, or when the votes are ``critical`` themselves.

The rule, its shares and its times are our own, measured on our own simulator:
``python -m benchmarks quality --part hang``.
"""

import math
from collections.abc import Collection, Iterable

from alerts.kinds import kind_of
from slowrank.telemetry import Evidence, Suspicion
from slowrank.telemetry.records import Suspect

NODE_SHARE = 0.9
"""Share of a job's nodes that must vote (chosen: the node that all others wait for often does not)."""
PROOF = 1.0
"""Weight from which a vote counts; a weaker one only supports a hang that others have found."""

BOTH = 2.0
"""Score of a vote that rests on no bytes and on spinning GPUs together."""

RELEASED = 2.0
"""Score of a vote that a node has another job by now, or none; below, the job's processes are gone and the
node is still its own."""

LASTING = 3.0
"""Score from which both have held for most of a minute: an evaluation and then a checkpoint stall for longer,
and only the checkpoint looks like a hang."""

ONSET_APART_SECONDS = 1.5
"""Nodes are read once a second, each at its own moment: closer onsets have no order."""

LONGEST_PAUSE_SECONDS = 600.0
"""An announced pause longer than this may be a hang (chosen: checkpoints take minutes)."""

DECLARED_BEFORE_SECONDS = 5.0
"""How long before the row of the last step the pause after it may have been announced."""

UNHEARD = "silence.unheard"
"""Detector of a vote that a node sends no telemetry: it is excluded from the quorum. The vote is about the
job that the node named last, in whichever attempt."""

HEARD_SHARE = 0.5
"""With telemetry from fewer of its machines no hang of a job is found (chosen: half)."""

_SPINNING = "gpu.spinning_ratio"

CLOCK = "host.clock_offset_seconds"
"""Evidence of a vote that the clock of its node is off."""

_SPINS, _SPINS_NOT = 0.9, 0.5
"""Shares of a node's GPUs: it spins from the first on, and does not below the second. More than the second is
also the share of nodes that must spin for another one to stand out (chosen: a majority)."""

_NAMED = 3
"""Most nodes named as suspects."""

_AMONG_NAMED = 0.9
"""Probability that one of them is who the others wait for: the lower bound of 59 in 60 simulated hangs
(`python -m benchmarks quality --part hang`, seeds 1590 to 1619 and 1640 to 1669)."""


def is_hang(no_progress: Collection[Suspicion], nodes_idle: Collection[Suspicion]) -> bool:
    """Return whether the job makes no progress and enough of its machines do not work.

    A stall that is suspected early needs machines that neither send nor compute.
    """
    votes = _proofs(nodes_idle, BOTH if early(no_progress) else 0.0)
    return _quorum(no_progress, votes, _unheard(nodes_idle)) and not excused(no_progress, nodes_idle)


def certain(no_progress: Collection[Suspicion], nodes_idle: Collection[Suspicion]) -> bool:
    """Return whether a hang can be no pause that the job has not shown before.

    Machines that neither send nor compute for a minute exclude a pause sooner than those of which only one
    of both is measured: an evaluation, which sends nothing, may take minutes. A single vote that has lasted
    long proves nothing in a larger job: that exporter may have frozen while its node did not work.
    """
    unheard = _unheard(nodes_idle)
    stalled = any(s.severity == "critical" for s in no_progress)
    if stalled and _quorum(no_progress, _proofs(nodes_idle, LASTING), unheard):
        return True
    return _quorum(no_progress, [s for s in _proofs(nodes_idle, 0.0) if s.severity == "critical"], unheard)


def early(no_progress: Collection[Suspicion]) -> bool:
    """Return whether the stall is shorter than any job is allowed to pause."""
    return all(s.score < 1.0 for s in no_progress)


def excused(no_progress: Collection[Suspicion], nodes_idle: Collection[Suspicion]) -> bool:
    """Return whether the job makes no progress because it has ended or has announced a pause."""
    since = _since(no_progress)
    now = max((s.ts for s in (*no_progress, *nodes_idle)), default=0.0)
    return ended(no_progress, nodes_idle) or any(
        s.detector == "job.paused" and s.onset >= since and now - s.onset < LONGEST_PAUSE_SECONDS
        for s in nodes_idle
    )


def ended(
    no_progress: Collection[Suspicion], nodes_idle: Collection[Suspicion], *, left_by: float = 0.0
) -> bool:
    """Return whether the job has ended since its last step: by its own event, or by leaving its machines.

    ``left_by``: the least score of a vote that the job has left the node.
    """
    since, nodes = _since(no_progress), max((s.nodes for s in no_progress), default=math.inf)
    # What was reported before the last step is about an earlier attempt.
    recent = [s for s in nodes_idle if s.onset >= since]
    left = {s.subject.node for s in recent if s.detector == "quiet.ended" and s.score >= left_by}
    needed = min(NODE_SHARE * nodes, _electorate(nodes, _unheard(nodes_idle) - left))
    return any(s.detector == "job.ended" for s in recent) or 0 < len(left) >= needed


def released(no_progress: Collection[Suspicion], nodes_idle: Collection[Suspicion]) -> bool:
    """Return whether the job has ended for good: nodes that wait for its next attempt are still its own."""
    return ended(no_progress, nodes_idle, left_by=RELEASED)


def suspects(suspicions: Iterable[Suspicion]) -> tuple[Suspect, ...]:
    """Return the nodes that stand out among the idle ones of a hung job, likeliest first; often none."""
    votes = _votes(suspicions)
    reasons = _standing_out(votes)
    subjects = {s.subject.node: s.subject for s in votes}
    share = _AMONG_NAMED / max(sum(len(whys) for whys in reasons.values()), 1)
    ranked = sorted(reasons, key=lambda node: -len(reasons[node]))
    return tuple(
        Suspect(subject=subjects[node], probability=round(share * len(reasons[node]), 4)) for node in ranked
    )


def note(suspicions: Iterable[Suspicion]) -> tuple[Evidence, ...]:
    """Return why they stand out."""
    reasons = _standing_out(_votes(suspicions))
    if not reasons:
        return ()
    listed = "; ".join(f"{node}: {', '.join(whys)}" for node, whys in reasons.items())
    return (
        Evidence(metric="hang.suspects", unit="1", detector="hang", value=float(len(reasons)), note=listed),
    )


def _votes(suspicions: Iterable[Suspicion]) -> list[Suspicion]:
    return sorted(
        (s for s in suspicions if kind_of(s.kind).hang and s.subject.node and s.log_likelihood_ratio > 0),
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


def _quorum(
    no_progress: Collection[Suspicion], votes: Collection[Suspicion], unheard: set[str | None]
) -> bool:
    """Return whether enough machines vote for a hang.

    One machine may be an exception in a job of three or more: the one that all others wait for often
    neither spins nor answers. Machines without telemetry cannot vote: where they are more than the
    exceptions, as in a rack without power, all others must.
    """
    if not no_progress or not votes:
        return False
    nodes = max(s.nodes for s in no_progress)
    needed: float = min(math.ceil(NODE_SHARE * nodes), nodes - 1 if nodes >= 3 else nodes)
    needed = min(needed, _electorate(nodes, unheard - {s.subject.node for s in votes}))
    return max(_nodes(votes), *(s.nodes for s in votes)) >= needed


def _electorate(nodes: float, unheard: set[str | None]) -> float:
    """Return how many of the machines can vote; all of them where too few send telemetry."""
    reporting = nodes - len(unheard)
    return reporting if reporting >= HEARD_SHARE * nodes else nodes


def _nodes(suspicions: Iterable[Suspicion]) -> int:
    return len({s.subject.node for s in suspicions if s.subject.node})


def _not_spinning(votes: list[Suspicion]) -> list[tuple[str, str]]:
    """Return nodes with GPUs that do not spin where most nodes spin: spinning GPUs wait for another one."""
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
    """Return the node that became idle first, where that is clear and all clocks are right."""
    if any(e.metric == CLOCK for s in votes for e in s.evidence):
        return []
    if len(votes) < 3 or votes[1].onset - votes[0].onset <= ONSET_APART_SECONDS:
        return []
    earlier = votes[1].onset - votes[0].onset
    return [(votes[0].subject.node or "", f"fell quiet {earlier:.1f} s before the others")]
