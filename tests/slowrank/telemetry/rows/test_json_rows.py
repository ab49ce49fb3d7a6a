import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slowrank.telemetry import BadRecord, JobSteps, NodeEvent, NodeSample, OpenStep, checks, codec
from slowrank.telemetry.columns import pack, step_schema_of, unpack
from slowrank.telemetry.rows.json_rows import Assembler, rows, steps_record
from slowrank.telemetry.schema import CURRENT_SAMPLE_SCHEMA, MISSING, SAMPLE_SCHEMAS, STEP_SCHEMAS

NOW = 1_795_160_472.25
SCHEMA = SAMPLE_SCHEMAS[CURRENT_SAMPLE_SCHEMA]
ROWS = STEP_SCHEMAS[1].rows
LATEST = STEP_SCHEMAS[2].rows

names = st.text("ABCxyz019._:/-", min_size=1, max_size=20)
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
counts = st.integers(0, 2**63 - 1)


def some_of(block):
    """Values for one instance, at least one of them read: the rows cannot say that all were missing."""
    by_dtype: dict[str, Any] = {d: st.integers(0, ~missing) for d, missing in MISSING.items()}
    by_name = {c.name: by_dtype.get(c.dtype, floats) for c in block.columns}
    by_name |= {name: st.floats(0, 22, width=32) for name in checks.STEP_PARTS if name in by_name}
    first = block.columns[0].name
    return st.fixed_dictionaries({first: by_name.pop(first)}, optional=by_name)


def instances_of(block):
    return st.dictionaries(names, some_of(block), max_size=3)


@given(instances_of(SCHEMA.gpu), instances_of(SCHEMA.nic), some_of(SCHEMA.host), st.none() | names)
def test_a_sample_survives_its_twin(gpus, nics, host, job_id):
    """Sample -> JSON lines -> sample gives the same columns for the same instances."""
    record = NodeSample(
        schema=SCHEMA.id,
        cluster="c",
        node="n",
        boot_id="b",
        seq=7,
        ts=NOW,
        job_id=job_id,
        labels={"gpu_model": "H100"},
        gpu_ids=tuple(gpus),
        nic_ids=tuple(nics),
        row_bytes=SCHEMA.row_bytes,
        gpu=pack(SCHEMA.gpu, list(gpus.values())),
        nic=pack(SCHEMA.nic, list(nics.values())),
        host=pack(SCHEMA.host, [host]),
    )
    assert through_json(record) == [record]


@given(st.lists(some_of(LATEST), min_size=1, max_size=3))
def test_step_rows_survive_their_twin(values):
    """Each step row comes back as a record of its own with the same values."""
    required: dict[str, Any] = {"step": 3, "rank": 5, "ts": NOW, "step_seconds": 2.25}
    whole = [row | required for row in values]
    schema = step_schema_of(whole)
    record = JobSteps(
        schema=schema.id,
        cluster="c",
        job_id="j",
        attempt=2,
        node="n",
        boot_id="b",
        seq=1,
        ts=NOW,
        world_size=128,
        labels={"phase": "train"},
        row_bytes=schema.row_bytes,
        rows=pack(schema.rows, whole),
    )
    back = through_json(record)
    assert [step_schema_of([row]).id for row in whole] == [r.schema for r in back]
    told = [row for r in back for row in unpack(STEP_SCHEMAS[r.schema].rows, r.rows)]
    assert [pack(LATEST, [row]) for row in told] == [pack(LATEST, [row]) for row in whole]
    assert {(r.job_id, r.attempt, r.world_size, r.labels["phase"]) for r in back} == {("j", 2, 128, "train")}


@given(names, st.dictionaries(names, names | counts, max_size=3), st.text(st.characters(codec="utf-8")))
def test_an_event_survives_its_twin(code, subject, message):
    """Event -> JSON line -> event gives the same event."""
    event = NodeEvent(cluster="c", node="n", ts=NOW, source="kmsg", code=code, subject=subject)
    assert through_json(event) == [event]
    if "\0" not in message:
        told = NodeEvent(cluster="c", node="n", ts=NOW, source="kmsg", code=code, message=message)
        assert through_json(told) == [told]


def through_json(record):
    assembler = Assembler()
    found = [r for row in rows(record) for r in assembler.add(json.loads(json.dumps(row)))]
    return found + list(assembler.flush())


STEP: dict[str, Any] = {
    "kind": "step",
    "ts": NOW,
    "cluster": "prod-a",
    "job_id": "812345",
    "rank": 93,
    "node": "gpu-0011",
    "step": 41233,
    "step_seconds": 2.904,
    "coords": {"dp": 5, "pp": 1, "tp": 5},
}
SAMPLE: dict[str, Any] = {
    "kind": "sample",
    "ts": NOW,
    "cluster": "prod-a",
    "node": "gpu-0011",
    "metric": "gpu.power_watts",
    "instance": "5",
    "value": 412.0,
}
EVENT: dict[str, Any] = {"kind": "event", "ts": NOW, "node": "gpu-0011", "source": "kmsg", "code": "xid.79"}


def test_coordinates_may_stand_flat_as_in_a_csv():
    """``dp,pp,tp`` columns read as the nested coords do, also when every field is text."""
    nested = steps_record([STEP])
    flat = {k: v for k, v in STEP.items() if k != "coords"} | STEP["coords"]
    as_text = {k: str(v) for k, v in flat.items()}
    assert steps_record([flat]) == nested == steps_record([as_text])


def test_the_kind_of_a_row_may_be_left_out():
    """A row with a metric is a sample, one with a step a step, any other an event."""
    bare = [{k: v for k, v in row.items() if k != "kind"} for row in (SAMPLE, STEP, EVENT)]
    assembler = Assembler()
    found = [type(r) for row in bare for r in assembler.add(row)]
    assert found == [NodeSample, JobSteps, NodeEvent]


def test_rows_of_one_tick_make_one_sample():
    """Rows of the same node and time are gathered; the first row of another tick closes the record."""
    assembler = Assembler()
    for instance in "01":
        assert assembler.add(SAMPLE | {"instance": instance}) == []
    (closed,) = assembler.add(SAMPLE | {"ts": NOW + 1})
    assert isinstance(closed, NodeSample)
    assert closed.gpu_ids == ("0", "1")
    assert [r.ts for r in assembler.flush()] == [NOW + 1]
    assert list(assembler.flush()) == []


def test_numbers_that_json_cannot_hold_are_not_read():
    """NaN, infinity, an empty cell and null all mean that the value was not read."""
    for absent in (math.nan, math.inf, "", None, "nan"):
        (row,) = unpack(ROWS, steps_record([STEP | {"compute_seconds": absent}]).rows)
        assert row["compute_seconds"] is None


def test_an_empty_label_is_not_given():
    """As an empty cell is not; null neither."""
    assert steps_record([STEP | {"labels": {"phase": "", "gpu_model": None, "a": "b c"}}]).labels == {
        "a": "b c"
    }


def test_amounts_in_the_subject_of_an_event_are_rounded():
    """A Unix time has a fraction in most languages; a GPU has none."""
    subject = {"booted": 1795160000.73, "delay_ns": 41249.6, "gpu_index": 5.0, "job_id": "j"}
    (event,) = Assembler().add(EVENT | {"subject": subject})
    assert isinstance(event, NodeEvent)
    assert event.subject == {"booted": 1795160001, "delay_ns": 41250, "gpu_index": 5, "job_id": "j"}
    with pytest.raises(BadRecord, match="undecodable"):
        Assembler().add(EVENT | {"subject": {"gpu_index": 5.5}})


BAD: list[tuple[str, dict[str, Any]]] = [
    ("undecodable", STEP | {"kind": "gossip"}),
    ("undecodable", {k: v for k, v in STEP.items() if k != "rank"}),
    ("undecodable", STEP | {"coords": 3}),
    ("undecodable", STEP | {"labels": "abc"}),
    ("undecodable", EVENT | {"subject": "gpu 3"}),
    ("undecodable", {k: v for k, v in EVENT.items() if k != "code"}),
    ("bad_number", STEP | {"step_seconds": "fast"}),
    ("bad_number", STEP | {"rank": True, "step": [1]}),
    ("bad_number", STEP | {"rank": 2**70}),
    ("bad_number", STEP | {"local_rank": 1e300}),
    ("bad_number", STEP | {"rank": 1.5}),
    ("undecodable", STEP | {"labels": {"phase": 3}}),
    ("bad_label", EVENT | {"node": "a b"}),
    ("bad_label", EVENT | {"message": "\ud800"}),
    ("bad_time", STEP | {"ts": -1}),
]


@pytest.mark.parametrize(("reason", "row"), BAD)
def test_a_bad_row_is_named(reason, row):
    """A row that breaks a rule is refused under that rule's reason."""
    with pytest.raises(BadRecord) as refused:
        Assembler().add(row)
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    "change",
    [{"metric": None}, {"node": None}, {"ts": None}, {"value": "x"}, {"labels": 5}, {"value": 2**64}],
)
def test_a_bad_sample_row_is_refused(change):
    """A sample row without metric, node, time or number is refused when its tick closes."""
    assembler = Assembler()
    assembler.add(SAMPLE | change)
    with pytest.raises(BadRecord):
        list(assembler.flush())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from([STEP, SAMPLE, EVENT]), st.data())
def test_hostile_rows_raise_bad_record_only(row, data):
    """Whatever JSON stands in a field, the row is read or refused with a known reason."""
    fields = sorted({*row, "labels", "coords", "subject", "message", "value", "seq", "gpu_index", "boot_id"})
    changed = row | {data.draw(st.sampled_from(fields)): data.draw(json_values) for _ in range(2)}
    assembler = Assembler()
    reason = None
    try:
        for record in [*assembler.add(changed), *assembler.flush()]:
            codec.encode(record)
    except BadRecord as error:
        reason = error.reason
    assert reason in (None, *checks.REASONS)


def test_rows_without_a_sequence_number_are_known_by_their_content():
    """Different rows are different records; the same row sent again is the same record."""
    bare = {k: v for k, v in STEP.items() if k not in ("seq", "boot_id")}

    assert steps_record([bare]).seq == steps_record([dict(bare)]).seq
    assert steps_record([bare]).seq != steps_record([bare | {"step": STEP["step"] + 1}]).seq


def test_an_open_step_survives_its_twin():
    """Record -> JSON line -> record; a line of another kind is not mistaken for it."""
    schema = step_schema_of(())
    record = JobSteps(
        schema=schema.id,
        cluster="c",
        job_id="job",
        attempt=2,
        node="n1",
        boot_id="b",
        seq=5,
        ts=NOW,
        world_size=8,
        open=(OpenStep(rank=3, step=7, phase="wait", seconds=12.5, at="train.py:9 in f"),),
    )
    [row] = rows(record)
    [read] = Assembler().add(json.loads(json.dumps(row)))
    assert row["kind"] == "open_step"
    assert isinstance(read, JobSteps)
    assert (read.open, read.rows) == (record.open, b"")
    assert (read.job_id, read.attempt, read.node, read.ts, read.world_size) == ("job", 2, "n1", NOW, 8)
