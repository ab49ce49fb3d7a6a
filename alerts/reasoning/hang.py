"""The hang rule: a job that makes no progress AND machines that do not work.

A job is hung when both independent signals agree, which are votes (``HangVote``):

* ``no_progress``: no step for longer than the job's own pauses explain, from the job's step rows.
* ``of_nodes``: the machines do not work. A node is idle with no bytes on its ports, GPUs without work, or
  GPUs that spin on a collective (full utilisation at low power). ``log_likelihood_ratio`` ≥ ``PROOF`` counts.
  A node whose GPUs are idle and empty has been left by its job, and votes against a hang, unless ranks of it
  report since then that they wait.

Of n nodes, k must vote, with k = min(⌈0.9 n⌉, n − 1 for n ≥ 3, n otherwise); nodes without telemetry are
excluded from n unless fewer than half of the nodes are left. Neither signal is enough alone: a checkpoint, an
evaluation or the end of the job stops the steps, and a node may be idle while its job goes on elsewhere. Only
where no node sends samples of GPUs and ports, which show that, the first has to do: as information after two
minutes, as an error where a few ranks did not arrive at the last step. A job that has ended, or has announced
a pause of less than ten minutes, is no hang.

A job of which a machine has failed as its steps ended (``machine_failed``) stands still for that, also where
its processes end at once: that they have left is no evidence against it.

Of a job that sends no step rows, the cluster stage finds that most of its nodes spin for longer than it ever
paused and none works (``by_nodes``, ``streams.cluster.stuck_jobs``), which suffices.

A hang is ``certain``, and pages, when the stall is (longer than any pause of the job so far) and the votes of
the nodes are ``lasting``, or when the votes of the nodes are certain themselves.

The rule, its shares and its times are our own, measured on our own simulator:
``python -m benchmarks quality --part hang``.
"""

import math
from collections.abc import Collection, Iterable
from typing import Literal

from slowrank.telemetry import Evidence, HangVote, Suspicion
from slowrank.telemetry.records import Suspect

# Share of a job's nodes that must vote (chosen: the node that all others wait for often does not).
NODE_SHARE = 0.9
# Log-odds from which the vote of an idle node counts; a weaker one only supports a hang that others have
# found (chosen: between the votes of nodes that may be idle, 0.5, and that are, 3).
PROOF = 1.0

# Nodes are read once a second, each at its own moment: closer onsets have no order.
ONSET_APART_SECONDS = 1.5
# Beside the time between two samples, in which a node may have fallen quiet (chosen: clocks differ by less).
_CLOCKS_APART_SECONDS = 0.5

# An announced pause longer than this may be a hang (chosen: checkpoints take minutes).
LONGEST_PAUSE_SECONDS = 600.0

# How long before the row of the last step the pause after it may have been announced (chosen: a few steps;
# more would excuse stalls of later steps).
DECLARED_BEFORE_SECONDS = 5.0

# With telemetry from a smaller share of its machines no hang of a job is found (chosen: half).
REPORTING_SHARE = 0.5

# How long after a stop that is not the first one of its job a pause is evidence against a hang (chosen: from
# then on a hang is certain).
EXPLAINED_SECONDS = 60.0

# A node may be left so long after the others began to spin and still be what they wait for. Chosen: a node is
# read once a minute at least, and processes that dump their memory take longer to go than to stop.
LEFT_BEFORE_SECONDS = 120.0

_SPINNING = "gpu.spinning_ratio"

# Evidence of a vote that the clock of its node is off.
CLOCK = "host.clock_offset_seconds"

# Shares of a node's GPUs: it spins from the first on, and does not below the second. More than the second is
# also the share of nodes that must spin for another one to stand out (chosen: a majority).
_SPINS, _SPINS_NOT = 0.9, 0.5

# Most nodes named as suspects (chosen: what a person checks at once).
_NAMED = 3

# Probability that one of them is the node that the others wait for: the lower bound of 59 in 60 simulated
# hangs (`python -m benchmarks quality --part hang`, seeds 1590 to 1619 and 1640 to 1669).
_AMONG_NAMED = 0.9


def votes_among(suspicions: Iterable[Suspicion]) -> list[HangVote]:
    """Return the votes on a hang among suspicions."""
    return [s for s in suspicions if isinstance(s, HangVote)]


def is_hang(no_progress: Collection[HangVote], of_nodes: Collection[HangVote]) -> bool:
    """Return whether the job makes no progress and enough of its machines do not work.

    A stall that is suspected early needs machines that neither send nor compute; one that counts ``alone``
    needs none.
    """
    if any(v.machine_failed for v in no_progress):
        return awaits_next_attempt(no_progress, of_nodes)
    if any(v.alone for v in no_progress):
        return not excused(no_progress, of_nodes)
    proofs = [v for v in _proofs(no_progress, of_nodes) if v.both_signs or not early(no_progress)]
    return _quorum(no_progress, proofs, _without_telemetry(of_nodes)) and not excused(no_progress, of_nodes)


def certain(no_progress: Collection[HangVote], of_nodes: Collection[HangVote]) -> bool:
    """Return whether a hang can be no pause that the job has not shown before.

    Machines that neither send nor compute for a minute exclude a pause sooner than those of which only one
    of both is measured: an evaluation, which sends nothing, may take minutes. A single vote that has lasted
    long proves nothing in a larger job: that exporter may have frozen while its node did not work.
    """
    proofs, silent = _proofs(no_progress, of_nodes), _without_telemetry(of_nodes)
    stalled = any(v.certain for v in no_progress)
    if only_by_nodes(no_progress):
        # That its nodes do not work is all that is known of it: they are no proof of themselves.
        return stalled
    if stalled and _quorum(no_progress, [v for v in proofs if v.lasting or v.signal == "left"], silent):
        return True
    return _quorum(no_progress, [v for v in proofs if v.certain], silent)


def only_by_nodes(suspicions: Iterable[Suspicion]) -> bool:
    """Return whether suspicions about a stop include none from step rows."""
    votes = votes_among(suspicions)
    return bool(votes) and all(v.by_nodes for v in votes)


def early(no_progress: Collection[HangVote]) -> bool:
    """Return whether the stall is shorter than any job is allowed to pause."""
    return all(v.early for v in no_progress)


def awaits_next_attempt(no_progress: Collection[HangVote], of_nodes: Collection[HangVote]) -> bool:
    """Return whether a job of which a machine has failed stands still for longer than any is allowed to
    pause, and has neither declared its end nor, with its last step, a pause.

    A start that it declares later is what is done about the failure.
    """
    since = _since(no_progress)
    with_step = since + 2.0 * DECLARED_BEFORE_SECONDS
    declared = any(
        v.signal == "ended" or (v.signal == "paused" and v.onset <= with_step)
        for v in of_nodes
        if v.onset >= since
    )
    return bool(no_progress) and not early(no_progress) and not declared


def excused(no_progress: Collection[HangVote], of_nodes: Collection[HangVote]) -> bool:
    """Return whether the job makes no progress because it has ended or has announced a pause."""
    since = _since(no_progress)
    now = max((v.ts for v in (*no_progress, *of_nodes)), default=0.0)
    return ended(no_progress, of_nodes) or any(
        v.signal == "paused" and v.onset >= since and now - v.onset < LONGEST_PAUSE_SECONDS for v in of_nodes
    )


def ended(
    no_progress: Collection[HangVote],
    of_nodes: Collection[HangVote],
    *,
    how: Literal["left", "released", "reused"] = "left",
) -> bool:
    """Return whether the job has ended since its last step: by its own event, or by leaving its machines.

    ``how``: of the machines that it has left, those without the job or with another one count; the rest may
    wait for its next attempt.
    """
    since, nodes = _since(no_progress), max((v.nodes for v in no_progress), default=math.inf)
    # What was reported before the last step is about an earlier attempt.
    recent = [v for v in of_nodes if v.onset >= since and not _looks_left(no_progress, v)]
    gone = [v for v in recent if v.signal == "left"]
    left = {v.subject.node for v in gone if how == "left" or getattr(v, how)}
    needed = min(NODE_SHARE * nodes, _electorate(nodes, _without_telemetry(of_nodes) - left))
    return any(v.signal == "ended" for v in recent) or 0 < len(left) >= needed


def until_found(suspicions: Iterable[Suspicion], found_at: float) -> tuple[Suspicion, ...]:
    """Return the suspicions without pauses that were declared after the hang was found.

    A start that is announced then is what was done about the hang, and no evidence that there was none.
    """
    return tuple(
        s for s in suspicions if not (isinstance(s, HangVote) and s.signal == "paused" and s.onset > found_at)
    )


def while_it_stood(suspicions: Iterable[Suspicion]) -> tuple[Suspicion, ...]:
    """Return the suspicions of a stop without the end of the job on nodes that waited before: it was ended
    because it hung."""
    held = tuple(suspicions)
    waited = {v.subject.node for v in votes_among(held) if v.signal == "idle"}
    return tuple(
        s for s in held if not (isinstance(s, HangVote) and s.signal == "left" and s.subject.node in waited)
    )


def weighed(suspicions: Collection[Suspicion]) -> list[Suspicion]:
    """Return the suspicions that show how surely a job hangs.

    What was reported before its last step, as its start, is about another pause; a pause that has lasted for
    longer than any is not what was announced; and that it has left the node which the others wait for is no
    evidence against a hang. That it has left others is full evidence where enough say so (``ended``), and of
    fewer in proportion.
    """
    votes = votes_among(suspicions)
    now = max((v.ts for v in votes), default=0.0)
    since = _since(v for v in votes if v.signal == "no_progress")
    gone = {node for node, _ in _left_first(votes, _idle(votes))}
    against = [v for v in votes if v.signal in ("paused", "ended", "left")]
    void = {id(v) for v in against if v.onset < since or (v.signal == "left" and v.subject.node in gone)}
    void |= {id(v) for v in against if v.signal == "paused" and now - v.onset >= LONGEST_PAUSE_SECONDS}
    nodes = max((v.nodes for v in votes if v.signal == "no_progress"), default=0)
    left = [v for v in against if v.signal == "left" and id(v) not in void]
    share = min(1.0, _nodes(left) / (NODE_SHARE * nodes)) if nodes else 1.0
    weaker = {id(v): v.weakened(share) for v in left}
    return [weaker.get(id(s), s) for s in suspicions if id(s) not in void]


def suspects(suspicions: Iterable[Suspicion]) -> tuple[Suspect, ...]:
    """Return the nodes that stand out among the idle ones of a hung job, likeliest first, else the ranks that
    did not arrive; often none."""
    votes = votes_among(suspicions)
    reasons = _standing_out(votes)
    if not reasons:
        return next((v.suspects for v in votes if v.signal == "no_progress"), ())
    subjects = {v.subject.node: v.subject for v in votes if v.signal in ("idle", "left")}
    # The rest of the probability is left to the nodes that do not stand out.
    share = _AMONG_NAMED / max(sum(len(whys) for whys in reasons.values()), 1)
    ranked = sorted(reasons, key=lambda node: -len(reasons[node]))
    return tuple(
        Suspect(subject=subjects[node], probability=round(share * len(reasons[node]), 4)) for node in ranked
    )


def note(suspicions: Iterable[Suspicion]) -> tuple[Evidence, ...]:
    """Return why they stand out."""
    reasons = _standing_out(votes_among(suspicions))
    if not reasons:
        return ()
    listed = "; ".join(f"{node}: {', '.join(whys)}" for node, whys in reasons.items())
    return (
        Evidence(metric="hang.suspects", unit="1", detector="hang", value=float(len(reasons)), note=listed),
    )


def _idle(suspicions: Iterable[Suspicion]) -> list[HangVote]:
    """Return the votes of idle nodes, the earliest first."""
    idle = (v for v in votes_among(suspicions) if v.signal == "idle")
    return sorted(idle, key=lambda v: (v.onset, v.subject.node or ""))


def _standing_out(votes: list[HangVote]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    idle = _idle(votes)
    for node, why in (*_left_first(votes, idle), *_not_spinning(idle), *_first(idle)):
        reasons.setdefault(node, []).append(why)
    return {node: reasons[node] for node in [*reasons][:_NAMED]}


def _since(no_progress: Iterable[HangVote]) -> float:
    # A node is read every so often, and the job may have stopped at any moment since the reading before.
    stops = (v.onset_lo if v.by_nodes else v.onset for v in no_progress)
    return min(stops, default=math.inf) - DECLARED_BEFORE_SECONDS


def _proofs(no_progress: Iterable[HangVote], of_nodes: Iterable[HangVote]) -> list[HangVote]:
    """Return the votes of nodes that do not work for a job that is still there."""
    idle = [v for v in of_nodes if v.signal == "idle" and v.log_likelihood_ratio >= PROOF]
    return idle + [v for v in of_nodes if _looks_left(no_progress, v)]


def _looks_left(no_progress: Iterable[HangVote], vote: HangVote) -> bool:
    """Return whether ranks that wait reported since their job seems to have left a node: it has not,
    and fills little memory."""
    heard = max((v.heard for v in no_progress), default=0.0)
    return vote.signal == "left" and not vote.released and vote.onset < heard


def _without_telemetry(of_nodes: Iterable[HangVote]) -> set[str | None]:
    return {v.subject.node for v in of_nodes if v.signal == "no_telemetry"}


def _quorum(
    no_progress: Collection[HangVote], votes: Collection[HangVote], without_telemetry: set[str | None]
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
    needed = min(needed, _electorate(nodes, without_telemetry - {v.subject.node for v in votes}))
    return max(_nodes(votes), *(s.nodes for s in votes)) >= needed


def _electorate(nodes: float, without_telemetry: set[str | None]) -> float:
    """Return how many of the machines can vote; all of them where too few send telemetry."""
    reporting = nodes - len(without_telemetry)
    return reporting if reporting >= REPORTING_SHARE * nodes else nodes


def _nodes(votes: Iterable[HangVote]) -> int:
    return len({v.subject.node for v in votes if v.subject.node})


def _left_first(votes: list[HangVote], idle: list[HangVote]) -> list[tuple[str, str]]:
    """Return nodes that the job had left when the others began to spin: one that is ended leaves later.

    Not where ranks tell which did not arrive, nor where half of the nodes or more do not spin.
    """
    stops = [v for v in votes if v.signal == "no_progress"]
    if not stops or any(v.suspects for v in stops):
        return []
    # What was left before the last step was not needed for it; without steps that is not known.
    earliest = -math.inf if only_by_nodes(stops) else _since(stops)
    latest = min(v.onset for v in stops) + LEFT_BEFORE_SECONDS
    left = [v for v in votes if v.signal == "left" and not _looks_left(stops, v)]
    gone = [v for v in left if earliest <= v.onset_lo <= latest]
    spinning = _nodes(v for v in idle for e in v.evidence if e.metric == _SPINNING and e.value >= _SPINS)
    if spinning <= _SPINS_NOT * _nodes((*idle, *gone)):
        return []
    why = "nothing of the job is left on its GPUs"
    return [(v.subject.node or "", why) for v in sorted(gone, key=lambda v: v.onset_lo)]


def _not_spinning(votes: list[HangVote]) -> list[tuple[str, str]]:
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


def _first(votes: list[HangVote]) -> list[tuple[str, str]]:
    """Return the node that became idle first, where that is clear and all clocks are right."""
    if any(e.metric == CLOCK for s in votes for e in s.evidence):
        return []
    if len(votes) < 3:
        return []
    # Nodes are read each at its own moment, and some of them every minute.
    if min(v.onset_lo for v in votes[1:]) - votes[0].onset <= _CLOCKS_APART_SECONDS:
        return []
    earlier = votes[1].onset - votes[0].onset
    return [(votes[0].subject.node or "", f"fell quiet {earlier:.1f} s before the others")]
