"""The messages between stages: a tagged union, each type with its own fields.

All but ``JobEnded`` travel on the topic ``suspicions`` with the cluster as key; ``JobEnded`` goes where the
step rows of its job go. They stand beside the records, not in ``streams``, because the codec checks their
limits and because ``alerts`` weighs the suspicions.
"""

from typing import ClassVar, Literal, get_args

import msgspec

from slowrank.telemetry.records import Evidence, Family, Mates, Severity, Subject, Suspect

# Older versions are read for one release (``old_messages``).
MESSAGE_VERSION = 3

PhaseName = Literal["image", "environment", "launch", "rendezvous", "checkpoint_load", "first_step"]
"""Phases of the start of a job, in their order."""

HangSignal = Literal["no_progress", "idle", "left", "ended", "paused", "no_telemetry"]
"""What a vote on a hang reports: steps are missing; a node does not work for its job; the job has left a
node; the job has announced its end, or a pause; a node sends no telemetry."""

HeldBy = Literal["thermal", "power_brake", "slowdown", "power_cap", "nothing", "unknown"]
"""What holds the clocks of a node's GPUs down, as NVML states it; unknown: no reasons are read."""

JobCode = Literal["job.start", "job.restart", "job.schedule", "job.eval", "job.checkpoint"]
"""Codes of the events by which jobs declare what may change their level."""

PHASES: tuple[PhaseName, ...] = get_args(PhaseName)


class _Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """What all messages have: a version, which is always written, and the cluster.

    A field with a plain default would be left out of the bytes, and the version with it.
    """

    v: int = msgspec.field(default_factory=lambda: MESSAGE_VERSION)
    cluster: str


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """What a cause has cost its job since the onset and was not reported before it was raised, and ``gpus``:
    GPU-seconds a second at present."""

    gpu_seconds: float
    gpus: float


class Suspicion(_Message, tag="suspicion", frozen=True, kw_only=True):
    """What a detector has found about one subject at one event time; input of the finding stage.

    ``state`` is ``raise`` (over the threshold), ``update`` (still, with fresher evidence) or ``clear``.
    ``kind`` is the finding kind it argues for; ``score`` is evidence over threshold (1.0 = threshold);
    ``log_likelihood_ratio`` its vote. ``overwhelming`` means that no second family is needed to open a
    finding. ``hypotheses`` are causes with relative log-odds, ``ruled_out`` what was checked and found fine,
    ``suspects`` who within or around the subject may be to blame, likeliest first.
    ``gpus`` is how many GPUs the job gates (cost), ``ranks_on_node`` how many of its ranks run on the
    subject's node (0 = not known), ``ranks_likely_on_node`` how many likely do where rows name no node, in a
    row from a multiple of that on (0 = that is not known either), ``ranks_in_group`` how many ranks its
    tensor-parallel group has, where no two are known to run on different nodes (0 = it is in none); ``mates``
    is how slow its others are.
    ``lost`` is what the job's slow steps cost: of several suspicions that are open at once each has its
    share. ``severity``: as the rule itself grades it, if it does. ``shadow``: made by a detector on
    trial; it is recorded, and changes no live finding.
    ``detector`` is the signal that it was read from; ``catalogue_id`` the detector and ``rule_id`` the
    single rule under which settings switch it: empty where the pipeline reports about itself, or where the
    detector has no rules. Identity is ``(cluster, detector, subject, kind, onset)``: the same content twice
    changes nothing.
    """

    detector: str
    family: Family
    kind: str
    state: Literal["raise", "update", "clear"]
    subject: Subject
    ts: float
    onset: float
    onset_lo: float
    onset_hi: float
    score: float
    log_likelihood_ratio: float
    overwhelming: bool = False
    slowdown_ratio: float | None = None
    job_slowdown_ratio: float | None = None
    gpus: int = 0
    ranks: int = 0
    nodes: int = 0
    lost: Lost | None = None
    ranks_on_node: int = 0
    ranks_likely_on_node: int = 0
    ranks_in_group: int = 0
    mates: Mates = ""
    evidence: tuple[Evidence, ...] = ()
    hypotheses: dict[str, float] = {}
    ruled_out: tuple[str, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    note: str = ""
    shadow: bool = False
    severity: Severity | None = None
    catalogue_id: str = ""
    rule_id: str = ""


class HangVote(Suspicion, tag="hang_vote", frozen=True, kw_only=True):
    """A suspicion as a vote for or against a hang of a job (``alerts.reasoning.hang``); the rest is evidence.

    ``early``: steps are missing for a shorter time than any job is allowed to pause. ``certain``: for longer
    than any pause of the job so far, or the node has been idle for longer than any undeclared pause.
    ``both_signs``: the idle node neither sends nor computes, ``lasting``: for most of a minute. ``released``:
    the node that the job has left has another job, or none; ``reused``: another job. ``alone``: steps are
    missing for so long, or of a few ranks alone at the last step, that this suffices where no node of the job
    sends samples of both GPUs and ports. ``heard``: when a rank last reported that it waits in the step, 0
    where none has. ``by_nodes``: of a job that sends no step rows, what its nodes show together.
    ``stuck_since``: since when the GPUs of the node have spun for nothing, where that is longer than any
    pause of the job so far, else 0; ``resting``: for minutes they have done that or stood idle.
    ``machine_failed``: the finding stage adds that a machine of the job has failed as the steps ended.
    """

    signal: HangSignal
    early: bool = False
    certain: bool = False
    both_signs: bool = False
    lasting: bool = False
    released: bool = False
    reused: bool = False
    alone: bool = False
    heard: float = 0.0
    by_nodes: bool = False
    stuck_since: float = 0.0
    resting: bool = False
    machine_failed: bool = False

    def weakened(self, share: float) -> "HangVote":
        """Return the vote with a ``share`` of its log-odds."""
        return msgspec.structs.replace(self, log_likelihood_ratio=share * self.log_likelihood_ratio)


class _OfNode(_Message, frozen=True, kw_only=True):
    """A message about one node, with the job that it runs and the domains that it stands in."""

    node: str
    job_id: str | None = None
    rack: str | None = None
    switch: str | None = None

    @property
    def subject(self) -> Subject:
        """The node as the subject of a suspicion or finding."""
        return Subject(
            type="node",
            cluster=self.cluster,
            node=self.node,
            job_id=self.job_id,
            rack=self.rack,
            switch=self.switch,
        )


class NodeAnnounced(_OfNode, tag="node_announced", frozen=True, kw_only=True):
    """A node reports at ``ts``, with so many network ports and GPUs, and with their ``boards`` by index.

    The finding stage receives suspicions only, and needs to know which nodes there are and which are well.
    """

    ts: float
    ports: int = 0
    gpus: int = 0
    boards: dict[str, str] = {}


class MinuteMeans(_OfNode, tag="minute_means", frozen=True, kw_only=True):
    """The mean of each feature of a node over the minute from ``start``, of so many ``samples``.

    ``ts`` is when the minute is compared with those of other nodes; features not read are left out. Of
    counters it is the increase per second, of all ports together. ``of_gpus`` are the means of each of
    ``gpus``, by metric, where all were read.
    """

    ts: float
    start: float
    samples: int
    means: dict[str, float] = {}
    gpus: tuple[str, ...] = ()
    of_gpus: dict[str, tuple[float, ...]] = {}


class LoadedMinute(_OfNode, tag="loaded_minute", frozen=True, kw_only=True):
    """How the median GPU of a node ran under load in the minute from ``start``, for its job if it names one.

    ``since`` is the first sample of it under load, ``ts`` when the minute is compared with those of the job's
    other nodes. ``model`` is what models of GPUs differ by, empty where nothing of that is read. ``clock_hz``
    is the mean SM clock (1 at least), ``held_by`` what holds it down on half of the GPUs or more,
    ``limit_watts`` their power limit (0: not read). ``shadow`` as in a suspicion.
    """

    ts: float
    start: float
    since: float
    model: str = ""
    clock_hz: float
    utilization_ratio: float
    limit_watts: float = 0.0
    held_by: HeldBy = "unknown"
    shadow: bool = False


class Heartbeat(_Message, tag="heartbeat", frozen=True, kw_only=True):
    """All records of a partition up to the whole second ``ts`` have been processed.

    ``partition`` is topic and number (``job-steps:3``).
    """

    ts: float
    partition: str


class LinkDelay(_Message, tag="link_delay", frozen=True, kw_only=True):
    """A delay in ``seconds`` measured from ``node`` to the node ``peer`` over the hops ``via``.

    ``expected_seconds`` is what the prober expects, if it does. ``shadow`` as in a suspicion.
    """

    ts: float
    node: str
    peer: str
    seconds: float
    expected_seconds: float | None = None
    nic: str | None = None
    via: tuple[str, ...] = ()
    shadow: bool = False


class StartupPhase(_Message, tag="startup_phase", frozen=True, kw_only=True):
    """A node has ended a phase of the start of its job: from ``began`` to ``ts``, holding ``gpus`` GPUs."""

    ts: float
    node: str
    job_id: str
    attempt: int = 0
    phase: PhaseName
    began: float
    gpus: int = 0
    shadow: bool = False


class RankPace(_Message, tag="rank_pace", frozen=True, kw_only=True):
    """How fast a rank's GPU is beside its role peers: median and spread of the log of its step time ratio."""

    ts: float
    node: str
    gpu_index: int
    job_id: str
    rank: int
    log_ratio: float
    spread: float


class StepsReported(_Message, tag="steps_reported", frozen=True, kw_only=True):
    """The job sends step rows: whether it hangs is judged by them."""

    ts: float
    job_id: str


class JobNodes(_Message, tag="job_nodes", frozen=True, kw_only=True):
    """Nodes, at most ``MAX_NODES``, from which the step rows of the job come; they may send no samples."""

    MAX_NODES: ClassVar[int] = 1000

    ts: float
    job_id: str
    nodes: tuple[str, ...]


class JobDeclared(_Message, tag="job_declared", frozen=True, kw_only=True):
    """What a job has declared by an event of ``node``: it explains changes of the job's level to people."""

    ts: float
    node: str
    job_id: str
    code: JobCode
    message: str = ""


StageMessage = (
    Suspicion
    | HangVote
    | NodeAnnounced
    | MinuteMeans
    | LoadedMinute
    | Heartbeat
    | LinkDelay
    | StartupPhase
    | RankPace
    | StepsReported
    | JobNodes
    | JobDeclared
)
"""What travels on the topic ``suspicions``."""


class JobEnded(_Message, tag="job_ended", frozen=True, kw_only=True):
    """The job has ended, from an event of ``node``: in ``job-steps``, behind the job's last step rows.

    Events have the key of their node and steps that of their job: the end has to cross to the steps.
    """

    ts: float
    job_id: str
    node: str
    seq: int = 0
