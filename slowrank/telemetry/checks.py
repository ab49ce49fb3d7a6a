"""Validation of records: limits on sizes, names, times and numbers.

A record that breaks a rule raises ``BadRecord`` with a reason from ``REASONS``, which is also the label of
the counter. Columns of a later schema are cut off.
"""

import functools
import math
import string
from collections.abc import Iterable

import msgspec

from slowrank.telemetry.columns import read
from slowrank.telemetry.messages import (
    MESSAGE_VERSION,
    HangVote,
    Heartbeat,
    JobDeclared,
    JobEnded,
    JobNodes,
    LinkDelay,
    LoadedMinute,
    MinuteMeans,
    NodeAnnounced,
    RankPace,
    StageMessage,
    StartupPhase,
    StepsReported,
    Suspicion,
)
from slowrank.telemetry.records import VERSION, JobSteps, NodeEvent, NodeSample, OpenStep
from slowrank.telemetry.schema import SAMPLE_SCHEMAS, STEP_SCHEMAS, Block

# What one message may claim of a worker's memory (docs/records.md, what is refused). 1,024 step rows take 78
# kB; the largest fleet of the design has 100,000 GPUs.
MAX_MESSAGE_BYTES = 256 * 1024
MAX_INSTANCES = 512
MAX_STEP_ROWS = 1024
MAX_RANKS = 2**20
MAX_LABELS = 32
MAX_MEANS = 64
MAX_HOPS = 64
MAX_NAME = 128
MAX_TEXT = 4096
# Chosen: a path and the name of a function.
MAX_CODE_LINE = 256
MAX_AGE_SECONDS = 24 * 3600.0
MAX_AHEAD_SECONDS = 300.0
MAX_INT = 2**63 - 1
# The year 5138 in seconds, March 1973 in milliseconds: a larger number is not in seconds.
LATEST_SECONDS = 1e11
# Far beyond any ratio or odds, and sums and products of such numbers stay finite.
MAX_WEIGHT = 1e100
DEAD_LETTER_BYTES = 4096
# Parts that lie within a step: at most so many times as long, as transfers of several streams are added up,
# or this many seconds, where steps are short. Chosen: milliseconds are a thousand times as long.
_WITHIN_STEP = ("compute_seconds", "wait_seconds", "comm_seconds")
MAX_STEPS_OF_PART = 10.0
_SHORT_PART_SECONDS = 1.0
# Parts that may lie between steps, where a loader stalls for minutes or a model is saved.
_BESIDE_STEP = ("data_seconds", "checkpoint_seconds")
STEP_PARTS = (*_WITHIN_STEP, *_BESIDE_STEP)
# Of a difference of two clocks that is nothing. Chosen: what a clock of a sender may jump.
_LEAST_PART_SECONDS = -0.01

# Reason of a record that is valid except for its time.
BAD_TIME = "bad_time"

REASONS = (
    "oversize",
    "undecodable",
    "unknown_name",
    "unknown_version",
    "unknown_schema",
    "column_length",
    "bad_label",
    "bad_number",
    BAD_TIME,
    "too_many_instances",
)

_NAME_BYTES = (string.ascii_letters + string.digits + "._:/-").encode()
_PRINTABLE = bytes(range(0x20, 0x7F))

# Labels whose values become names of racks, switches and boards, and with them parts of keys.
_PLACES = ("rack", "switch")
_BOARD = "gpu."


class BadRecord(ValueError):
    """A record that is refused: ``reason`` is one of ``REASONS``, ``detail`` explains it to people."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def check_sample(record: NodeSample, *, now: float | None = None) -> NodeSample:
    """Return ``record`` without columns of later schemas if it is valid; else raise ``BadRecord``."""
    _check_envelope(record, now)
    _check_ids(record.gpu_ids)
    _check_ids(record.nic_ids)
    return _known_sample(record)


def check_steps(record: JobSteps, *, now: float | None = None) -> JobSteps:
    """Return ``record`` without columns of later schemas if it is valid; else raise ``BadRecord``."""
    _check_envelope(record, now)
    _check_count("attempt", record.attempt)
    if not 0 <= record.world_size <= MAX_RANKS:
        raise BadRecord("bad_number", f"world_size {record.world_size} is not 0 to {MAX_RANKS}")
    record = _known_steps(record)
    _check_step_rows(STEP_SCHEMAS[record.schema].rows, record.rows, now)
    _check_open(record.open)
    return record


def check_event(record: NodeEvent, *, now: float | None = None) -> NodeEvent:
    """Return ``record`` if it is valid, else raise ``BadRecord``."""
    if record.v != VERSION:
        raise unknown_version(record.v)
    values = [value for value in record.subject.values() if isinstance(value, str)]
    _check_fields(record, "cluster", "node", "source", "code", *(("boot_id",) if record.boot_id else ()))
    _check_names((*record.subject, *values), "subject")
    _check_count("seq", record.seq)
    _check_time(record.ts, now)
    _check_text(message=record.message, raw=record.raw)
    if len(record.subject) > MAX_LABELS:
        raise BadRecord("too_many_instances", f"{len(record.subject)} subject fields, at most {MAX_LABELS}")
    for key, value in record.subject.items():
        if isinstance(value, int) and abs(value) > MAX_INT:
            raise BadRecord("bad_number", f"subject {key} does not fit 64 bits")
        if key == "gpu_index" and isinstance(value, int) and not 0 <= value < MAX_INSTANCES:
            raise BadRecord("bad_number", f"gpu_index {value} is not 0 to {MAX_INSTANCES - 1}")
    return record


def check_message(message: StageMessage) -> StageMessage:
    """Return ``message`` if its names, times and numbers are valid, else raise ``BadRecord``."""
    if message.v != MESSAGE_VERSION:
        raise unknown_version(message.v, MESSAGE_VERSION)
    _check_name(message.cluster)
    _check_time(message.ts, None)
    match message:
        case Suspicion():
            _check_suspicion(message)
        case NodeAnnounced() | MinuteMeans() | LoadedMinute():
            _check_of_node(message)
        case Heartbeat():
            _check_name(message.partition)
        case LinkDelay():
            _check_link_delay(message)
        case StartupPhase():
            _check_names((message.node, message.job_id))
            _check_time(message.began, None)
            _check_count("attempt", message.attempt)
            _check_count("gpus", message.gpus)
        case RankPace():
            _check_rank_pace(message)
        case StepsReported():
            _check_name(message.job_id)
        case JobNodes():
            if len(message.nodes) > JobNodes.MAX_NODES:
                detail = f"{len(message.nodes)} nodes, at most {JobNodes.MAX_NODES}"
                raise BadRecord("too_many_instances", detail)
            _check_names((message.job_id, *message.nodes))
        case JobDeclared():
            _check_names((message.node, message.job_id))
            _check_text(message=message.message)
    return message


def check_job_ended(message: JobEnded, *, now: float | None = None) -> JobEnded:
    """Return ``message`` if it keeps every rule, else raise ``BadRecord``."""
    if message.v != MESSAGE_VERSION:
        raise unknown_version(message.v, MESSAGE_VERSION)
    _check_names((message.cluster, message.job_id, message.node))
    _check_count("seq", message.seq)
    _check_time(message.ts, now)
    return message


def _check_suspicion(s: Suspicion) -> None:
    _check_names((s.detector, s.kind, *filter(None, (s.catalogue_id, s.rule_id))))
    for ts in (s.onset, s.onset_lo, s.onset_hi):
        _check_time(ts, None)
    if not (math.isfinite(s.score) and math.isfinite(s.log_likelihood_ratio)):
        raise BadRecord("bad_number", "score and log_likelihood_ratio must be finite")
    _check_weights(s)
    for field in ("gpus", "ranks", "nodes", "ranks_on_node", "ranks_likely_on_node", "ranks_in_group"):
        _check_count(field, getattr(s, field))
    if isinstance(s, HangVote):
        for ts in filter(None, (s.heard, s.stuck_since)):
            _check_time(ts, None)
    _check_subjects(s)


def _check_of_node(message: NodeAnnounced | MinuteMeans | LoadedMinute) -> None:
    names = (message.node, message.job_id, message.rack, message.switch)
    _check_names(name for name in names if name is not None)
    if isinstance(message, NodeAnnounced):
        _check_count("ports", message.ports)
        if len(message.boards) > MAX_LABELS:
            raise BadRecord("too_many_instances", f"{len(message.boards)} boards, at most {MAX_LABELS}")
        if message.boards:
            _check_names((*message.boards, *message.boards.values()))
        return
    _check_time(message.start, None)
    if isinstance(message, LoadedMinute):
        _check_time(message.since, None)
        _check_text(model=message.model)
        readings = message.clock_hz, message.utilization_ratio, message.limit_watts
        if not all(0 <= reading <= MAX_WEIGHT for reading in readings):
            raise BadRecord("bad_number", f"readings must be numbers from 0 to {MAX_WEIGHT:g}")
        if message.clock_hz < 1:
            raise BadRecord("bad_number", "clock_hz must be 1 or more: clocks are compared by their ratio")
        return
    _check_count("samples", message.samples)
    if len(message.means) > MAX_MEANS:
        raise BadRecord("too_many_instances", f"{len(message.means)} means, at most {MAX_MEANS}")
    _check_names((*message.means, *message.gpus, *message.of_gpus))
    if len(message.gpus) > MAX_INSTANCES or len(message.of_gpus) > MAX_MEANS:
        raise BadRecord("too_many_instances", f"{len(message.gpus)} GPUs, at most {MAX_INSTANCES}")
    if any(len(means) != len(message.gpus) for means in message.of_gpus.values()):
        raise BadRecord("bad_shape", f"of_gpus must have a mean for each of {len(message.gpus)} GPUs")


def _check_link_delay(delay: LinkDelay) -> None:
    if len(delay.via) > MAX_HOPS:
        raise BadRecord("too_many_instances", f"{len(delay.via)} hops, at most {MAX_HOPS}")
    _check_names((delay.node, delay.peer, *delay.via, *(() if delay.nic is None else (delay.nic,))))
    if not 0 < delay.seconds <= MAX_WEIGHT or not 0 <= (delay.expected_seconds or 0.0) <= MAX_WEIGHT:
        raise BadRecord("bad_number", f"delays must be numbers above 0 and up to {MAX_WEIGHT:g}")


def _check_rank_pace(pace: RankPace) -> None:
    _check_names((pace.node, pace.job_id))
    if not 0 <= pace.gpu_index < MAX_INSTANCES or not 0 <= pace.rank < MAX_RANKS:
        raise BadRecord("bad_number", f"gpu_index {pace.gpu_index} or rank {pace.rank} is out of range")
    if not (math.isfinite(pace.log_ratio) and math.isfinite(pace.spread)):
        raise BadRecord("bad_number", "log_ratio and spread must be finite")


def _check_envelope(record: NodeSample | JobSteps, now: float | None) -> None:
    labels = record.labels
    if record.v != VERSION:
        raise unknown_version(record.v)
    if not 0 <= record.seq <= MAX_INT:
        raise BadRecord("bad_number", f"seq {record.seq} is not 0 to 2^63 - 1")
    if labels:
        if len(labels) > MAX_LABELS:
            raise BadRecord("too_many_instances", f"{len(labels)} labels, at most {MAX_LABELS}")
        for label in labels.items():
            _check_label(*label)
    _check_fields(record, "cluster", "node", "boot_id", *(() if record.job_id is None else ("job_id",)))
    _check_time(record.ts, now)


def unknown_version(version: int, newest: int = VERSION) -> BadRecord:
    """Return the error of a record of a version that this reader does not have."""
    return BadRecord("unknown_version", f"record version {version}, this reader reads up to {newest}")


def _check_fields(record: NodeSample | JobSteps | NodeEvent, *fields: str) -> None:
    for field in fields:
        _check_name(getattr(record, field), field)


def _check_names(names: Iterable[str], field: str = "") -> None:
    for name in names:
        _check_name(name, field)


def _check_name(name: str, field: str = "") -> None:
    if not _is_name(name):
        said = f"{field} {name[:40]!r}".lstrip()
        raise BadRecord("bad_label", f"{said} is not 1 to {MAX_NAME} of A-Z a-z 0-9 . _ : / -")


# A node sends the same names every second. By name, as each job comes with combinations of its own. Holds
# the names and boots of 12,500 nodes, with some thousand jobs and labels.
@functools.lru_cache(maxsize=32_768)
def _is_name(name: str) -> bool:
    return _consists_of(name, _NAME_BYTES)


@functools.lru_cache(maxsize=32_768)
def _check_label(name: str, value: str) -> None:
    """Check a label; its value may be any printable text, as the names of models are."""
    _check_name(name, "label")
    if name in _PLACES or name.startswith(_BOARD):
        _check_name(value, f"label {name}")
    elif not _consists_of(value, _PRINTABLE):
        raise BadRecord("bad_label", f"label {name} {value[:40]!r} is not 1 to {MAX_NAME} of printable ASCII")


def _consists_of(text: str, allowed: bytes) -> bool:
    return 0 < len(text) <= MAX_NAME and not text.encode("utf-8", "surrogatepass").translate(None, allowed)


@functools.lru_cache(maxsize=256)
def _check_ids(ids: tuple[str, ...]) -> None:
    if len(ids) > MAX_INSTANCES:
        raise BadRecord("too_many_instances", f"{len(ids)} instances, at most {MAX_INSTANCES}")
    if len(set(ids)) != len(ids):
        raise BadRecord("bad_label", "instance ids repeat")
    if ids:
        _check_names(ids)


def _check_time(ts: float, now: float | None) -> None:
    if not math.isfinite(ts) or ts <= 0:
        raise BadRecord(BAD_TIME, f"ts {ts} is no time")
    if now is not None and ts > LATEST_SECONDS:
        raise BadRecord(BAD_TIME, f"ts {ts:.0f} looks like milliseconds or finer; Unix seconds are wanted")
    if now is not None and not (now - MAX_AGE_SECONDS <= ts <= now + MAX_AHEAD_SECONDS):
        raise BadRecord(BAD_TIME, f"ts is {ts - now:+.0f} s from now, allowed -24 h to +5 min")


def _check_count(field: str, count: int) -> None:
    if not 0 <= count <= MAX_INT:
        raise BadRecord("bad_number", f"{field} {count} is not 0 to 2^63 - 1")


def _check_weights(record: Suspicion) -> None:
    """Check the numbers of a suspicion that enter sums and products."""
    ratios = [ratio for ratio in (record.slowdown_ratio, record.job_slowdown_ratio) if ratio is not None]
    if not all(abs(number) <= MAX_WEIGHT for number in (*ratios, *record.hypotheses.values())):
        raise BadRecord("bad_number", f"ratios and odds must be numbers up to {MAX_WEIGHT:g}")
    if record.lost is not None and not all(
        0 <= number <= MAX_INT for number in (record.lost.gpu_seconds, record.lost.gpus)
    ):
        raise BadRecord("bad_number", "lost GPU-seconds must be numbers from 0 to 2^63 - 1")
    if not all(0 <= suspect.probability <= 1 for suspect in record.suspects):
        raise BadRecord("bad_number", "probabilities of suspects must be 0 to 1")


def _check_subjects(record: Suspicion) -> None:
    if len(record.suspects) > MAX_INSTANCES:
        raise BadRecord("too_many_instances", f"{len(record.suspects)} suspects, at most {MAX_INSTANCES}")
    for subject in (record.subject, *(suspect.subject for suspect in record.suspects)):
        values = msgspec.structs.astuple(subject)
        _check_text(subject="".join(value for value in values if isinstance(value, str)))
        coords = (subject.coords or {}).values()
        if any(isinstance(value, int) and abs(value) > MAX_INT for value in (*values, *coords)):
            raise BadRecord("bad_number", "a number of a subject does not fit 64 bits")


def _check_text(**texts: str) -> None:
    for field, text in texts.items():
        if len(text) > MAX_TEXT:
            raise BadRecord("oversize", f"{field} has {len(text)} characters, at most {MAX_TEXT}")
        # PostgreSQL stores neither, and a lone surrogate cannot be encoded.
        if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
            raise BadRecord("bad_label", f"{field} holds a NUL or half a surrogate pair")


def _known_sample(record: NodeSample) -> NodeSample:
    # A later schema is read as our newest one, with whose columns it begins.
    schema = SAMPLE_SCHEMAS.get(record.schema) or SAMPLE_SCHEMAS[max(SAMPLE_SCHEMAS)]
    declared = _row_bytes(record.schema, schema.id, record.row_bytes, schema.row_bytes)
    gpus, nics, hosts = len(record.gpu_ids), len(record.nic_ids), 1 if record.host else 0
    gpu, nic, host = declared
    held = (len(record.gpu), len(record.nic), len(record.host))
    if held != (gpus * gpu, nics * nic, hosts * host):
        wanted = (gpus * gpu, nics * nic, host)
        raise BadRecord("column_length", f"gpu, nic and host hold {held} bytes, {wanted} belong to their ids")
    if schema.id == record.schema:
        return record
    return msgspec.structs.replace(
        record,
        schema=schema.id,
        row_bytes=schema.row_bytes,
        gpu=record.gpu[: gpus * schema.gpu.row_size],
        nic=record.nic[: nics * schema.nic.row_size],
        host=record.host[: hosts * schema.host.row_size],
    )


def _known_steps(record: JobSteps) -> JobSteps:
    schema = STEP_SCHEMAS.get(record.schema) or STEP_SCHEMAS[max(STEP_SCHEMAS)]
    known = schema.rows.row_size
    declared = None if record.row_bytes is None else (record.row_bytes,)
    (size,) = _row_bytes(record.schema, schema.id, declared, (known,))
    count, rest = divmod(len(record.rows), size)
    if rest:
        raise BadRecord("column_length", f"{len(record.rows)} bytes are not whole {size}-byte rows")
    if count > MAX_STEP_ROWS:
        raise BadRecord("too_many_instances", f"{count} step rows, at most {MAX_STEP_ROWS} a message")
    if schema.id == record.schema:
        return record
    rows = record.rows[: known * count]
    return msgspec.structs.replace(record, schema=schema.id, row_bytes=known, rows=rows)


def _row_bytes(
    sent: int, known_id: int, declared: tuple[int, ...] | None, known: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the row sizes of a record of schema ``sent``, read with schema ``known_id``.

    Only a later schema than every known one may differ, and only by columns appended to the known ones.
    """
    if sent == known_id:
        if declared not in (None, known):
            raise BadRecord("column_length", f"schema {sent} has rows of {known} bytes, not {declared}")
        return known
    if sent < known_id or declared is None:
        raise BadRecord("unknown_schema", f"schema {sent} is not in the registry, which ends at {known_id}")
    appended = [size - old for size, old in zip(declared, known, strict=True)]
    # An appended column must have 4 or 8 bytes.
    if any(size < 0 or size % 4 for size in appended) or not any(appended):
        raise BadRecord("unknown_schema", f"schema {sent} with rows of {declared} bytes extends no known one")
    return declared


def _check_open(steps: tuple[OpenStep, ...]) -> None:
    if len(steps) > MAX_STEP_ROWS:
        raise BadRecord("too_many_instances", f"{len(steps)} open steps, at most {MAX_STEP_ROWS} a message")
    for step in steps:
        _check_count("step", step.step)
        if not 0 <= step.rank < MAX_RANKS or not 0.0 <= step.seconds < math.inf:
            raise BadRecord(
                "bad_number", f"an open step needs a rank of 0 to {MAX_RANKS - 1}, and seconds from 0"
            )
        if step.phase:
            _check_name(step.phase)
        if len(step.at) > MAX_CODE_LINE or not step.at.isprintable():
            raise BadRecord("bad_label", f"a line of code has at most {MAX_CODE_LINE} printable characters")


def _check_step_rows(block: Block, rows: bytes, now: float | None) -> None:
    """Check the columns that every row must have, step, rank, ts and step_seconds, and the parts of steps."""
    columns = read(block, rows, ("step", "rank", "ts", "step_seconds", *STEP_PARTS))
    steps, ranks, times, seconds, *parts = columns.values()
    if not steps:
        return
    if min(steps) < 0 or min(ranks) < 0 or max(ranks) >= MAX_RANKS:
        raise BadRecord("bad_number", f"step must be at least 0 and rank 0 to {MAX_RANKS - 1}")
    # One NaN or infinity makes the sum one, which is cheaper to test than each value.
    _check_time(sum(times), None)
    _check_time(min(times), now)
    _check_time(max(times), now)
    if not math.isfinite(sum(seconds)) or min(seconds) < 0:
        raise BadRecord("bad_number", "step_seconds must be a finite number, at least 0")
    for name, values in zip(STEP_PARTS, parts, strict=True):
        for part, whole in zip(values, seconds, strict=True):
            # Most parts need no call.
            if part < 0 or part > _SHORT_PART_SECONDS:
                check_step_part(name, part, whole)


def check_step_part(name: str, part: float, step_seconds: float) -> None:
    """Raise ``BadRecord`` for a part of a step that cannot be; NaN is one that is not given."""
    if part == math.inf:
        raise BadRecord("bad_number", f"{name} is infinite: leave it out where it was not measured")
    if part < _LEAST_PART_SECONDS:
        detail = f"{name} is {part:.6g}, below 0: leave it out where it was not measured"
        raise BadRecord("bad_number", detail)
    if name in _WITHIN_STEP and part > max(MAX_STEPS_OF_PART * step_seconds, _SHORT_PART_SECONDS):
        raise BadRecord(
            "bad_number",
            f"{name} is {part:.6g} of a step of {step_seconds:.6g} s, more than {MAX_STEPS_OF_PART:g} times "
            "as much: give seconds (milliseconds?), and time within this one step",
        )
