import json

import pytest

from cli.files.replay import backtest
from slowrank.telemetry import NodeEvent
from slowrank.telemetry.rows.json_rows import rows
from streams.files.record_builder import read_records

STEP = {"ts": 1000.5, "rank": 3, "step": 7, "step_seconds": 0.5}
SAMPLE = {"ts": 1000.5, "node": "n1", "metric": "gpu.power_watts", "instance": "0", "value": 400.0}
OPEN = {"kind": "open_step", "ts": 1000.5, "rank": 3, "step": 8, "seconds": 5.0}
EVENT = {"ts": 1000.5, "node": "n1", "source": "kmsg", "code": "xid.79"}


def write(path, *of_file):
    path.write_text("".join(json.dumps(row) + "\n" for row in of_file))
    return path


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (STEP | {"compute_time": 1.4}, "step rows were ignored: 'compute_time' (is it 'compute_seconds'?)"),
        (STEP | {"coords": {"dp": 0, "zz": 1}}, "coords of step rows were ignored: 'zz'"),
        (SAMPLE | {"gpu": "0"}, "sample rows were ignored: 'gpu' (is it 'instance'?)"),
        (OPEN | {"fase": "wait"}, "open_step rows were ignored: 'fase' (is it 'phase'?)"),
        (
            EVENT | {"mesage": "fell off", "xyz": 1},
            "event rows were ignored: 'mesage' (is it 'message'?), 'xyz'",
        ),
        (
            EVENT | {"subject": {"gpu": 5}},
            "the subject of event rows were ignored: 'gpu' (is it 'gpu_index'?)",
        ),
        (
            EVENT | {"subject": '{"gpu": 5}'},
            "the subject of event rows were ignored: 'gpu' (is it 'gpu_index'?)",
        ),
    ],
)
def test_unknown_fields_of_every_kind_of_row_are_named(tmp_path, row, sentence):
    """A name that is nearly right is named with the one that may be meant; the row is read without it."""
    read = read_records([write(tmp_path / "a.ndjson", row)])
    assert read.rows == 1
    assert list(read.unknown.sentences()) == [f"unknown fields of {sentence}"]


def test_fields_without_a_value_are_not_named(tmp_path):
    """A table of several kinds of rows has empty cells in the columns of the others."""
    nothing = dict.fromkeys(("x", "compute_seconds", "metric", "message", "step", "subject"))
    path = write(tmp_path / "a.ndjson", nothing | EVENT, nothing | STEP, nothing | SAMPLE)
    read = read_records([path])
    assert (read.rows, read.unknown.names) == (3, {})


def test_records_that_slowrank_writes_have_no_unknown_fields(tmp_path):
    """What was recorded reads without a warning."""
    path = write(tmp_path / "a.ndjson", EVENT | {"subject": {"gpu_index": 5, "xid": 79}}, STEP, SAMPLE, OPEN)
    recorded = [row for record in read_records([path]).records for row in rows(record)]
    assert read_records([write(tmp_path / "b.ndjson", *recorded)]).unknown.names == {}


def test_fields_of_the_subject_may_stand_beside_it(tmp_path):
    """Flat rows have no objects; what the subject says itself counts more."""
    (tmp_path / "a.csv").write_text(
        "ts,node,source,code,gpu_index,job_id,subject\n"
        "1,n1,kmsg,xid.79,5,,\n"
        "2,n1,job,job.end,,812345,\n"
        '3,n1,kmsg,xid.79,5,,"{""gpu_index"":6}"\n'
    )
    read = read_records([tmp_path / "a.csv"])
    subjects = [record.subject for record in read.records if isinstance(record, NodeEvent)]
    assert subjects == [{"gpu_index": 5}, {"job_id": "812345"}, {"gpu_index": 6}]
    assert read.unknown.names == {}


@pytest.mark.parametrize("where", [{"gpu_index": 5}, {"subject": {"gpu_index": 5}}])
def test_the_finding_is_about_the_gpu_of_the_event(tmp_path, where, capfd):
    """Wherever the row names it."""
    out = tmp_path / "out.ndjson"
    backtest([write(tmp_path / "a.ndjson", EVENT | where)], output=out)
    assert json.loads(out.read_text())["title"] == "n1 GPU 5 has fallen off the bus"
    assert "unknown" not in capfd.readouterr().err


def test_unknown_fields_are_printed(tmp_path, capfd):
    """On standard error, beside the findings."""
    backtest([write(tmp_path / "a.ndjson", EVENT | {"subject": {"gpu": 5}})])
    assert "'gpu' (is it 'gpu_index'?)" in capfd.readouterr().err
