"""The wire records, version 1: what travels in Kafka and what the stages consume.

Columns stay bytes here; whoever computes on them lays an array over the bytes with the schema's blocks.
"""

from typing import Literal

import msgspec

VERSION = 1

UNKNOWN_NODE = "unknown"
"""The node of twin rows that name none; no machine is meant, and ranks that share it share nothing."""

SubjectType = Literal[
    "gpu", "node", "nic", "link", "switch", "rank", "group", "job", "rack", "site", "exporter", "telemetry"
]
"""A ``group`` are the ranks of a job on a node that share their ``coords``: one tensor-parallel group. A
``site`` is all of a cluster."""


GPUS_RELEASED = {"gpus": "released"}
"""The label of samples whose exporter has let go of the node's GPUs on purpose: no GPU is missing."""


# gc=False: a record holds no cycle, and the garbage collector need not walk through thousands a second.
class NodeSample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything one node read in one tick.

    ``ts`` is the event time in Unix seconds; ``(node, boot_id, seq)`` identifies the record for ever, also
    when it is sent twice. ``gpu_ids`` and ``nic_ids`` name the instances of the columns in ``gpu`` and
    ``nic`` (GPU index as text, ``device/port``); ``host`` has one instance. ``row_bytes`` (bytes of one
    instance in ``gpu``, ``nic``, ``host``) is sent from schema 2 on, for readers that know an older one.
    """

    v: int = VERSION
    schema: int
    cluster: str
    node: str
    boot_id: str
    seq: int
    ts: float
    rx_hint: float | None = None
    job_id: str | None = None
    labels: dict[str, str] = {}
    gpu_ids: tuple[str, ...] = ()
    nic_ids: tuple[str, ...] = ()
    row_bytes: tuple[int, int, int] | None = None
    gpu: bytes = b""
    nic: bytes = b""
    host: bytes = b""


class JobSteps(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Step rows of the ranks of one node since the last flush; ``rows`` follows ``STEP_SCHEMAS``.

    ``world_size`` (0 = unknown) is the number of ranks of the job; ``labels`` carries facts that hold for
    all rows (``phase``, ``gpu_model``). ``row_bytes`` (bytes of one row) is sent from schema 2 on.
    """

    v: int = VERSION
    schema: int
    cluster: str
    job_id: str
    attempt: int = 0
    node: str
    boot_id: str
    seq: int
    ts: float
    world_size: int = 0
    labels: dict[str, str] = {}
    row_bytes: int | None = None
    rows: bytes = b""


class NodeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One discrete event of a node or of a job on it: an XID, a link going down, a checkpoint, a deploy.

    ``source`` is where it was read (``kmsg``, ``nvml``, ``job``, ``operator``), ``code`` the stable name
    (``xid.79``, ``nic.link_down``, ``job.checkpoint``), ``subject`` what it is about (``gpu_index``,
    ``nic``, ``job_id``, ``rank``).
    """

    v: int = VERSION
    cluster: str
    node: str
    boot_id: str = ""
    seq: int = 0
    ts: float
    source: str
    code: str
    severity: Literal["info", "warning", "error", "critical"] = "info"
    subject: dict[str, str | int] = {}
    message: str = ""
    raw: str = ""


Record = NodeSample | JobSteps | NodeEvent


class Subject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who a suspicion or a finding is about; only what is known is set."""

    type: SubjectType
    cluster: str
    node: str | None = None
    gpu_index: int | None = None
    gpu_uuid: str | None = None
    serial: str | None = None
    nic: str | None = None
    port: str | None = None
    peer_port: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    coords: dict[str, int] | None = None
    job_id: str | None = None
    attempt: int | None = None
    rack: str | None = None
    rail: str | None = None
    switch: str | None = None


class Baseline(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The subject's own past of a metric."""

    median: float
    mad: float
    n: int
    from_ts: float | None = None
    to_ts: float | None = None


class Peers(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The subject's group at the same time; ``rank_of_subject`` counts from 1 = smallest."""

    group: str
    n: int
    p05: float
    median: float
    p95: float
    rank_of_subject: int | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One measured reason: a value beside the baseline or the peers it is judged against."""

    metric: str
    unit: str
    detector: str
    value: float
    baseline: Baseline | None = None
    peers: Peers | None = None
    change_at: float | None = None
    change_probability: float | None = None
    z_robust: float | None = None
    note: str = ""


Family = Literal[
    "timing", "clocks", "gpu_memory", "nvlink_pcie", "nic", "host", "event", "silence", "telemetry", "job"
]
"""Independent kinds of evidence: two metrics of one family are one vote (fusion, detection section 5)."""


Mates = Literal["", "as_slow", "less_slow"]
"""How slow the others of a rank's tensor-parallel group are meanwhile; empty: not all of them are."""


Severity = Literal["critical", "error", "warning", "info"]


class Suspect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of several that may be to blame, and the probability that it is the one."""

    subject: Subject
    probability: float


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """What a cause has cost its job since the onset, and ``gpus``: GPU-seconds a second at present."""

    gpu_seconds: float
    gpus: float


class Suspicion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a detector believes about one subject at one event time; input of the fusion stage.

    ``state`` is ``raise`` (over the threshold), ``update`` (still, with fresher evidence) or ``clear``.
    ``kind`` is the finding kind it argues for; ``score`` is evidence over threshold (1.0 = threshold);
    ``log_likelihood_ratio`` its vote. ``overwhelming`` means that no second family is needed to open a
    finding. ``hypotheses`` are causes with relative log-odds, ``ruled_out`` what was checked and found fine,
    ``suspects`` who within or around the subject may be to blame, likeliest first.
    ``gpus`` is how many GPUs the job gates (cost), ``ranks_on_node`` how many of its ranks run on the
    subject's node (0 = not known), ``ranks_in_group`` how many ranks its tensor-parallel group has, where no
    two are known to run on different nodes (0 = it is in none); ``mates`` is how slow its others are.
    ``lost`` is what the job's slow steps cost: of several suspicions that are open at once each has its
    share. ``severity``: how bad the rule itself calls it, if it does. ``shadow``: made by a detector on
    trial; it is recorded, and moves nothing that others make. ``readings`` are values by metric, where they
    are only told to the next stage.
    Identity is ``(cluster, detector, subject, kind, onset)``: the same content twice changes nothing.
    """

    v: int = VERSION
    cluster: str
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
    ranks_in_group: int = 0
    mates: Mates = ""
    evidence: tuple[Evidence, ...] = ()
    hypotheses: dict[str, float] = {}
    ruled_out: tuple[str, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    note: str = ""
    shadow: bool = False
    severity: Severity | None = None
    readings: dict[str, float] = {}


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that could not be read: where it stood, why, and its first 4 kB."""

    topic: str
    partition: int
    offset: int
    ts: float
    reason: str
    detail: str
    payload: bytes
