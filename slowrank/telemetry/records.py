"""The wire records, version 1, in Kafka and as input of the stages.

Columns are bytes here; ``streams.columns`` maps arrays to them by the blocks of the schema.
"""

from typing import Literal

import msgspec

VERSION = 1

# Node of JSON rows without one: no machine, so that its ranks have no common cause.
UNKNOWN_NODE = "unknown"

SubjectType = Literal[
    "gpu", "node", "nic", "link", "switch", "rank", "group", "job", "rack", "site", "exporter", "telemetry"
]
"""A ``group`` are the ranks of a job on a node that share their ``coords``: one tensor-parallel group. A
``site`` is all of a cluster."""


# Label of samples whose exporter has released the node's GPUs on request: no GPU is missing.
GPUS_RELEASED = {"gpus": "released"}


# gc=False: records have no cycles, and the garbage collector would visit thousands of them a second.
class NodeSample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The values of one node in one tick.

    ``ts`` is the event time in Unix seconds; ``(node, boot_id, seq)`` identifies the record, also when it is
    sent twice. ``rx_hint`` is the same time by the cluster's clock, where a reader has put ``ts`` right by
    what the sample reports of the node's clock. ``gpu_ids`` and ``nic_ids`` name the instances of the columns
    in ``gpu`` and ``nic`` (GPU index as text, ``device/port``); ``host`` has one instance. ``row_bytes``
    (bytes of one instance in ``gpu``, ``nic``, ``host``) is sent from schema 2 on, for readers with an older
    schema.
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


class OpenStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A step that a rank has not ended: its number, the phase ("": none), seconds since the last one, and the
    line of code that it is in ("": not known)."""

    rank: int
    step: int
    phase: str
    seconds: float
    at: str = ""


class JobSteps(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Step rows of the ranks of one node since the last flush; ``rows`` follows ``STEP_SCHEMAS``.

    ``world_size`` (0 = unknown) is the number of ranks of the job; ``labels`` carries facts that hold for
    all rows (``phase``, ``gpu_model``). ``row_bytes`` (bytes of one row) is sent from schema 2 on. ``open``:
    what ranks are doing that send no rows, at ``ts``.
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
    open: tuple[OpenStep, ...] = ()


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
    """Subject of a suspicion or a finding; unknown fields are None.

    ``ranks`` are those of a node without a name ("8-15"), or of a group that no coordinates tell: likely a
    tensor-parallel one ("8-11"), or those that work on one batch ("3,67,131").
    """

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
    ranks: str | None = None
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


# Ends the metric of the evidence that counts the single steps in which transfers are slow.
LONG_STEPS = ".long_steps"


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One measured value with the baseline or the peers that it is compared with."""

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
"""How slow the other ranks of a tensor-parallel group are; empty: not all of them are slow."""


Severity = Literal["critical", "error", "warning", "info"]


class Suspect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of several possible causes, with its probability."""

    subject: Subject
    probability: float


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that could not be read: its position, the reason, and its first 4 kB."""

    topic: str
    partition: int
    offset: int
    ts: float
    reason: str
    detail: str
    payload: bytes
