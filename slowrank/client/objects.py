"""Types of the JSON objects that the API returns; fields that may be absent are ``NotRequired``.

Times are RFC 3339 in objects of alerting and epoch milliseconds in those for dashboards.
A newer API may send more fields.
"""

from typing import Any, Generic, Literal, NotRequired, TypedDict, TypeVar

Item = TypeVar("Item")
Severity = Literal["critical", "error", "warning", "info"]
Status = Literal["suspected", "open", "acknowledged", "resolved", "expired"]
Verdict = Literal["true_positive", "false_positive", "benign", "duplicate"]


class Page(TypedDict, Generic[Item]):
    """One page of a list; an empty ``next_cursor`` means the last one."""

    items: list[Item]
    next_cursor: str


class Subject(TypedDict):
    """What a finding is about."""

    type: str
    cluster: str
    node: NotRequired[str]
    gpu_index: NotRequired[int]
    gpu_uuid: NotRequired[str]
    serial: NotRequired[str]
    nic: NotRequired[str]
    port: NotRequired[str]
    peer_port: NotRequired[str]
    rank: NotRequired[int]
    ranks: NotRequired[str]
    local_rank: NotRequired[int]
    coords: NotRequired[dict[str, int]]
    job_id: NotRequired[str]
    attempt: NotRequired[int]
    rack: NotRequired[str]
    switch: NotRequired[str]
    rail: NotRequired[str]


class Action(TypedDict):
    """What to do next; ``commands`` are for a person to copy."""

    code: str
    text: str
    commands: NotRequired[list[str]]
    runbook_url: NotRequired[str]
    automatable: NotRequired[bool]
    advice: NotRequired[dict[str, Any]]
    eviction: NotRequired[dict[str, Any]]


class Cause(TypedDict):
    """The most likely explanation, the others above 5 %, and what was found fine."""

    hypothesis: str
    confidence: NotRequired[float]
    alternatives: NotRequired[dict[str, float]]
    ruled_out: NotRequired[list[str]]


class Evidence(TypedDict):
    """One measurement that supports a finding."""

    metric: str
    unit: str
    detector: str
    value: float
    baseline: NotRequired[dict[str, Any]]
    peers: NotRequired[dict[str, Any]]
    change_at: NotRequired[float]
    change_probability: NotRequired[float]
    note: NotRequired[str]
    z_robust: NotRequired[float]


class Finding(TypedDict):
    """One explained cause (``finding.v1``)."""

    id: str
    schema: str
    dedup_key: str
    kind: str
    title: str
    severity: Severity
    status: Status
    subject: Subject
    detector: str
    onset: str
    onset_interval: list[str]
    detected_at: str
    last_seen_at: str
    detection_delay_seconds: float
    detector_version: NotRequired[str]
    config_hash: NotRequired[str]
    group_key: NotRequired[str]
    resolved_at: NotRequired[str]
    updated_at: NotRequired[str]
    slowdown_ratio: NotRequired[float]
    job_slowdown_ratio: NotRequired[float]
    gpu_hours_lost: NotRequired[float]
    gpu_hours_lost_per_hour: NotRequired[float]
    cost_per_hour: NotRequired[float]
    confidence: NotRequired[float]
    score: NotRequired[float]
    evidence: NotRequired[list[Evidence]]
    cause: NotRequired[Cause]
    suspects: NotRequired[list[dict[str, Any]]]
    blast_radius: NotRequired[dict[str, Any]]
    action: NotRequired[Action]
    occurrences: NotRequired[int]
    flaps: NotRequired[int]
    shadow: NotRequired[bool]
    acknowledged: NotRequired[dict[str, Any]]
    closed: NotRequired[dict[str, Any]]
    feedback: NotRequired[dict[str, Any]]
    history: NotRequired[list[dict[str, Any]]]
    silenced_by: NotRequired[str]
    silenced_until: NotRequired[str]
    no_steps_since: NotRequired[str]
    truncated: NotRequired[bool]


class Explanation(TypedDict):
    """Why this finding and not another, as text."""

    finding_id: str
    text: str
    sections: list[dict[str, Any]]


class Matcher(TypedDict):
    """One condition on a label of findings, in Alertmanager's form."""

    name: str
    value: str
    isRegex: NotRequired[bool]
    isEqual: NotRequired[bool]


class Silence(TypedDict):
    """Keeps findings that match from webhooks for a time."""

    id: str
    status: dict[str, str]
    matchers: list[Matcher]
    startsAt: str
    endsAt: str
    createdBy: str
    comment: str
    recurrence: NotRequired[dict[str, Any]]


class Inhibition(TypedDict):
    """While a finding that ``source`` matches is open, those that ``target`` matches are held back."""

    id: str
    source: list[Matcher]
    target: list[Matcher]
    equal: list[str]
    createdBy: str
    comment: str


class Webhook(TypedDict):
    """An endpoint that findings are delivered to; the path of ``url`` is masked."""

    id: str
    name: str
    url: str
    format: str
    min_severity: Severity
    events: list[str]
    kinds: list[str]
    clusters: list[str]
    matchers: list[Matcher]
    wait_seconds: int
    unless_acknowledged: bool
    interval_seconds: int
    repeat_seconds: int | None
    template: dict[str, Any] | list[Any] | None
    enabled: bool
    status: Literal["active", "failing", "disabled"]
    failures_in_a_row: int
    created_at: str
    updated_at: str
    failing_since: NotRequired[str]
    disabled_reason: NotRequired[str]
    secret: NotRequired[str]


class Rotation(TypedDict):
    """A replaced secret; the old one is valid until ``old_until``."""

    id: str
    old_until: str
    secret: NotRequired[str]


class TestResult(TypedDict):
    """What the receiver answered to a test delivery."""

    delivery_id: str
    delivered: bool
    status: int | None
    error: str
    seconds: float
    protocol: NotRequired[str]


class Delivery(TypedDict):
    """One event for one webhook; ``message_id`` is its ``webhook-id``."""

    id: str
    message_id: str
    webhook_id: str
    event_type: str
    finding_id: str | None
    status: Literal["pending", "muted", "delivered", "failed", "superseded"]
    attempts: int
    muted_by: str | None
    superseded_by: str | None
    last_status: int | None
    last_error: str
    created_at: str
    last_attempt_at: NotRequired[str]
    delivered_at: NotRequired[str]
    next_attempt_at: NotRequired[str]
    tries: NotRequired[list[dict[str, Any]]]


class ApiKey(TypedDict):
    """An API key; ``token`` is there once, in the answer that creates it."""

    id: str
    name: str
    scopes: list[str]
    clusters: list[str]
    created_by: str
    created_at: str
    expires_at: NotRequired[str]
    last_used_at: NotRequired[str]
    revoked_at: NotRequired[str]
    token: NotRequired[str]


class AuditEntry(TypedDict):
    """Who did what; ``actor`` is the name of the key ``key_id``."""

    seq: int
    at: str
    actor: str
    action: str
    target: str
    detail: dict[str, Any]
    key_id: NotRequired[str]


class ChronicGpu(TypedDict):
    """A GPU that is slightly slow in many jobs."""

    cluster: str
    node: str
    gpu_index: int
    slowdown_ratio: float
    spreads: float
    certainty: float
    since: str
    hours: int
    days: int
    jobs: int
    ranks: int


class Node(TypedDict):
    """A node with the worst open severity of each of its GPUs (``pips``)."""

    cluster: str
    node: str
    state: str
    last_seen_at: int
    gpus: int
    nics: int
    open_findings: int
    pips: list[int]
    rack: NotRequired[str | None]
    switch: NotRequired[str | None]
    job_id: NotRequired[str | None]


class Gpu(TypedDict):
    """A GPU where it is now; ``severity`` is the rank of its worst open finding."""

    id: str
    cluster: str
    node: str
    gpu_index: int
    severity: int
    rack: NotRequired[str | None]
    job_id: NotRequired[str | None]


class Job(TypedDict):
    """A job in its latest attempt."""

    cluster: str
    job_id: str
    attempt: int
    attempts: int
    world_size: int
    started_at: int
    last_seen_at: int
    running: bool
    state: Literal["running", "hung", "silent"]
    first_step: int
    last_step: int
    open_findings: int
    gpu_hours_lost: float


class LevelExplanation(TypedDict):
    """What happened near a change of level and may explain it."""

    what: Literal["restart", "resize", "schedule", "finding", "evaluation", "checkpoint"]
    at: int
    text: str
    finding_id: str | None


class LevelChange(TypedDict):
    """A change of the level of a job: ``ratio`` is that after it by that before it."""

    at: int
    ratio: float | None
    before: float
    after: float
    explanations: list[LevelExplanation]


class Band(TypedDict):
    """Step times of a job over time: columns of equal length."""

    job_id: str
    cluster: str
    metric: str
    unit: str
    sampled: bool
    bin_ms: int
    t: list[int]
    first_step: list[int]
    last_step: list[int]
    ranks: list[int]
    p05: list[float]
    median: list[float]
    p95: list[float]
    max: list[float]
    slowest_rank: list[int]
    checkpoints: list[tuple[int, float]]
    change_points: list[LevelChange]


class Backtest(TypedDict):
    """A recording that is run through the detectors; ``result`` once its ``state`` is ``done``."""

    id: str
    state: Literal["waiting", "running", "done", "failed"]
    created_at: str
    created_by: str
    ended_at: NotRequired[str]
    error: NotRequired[str]
    result: NotRequired[dict[str, Any]]


class Series(TypedDict):
    """One metric of one subject over time, thinned to columns of equal length, with the peers' band."""

    metric: str
    unit: str
    aggregate: str
    bin_ms: int
    t: list[int]
    y: list[float | None]
    lo: list[float | None]
    hi: list[float | None]
    band: bool
    n: list[int]
    p05: list[float | None]
    median: list[float | None]
    p95: list[float | None]
