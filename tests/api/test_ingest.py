"""Bodies of JSON rows become records; bad lines are counted and cost their neighbours nothing."""

import gzip
import json
import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.ingest import MAX_LINES, TooLarge, TooManyLines, inflate, read
from slowrank.telemetry.checks import MAX_STEP_ROWS
from slowrank.telemetry.records import JobSteps, NodeEvent, NodeSample
from slowrank.telemetry.rows.json_rows import rows as json_rows

NOW = 1795160472.0
STEP = {
    "kind": "step",
    "ts": NOW,
    "cluster": "c",
    "job_id": "j",
    "node": "n",
    "rank": 1,
    "step": 7,
    "step_seconds": 2.0,
}
SAMPLE = {
    "kind": "sample",
    "ts": NOW,
    "cluster": "c",
    "node": "n",
    "metric": "gpu.power_watts",
    "instance": "0",
    "value": 1.0,
}
EVENT = {"kind": "event", "ts": NOW, "cluster": "c", "node": "n", "source": "kmsg", "code": "xid.79"}


def ndjson(*rows):
    return b"\n".join(row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows)


def test_rows_of_every_kind_become_records():
    """Two sample rows of one tick make one record; a step and an event one each."""
    batch = read(ndjson(SAMPLE, SAMPLE | {"instance": "1"}, STEP, EVENT), now=NOW)
    assert [type(r) for r in batch.records] == [NodeSample, JobSteps, NodeEvent]
    assert (batch.accepted, batch.rejected) == (4, {})


def stamped(value=0.5):
    """Rows of two rounds of four GPUs, each stamped by itself, as they come from nvidia-smi."""
    return [
        SAMPLE | {"ts": NOW - 10 + 5 * n + 0.02 * gpu, "instance": str(gpu), "value": value}
        for n in range(2)
        for gpu in range(4)
    ]


def gpus(batch):
    return [record.gpu_ids for record in batch.records if isinstance(record, NodeSample)]


def test_rows_of_a_round_are_one_record_as_in_files():
    """Dated by the last of it; a series that comes again, or another job, begins the next one."""
    batch = read(ndjson(*stamped()), now=NOW)
    assert [r.ts - NOW for r in batch.records] == pytest.approx([-9.94, -4.94])
    assert gpus(batch) == [("0", "1", "2", "3")] * 2
    assert (batch.accepted, batch.lines) == (8, [[0, 1, 2, 3], [4, 5, 6, 7]])
    jobs = [row | {"job_id": "j" if k < 2 else "k"} for k, row in enumerate(stamped()[:4])]
    assert gpus(read(ndjson(*jobs), now=NOW)) == [("0", "1"), ("2", "3")]


def test_a_wrong_row_of_a_round_costs_the_others_nothing():
    rows = stamped()[:4]
    rows[2] |= {"value": "many"}
    batch = read(ndjson(*rows), now=NOW)
    assert gpus(batch) == [("0", "1", "3")]
    assert ([error.line for error in batch.errors], batch.accepted) == ([2], 3)


def steps(batch):
    """Job, node, time and (rank, step) of the rows of each record."""
    return [
        (r.job_id, r.node, r.ts - NOW, [(row["rank"], row["step"]) for row in json_rows(r)])
        for r in batch.records
    ]


def test_step_rows_of_a_sender_and_second_are_one_record_as_an_exporter_sends_them():
    """Wherever they stand, dated by the last; of another node, attempt, number or second they are not."""
    after, other = {"ts": NOW + 1.0, "step": 8}, {"node": "m", "rank": 2}
    rows = [STEP, STEP | other, STEP | after, STEP | {"rank": 0, "ts": NOW + 0.5}, STEP | other | after]
    batch = read(ndjson(*rows), now=NOW)
    assert steps(batch) == [
        ("j", "m", 0.0, [(2, 7)]),
        ("j", "n", 0.5, [(1, 7), (0, 7)]),
        ("j", "n", 1.0, [(1, 8)]),
        ("j", "m", 1.0, [(2, 8)]),
    ]
    apart: list[dict[str, object]] = [
        {"job_id": "k"},
        {"attempt": 1},
        {"world_size": 8},
        {"seq": 9},
        {"labels": {"rack": "r"}},
    ]
    assert len(read(ndjson(STEP, *(STEP | of for of in apart)), now=NOW).records) == 1 + len(apart)


def test_step_rows_beyond_what_a_record_holds_are_several():
    rows = [STEP | {"rank": rank} for rank in range(MAX_STEP_ROWS + 1)]
    assert [len(lines) for lines in read(ndjson(*rows), now=NOW).lines] == [MAX_STEP_ROWS, 1]


def test_a_wrong_step_row_costs_those_of_its_second_nothing():
    wrong: list[dict[str, Any]] = [
        {"rank": "many"},
        {"rank": 2, "ts": None},
        {"rank": 3, "compute_seconds": 9e9},
    ]
    batch = read(ndjson(STEP, *(STEP | of for of in wrong), STEP | {"rank": 4}), now=NOW)
    assert steps(batch) == [("j", "n", 0.0, [(1, 7), (4, 7)])]
    assert ([error.line for error in batch.errors], batch.accepted) == ([1, 2, 3], 2)


METRICS = ("gpu.power_watts", "gpu.temp_celsius", "gpu.utilization_ratio")


@pytest.mark.parametrize("numbers", [{}, {"boot_id": "b", "seq": 3}])
@pytest.mark.parametrize("seed", range(3))
def test_rows_of_a_sample_may_stand_anywhere(seed, numbers):
    """Two nodes' rows of two seconds in any order make four records with all values, by time."""
    rows = [
        SAMPLE | numbers | {"ts": NOW + second, "node": node, "metric": metric, "instance": gpu, "value": 0.5}
        for second in (0, 1)
        for node in ("n1", "n2")
        for metric in METRICS
        for gpu in ("0", "1")
    ]
    random.Random(seed).shuffle(rows)
    batch = read(ndjson(*rows), now=NOW)
    assert (batch.accepted, batch.rejected, len(batch.records)) == (24, {}, 4)
    assert [record.ts for record in batch.records] == [NOW, NOW, NOW + 1, NOW + 1]
    for record in batch.records:
        values = [row for row in json_rows(record) if row["kind"] == "sample"]
        assert {(row["metric"], row["instance"]) for row in values} == {(m, g) for m in METRICS for g in "01"}


def test_what_one_row_says_of_its_sample_holds_for_all():
    """The job, the labels, the boot and the number may stand in any row of a record."""
    told = {"job_id": "j", "labels": {"rack": "r1"}, "boot_id": "b", "seq": 0, "instance": "1"}
    (record,) = read(ndjson(SAMPLE, SAMPLE | told), now=NOW).records
    assert isinstance(record, NodeSample)
    assert (record.job_id, record.labels, record.boot_id, record.seq) == ("j", {"rack": "r1"}, "b", 0)


def test_other_devices_of_one_time_are_no_repetition():
    """A record without ``seq`` is known by what it holds: sent again it is the same, other rows are not."""
    bodies = [ndjson(SAMPLE), ndjson(SAMPLE), ndjson(SAMPLE | {"instance": "1"})]
    first, again, other = (read(body, now=NOW).records[0].seq for body in bodies)
    assert first == again != other


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"{", "undecodable"),
        (b"[1]", "undecodable"),
        (b'"x"', "undecodable"),
        (b"\xff\xfe", "undecodable"),
        (b"[" * 5000, "undecodable"),
        (b'{"a":"' + b"x" * 70_000 + b'"}', "oversize"),
        (STEP | {"rank": "x"}, "bad_number"),
        (STEP | {"ts": NOW + 3600}, "bad_time"),
        (STEP | {"ts": NOW - 100_000}, "bad_time"),
        (STEP | {"node": "a b\n"}, "bad_label"),
        (EVENT | {"ts": NOW + 301}, "bad_time"),
        (SAMPLE | {"node": "'; drop table findings; --"}, "bad_label"),
        (SAMPLE | {"node": None}, "undecodable"),
        (STEP | {"cluster": "other"}, "forbidden_cluster"),
        ({"kind": "what"}, "undecodable"),
    ],
)
def test_one_bad_line_is_counted_and_its_neighbours_live(bad, reason):
    """The lines before and after a bad one are taken, whatever kinds they are."""
    batch = read(ndjson(SAMPLE, bad, STEP, bad, SAMPLE | {"ts": NOW + 1}), now=NOW, clusters=["c"])
    assert batch.accepted == 3
    assert batch.rejected == {reason: 2}
    assert len(batch.records) == 3
    # Two sample rows of one node and time are one record, which is explained once.
    one_record = isinstance(bad, dict) and bad.get("kind") == "sample"
    assert [(e.line, e.reason) for e in batch.errors] == [(1, reason), (3, reason)][: 1 if one_record else 2]


def test_values_that_are_nan_are_not_given():
    """A row is taken without them, and refused where it needs them."""
    nan = float("nan")
    batch = read(ndjson(STEP | {"loss": nan}, SAMPLE | {"value": nan}, STEP | {"step_seconds": nan}), now=NOW)
    assert (batch.accepted, batch.rejected) == (2, {"undecodable": 1})
    assert "'step_seconds' is missing" in batch.errors[0].detail


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=200),
            st.recursive(
                st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.dictionaries(
                        st.sampled_from(
                            [
                                "kind",
                                "ts",
                                "node",
                                "metric",
                                "value",
                                "step",
                                "rank",
                                "labels",
                                "coords",
                                "subject",
                                "seq",
                            ]
                        )
                        | st.text(max_size=5),
                        inner,
                        max_size=8,
                    )
                ),
                max_leaves=12,
            ),
        ),
        max_size=6,
    )
)
@settings(max_examples=200, deadline=None)
def test_nothing_but_counts_comes_of_garbage(things):
    """No body whatsoever raises; every non-empty line is either accepted or rejected."""
    lines = [
        t.replace(b"\n", b" ").replace(b"\r", b" ") if isinstance(t, bytes) else json.dumps(t).encode()
        for t in things
    ]
    body = b"\n".join(lines)
    batch = read(body, now=NOW)
    expected = sum(1 for line in body.splitlines() if line.strip())
    assert batch.accepted + batch.rejected.total() == expected


@pytest.mark.parametrize(
    ("bad", "pointer", "nearest"),
    [
        (SAMPLE | {"metric": "gpu.power_wats"}, "#/body/1/metric", "gpu.power_watts"),
        (SAMPLE | {"metric": "power_watts"}, "#/body/1/metric", "gpu.power_watts"),
        (SAMPLE | {"metric": "gpu.temperature"}, "#/body/1/metric", "gpu.temp_celsius"),
        (SAMPLE | {"metric": "GPU.Temp_Celsius"}, "#/body/1/metric", "gpu.temp_celsius"),
        (SAMPLE | {"metric": "nic.rx_bytes_total"}, "#/body/1/metric", "nic.port.rx_bytes_total"),
        (SAMPLE | {"instances": "1"}, "#/body/1/instances", "instance"),
        (STEP | {"compute_second": 1.0}, "#/body/1/compute_second", "compute_seconds"),
        (STEP | {"coords": {"ddp": 1}}, "#/body/1/coords/ddp", "dp"),
        (EVENT | {"sevrity": "error"}, "#/body/1/sevrity", "severity"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_known_one(bad, pointer, nearest):
    """The line that uses it is refused, at its place in the body; those before and after are taken."""
    batch = read(ndjson(SAMPLE, bad, SAMPLE | {"instance": "1"}), now=NOW)
    assert (batch.accepted, batch.rejected) == (2, {"unknown_name": 1})
    (error,) = [refusal.as_error() for refusal in batch.errors]
    assert error["pointer"] == pointer
    assert error["detail"].endswith(f"(is it {nearest!r}?)")


@pytest.mark.parametrize(
    ("bad", "pointer", "detail"),
    [
        (STEP | {"ts": NOW * 1000}, "#/body/1", "looks like milliseconds or finer; Unix seconds are wanted"),
        (EVENT | {"ts": NOW * 1000}, "#/body/1", "looks like milliseconds or finer; Unix seconds are wanted"),
        (SAMPLE | {"ts": "2026-11-20T07:41:12Z"}, "#/body/1/ts", "give Unix seconds as a number"),
        (EVENT | {"ts": "2026-11-20T07:41:12Z"}, "#/body/1/ts", "give Unix seconds as a number"),
        (SAMPLE | {"instance": ""}, "#/body/1/instance", "needs instance: the index or UUID of the GPU"),
        ([SAMPLE], "#/body/1", "send NDJSON, one object a line"),
        (b"{", "#/body/1", "an object must stand on one line"),
        (SAMPLE | {"metric": "DCGM_FI_DEV_GPU_UTIL"}, "#/body/1/metric", "docs/existing-telemetry.md"),
        (SAMPLE | {"metric": "node_load1"}, "#/body/1/metric", "remote write"),
    ],
)
def test_an_answer_says_what_is_wanted(bad, pointer, detail):
    """One line is refused at its place, in words that say what to send; those around it are taken."""
    batch = read(ndjson(SAMPLE, bad, SAMPLE | {"instance": "1"}), now=NOW)
    (error,) = [refusal.as_error() for refusal in batch.errors]
    assert (batch.accepted, error["pointer"]) == (2, pointer)
    assert detail in error["detail"]


@pytest.mark.parametrize(
    ("metric", "value", "detail"),
    [
        ("gpu.utilization_ratio", 97, "is 97, not 0 to 1; a percentage is to be divided by 100"),
        ("gpu.utilization_ratio", "97", "not 0 to 1"),
        ("gpu.tensor_active_ratio", -1.0, "not 0 to 1"),
        ("gpu.power_watts", 2147483632, "DCGM means no value"),
        ("gpu.clock.sm_hz", 140737488355328.0, "DCGM means no value"),
        ("gpu.ecc.corrected_total", 9223372036854775792, "DCGM means no value"),
        ("gpu.ecc.corrected_total", "9223372036854775794", "DCGM means no value"),
    ],
)
def test_a_value_that_its_metric_cannot_have_is_refused(metric, value, detail):
    """A percentage in place of a ratio, and what DCGM gives for no value; its neighbours are taken."""
    bad = SAMPLE | {"metric": metric, "value": value}
    batch = read(ndjson(SAMPLE, bad, SAMPLE | {"instance": "1"}), now=NOW)
    assert (batch.accepted, batch.rejected) == (2, {"bad_number": 1})
    (error,) = [refusal.as_error() for refusal in batch.errors]
    assert error["pointer"] == "#/body/1/value"
    assert detail in error["detail"]


@pytest.mark.parametrize(
    ("part", "detail"),
    [
        ({"compute_seconds": 1200}, "compute_seconds is 1200 of a step of 2 s, more than 10 times as much"),
        ({"wait_seconds": 20.5}, "give seconds (milliseconds?)"),
        ({"comm_seconds": 1200}, "comm_seconds is 1200"),
        ({"compute_seconds": -1}, "compute_seconds is -1, below 0: leave it out where it was not measured"),
        ({"data_seconds": -1}, "data_seconds is -1, below 0"),
        ({"checkpoint_seconds": -0.5}, "checkpoint_seconds is -0.5, below 0"),
    ],
)
def test_a_part_of_a_step_that_cannot_be_is_refused(part, detail):
    """Below zero, or many times the step, as milliseconds are; the rows around it are taken."""
    batch = read(ndjson(STEP, STEP | part, STEP | {"step": 8}), now=NOW)
    assert (batch.accepted, batch.rejected) == (2, {"bad_number": 1})
    (error,) = [refusal.as_error() for refusal in batch.errors]
    assert error["pointer"] == "#/body/1"
    assert detail in error["detail"]


@pytest.mark.parametrize(
    "part",
    [
        {"checkpoint_seconds": 90.0},
        {"data_seconds": 40.0},
        {"comm_seconds": 4.5},
        {"wait_seconds": -1e-4},
        {"step_seconds": 0.004, "compute_seconds": 0.5},
    ],
)
def test_a_part_of_a_step_that_may_be_is_taken(part):
    """Saving and loading may lie between steps, transfers overlap, and a difference be just below 0."""
    assert read(ndjson(STEP | part), now=NOW).accepted == 1


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("gpu.utilization_ratio", 1),
        ("host.pressure.io_some_ratio", 1.02),
        ("gpu.power_watts", "412.5"),
        ("gpu.temp.margin_celsius", -3),
        ("nic.port.rx_bytes_total", 2147483632),
        ("gpu.power_watts", None),
    ],
)
def test_a_value_that_may_be_right_is_taken(metric, value):
    """A number may be text; a rate may exceed 1 a little; a counter of a port may have any value."""
    assert read(ndjson(SAMPLE | {"metric": metric, "value": value}), now=NOW).accepted == 1


def test_a_body_of_unknown_names_costs_no_more_than_its_first_lines():
    """100,000 lines with names of their own are refused within seconds: only the first are explained."""
    body = b"\n".join(b'{"ts":1,"node":"n","metric":"gpu.power_wat%d","value":1}' % i for i in range(100_000))
    started = time.monotonic()
    batch = read(body, now=NOW)
    assert time.monotonic() - started < 20
    assert (batch.rejected, len(batch.errors)) == ({"unknown_name": 100_000}, 20)


@pytest.mark.slow
def test_very_many_lines_are_refused():
    """Ten million short ones would take a minute; blank ones do not count."""
    assert read(b"\n" * (MAX_LINES + 1), now=NOW).rejected == {}
    with pytest.raises(TooManyLines, match="more than 400,000 lines"):
        read(b"x\n" * (MAX_LINES + 1), now=NOW)


def test_gzip_is_bounded():
    """A gzip body is read, a bomb, a stump and plain text are refused."""
    text = ndjson(*[STEP | {"step": i} for i in range(100)])
    assert inflate(gzip.compress(text)) == text
    for bad in (gzip.compress(b"\0" * 3_000_000), gzip.compress(text)[:-20], text, b""):
        with pytest.raises(ValueError, match="body"):
            inflate(bad)
    with pytest.raises(TooLarge, match="100 times its size; send less at once"):
        inflate(gzip.compress(b"\0" * 3_000_000))


def test_all_members_of_a_gzip_body_are_read_and_nothing_else_may_follow():
    """Files that were joined are all read, zeros at the end are none; other bytes are refused."""
    one, two = gzip.compress(ndjson(STEP) + b"\n"), gzip.compress(ndjson(EVENT))
    assert inflate(one + two + b"\0" * 9) == ndjson(STEP, EVENT)
    with pytest.raises(ValueError, match="7 bytes follow the end of the gzip body"):
        inflate(one + b"garbage")
    with pytest.raises(ValueError, match="more than 60 members"):
        inflate(one * 61)
    bombs = gzip.compress(b"\0" * 1_500_000) * 2
    with pytest.raises(TooLarge):
        inflate(bombs)
