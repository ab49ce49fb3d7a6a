import math
import tracemalloc
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slowrank.telemetry import (
    BadRecord,
    JobSteps,
    NodeEvent,
    NodeSample,
    Subject,
    Suspicion,
    checks,
    decode_dead_letter,
    decode_event,
    decode_message,
    decode_sample,
    decode_steps,
    encode,
)
from slowrank.telemetry.checks import check_event, check_sample, check_steps
from slowrank.telemetry.columns import pack, step_schema_of, unpack
from slowrank.telemetry.compact import COMPACT_VERSION, compact
from slowrank.telemetry.records import Suspect
from slowrank.telemetry.schema import (
    SAMPLE_SCHEMAS,
    STEP_SCHEMAS,
    Block,
    Column,
    SampleSchema,
    StepSchema,
)

NOW = 1_795_160_472.0

names = st.text("ABCxyz019._:/-", min_size=1, max_size=128)
labels = st.dictionaries(names, names, max_size=4)
times = st.floats(1.0, 4e9)
text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=64)


def values_of(block):
    by_dtype: dict[str, Any] = {
        "<f4": st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False),
        "<f8": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "<i2": st.none() | st.integers(-(2**15) + 1, 2**15 - 1),
        "<i4": st.none() | st.integers(-(2**31) + 1, 2**31 - 1),
        "<i8": st.none() | st.integers(-(2**63) + 1, 2**63 - 1),
    }
    return st.fixed_dictionaries({c.name: by_dtype[c.dtype] for c in block.columns})


@st.composite
def samples(draw):
    schema = draw(st.sampled_from(list(SAMPLE_SCHEMAS.values())))
    gpu_ids = draw(st.lists(names, unique=True, max_size=3))
    nic_ids = draw(st.lists(names, unique=True, max_size=3))
    host = draw(st.lists(values_of(schema.host), max_size=1))
    return NodeSample(
        schema=schema.id,
        cluster=draw(names),
        node=draw(names),
        boot_id=draw(names),
        seq=draw(st.integers(0, 2**63 - 1)),
        ts=draw(times),
        rx_hint=draw(st.none() | times),
        job_id=draw(st.none() | names),
        labels=draw(labels),
        gpu_ids=tuple(gpu_ids),
        nic_ids=tuple(nic_ids),
        gpu=pack(schema.gpu, [draw(values_of(schema.gpu)) for _ in gpu_ids]),
        nic=pack(schema.nic, [draw(values_of(schema.nic)) for _ in nic_ids]),
        host=pack(schema.host, host) if host else b"",
    )


@st.composite
def step_values(draw, block):
    required: dict[str, Any] = {
        "step": draw(st.integers(0, 2**62)),
        "rank": draw(st.integers(0, checks.MAX_RANKS - 1)),
        "ts": draw(times),
        "step_seconds": draw(st.floats(0, 1e6, width=32)),
    }
    parts = {name: draw(st.none() | st.floats(0, 1, width=32)) for name in checks.STEP_PARTS}
    return draw(values_of(block)) | required | parts


@st.composite
def steps(draw):
    schema = draw(st.sampled_from(list(STEP_SCHEMAS.values())))
    rows = draw(st.lists(step_values(schema.rows), max_size=3))
    return JobSteps(
        schema=schema.id,
        cluster=draw(names),
        job_id=draw(names),
        attempt=draw(st.integers(0, 1000)),
        node=draw(names),
        boot_id=draw(names),
        seq=draw(st.integers(0, 2**63 - 1)),
        ts=draw(times),
        world_size=draw(st.integers(0, checks.MAX_RANKS)),
        labels=draw(labels),
        row_bytes=schema.row_bytes,
        rows=pack(schema.rows, rows),
    )


@st.composite
def events(draw):
    return NodeEvent(
        cluster=draw(names),
        node=draw(names),
        boot_id=draw(st.just("") | names),
        seq=draw(st.integers(0, 2**63 - 1)),
        ts=draw(times),
        source=draw(names),
        code=draw(names),
        severity=draw(st.sampled_from(["info", "warning", "error", "critical"])),
        subject=draw(st.dictionaries(names, names | st.integers(-(2**63) + 1, 2**63 - 1), max_size=3)),
        message=draw(text),
        raw=draw(text),
    )


DECODERS: dict[Any, Any] = {NodeSample: decode_sample, JobSteps: decode_steps, NodeEvent: decode_event}
records = samples() | steps() | events()


def a_sample(**changes):
    schema = SAMPLE_SCHEMAS[1]
    fields: dict[str, Any] = {
        "schema": 1,
        "cluster": "c",
        "node": "n",
        "boot_id": "b",
        "seq": 1,
        "ts": NOW,
        "gpu_ids": ("0", "1"),
        "nic_ids": ("mlx5_0/1",),
        "gpu": pack(schema.gpu, [{"gpu.power_watts": 400.0}, {"gpu.power_watts": 410.0}]),
        "nic": pack(schema.nic, [{"nic.port.up": 1.0}]),
        "host": pack(schema.host, [{"host.load1": 2.0}]),
    }
    return NodeSample(**(fields | changes))


def some_steps(row=None, **changes):
    good: dict[str, Any] = {"step": 1, "rank": 0, "ts": NOW, "step_seconds": 2.0}
    fields: dict[str, Any] = {
        "schema": 1,
        "cluster": "c",
        "job_id": "j",
        "node": "n",
        "boot_id": "b",
        "seq": 1,
        "ts": NOW,
    }
    fields["rows"] = pack(STEP_SCHEMAS[1].rows, [good | (row or {}), good])
    return JobSteps(**(fields | changes))


def an_event(**changes):
    fields: dict[str, Any] = {"cluster": "c", "node": "n", "ts": NOW, "source": "kmsg", "code": "xid.79"}
    return NodeEvent(**(fields | changes))


def a_suspicion(**changes):
    fields: dict[str, Any] = {
        "cluster": "c",
        "detector": "peer_step",
        "family": "timing",
        "kind": "straggler.fail_slow",
        "state": "raise",
        "subject": Subject(type="rank", cluster="c", rank=3),
        "ts": NOW,
        "onset": NOW - 5,
        "onset_lo": NOW - 6,
        "onset_hi": NOW - 4,
        "score": 1.5,
        "log_likelihood_ratio": 9.0,
    }
    return Suspicion(**(fields | changes))


@given(records)
def test_every_record_survives_the_wire(record):
    """A record decodes to what was encoded, bit for bit."""
    assert DECODERS[type(record)](encode(record)) == record


@given(samples() | steps())
def test_the_first_version_is_read_too(record):
    """What an exporter of the last release sends, a map of fields, decodes to the same record."""
    assert DECODERS[type(record)](msgspec.msgpack.encode(record)) == record


any_text = st.text(st.characters(codec="utf-8"), max_size=6) | st.text("0189,[]-=mx_/", max_size=8)


@given(st.lists(any_text, max_size=4), st.dictionaries(any_text, any_text, max_size=4))
def test_names_of_any_kind_survive_as_one_text_or_as_they_are(ids, labels):
    """Separators within names, leading zeros and repeated names change nothing: checks come afterwards."""
    record = a_sample(gpu_ids=tuple(ids), nic_ids=(), labels=labels)
    assert compact(record).record() == record
    assert compact(some_steps(labels=labels)).record() == some_steps(labels=labels)


@given(st.text("mx", max_size=3), st.integers(0, 990), st.integers(1, 9), st.sampled_from(["", "/1", "x"]))
def test_names_that_count_up_are_one_text(head, first, count, tail):
    """Their number does not matter to what they take: a node names 16 devices every second."""
    ids = tuple(f"{head}{first + i}{tail}" for i in range(count))
    sent: Any = compact(a_sample(gpu_ids=ids))
    assert sent.record().gpu_ids == ids
    assert isinstance(sent.gpu_ids, str)
    assert len(sent.gpu_ids) <= len(head) + 9 + len(tail)


def test_fields_that_a_later_release_appends_are_ignored_and_its_version_is_refused():
    """An array may grow at the end; another version is another order."""
    fields = msgspec.msgpack.decode(encode(a_sample()))
    assert decode_sample(msgspec.msgpack.encode([*fields, "more"])) == a_sample()
    for decode, sent in ((decode_sample, a_sample()), (decode_steps, some_steps())):
        later = msgspec.msgpack.encode([COMPACT_VERSION + 1, *msgspec.msgpack.decode(encode(sent))[1:]])
        assert reason_of(decode, later) == "unknown_version"


def test_a_range_of_names_is_bounded():
    """A text of ten characters names no more devices than a record may have."""
    fields = msgspec.msgpack.decode(encode(a_sample()))
    fields[10] = "[0-999]"
    assert reason_of(decode_sample, msgspec.msgpack.encode(fields)) == "too_many_instances"
    fields[10] = "[0-9999999]"
    assert reason_of(decode_sample, msgspec.msgpack.encode(fields)) == "bad_label"


@pytest.mark.parametrize(("length", "records"), [(200_000, 1), (248, 300)])
def test_ranges_of_long_names_do_not_fill_the_memory(length, records):
    """Neither those of one record nor those that are kept for the next ones."""
    fields = msgspec.msgpack.decode(encode(a_sample()))
    tracemalloc.start()
    for n in range(records):
        fields[10] = f"{n:03}".ljust(length, "x") + "[0-999]"
        assert reason_of(decode_sample, msgspec.msgpack.encode(fields)) in ("bad_label", "too_many_instances")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 50 * 2**20


printable = st.text([chr(code) for code in range(0x20, 0x7F)], min_size=1, max_size=checks.MAX_NAME)


@given(printable)
def test_the_name_of_a_model_is_any_printable_text(model):
    """Blanks, quotes, markup and the separators of the wire arrive as they were sent, within a record."""
    for sent in (a_sample(labels={"gpu_model": model, "a": "b"}), some_steps(labels={"gpu_model": model})):
        assert DECODERS[type(sent)](encode(sent)) == sent


@pytest.mark.parametrize(
    ("record", "named"),
    [
        (a_sample(node="gpu 1"), "node 'gpu 1' is not 1 to 128 of A-Z"),
        (some_steps(job_id="a\n"), "job_id 'a\\n' is not 1 to 128 of A-Z"),
        (an_event(code="xid 79"), "code 'xid 79' is not"),
        (an_event(subject={"nic": "mlx5 0"}), "subject 'mlx5 0' is not"),
        (a_sample(labels={"rack": "row 7"}), "label rack 'row 7' is not 1 to 128 of A-Z"),
        (a_sample(labels={"gpu_model": "é"}), "label gpu_model 'é' is not 1 to 128 of printable ASCII"),
        (a_sample(labels={"gpu model": "H100"}), "label 'gpu model' is not 1 to 128 of A-Z"),
    ],
)
def test_a_refused_name_is_told_with_its_field(record, named):
    """Of several names in a row it is clear which one to change."""
    with pytest.raises(BadRecord) as refused:
        DECODERS[type(record)](encode(record))
    assert named in refused.value.detail


@pytest.mark.slow
@given(st.lists(values_of(SAMPLE_SCHEMAS[1].gpu), max_size=5))
def test_columns_keep_values_and_what_was_not_read(rows):
    """Packed columns unpack to the same values, with None where nothing was read."""
    block = SAMPLE_SCHEMAS[1].gpu
    assert list(unpack(block, pack(block, rows))) == rows


def test_columns_take_nan_as_not_read_and_ignore_unknown_names():
    """NaN reads back as None in both dtypes, and a name outside the block is dropped."""
    block = Block((Column("a", "1", "<f4", "gauge"), Column("b", "1", "<i8", "counter")))
    assert list(unpack(block, pack(block, [{"a": math.nan, "b": math.nan, "c": 1}]))) == [
        {"a": None, "b": None}
    ]


def test_columns_refuse_part_of_a_row():
    """Bytes that are not whole rows are an error, not a shorter table."""
    with pytest.raises(ValueError, match="not whole"):
        list(unpack(STEP_SCHEMAS[1].rows, b"1234567"))


def reason_of(decode, payload):
    try:
        decode(payload)
    except BadRecord as error:
        return error.reason
    return None


@given(records, st.data())
def test_damaged_bytes_raise_bad_record_only(record, data):
    """Truncated or altered bytes either still make a valid record or raise BadRecord with a known reason."""
    payload = bytearray(encode(record))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)))
    for decode in (*DECODERS.values(), decode_message, decode_dead_letter):
        for damaged in (bytes(payload), bytes(payload[:cut])):
            assert reason_of(decode, damaged) in (None, *checks.REASONS)


@given(st.binary(max_size=200))
def test_noise_raises_bad_record_only(payload):
    """Bytes that never were a record raise BadRecord."""
    for decode in DECODERS.values():
        with pytest.raises(BadRecord):
            decode(payload)


LONG = "x" * 129
WHOLE_ROW = STEP_SCHEMAS[1].rows.row_size

BAD = [
    ("unknown_version", a_sample(v=2)),
    ("unknown_version", some_steps(v=0)),
    ("unknown_version", an_event(v=7)),
    ("unknown_schema", a_sample(schema=0)),
    ("unknown_schema", a_sample(schema=6)),
    ("unknown_schema", a_sample(schema=-1, row_bytes=SAMPLE_SCHEMAS[1].row_bytes)),
    ("unknown_schema", a_sample(schema=9, row_bytes=SAMPLE_SCHEMAS[1].row_bytes)),
    ("unknown_schema", a_sample(schema=9, row_bytes=(4, 4, 4))),
    ("unknown_schema", some_steps(schema=99)),
    ("unknown_schema", some_steps(schema=99, row_bytes=WHOLE_ROW + 3)),
    ("column_length", a_sample(row_bytes=(1, 2, 3))),
    ("column_length", a_sample(gpu=b"")),
    ("column_length", a_sample(nic_ids=())),
    ("column_length", a_sample(host=b"123")),
    ("column_length", some_steps(rows=b"1234567")),
    ("column_length", some_steps(row_bytes=WHOLE_ROW + 8)),
    ("bad_label", a_sample(node="")),
    ("bad_label", a_sample(node=LONG)),
    ("bad_label", a_sample(cluster="a b")),
    ("bad_label", a_sample(node="<script>alert(1)</script>")),
    ("bad_label", a_sample(boot_id="'; drop table findings; --")),
    ("bad_label", a_sample(job_id="")),
    ("bad_label", a_sample(labels={"k": "é"})),
    ("bad_label", a_sample(labels={"gpu_model": "H100\n"})),
    ("bad_label", a_sample(labels={"gpu_model": "x" * (checks.MAX_NAME + 1)})),
    ("bad_label", a_sample(labels={"gpu_model": ""})),
    ("bad_label", a_sample(labels={"gpu model": "H100"})),
    ("bad_label", a_sample(labels={"rack": "row 7"})),
    ("bad_label", a_sample(labels={"switch": "leaf,3"})),
    ("bad_label", a_sample(labels={"gpu.0": "GPU-1 2"})),
    ("bad_label", a_sample(gpu_ids=("0", "0"))),
    ("bad_label", a_sample(gpu_ids=("0", "1 2"))),
    ("bad_label", a_sample(gpu_ids=("0", ""))),
    ("bad_label", a_sample(gpu_ids=("0", LONG))),
    ("bad_label", some_steps(job_id="a\n")),
    ("bad_label", an_event(code="xid 79")),
    ("bad_label", an_event(boot_id=" ")),
    ("bad_label", an_event(subject={"a b": 1})),
    ("bad_label", an_event(subject={"nic": "mlx5_0\0"})),
    ("bad_label", an_event(message="a\0b")),
    ("bad_number", an_event(subject={"gpu_index": checks.MAX_INSTANCES})),
    ("bad_number", an_event(subject={"gpu_index": -1})),
    ("bad_number", a_sample(seq=-1)),
    ("bad_number", some_steps(attempt=-1)),
    ("bad_number", some_steps(world_size=checks.MAX_RANKS + 1)),
    ("bad_number", some_steps({"rank": -1})),
    ("bad_number", some_steps({"rank": None})),
    ("bad_number", some_steps({"rank": checks.MAX_RANKS})),
    ("bad_number", some_steps({"step": None})),
    ("bad_number", some_steps({"step_seconds": None})),
    ("bad_number", some_steps({"step_seconds": -0.1})),
    ("bad_number", some_steps({"step_seconds": math.inf})),
    ("bad_time", some_steps({"ts": None})),
    ("bad_time", a_sample(ts=math.nan)),
    ("bad_time", a_sample(ts=math.inf)),
    ("bad_time", an_event(ts=0.0)),
    ("too_many_instances", a_sample(labels={str(i): "x" for i in range(checks.MAX_LABELS + 1)})),
    ("too_many_instances", a_sample(gpu_ids=tuple(map(str, range(checks.MAX_INSTANCES + 1))))),
    ("too_many_instances", some_steps(rows=bytes(WHOLE_ROW * (checks.MAX_STEP_ROWS + 1)))),
    ("too_many_instances", an_event(subject={str(i): i for i in range(checks.MAX_LABELS + 1)})),
    ("oversize", an_event(message="x" * (checks.MAX_TEXT + 1))),
    ("oversize", an_event(raw="x" * (1 << 20))),
]


@pytest.mark.parametrize(("reason", "record"), BAD)
def test_a_broken_rule_is_named(reason, record):
    """A record that breaks one rule is refused under that rule's reason."""
    with pytest.raises(BadRecord) as refused:
        DECODERS[type(record)](encode(record))
    assert refused.value.reason == reason


def test_what_is_no_record_is_undecodable():
    """Bytes of another shape, type or encoding are undecodable."""
    wrong_type = msgspec.msgpack.encode({"schema": 1, "cluster": 5})
    lone_surrogate = encode(an_event(message="abc")).replace(b"abc", b"\xed\xa0\x80")
    deep = b"\x91" * 5000 + b"\xc0"
    for payload in (b"", b"hello", wrong_type, lone_surrogate, deep, encode(some_steps())[:-9]):
        with pytest.raises(BadRecord) as refused:
            decode_event(payload)
        assert refused.value.reason == "undecodable"


def test_every_reason_can_be_reached():
    """No reason is a dead label: the cases here and the two tests beside them give each one."""
    assert {reason for reason, _ in BAD} | {"undecodable", "unknown_name"} == set(checks.REASONS)


@pytest.mark.parametrize("make", [a_sample, some_steps, an_event])
def test_the_time_window_holds_only_when_now_is_given(make):
    """With ``now``, a record older than a day or more than five minutes ahead is refused; a file's is not."""
    decode = DECODERS[type(make())]
    for age in (-86_300.0, 290.0):
        decode(encode(make(ts=NOW + age)), now=NOW)
    for age in (-86_500.0, 310.0):
        decode(encode(make(ts=NOW + age)))
        with pytest.raises(BadRecord, match="bad_time"):
            decode(encode(make(ts=NOW + age)), now=NOW)


def test_the_time_window_holds_for_every_step_row():
    """A row far in the future inside a record of now is refused."""
    with pytest.raises(BadRecord, match="bad_time"):
        decode_steps(encode(some_steps({"ts": NOW + 9000})), now=NOW)


@pytest.mark.parametrize(
    "part", [{"compute_seconds": 600.0}, {"checkpoint_seconds": -1.0}, {"data_seconds": math.inf}]
)
def test_a_part_of_a_step_that_cannot_be_is_refused(part):
    """More than ten times the step, below zero or infinite; of rows that lack all nothing is said."""
    decode_steps(encode(some_steps()), now=NOW)
    with pytest.raises(BadRecord, match=f"bad_number: {next(iter(part))} is "):
        decode_steps(encode(some_steps(part)), now=NOW)


def test_half_a_surrogate_pair_is_refused():
    """A lone surrogate, which JSON can carry and no database stores, is a bad label."""
    with pytest.raises(BadRecord, match="bad_label"):
        check_event(an_event(message="\ud800"))


def test_suspicions_survive_the_wire_and_are_checked():
    """A suspicion decodes to what was encoded; one without usable times, names or scores is refused."""
    assert decode_message(encode(a_suspicion())) == a_suspicion()
    bad: dict[str, Any] = {"onset": math.nan, "score": math.inf, "kind": "", "v": 4, "onset_lo": -1.0}
    for field, value in bad.items():
        with pytest.raises(BadRecord):
            decode_message(encode(a_suspicion(**{field: value})))


def test_unknown_envelope_keys_are_ignored_and_missing_ones_take_defaults():
    """A later writer may add keys and an earlier one may lack optional ones."""
    fields = msgspec.msgpack.decode(encode(an_event()))
    later = fields | {"colour": "red"}
    earlier = {k: v for k, v in fields.items() if k not in ("severity", "raw", "v")}
    for payload in (later, earlier):
        assert decode_event(msgspec.msgpack.encode(payload)) == an_event()


RNR = "nic.port.rnr_nak_retry_errors_total"
ADDED = (
    RNR,
    "nic.port.local_link_integrity_errors_total",
    "nic.port.excessive_buffer_overrun_errors_total",
)


def appended(block, name, dtype):
    return Block((*block.columns, Column(name, "1", dtype, "gauge")))


SAMPLES_V6 = SampleSchema(
    6,
    gpu=appended(SAMPLE_SCHEMAS[5].gpu, "gpu.new_ratio", "<f4"),
    nic=SAMPLE_SCHEMAS[5].nic,
    host=appended(SAMPLE_SCHEMAS[5].host, "host.new_total", "<i8"),
)
STEPS_V3 = StepSchema(3, appended(STEP_SCHEMAS[2].rows, "host_seconds", "<f8"))


@pytest.fixture
def newer(monkeypatch):
    """A schema more in each registry: a new reader and writer."""
    monkeypatch.setitem(SAMPLE_SCHEMAS, 6, SAMPLES_V6)
    monkeypatch.setitem(STEP_SCHEMAS, 3, STEPS_V3)


def newer_sample():
    gpus: list[dict[str, Any]] = [
        {"gpu.power_watts": 400.0, "gpu.new_ratio": 0.5},
        {"gpu.xid_events_total": 3},
    ]
    return a_sample(
        schema=6,
        row_bytes=SAMPLES_V6.row_bytes,
        gpu=pack(SAMPLES_V6.gpu, gpus),
        nic=pack(SAMPLES_V6.nic, [{"nic.port.up": 1.0, RNR: 5}]),
        host=pack(SAMPLES_V6.host, [{"host.load1": 2.0, "host.new_total": 7}]),
    )


def newer_steps():
    row = {"step": 4, "rank": 1, "ts": NOW, "step_seconds": 2.0, "compute_seconds": 1.5, "host_seconds": 0.1}
    return some_steps(schema=3, row_bytes=STEPS_V3.rows.row_size, rows=pack(STEPS_V3.rows, [row, row]))


def test_an_old_reader_reads_what_it_knows_of_a_new_record():
    """A record of a later schema is cut to the newest known one, with the known columns intact."""
    sample, steps_ = decode_sample(encode(newer_sample())), decode_steps(encode(newer_steps()))
    assert (sample.schema, steps_.schema) == (5, 2)
    gpus = list(unpack(SAMPLE_SCHEMAS[5].gpu, sample.gpu))
    assert (gpus[0]["gpu.power_watts"], gpus[1]["gpu.xid_events_total"]) == (400.0, 3)
    assert next(unpack(SAMPLE_SCHEMAS[5].nic, sample.nic))[RNR] == 5
    assert next(unpack(SAMPLE_SCHEMAS[5].host, sample.host))["host.load1"] == 2.0
    rows = list(unpack(STEP_SCHEMAS[2].rows, steps_.rows))
    assert [(r["step"], r["rank"], r["compute_seconds"]) for r in rows] == [(4, 1, 1.5)] * 2
    assert check_sample(sample) == sample
    assert check_steps(steps_) == steps_


@pytest.mark.usefixtures("newer")
def test_a_new_reader_reads_both_new_and_old_records():
    """A later reader sees the new columns, and reads an old record with the old layout."""
    sample, steps_ = decode_sample(encode(newer_sample())), decode_steps(encode(newer_steps()))
    assert (sample, steps_) == (newer_sample(), newer_steps())
    assert next(unpack(SAMPLE_SCHEMAS[6].gpu, sample.gpu))["gpu.new_ratio"] == 0.5
    assert next(unpack(STEP_SCHEMAS[3].rows, steps_.rows))["host_seconds"] == pytest.approx(0.1)
    old = decode_sample(encode(a_sample()))
    assert old.schema == 1
    assert "gpu.new_ratio" not in next(unpack(SAMPLE_SCHEMAS[old.schema].gpu, old.gpu))


def test_rows_without_squared_lengths_take_no_room_for_them():
    """They are written as ever; the column is there where one of the rows tells it, NaN for the others."""
    bare: dict[str, Any] = {"step": 1, "rank": 0, "ts": NOW, "step_seconds": 2.0, "tokens": 16384}
    plain = step_schema_of([bare, bare | {"seq_len_sq_sum": None}])
    told = step_schema_of([bare, bare | {"seq_len_sq_sum": 3.5e13}])
    assert (plain.id, plain.row_bytes, plain.rows.row_size) == (1, None, 72)
    assert (told.id, told.row_bytes, told.rows.row_size) == (2, 76, 76)
    rows = unpack(told.rows, pack(told.rows, [bare, bare | {"seq_len_sq_sum": 3.5e13}]))
    assert [row["seq_len_sq_sum"] for row in rows] == [None, pytest.approx(3.5e13, rel=1e-7)]


def test_a_reader_of_the_first_step_schema_reads_the_second(monkeypatch):
    """It cuts off the squared lengths and finds every other column where it was."""
    row: dict[str, Any] = {"step": 1, "rank": 0, "ts": NOW, "step_seconds": 2.0, "grad_norm": 0.5}
    rows, second = [row | {"seq_len_sq_sum": 1e13}, row | {"rank": 1}], STEP_SCHEMAS[2]
    sent = encode(some_steps(schema=2, row_bytes=second.row_bytes, rows=pack(second.rows, rows)))
    monkeypatch.delitem(STEP_SCHEMAS, 2)
    read = decode_steps(sent)
    assert (read.schema, read.rows) == (1, pack(STEP_SCHEMAS[1].rows, rows))


def test_the_second_sample_schema_only_appends_to_the_first():
    """Three counters at the end of each port: what was written before is where it was."""
    first, second = SAMPLE_SCHEMAS[1], SAMPLE_SCHEMAS[2]
    assert (second.gpu, second.host) == (first.gpu, first.host)
    assert second.nic.names == (*first.nic.names, *ADDED)
    assert (first.row_bytes, second.row_bytes) == ((208, 152, 96), (208, 176, 96))


def test_the_third_sample_schema_only_appends_to_the_second():
    """The room of the spool at the end of the host."""
    second, third = SAMPLE_SCHEMAS[2], SAMPLE_SCHEMAS[3]
    assert (third.gpu, third.nic) == (second.gpu, second.nic)
    assert third.host.names == (*second.host.names, "exporter.spool_free_bytes")
    assert third.row_bytes == (208, 176, 100)


def test_the_fourth_sample_schema_only_appends_to_the_third():
    """Four counters of TCP at the end of the host."""
    third, fourth = SAMPLE_SCHEMAS[3], SAMPLE_SCHEMAS[4]
    assert (fourth.gpu, fourth.nic) == (third.gpu, third.nic)
    assert fourth.host.names[: len(third.host.names)] == third.host.names
    assert {name.rpartition(".")[0] for name in fourth.host.names[len(third.host.names) :]} == {"host.tcp"}
    assert fourth.row_bytes == (208, 176, 132)


def test_the_fifth_sample_schema_only_appends_to_the_fourth():
    """Two gauges of TCP at the end of the host."""
    fourth, fifth = SAMPLE_SCHEMAS[4], SAMPLE_SCHEMAS[5]
    assert (fifth.gpu, fifth.nic) == (fourth.gpu, fourth.nic)
    added = ("host.tcp.sent_round_trip_seconds", "host.tcp.received_round_trip_seconds")
    assert fifth.host.names == (*fourth.host.names, *added)
    assert fifth.row_bytes == (208, 176, 140)


ports = st.lists(values_of(SAMPLE_SCHEMAS[2].nic), max_size=3)


@given(ports)
def test_a_reader_of_the_first_sample_schema_reads_the_second(held):
    """It cuts off the three counters and finds every other column where it was."""
    first, second = SAMPLE_SCHEMAS[1], SAMPLE_SCHEMAS[2]
    ids = tuple(f"mlx5_{i}/1" for i in range(len(held)))
    sent = encode(a_sample(schema=2, row_bytes=second.row_bytes, nic_ids=ids, nic=pack(second.nic, held)))
    with pytest.MonkeyPatch.context() as patch:
        for later in (2, 3, 4, 5):
            patch.delitem(SAMPLE_SCHEMAS, later)
        read = decode_sample(sent)
    assert (read.schema, read.row_bytes) == (1, first.row_bytes)
    assert read.nic == pack(first.nic, held)
    assert (read.gpu, read.host) == (a_sample().gpu, a_sample().host)


@given(ports)
def test_a_reader_of_the_second_sample_schema_reads_the_first(held):
    """A record without the three counters stays as it is, with or without its row sizes."""
    first = SAMPLE_SCHEMAS[1]
    ids = tuple(f"mlx5_{i}/1" for i in range(len(held)))
    for sizes in (None, first.row_bytes):
        sent = a_sample(row_bytes=sizes, nic_ids=ids, nic=pack(first.nic, held))
        read = decode_sample(encode(sent))
        assert read == sent
        assert all(row.keys().isdisjoint(ADDED) for row in unpack(first.nic, read.nic))


@pytest.mark.usefixtures("newer")
def test_a_schema_skipped_by_the_reader_still_reads():
    """A record two schemas ahead is cut to the newest known one, which then is schema 6."""
    seventh = replace(SAMPLES_V6, id=7, nic=appended(SAMPLES_V6.nic, "nic.port.new", "<f4"))
    nic = pack(seventh.nic, [{"nic.port.up": 1.0, RNR: 5, "nic.port.new": 2.0}])
    record = decode_sample(
        encode(msgspec.structs.replace(newer_sample(), schema=7, row_bytes=seventh.row_bytes, nic=nic))
    )
    assert (record.schema, record.nic) == (6, newer_sample().nic)


def test_a_later_schema_that_lies_about_its_rows_is_refused():
    """Row sizes that do not fit the bytes, or shrink a block, are refused."""
    gpu, nic, host = SAMPLES_V6.row_bytes
    for sizes, reason in [((gpu + 4, nic, host), "column_length"), ((gpu, nic - 8, host), "unknown_schema")]:
        with pytest.raises(BadRecord) as refused:
            decode_sample(encode(msgspec.structs.replace(newer_sample(), row_bytes=sizes)))
        assert refused.value.reason == reason


def test_a_suspicion_may_state_its_severity():
    """Who knows none sends and reads the record as before; it is on the wire only where it is stated."""
    plain, stated = a_suspicion(), a_suspicion(severity="info")
    assert "severity" not in msgspec.msgpack.decode(encode(plain))
    assert msgspec.msgpack.decode(encode(stated))["severity"] == "info"
    assert decode_message(encode(plain)) == plain
    assert decode_message(encode(stated)) == stated


SOMEBODY = Subject(type="rank", cluster="c", rank=3)


@pytest.mark.parametrize(
    "broken",
    [
        {"slowdown_ratio": math.nan},
        {"job_slowdown_ratio": math.inf},
        {"hypotheses": {"compute": math.nan}},
        {"hypotheses": {"compute": 1e308, "network": 1e308}},
        {"gpus": -1},
        {"nodes": 2**63},
        {"suspects": (Suspect(subject=SOMEBODY, probability=math.nan),)},
        {"suspects": (Suspect(subject=SOMEBODY, probability=1.5),)},
        {"suspects": (Suspect(subject=SOMEBODY, probability=0.001),) * 600},
        {"suspects": (Suspect(subject=Subject(type="node", cluster="c", node="a\0"), probability=0.5),)},
        {"subject": Subject(type="node", cluster="c", node="n" * 5000)},
        {"subject": Subject(type="rank", cluster="c", rank=2**63)},
        {"subject": Subject(type="rank", cluster="c", coords={"dp": 2**63})},
        {"severity": "catastrophic"},
        {"shadow": "yes"},
    ],
)
def test_a_suspicion_that_nobody_can_weigh_is_refused(broken):
    """Numbers that poison sums, and subjects that no database keeps, do not come in."""
    with pytest.raises(BadRecord):
        decode_message(encode(a_suspicion(**broken)))


def test_a_suspicion_may_name_suspects():
    """Who may be to blame, with probabilities, comes out as it went in."""
    told = a_suspicion(suspects=(Suspect(subject=SOMEBODY, probability=0.5),), shadow=True, gpus=8)
    assert decode_message(encode(told)) == told
