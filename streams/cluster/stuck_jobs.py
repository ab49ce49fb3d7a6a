"""Hangs of jobs that send no step rows: all nodes of a job that work no more, most of them spinning.

A node votes that it is stuck once its GPUs have spun for nothing for longer than the job ever paused
(``detectors.node.waiting``); how many nodes its job has it cannot know. Of n nodes that were announced with
the job, ⌈0.9 n⌉ must be seen not to work: stuck, at rest, left by their processes or without telemetry; half
of n must be stuck, since about the same time. Then the job is hung, without a vote of its steps: an error,
and critical once the stop is half as long again, and five minutes at least. Where steps are reported, they
judge.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from statistics import median

import msgspec

from alerts.reasoning.hang import NODE_SHARE, REPORTING_SHARE
from slowrank.telemetry import Evidence, HangVote, NodeAnnounced, StepsReported, Subject, encode
from slowrank.telemetry.messages import HangSignal
from streams.cluster.inventory import EXPECTED_SECONDS

# Onsets of one stop are no further from their median. Chosen: the rank that stops first stops the others
# within a step, and nodes may be read once a minute.
TOGETHER_SECONDS = 120.0

# From when on such a hang pages. Chosen: that of nodes which are idle for longer than any undeclared pause
# (``CERTAIN_SECONDS`` of ``streams.node.detectors.idle_nodes``); and half as long again as it took to find
# it, which may be twice the longest pause.
CERTAIN_SECONDS, CERTAIN_FACTOR = 300.0, 1.5

# Event time between two repeats of a hang. Chosen: a finding shows within five minutes that it lasts.
REPEAT_SECONDS = 300.0

# For so long after its last report a job counts as one with step rows. Chosen: as a stop is repeated
# (``detectors.job.progress``), and a quarter of an hour more, after which reports come again.
STEPS_SECONDS = 86_400.0 + 900.0

# Time between two clean-ups (chosen: costs nothing).
PRUNE_SECONDS = 3600.0

# Names come from outside: nodes of all jobs at once, ten times those of the largest fleet that we plan for.
MAX_NODES = 1 << 17

# What the vote weighs (log likelihood ratio). Chosen: as much as a certain stop of the steps.
_WEIGHT = 5.0

_DETECTOR = "stuck_nodes"

_OF_NODES = ("idle", "left", "no_telemetry")

Message = NodeAnnounced | HangVote | StepsReported
"""What the rule needs of nodes and jobs."""

_Job = tuple[str, str]


@dataclass(slots=True)
class _Node:
    """A node of a job: its ``gpus``, when it was last announced, and its votes that stand, by signal."""

    gpus: int
    seen: float
    votes: dict[HangSignal, HangVote] = field(default_factory=dict)

    @property
    def stuck(self) -> HangVote | None:
        """The vote that it is stuck, where that stands."""
        vote = self.votes.get("idle")
        return vote if vote is not None and vote.stuck_since else None

    @property
    def still(self) -> bool:
        """Whether it is seen not to work, or not seen at all."""
        idle = self.votes.get("idle")
        return (idle is not None and idle.resting) or "left" in self.votes or "no_telemetry" in self.votes


@dataclass(slots=True)
class _Watch:
    """One job: its nodes, until when it counts as one with steps, and the hang that stands."""

    nodes: dict[str, _Node] = field(default_factory=dict)
    steps_until: float = -math.inf
    hang: HangVote | None = None
    certain_at: float = math.inf

    @property
    def due(self) -> float:
        """When the hang that stands is reported next."""
        if self.hang is None:
            return math.inf
        again = self.hang.ts + REPEAT_SECONDS
        return again if self.hang.certain else min(again, self.certain_at)


class StuckJobs:
    """The jobs of all clusters by their nodes; messages count in order of their event time."""

    def __init__(self, max_nodes: int = MAX_NODES) -> None:
        self._jobs: dict[_Job, _Watch] = {}
        # The job of each node, by cluster and node.
        self._runs: dict[tuple[str, str], _Job] = {}
        self._hung: set[_Job] = set()
        self._waiting: list[Message] = []
        self._pruned_at = -math.inf
        self._max_nodes = max_nodes

    def __len__(self) -> int:
        """Return how many nodes are watched."""
        return len(self._runs)

    def update(self, message: Message) -> None:
        """Take a message; it counts once its time has passed."""
        if not isinstance(message, HangVote) or message.signal in _OF_NODES:
            self._waiting.append(message)

    def due(self, now: float) -> Iterator[HangVote]:
        """Yield the votes on hangs that follow up to the event time ``now``."""
        ready = sorted((m for m in self._waiting if m.ts <= now), key=_order)
        self._waiting = [m for m in self._waiting if m.ts > now]
        for ts, messages in groupby(ready, key=lambda m: m.ts):
            yield from self._repeats(ts)
            touched = {job for message in messages for job in self._apply(message)}
            for job in sorted(touched):
                yield from self._judge(job, ts)
        yield from self._repeats(now)
        for job in sorted(self._prune(now)):
            yield from self._judge(job, now)

    def _apply(self, message: Message) -> list[_Job]:
        """Take a message whose time has come; return the jobs that it may stop or set free."""
        if isinstance(message, StepsReported):
            job = message.cluster, message.job_id
            if job not in self._jobs and len(self._jobs) >= self._max_nodes:
                return []
            self._jobs.setdefault(job, _Watch()).steps_until = message.ts + STEPS_SECONDS
            return [job]
        if isinstance(message, NodeAnnounced):
            return self._announced(message)
        job, name = (message.cluster, message.subject.job_id or ""), message.subject.node or ""
        node = self._jobs[job].nodes.get(name) if job in self._jobs else None
        if node is None:
            return []
        if message.signal == "left" and message.released:
            self._leave((message.cluster, name))
        elif message.state == "clear":
            node.votes.pop(message.signal, None)
        else:
            node.votes[message.signal] = message
        return [job]

    def _announced(self, message: NodeAnnounced) -> list[_Job]:
        key = message.cluster, message.node
        job = None if message.job_id is None else (message.cluster, message.job_id)
        before = self._runs.get(key)
        if before == job:
            if job is not None:
                self._jobs[job].nodes[message.node].seen = message.ts
            return []
        left = [] if before is None else [before]
        self._leave(key)
        # A host without GPUs can neither spin nor stand idle.
        if job is not None and message.gpus and len(self._runs) < self._max_nodes:
            self._runs[key] = job
            self._jobs.setdefault(job, _Watch()).nodes[message.node] = _Node(message.gpus, message.ts)
        return left

    def _leave(self, key: tuple[str, str]) -> None:
        job = self._runs.pop(key, None)
        if job is not None:
            del self._jobs[job].nodes[key[1]]

    def _judge(self, job: _Job, ts: float) -> Iterator[HangVote]:
        watch = self._jobs[job]
        present = {name: n for name, n in watch.nodes.items() if ts - n.seen <= EXPECTED_SECONDS}
        stuck = [vote for n in present.values() if (vote := n.stuck) is not None]
        if stuck:
            middle = median(v.stuck_since for v in stuck)
            stuck = [v for v in stuck if abs(v.stuck_since - middle) <= TOGETHER_SECONDS]
        still = sum(n.still for n in present.values())
        enough = len(stuck) >= REPORTING_SHARE * len(present) and still >= NODE_SHARE * len(present)
        hung = bool(stuck) and enough and ts > watch.steps_until
        if hung and watch.hang is None:
            watch.hang = _vote(job, ts, stuck, still, list(present.values()))
            since = watch.hang.onset
            watch.certain_at = since + max(CERTAIN_SECONDS, CERTAIN_FACTOR * (ts - since))
            self._hung.add(job)
            yield watch.hang
        elif not hung and watch.hang is not None:
            yield msgspec.structs.replace(watch.hang, state="clear", ts=ts)
            watch.hang = None
            self._hung.discard(job)

    def _repeats(self, until: float) -> Iterator[HangVote]:
        """Yield the hangs that are to be reported again by ``until``, dated by when they are."""
        while self._hung:
            at, job = min((self._jobs[job].due, job) for job in self._hung)
            if at > until:
                return
            watch = self._jobs[job]
            assert watch.hang is not None
            certain = at >= watch.certain_at
            watch.hang = msgspec.structs.replace(watch.hang, state="update", ts=at, certain=certain)
            yield watch.hang

    def _prune(self, now: float) -> set[_Job]:
        """Drop, once an hour, nodes that have not been announced for an hour, and jobs without any; return
        the hung ones that have lost nodes."""
        if now < self._pruned_at + PRUNE_SECONDS:
            return set()
        self._pruned_at, oldest = now, now - PRUNE_SECONDS
        gone = {k: job for k, job in self._runs.items() if self._jobs[job].nodes[k[1]].seen < oldest}
        for key in gone:
            self._leave(key)
        kept = {j: w for j, w in self._jobs.items() if w.nodes or w.hang or now < w.steps_until}
        self._jobs = kept
        return self._hung & set(gone.values())


def _order(message: Message) -> tuple[float, bytes]:
    return message.ts, encode(message)


def _vote(job: _Job, ts: float, stuck: list[HangVote], still: int, nodes: list[_Node]) -> HangVote:
    cluster, name = job
    since = min(v.stuck_since for v in stuck)
    shown = Evidence(
        metric="job.stuck_nodes",
        unit="1",
        detector=_DETECTOR,
        value=float(len(stuck)),
        note=f"of {len(nodes)} nodes, {still} of which do not work; for longer than the job paused before",
    )
    return HangVote(
        cluster=cluster,
        signal="no_progress",
        detector=_DETECTOR,
        catalogue_id="hang",
        family="job",
        kind="hang.job",
        state="raise",
        subject=Subject(type="job", cluster=cluster, job_id=name),
        ts=ts,
        onset=since,
        onset_lo=min([since, *(v.onset_lo for v in stuck if v.onset == v.stuck_since)]),
        onset_hi=since,
        score=1.0,
        log_likelihood_ratio=_WEIGHT,
        gpus=sum(n.gpus for n in nodes),
        nodes=len(nodes),
        evidence=(shown,),
        severity="error",
        alone=True,
        by_nodes=True,
        shadow=any(v.shadow for v in stuck),
    )
