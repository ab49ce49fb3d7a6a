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


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that could not be read: where it stood, why, and its first 4 kB."""

    topic: str
    partition: int
    offset: int
    ts: float
    reason: str
    detail: str
    payload: bytes
