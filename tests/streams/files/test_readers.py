import csv
import gzip
import json
import random
from itertools import product

import pytest
from msgspec.structs import replace

from slowrank.telemetry import JobSteps, NodeEvent, NodeSample
from slowrank.telemetry.columns import unpack
from slowrank.telemetry.rows.json_rows import rows
from slowrank.telemetry.schema import SAMPLE_SCHEMAS, STEP_V1, STEP_V2
from streams.files.readers import FileProblem
from streams.files.record_builder import read_records

STEP = {"ts": 1000.5, "job_id": "j", "rank": 3, "node": "n1", "step": 7, "step_seconds": 0.5}
WIDE = "ts,node,gpu,gpu.power_watts\n"


def write(path, *rows):
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def step_rows(read):
    return [row for r in read.records if isinstance(r, JobSteps) for row in unpack(STEP_V1, r.rows)]


def test_rows_whose_times_have_no_zone_are_counted(tmp_path):
    """Local times would be hours off, and nothing else shows it."""
    times = ["2026-11-20T07:41:12", "2026-11-20T07:41:13", "2026-11-20T07:41:14Z"]
    path = write(tmp_path / "some.ndjson", *(STEP | {"ts": ts, "step": i} for i, ts in enumerate(times)))
    assert read_records([path]).without_zone == 2
    assert read_records([write(tmp_path / "none.ndjson", STEP)]).without_zone == 0


def test_rows_of_every_kind_become_records_in_order_of_time(tmp_path):
    """Steps, samples and events of one file come out as records sorted by event time."""
    path = write(
        tmp_path / "mixed.ndjson",
        STEP | {"kind": "step", "coords": {"dp": 1, "tp": 2}},
        {
            "kind": "sample",
            "ts": 999.0,
            "node": "n1",
            "metric": "gpu.power_watts",
            "instance": "5",
            "value": 4.5,
        },
        {"kind": "sample", "ts": 999.0, "node": "n2", "metric": "host.load1", "value": 1},
        {
            "kind": "sample",
            "ts": 999.0,
            "node": "n1",
            "metric": "gpu.temp_celsius",
            "instance": "5",
            "value": 50,
        },
        {
            "kind": "event",
            "ts": 998.0,
            "node": "n1",
            "source": "kmsg",
            "code": "xid.79",
            "subject": {"gpu_index": 5},
        },
    )
    read = read_records([path])
    assert [type(r) for r in read.records] == [NodeEvent, NodeSample, NodeSample, JobSteps]
    assert (read.rows, dict(read.bad)) == (5, {})
    sample = read.records[1]
    assert isinstance(sample, NodeSample)
    assert sample.gpu_ids == ("5",)
    [row] = step_rows(read)
    assert (row["step"], row["rank"], row["dp"], row["tp"], row["pp"]) == (7, 3, 1, 2, None)


def told(record):
    """Rank and squared lengths of every row of a record that has the column."""
    return [(row["rank"], row["seq_len_sq_sum"]) for row in unpack(STEP_V2, record.rows)]


def test_squared_lengths_are_in_the_records_that_have_them(tmp_path):
    """Only what cannot be a sum of squares is left out; rows that tell none are the records of before."""
    with_squares = [
        STEP | {"rank": 0, "seq_len_sq_sum": 2**44},
        STEP | {"rank": 1, "seq_len_sq_sum": "inf"},
        STEP | {"rank": 2},
    ]
    without = [row | {"ts": 1001.5, "step": 8} for row in with_squares]
    for row in without:
        row.pop("seq_len_sq_sum", None)
    first, second = read_records([write(tmp_path / "s.ndjson", *with_squares, *without)]).records
    (plain,) = read_records([write(tmp_path / "p.ndjson", *without)]).records
    assert isinstance(first, JobSteps)
    assert isinstance(second, JobSteps)
    assert (first.schema, first.row_bytes) == (2, STEP_V2.row_size)
    assert told(first) == [(0, 2.0**44), (1, None), (2, None)]
    assert (second.schema, second.row_bytes) == (1, None)
    assert replace(second, seq=plain.seq) == plain


@pytest.mark.parametrize("suffix", [".ndjson.gz", ".ndjson.zst", ".csv", ".csv.gz", ".parquet"])
def test_every_format_gives_the_same_rows(tmp_path, suffix):
    """The same measurements in any of the formats are the same records."""
    zstandard, pa, pq = (pytest.importorskip(m) for m in ("zstandard", "pyarrow", "pyarrow.parquet"))
    rows = [
        STEP
        | {"ts": 1000 + i / 4, "step": i, "rank": i % 3, "dp": i % 3, "compute_seconds": 0.25 + i}
        | {"seq_len_sq_sum": 10**13 + 10**8 * i if i % 10 else None}
        for i in range(50)
    ]
    plain = write(tmp_path / "a.ndjson", *rows)
    other = tmp_path / f"b{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), other)
    elif suffix.startswith(".csv"):
        with (
            gzip.open(other, "wt", newline="") if suffix.endswith("gz") else other.open("w", newline="")
        ) as f:
            table = csv.DictWriter(f, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    else:
        pack = gzip.compress if suffix.endswith("gz") else zstandard.ZstdCompressor().compress
        other.write_bytes(pack(plain.read_bytes()))
    assert read_records([other]).records == read_records([plain]).records


def test_the_cut_into_files_and_the_order_of_lines_change_nothing(tmp_path):
    """One file, many files, or shuffled lines with distinct times are the same records."""
    rows = [
        STEP | {"ts": 1000 + i / 7, "step": i // 4, "rank": i % 4, "node": f"n{i % 2}"} for i in range(200)
    ]
    whole = read_records([write(tmp_path / "w.ndjson", *rows)]).records
    parts = [write(tmp_path / f"p{i}.ndjson", *rows[i::3]) for i in range(3)]
    shuffled = random.Random(1).sample(rows, len(rows))
    assert read_records(parts).records == whole
    assert read_records(parts[::-1]).records == whole
    assert read_records([write(tmp_path / "s.ndjson", *shuffled)]).records == whole


def test_bad_lines_are_counted_by_reason_and_the_rest_is_read(tmp_path):
    """No bad line stops the file, and each is told apart."""
    path = write(
        tmp_path / "bad.ndjson",
        STEP,
        "{not json",
        "[1, 2]",
        STEP | {"ts": "yesterday"},
        STEP | {"ts": 1795160472250},
        STEP | {"rank": 1.5},
        STEP | {"rank": None},
        STEP | {"step_seconds": "fast"},
        STEP | {"node": "<script>"},
        {"kind": "dance", "ts": 1},
        {"kind": "sample", "ts": 1.0, "node": "n", "metric": "gpu.power_watts", "value": {"a": 1}},
        '{"ts": ' + "1" * 2_000_000,
        STEP | {"ts": "1970-01-01T00:16:41Z", "step": 8},
    )
    read = read_records([path])
    assert [r["step"] for r in step_rows(read)] == [7, 8]
    assert read.rows == 2
    assert dict(read.bad) == {"undecodable": 4, "bad_time": 2, "bad_number": 3, "bad_label": 1, "oversize": 1}
    assert read.examples[0].startswith("bad.ndjson:2")


def test_mistakes_that_differ_are_all_shown(tmp_path):
    """Each reason has examples of its own, and a mistake that repeats is shown once."""
    late = [STEP | {"ts": "late"}] * 100
    strange = [STEP | {"node": f"node {i % 3}"} for i in range(30)]
    numbers = [STEP | {"rank": f"r{i}"} for i in range(30)]
    read = read_records([write(tmp_path / "a.ndjson", STEP, *late, *strange, *numbers)])
    assert dict(read.bad) == {"bad_time": 100, "bad_label": 30, "bad_number": 30}
    lines = [int(example.split(":")[1]) for example in read.examples]
    assert lines == [2, 102, 103, 104, 132, 133, 134, 135]


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        # GPU by GPU, some ms apart, in varying order.
        ([(5.0, "0"), (5.003, "1"), (10.0, "1"), (10.012, "0")], [(5.003, "01"), (10.012, "01")]),
        # The same GPU again is the next round, however soon.
        ([(5.0, "0"), (5.1, "1"), (5.2, "0"), (5.3, "1")], [(5.1, "01"), (5.3, "01")]),
        # Reading takes most of an interval.
        (
            [(s + 0.2 * gpu, str(gpu)) for s in (5.0, 6.0, 7.0) for gpu in range(4)],
            [(5.6, "0123"), (6.6, "0123"), (7.6, "0123")],
        ),
        # What comes later than 0.8 of it is no part of the round.
        ([(5.0, "0"), (5.75, "1"), (5.875, "2"), (6.0, "0")], [(5.75, "01"), (6.0, "02")]),
        # So it is by half a second where nothing is read twice.
        ([(5.0, "0"), (5.3, "1"), (5.5, "2")], [(5.3, "01"), (5.5, "2")]),
    ],
)
def test_readings_of_one_round_are_one_record(tmp_path, read, expected):
    """Tools that read a node device by device stamp each reading by itself."""
    of_gpus = [
        {
            "kind": "sample",
            "ts": ts,
            "node": "n",
            "metric": "gpu.power_watts",
            "instance": gpu,
            "value": 300.0,
        }
        for ts, gpu in reversed(read)
    ]
    found = read_records([write(tmp_path / "s.ndjson", *of_gpus)])
    assert (found.rows, dict(found.bad)) == (len(read), {})
    samples = [(r.ts, sorted(row["instance"] for row in rows(r))) for r in found.records]
    assert samples == [(ts, list(gpus)) for ts, gpus in expected]


@pytest.mark.parametrize(
    ("first", "second", "records"),
    [
        ({"job_id": "a"}, {"job_id": "a"}, 1),
        ({"job_id": "a"}, {}, 1),
        ({"labels": {"rack": "r1"}}, {"labels": {"switch": "s1"}}, 1),
        ({"job_id": "a"}, {"job_id": "b"}, 2),
        ({"boot_id": "a"}, {"boot_id": "b"}, 2),
        ({"seq": 1}, {"seq": 2}, 2),
        ({"labels": {"rack": "r1"}}, {"labels": {"rack": "r2"}}, 2),
    ],
)
def test_a_round_is_of_one_job_and_sender(tmp_path, first, second, records):
    """The job of one reading is that of all GPUs of its record; not every row needs to repeat it."""
    row = {"kind": "sample", "node": "n", "metric": "gpu.power_watts", "value": 300.0}
    times = [first | {"ts": 5.0, "instance": "0"}, second | {"ts": 5.1, "instance": "1"}]
    found = read_records([write(tmp_path / "s.ndjson", *(row | given for given in times))])
    assert len(found.records) == records


def test_an_unknown_metric_is_set_aside_with_the_nearest_known_one(tmp_path):
    """It was read as a sample without a value; the other rows of its tick are taken."""
    row = {"kind": "sample", "ts": 1.0, "node": "n", "instance": "0", "value": 300.0}
    path = write(
        tmp_path / "s.ndjson", row | {"metric": "gpu.power_watts"}, row | {"metric": "gpu.power_wats"}
    )
    read = read_records([path])
    assert (read.rows, dict(read.bad)) == (1, {"unknown_name": 1})
    assert read.examples == ["s.ndjson:2: there is no metric 'gpu.power_wats' (is it 'gpu.power_watts'?)"]


def test_a_sample_of_a_device_needs_its_name(tmp_path):
    """The other rows of its tick are taken; the host has no instances."""
    row = {"ts": 1.0, "node": "n", "value": 1.0}
    gpu = row | {"metric": "gpu.power_watts"}
    nic, host = row | {"metric": "nic.port.up"}, row | {"metric": "host.load1"}
    read = read_records([write(tmp_path / "s.ndjson", gpu, gpu | {"instance": "0"}, nic, host)])
    assert (read.rows, dict(read.bad)) == (2, {"bad_label": 2})
    assert read.examples == [
        "s.ndjson:1: gpu.power_watts needs instance: the index or UUID of the GPU",
        "s.ndjson:3: nic.port.up needs instance: device/port",
    ]


def test_a_value_that_its_metric_cannot_have_is_set_aside(tmp_path):
    """A percentage, and what DCGM gives where it has no value; the other rows of the tick are taken."""
    row = {"ts": 1.0, "node": "n", "instance": "0"}
    used = row | {"metric": "gpu.utilization_ratio", "value": 97}
    blank = row | {"metric": "gpu.temp_celsius", "value": 2147483632}
    power = row | {"metric": "gpu.power_watts", "value": 412}
    read = read_records([write(tmp_path / "s.ndjson", used, blank, power)])
    assert (read.rows, dict(read.bad)) == (1, {"bad_number": 2})
    assert [example.partition(", ")[0] for example in read.examples] == [
        "s.ndjson:1: gpu.utilization_ratio is 97.0",
        "s.ndjson:2: gpu.temp_celsius is 2147483632.0",
    ]


def test_one_percent_is_not_taken_for_a_ratio_of_one(tmp_path):
    """Where a metric is a percentage in many rows it is one in all; single wrong values discredit nothing."""
    used, power = (
        {"node": "n", "instance": "0", "metric": m} for m in ("gpu.utilization_ratio", "gpu.power_watts")
    )
    rows = [used | {"ts": t, "value": 97 if t % 2 else t % 4 // 2} for t in range(1000, 1040)]
    rows += [power | {"ts": t, "value": 412} for t in range(1000, 1020)]
    read = read_records([write(tmp_path / "s.ndjson", *rows)])
    assert (read.rows, dict(read.bad)) == (20, {"bad_number": 40})
    assert "gpu.utilization_ratio is a percentage in 20 rows, and so in the 20 others" in read.examples[0]

    few = [used | {"ts": t, "value": 97 if t < 1009 else 1} for t in range(1000, 1040)]
    assert read_records([write(tmp_path / "few.ndjson", *few)]).rows == 31


def test_a_file_that_breaks_off_gives_what_was_whole(tmp_path):
    """A truncated gzip file gives its whole lines and one bad one."""
    noise = random.Random(2)
    text = "".join(json.dumps(STEP | {"step": i, "ts": 1000 + noise.random()}) + "\n" for i in range(5000))
    path = tmp_path / "cut.ndjson.gz"
    path.write_bytes(gzip.compress(text.encode())[:-2000])
    read = read_records([path])
    assert 1000 < read.rows < 5000
    assert sum(read.bad.values()) <= 2


def test_sample_rows_without_sequence_numbers_are_told_apart(tmp_path):
    """Samples of one node at different times never look like duplicates of each other."""
    rows = [{"ts": t, "node": "n", "metric": "host.load1", "value": t} for t in range(1000, 1010)]
    read = read_records([write(tmp_path / "s.ndjson", *rows)])
    assert len({(r.boot_id, r.seq) for r in read.records if isinstance(r, NodeSample)}) == 10


def test_sample_rows_of_one_time_are_one_record_in_any_order(tmp_path):
    """Whatever stands between them, and whether each row counts in ``seq`` or one cluster is not given."""
    rows = [
        {"ts": 1000.0, "node": node, "metric": metric, "instance": "0", "value": 0.5, "seq": seq}
        for seq, (metric, node) in enumerate(product(("gpu.temp_celsius", "gpu.power_watts"), ("n1", "n2")))
    ]
    rows[0]["cluster"] = "default"
    read = read_records([write(tmp_path / "s.ndjson", *rows)])
    samples = [r for r in read.records if isinstance(r, NodeSample)]
    assert [r.node for r in samples] == ["n1", "n2"]
    values = [list(unpack(SAMPLE_SCHEMAS[r.schema].gpu, r.gpu)) for r in samples]
    assert all(gpu["gpu.power_watts"] == gpu["gpu.temp_celsius"] == 0.5 for [gpu] in values)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.ndjson", None, "no such file"),
        ("empty.ndjson", "", "no rows"),
        ("words.ndjson", "hello\nworld\n", "no usable row (2 undecodable)"),
        (
            "short.csv",
            "ts,rank,step,loss\n1,2,3,4\n",
            "missing column step_seconds. There are: ts, rank, step, loss",
        ),
        ("other.csv", "a,b\n1,2\n", "missing columns step, rank, ts, step_seconds. There are: a, b"),
        (
            "other.csv",
            "a,b\n1,2\n",
            "sample rows need ts, node, metric, value; event rows need ts, node, source",
        ),
        ("wide.csv", WIDE, "gpu.power_watts is a metric: samples have one row for each value"),
        (
            "wide.csv",
            WIDE,
            "columns ts, node, metric, instance (GPU index or UUID, device/port, empty for the",
        ),
        (
            "wide.csv",
            f"kind,{WIDE}sample,1,n1,0,400\n",
            "a sample row needs metric. gpu.power_watts is a metric",
        ),
        ("wide.ndjson", '{"ts":1,"node":"n1","gpu.power_watts":400}', "gpu.power_watts is a metric: samples"),
        ("fake.parquet", "PAR1 not really", "not a readable Parquet file"),
        ("semicolons.csv", "ts;rank;step;step_seconds\n1;2;3;4\n", "must be separated by commas"),
        ("twice.csv", "ts,rank,step,step_seconds,ts\n1,2,3,4,5\n", "more than one column 'ts'"),
        ("csv.txt", "ts,rank,step,step_seconds\n1,2,3,4\n", "CSV is known by .csv in the name"),
        (
            "caps.csv",
            "TS,Rank,Step,Step_Seconds\n",
            "TS (is it 'ts'?), Rank (is it 'rank'?), Step (is it 'step'?)",
        ),
        (
            "names.csv",
            "timestamp,global_rank,iteration,step_time\n",
            "timestamp (is it 'ts'?), global_rank (is it 'rank'?), iteration (is it 'step'?), "
            "step_time (is it 'step_seconds'?)",
        ),
        (
            "wandb.csv",
            "_timestamp,rank,_step,perf/step_time\n",
            "_timestamp (is it 'ts'?), rank, _step (is it 'step'?), perf/step_time (is it 'step_seconds'?)",
        ),
        ("cut.json", '[{"ts": 1, "rank": 2', "Write one object a line: jq -c '.[]' cut.json > rows.ndjson"),
        ("pretty.json", '{\n  "ts": 1\n}\n', "NDJSON is one object a line (jq -c . FILE)"),
    ],
)
def test_unusable_files_say_what_is_wrong(tmp_path, name, text, message):
    """The error names the file, the reason, and what is there instead."""
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(FileProblem) as problem:
        read_records([path])
    assert message in str(problem.value)
    assert name in str(problem.value)


def test_a_folder_is_not_a_file(tmp_path):
    """The error says what the path is."""
    with pytest.raises(FileProblem, match="a folder"):
        read_records([tmp_path])


def test_a_bad_row_takes_no_good_one_with_it(tmp_path):
    """Rows of one node and second share a record; only the bad one is set aside, at its own line."""
    bad = ({"step_seconds": -1}, {"rank": -1}, {"rank": 10**9}, {"step": -5}, {"node": "node 1"})
    path = write(tmp_path / "a.ndjson", STEP, *(STEP | {"step": 8} | b for b in bad), STEP | {"step": 9})
    read = read_records([path])
    assert [r["step"] for r in step_rows(read)] == [7, 9]
    assert dict(read.bad) == {"bad_number": 4, "bad_label": 1}
    assert [e.split(": ")[0] for e in read.examples] == [f"a.ndjson:{n}" for n in range(2, 7)]


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path):
    """NDJSON written by Windows tools loses nothing."""
    path = tmp_path / "bom.ndjson"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(STEP).encode())
    assert read_records([path]).rows == 1


def test_a_trace_may_count_its_time_from_zero(tmp_path):
    """Seconds since the start are as good as Unix seconds."""
    read = read_records([write(tmp_path / "z.ndjson", *(STEP | {"ts": t, "step": t} for t in range(3)))])
    assert (read.rows, dict(read.bad)) == (3, {})


def test_kinds_that_are_no_text_are_bad_rows(tmp_path):
    """A list where a name belongs is set aside."""
    read = read_records([write(tmp_path / "k.ndjson", STEP, STEP | {"kind": [1]}, STEP | {"kind": {"a": 1}})])
    assert (read.rows, read.bad["undecodable"]) == (1, 2)


def test_a_zstd_file_that_breaks_off_says_so(tmp_path):
    """A file cut in the middle of a frame is not taken for a whole one."""
    zstandard = pytest.importorskip("zstandard")
    noise = random.Random(2)
    text = "".join(json.dumps(STEP | {"step": i, "ts": 1000 + noise.random()}) + "\n" for i in range(9000))
    path = tmp_path / "cut.ndjson.zst"
    path.write_bytes(zstandard.compress(text.encode())[:-2000])
    read = read_records([path])
    assert 1000 < read.rows < 9000
    assert "breaks off here" in read.examples[-1]


def test_parquet_of_data_frames_is_read(tmp_path):
    """Times in nanoseconds, job numbers as floats and coordinates as a map are what data frames write."""
    pa, pq = (pytest.importorskip(m) for m in ("pyarrow", "pyarrow.parquet"))
    columns = {
        "ts": pa.array([1_000_500_000_001], pa.timestamp("ns", tz="UTC")),
        "job_id": pa.array([812345.0]),
        "coords": pa.array([[("dp", 3)]], pa.map_(pa.string(), pa.int64())),
    }
    plain = {k: pa.array([v]) for k, v in STEP.items()}
    pq.write_table(pa.table(plain | columns), tmp_path / "a.parquet")
    read = read_records([tmp_path / "a.parquet"])
    [row] = step_rows(read)
    assert (row["ts"], row["dp"]) == (1000.5, 3)
    assert [r.job_id for r in read.records if isinstance(r, JobSteps)] == ["812345"]


def test_step_numbers_are_exact_however_large(tmp_path):
    """A whole number in a CSV keeps all its digits, beyond what a float has room for."""
    first = 10**18
    lines = [f"{first + i},0,{100 + i},1.0" for i in range(3)]
    (tmp_path / "steps.csv").write_text("\n".join(["step,rank,ts,step_seconds", *lines]))
    found = [row for r in read_records([tmp_path / "steps.csv"]).records for row in rows(r)]
    assert [row["step"] for row in found] == [first, first + 1, first + 2]


def test_durations_beyond_their_column_are_bad_rows(tmp_path):
    """A step of 1e308 s is set aside; the rows beside it are read."""
    (tmp_path / "steps.csv").write_text("step,rank,ts,step_seconds\n1,0,100,1e308\n2,0,101,1.0\n")
    read = read_records([tmp_path / "steps.csv"])
    assert read.bad == {"bad_number": 1}
    assert len(read.records) == 1


def test_parts_of_a_step_that_cannot_be_are_set_aside(tmp_path):
    """Each row by itself, with the reason; the others of its second stay."""
    parts = (("tokens", 9), ("compute_seconds", 600), ("wait_seconds", -1), ("data_seconds", 40))
    rows = [STEP | {"rank": rank, name: value} for rank, (name, value) in enumerate(parts)]
    read = read_records([write(tmp_path / "s.ndjson", *rows)])
    assert [row["rank"] for row in step_rows(read)] == [0, 3]
    assert read.bad == {"bad_number": 2}
    assert "s.ndjson:2: compute_seconds is 600 of a step of 0.5 s" in read.examples[0]


def test_only_a_field_that_must_be_there_may_not_be_nan(tmp_path):
    """A value that a rank did not measure costs the row nothing; the message names one that it needs."""
    nan = float("nan")
    read = read_records(
        [
            write(
                tmp_path / "nan.ndjson",
                STEP | {"compute_seconds": nan, "node": nan, "tokens": nan, "coords": {"dp": nan, "tp": 1}},
                STEP | {"metric": nan, "code": nan, "loss": float("inf"), "step": 8, "ts": 1001.5},
                *(STEP | {name: nan} for name in ("ts", "step", "rank", "step_seconds")),
            )
        ]
    )
    first, second = (row for record in read.records for row in rows(record))
    assert (first["node"], first["coords"], second["loss"]) == ("unknown", {"tp": 1}, 1e300)
    assert not first.keys() & {"compute_seconds", "tokens"}
    assert (dict(read.bad), read.unknown.names) == ({"undecodable": 4}, {})
    assert read.examples == [
        f"nan.ndjson:{line}: a step row needs {name}. It is missing, empty or NaN."
        for line, name in enumerate(("ts", "step", "rank", "step_seconds"), 3)
    ]


def test_values_that_are_missing_in_a_data_frame_are_not_given(tmp_path):
    """Parquet of a frame with gaps holds NaN, also where a text belongs."""
    pa, pq = (pytest.importorskip(m) for m in ("pyarrow", "pyarrow.parquet"))
    nan = {"compute_seconds": pa.array([float("nan")]), "node": pa.array([float("nan")])}
    pq.write_table(pa.table({k: pa.array([v]) for k, v in STEP.items()} | nan), tmp_path / "a.parquet")
    [row] = (row for record in read_records([tmp_path / "a.parquet"]).records for row in rows(record))
    assert (row["node"], "compute_seconds" in row) == ("unknown", False)


def test_a_model_has_the_name_that_its_driver_prints(tmp_path):
    """With blanks; one with a control character is refused, an empty one is not there."""
    models = ["NVIDIA H100 80GB HBM3", "", None, "H100\t"]
    lines = [STEP | {"step": i, "labels": {"gpu_model": model}} for i, model in enumerate(models)]
    read = read_records([write(tmp_path / "a.ndjson", *lines)])
    found = {row["step"]: row.get("labels") for record in read.records for row in rows(record)}
    assert found == {0: {"gpu_model": "NVIDIA H100 80GB HBM3"}, 1: None, 2: None}
    assert read.examples == ["a.ndjson:4: label gpu_model 'H100\\t' is not 1 to 128 of printable ASCII"]


def test_the_time_of_a_boot_may_have_a_fraction(tmp_path):
    """In the subject and beside it, as a number and as the text of a table."""
    boot = {"ts": 1000.5, "node": "n", "source": "boot", "code": "host.boot"}
    table = ",".join([*boot, "booted"]) + "\n" + ",".join([*map(str, boot.values()), "990.6"]) + "\n"
    (tmp_path / "b.csv").write_text(table)
    lines = [boot | {"subject": {"booted": 990.6}}, boot | {"booted": 990.6}]
    read = read_records([write(tmp_path / "a.ndjson", *lines), tmp_path / "b.csv"])
    assert [r.subject for r in read.records if isinstance(r, NodeEvent)] == [{"booted": 991}] * 3


def in_milliseconds(row):
    return row | {"ts": 1795160472250}


@pytest.mark.parametrize("change", [in_milliseconds, lambda row: {k: v for k, v in row.items() if k != "ts"}])
def test_rows_that_are_objects_are_not_told_what_ndjson_is(tmp_path, change):
    """The first mistake is all there is to say of a file whose form is right."""
    with pytest.raises(FileProblem) as problem:
        read_records([write(tmp_path / "a.ndjson", change(STEP))])
    assert "First: a.ndjson:1: " in str(problem.value)
    assert "one object a line" not in str(problem.value)


def test_compression_is_known_by_what_a_file_begins_with(tmp_path):
    """Without the suffix, with another one, and with one although a browser has unpacked the file."""
    zstandard, _ = (pytest.importorskip(m) for m in ("zstandard", "pyarrow"))
    plain = write(tmp_path / "a.ndjson.gz", STEP, STEP | {"step": 8})
    whole = read_records([plain]).records
    assert len(whole) == 1
    for name, pack in (("b.ndjson", gzip.compress), ("c", gzip.compress), ("d.gz", zstandard.compress)):
        (tmp_path / name).write_bytes(pack(plain.read_bytes()))
        assert read_records([tmp_path / name]).records == whole
    (tmp_path / "e.ndjson").write_bytes(gzip.compress(b"")[:5])
    assert "breaks off here" in read_records([tmp_path / "e.ndjson", plain]).examples[0]


@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_of_rows_is_read(tmp_path, indent):
    """In one line or many; what is in it and no object is set aside by its number."""
    steps = [STEP | {"step": i, "loss": float("nan")} for i in range(3)]
    (tmp_path / "a.json").write_text("\ufeff" + json.dumps([*steps, 7], indent=indent))
    read = read_records([tmp_path / "a.json"])
    assert ([r["step"] for r in step_rows(read)], read.rows) == ([0, 1, 2], 3)
    assert read.examples == ["a.json:4: not a JSON object"]


def test_a_log_whose_lines_begin_with_a_bracket_is_no_array(tmp_path):
    """Its lines that are rows are read."""
    read = read_records([write(tmp_path / "a.log", "[2026-11-20] begun", STEP, "[1]")])
    assert (read.rows, dict(read.bad)) == (1, {"undecodable": 2})


def test_columns_may_be_separated_by_tabs(tmp_path):
    """In a file called .tsv or .csv, with commas in its cells."""
    text = "ts\trank\tstep\tstep_seconds\tphase\n1\t2\t3\t4\ta,b\n"
    for name in ("a.tsv", "a.csv", "a.tsv.gz"):
        data = text.encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
        read = read_records([tmp_path / name])
        assert [(row["rank"], row["step"]) for row in step_rows(read)] == [(2, 3)]


def test_the_index_of_a_data_frame_is_no_field(tmp_path):
    """pandas writes it first, without a name."""
    (tmp_path / "a.csv").write_text(",ts,rank,step,step_seconds\n0,1,2,3,4\n")
    read = read_records([tmp_path / "a.csv"])
    assert (read.rows, read.unknown.names) == (1, {})
