"""Datagrams from the training hook to the exporter of its node: step rows of one rank as JSON.

The hook (``slowrank.hook``) writes them with the standard library; this is the reader, which validates
everything, since any process of the node can send here.
"""

import msgspec

from slowrank.telemetry.checks import MAX_RANKS, BadRecord, check_steps
from slowrank.telemetry.columns import Value, pack, step_schema_of
from slowrank.telemetry.names import COORDS
from slowrank.telemetry.records import JobSteps, OpenStep
from slowrank.telemetry.schema import STEP_V1

# The largest payload of UDP over IPv4.
MAX_DATAGRAM_BYTES = 65_507
# Eight times as many as the hook sends at once.
MAX_DATAGRAM_ROWS = 256
# Limit of a step and its phases. Chosen: far above any step or checkpoint.
MAX_SECONDS = 7 * 86_400.0
HEAD_FIELDS = ("rank", "local_rank", "gpu_index", *COORDS)

# The columns of schema 1 that differ from row to row, in its order; those of ``HEAD_FIELDS`` stand once.
ROW_FIELDS = tuple(name for name in STEP_V1.names if name not in HEAD_FIELDS)
# The columns of the step schema that a datagram can fill.
STEP_COLUMNS = (*HEAD_FIELDS, *ROW_FIELDS, "seq_len_sq_sum")

Optional = float | None
DatagramRow = tuple[
    int, float, float, Optional, Optional, Optional, Optional, Optional, Optional, Optional, Optional
]


class StepDatagram(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one rank since its last flush, in the order of ``ROW_FIELDS``.

    ``seq_len_sq_sum`` has one entry a row or is empty; it is not part of the rows, because older exporters
    refuse rows with more fields. ``gpu_uuid`` may be a prefix of one, and is sent by ranks without a
    ``gpu_index``. ``open`` is the step that the rank does not end: its number, the phase ("": none) and the
    seconds since the last one, ``at`` the line of code that it is in. ``seq`` counts the datagrams of one
    process; ``dropped`` the rows that its ring has lost so far.
    """

    v: int
    job_id: str
    rank: int
    seq: int
    attempt: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    gpu_index: int | None = None
    gpu_uuid: str | None = None
    dropped: int = 0
    coords: dict[str, int] = {}
    labels: dict[str, str] = {}
    rows: tuple[DatagramRow, ...] = ()
    seq_len_sq_sum: tuple[Optional, ...] = ()
    open: tuple[int, str, float] | None = None
    at: str = ""


_decoder = msgspec.json.Decoder(StepDatagram)


def decode_datagram(payload: bytes, *, now: float) -> StepDatagram:
    """Decode one datagram; ``now`` (Unix seconds) bounds its times.

    Raises ``BadRecord`` with the reasons of ``checks.REASONS``.
    """
    if len(payload) > MAX_DATAGRAM_BYTES:
        raise BadRecord("oversize", f"{len(payload)} bytes, at most {MAX_DATAGRAM_BYTES}")
    try:
        datagram = _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecord("undecodable", str(error)[:200]) from error
    if datagram.v != 1:
        raise BadRecord("unknown_version", f"datagram version {datagram.v}, this reader reads 1")
    if len(datagram.rows) > MAX_DATAGRAM_ROWS:
        raise BadRecord("too_many_instances", f"{len(datagram.rows)} rows, at most {MAX_DATAGRAM_ROWS}")
    if len(datagram.seq_len_sq_sum) not in (0, len(datagram.rows)):
        raise BadRecord("column_length", "seq_len_sq_sum needs one entry a row")
    _check_numbers(datagram)
    _check_as_record(datagram, now)
    return datagram


def step_values(datagram: StepDatagram) -> list[dict[str, Value]]:
    """Return the rows of ``datagram`` by the column names of the step schema."""
    head: dict[str, Value] = {
        "rank": datagram.rank,
        "local_rank": datagram.local_rank,
        "gpu_index": datagram.gpu_index,
        **{name: datagram.coords.get(name) for name in COORDS},
    }
    rows = [head | dict(zip(ROW_FIELDS, row, strict=True)) for row in datagram.rows]
    for row, squares in zip(rows, datagram.seq_len_sq_sum, strict=False):
        row["seq_len_sq_sum"] = squares
    return rows


def open_steps(datagram: StepDatagram) -> tuple[OpenStep, ...]:
    """Return the step that the rank does not end, if it reports one."""
    return () if datagram.open is None else (OpenStep(datagram.rank, *datagram.open, datagram.at),)


def _check_numbers(datagram: StepDatagram) -> None:
    optional = (datagram.attempt, datagram.local_rank, datagram.world_size, datagram.gpu_index)
    numbers = (datagram.rank, datagram.seq, datagram.dropped, *datagram.coords.values(), *optional)
    if not all(n is None or 0 <= n < 2**31 for n in numbers) or datagram.rank >= MAX_RANKS:
        raise BadRecord("bad_number", "ranks, sizes, attempts and coordinates are whole numbers from 0")
    # step_seconds and the five phases.
    durations = (seconds for row in datagram.rows for seconds in row[2:8])
    if not all(s is None or 0.0 <= s <= MAX_SECONDS for s in durations):
        raise BadRecord("bad_number", "a step and its phases last from 0 s to 7 days")


def _check_as_record(datagram: StepDatagram, now: float) -> None:
    """Check the datagram by the rules of the record that its rows become part of."""
    values = step_values(datagram)
    schema = step_schema_of(values)
    try:
        rows = pack(schema.rows, values)
    except OverflowError as error:
        raise BadRecord("bad_number", f"a number does not fit its column: {error}") from error
    # The exporter adds its own cluster, node and boot id; only the sender's values are checked here.
    record = JobSteps(
        schema=schema.id,
        cluster="-",
        job_id=datagram.job_id,
        node="-",
        boot_id="-",
        seq=datagram.seq,
        ts=now,
        world_size=datagram.world_size or 0,
        labels=datagram.labels,
        row_bytes=schema.row_bytes,
        rows=rows,
        open=open_steps(datagram),
    )
    check_steps(record, now=now)
