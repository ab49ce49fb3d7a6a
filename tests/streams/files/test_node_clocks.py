"""Clocks of nodes that are off, by the steps that the nodes of a job share."""

import json

import numpy as np
import pytest

from slowrank.telemetry import NodeSample
from streams.files.node_clocks import clocks_ahead, sentences
from streams.files.record_builder import read_records
from streams.files.replay import final_versions, findings_of
from streams.pipeline import local_pipeline

T0 = 1_795_160_000.0


def rows(*, steps=50, ahead=(0.0, 0.0, 30.0, 0.0), jitter=0.01, pace=(1.0, 1.0, 1.0, 1.0)):
    """(run, node, step, ts) of a job of two ranks a node; ``pace`` [s] is what a node's steps take."""
    nodes = len(ahead)
    step, node = np.repeat(np.arange(steps), 2 * nodes), np.tile(np.repeat(np.arange(nodes), 2), steps)
    late = np.random.default_rng(5).normal(0, jitter, len(step))
    return np.zeros_like(step), node, step, T0 + np.array(pace)[node] * step + np.array(ahead)[node] + late


@pytest.mark.parametrize(
    ("ahead", "found"),
    [
        ((0.0, 0.0, 30.0, 0.0), {2: 30.0}),
        ((0.0, -7.0, 30.0, 0.0), {1: -7.0, 2: 30.0}),
        ((0.0, 0.5, -1.5, 0.0), {}),
        # Of two nodes either clock may be wrong: they meet half way.
        ((0.0, 20.0), {0: -10.0, 1: 10.0}),
        ((20.0,), {}),
    ],
)
def test_a_clock_that_is_off_is_found_by_common_steps(ahead, found):
    """To some hundredths of a second, from two seconds on."""
    assert clocks_ahead(*rows(ahead=ahead)) == pytest.approx(found, abs=0.05)


def test_steps_of_noisy_nodes_and_few_common_ones_suffice_or_say_nothing():
    """A median passes over late rows; four steps show nothing."""
    run, node, step, ts = rows(jitter=0.4)
    ts[::7] += 3.0
    assert clocks_ahead(run, node, step, ts) == pytest.approx({2: 30.0}, abs=0.7)
    assert clocks_ahead(*rows(steps=4)) == {}


def test_workers_that_count_by_themselves_have_no_clock_that_is_off():
    """Their distances grow: a tenth of a second a step."""
    assert clocks_ahead(*rows(ahead=(0.0, 0.0, 0.0, 0.0), pace=(1.0, 1.0, 1.1, 1.0))) == {}


def test_ranks_of_a_node_that_end_their_steps_apart_are_not_in_step():
    """They have one clock, which cannot be behind for one of them alone."""
    run, node, step, ts = rows(ahead=(0.0, 0.0, 0.0, 0.0))
    first_of_node = np.arange(len(ts)) % 2 == 0
    ts[(node == 2) & first_of_node] -= 3.5
    assert clocks_ahead(run, node, step, ts) == {}
    ts[(node == 2) & ~first_of_node] -= 3.5
    assert clocks_ahead(run, node, step, ts) == pytest.approx({2: -3.5}, abs=0.05)


def test_the_longest_run_of_a_node_counts():
    """A node that was in two jobs has one clock; one that served in no other is found there."""
    first, second = rows(), rows(steps=20, ahead=(5.0, 0.0, 0.0))
    run, node, step, ts = (np.concatenate(pair) for pair in zip(first, second, strict=True))
    run[len(first[0]) :] = 1
    node[len(first[0]) :] += 2
    assert clocks_ahead(run, node, step, ts) == pytest.approx({2: 30.0}, abs=0.05)


def test_no_rows_have_no_clocks():
    """A file of samples alone."""
    none = np.array([], np.int64)
    assert clocks_ahead(none, none, none, np.array([])) == {}


def test_records_of_a_node_that_is_a_minute_off_are_in_the_order_of_the_others(tmp_path):
    """Step rows, samples and events move; a file without a clock that is off is read as it is."""

    def written(ahead):
        _, node, step, ts = rows(ahead=(0.0, 0.0, ahead, 0.0), jitter=0.0)
        lines = [
            {"kind": "step", "ts": t, "node": f"n{n}", "job_id": "j", "step": int(s), "rank": i % 8,
             "step_seconds": 1.0, "compute_seconds": 0.8}
            for i, (n, s, t) in enumerate(zip(node.tolist(), step.tolist(), ts.tolist(), strict=True))
        ]  # fmt: skip
        lines.append(
            {"kind": "sample", "ts": T0 + ahead + 7.5, "node": "n2", "metric": "host.load1", "value": 1.0}
        )
        lines.append(
            {"kind": "event", "ts": T0 + ahead + 9.5, "node": "n2", "source": "kernel", "code": "xid.79"}
        )
        path = tmp_path / f"{ahead}.ndjson"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return read_records([path])

    right, off = written(0.0), written(64.0)
    assert (right.ahead, off.ahead) == ({}, {("default", "n2"): 64.0})
    assert not off.bad, off.examples
    assert off.records == right.records


def with_offset(path, *, ahead, steps=True):
    """Write 200 s of four nodes a second; n2, whose clock is ``ahead``, reports so in its samples."""
    lines = []
    for s, n in ((s, n) for s in range(200) for n in range(4)):
        off = ahead if n == 2 else 0.0
        own = {"ts": T0 + s + off, "node": f"n{n}"}
        lines.append({**own, "kind": "sample", "metric": "host.clock_offset_seconds", "value": off})
        if steps:
            times = {"step_seconds": 1.0, "compute_seconds": 0.8}
            lines.append({**own, "kind": "step", "job_id": "j", "step": s, "rank": n, **times})
    lines.append({"kind": "event", "ts": T0 + ahead + 99.5, "node": "n2", "source": "kmsg", "code": "oom"})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_records([path])


@pytest.mark.parametrize("steps", [True, False], ids=["with steps", "samples alone"])
@pytest.mark.parametrize("ahead", [20.0, -20.0])
def test_a_clock_that_samples_report_too_is_put_right_once(tmp_path, ahead, steps):
    """Its samples and events are with those of the others; the only finding is about the clock."""
    read = with_offset(tmp_path / "a.ndjson", ahead=ahead, steps=steps)

    times = {(type(r).__name__, r.node): r.ts - T0 for r in read.records if 99 < r.ts - T0 < 101}
    assert times["NodeSample", "n2"] == times["NodeSample", "n0"] == 100.0
    assert times["NodeEvent", "n2"] == pytest.approx(99.5)
    kinds = [
        f.kind for f in final_versions(findings_of(read.records, local_pipeline())) if f.kind != "host.oom"
    ]
    assert kinds == ["host.clock_skew"]


@pytest.mark.parametrize(
    ("offsets", "moved"),
    [
        # A sample that measures no offset follows the last that did, before the first one that.
        ({9.0: 30.0, 69.0: 30.0}, [30.0] * 10),
        ({9.0: 30.0, 69.0: 0.0}, [30.0] * 7 + [0.0] * 3),
        ({9.0: 0.1}, [0.0] * 10),
        ({}, [0.0] * 10),
    ],
)
def test_samples_without_an_offset_follow_the_one_reported_last(tmp_path, offsets, moved):
    """A tool that reads GPUs and one that reads the host write rows of their own."""
    gpus = [(10.0 * i, "gpu.power_watts", {"instance": "0", "value": 300.0}) for i in range(10)]
    host = [(at, "host.clock_offset_seconds", {"value": offset}) for at, offset in offsets.items()]
    lines = [{"kind": "sample", "ts": T0 + at, "node": "n", "metric": m, **value}
            for at, m, value in (*gpus, *host)]  # fmt: skip
    path = tmp_path / "s.ndjson"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    times = [r.ts - T0 for r in read_records([path]).records if isinstance(r, NodeSample) and r.gpu_ids]
    assert times == sorted(10.0 * i - seconds for i, seconds in enumerate(moved))


@pytest.mark.parametrize(
    ("ahead", "nodes", "text"),
    [
        (
            {"n2": 30.04},
            4,
            "the clock of n2 is 30.0 s ahead of those of its job's 3 other nodes: its times are moved by "
            "that; see to its time server",
        ),
        (
            {"n1": -7.0, "n2": 3.0},
            4,
            "the clocks of n1 and n2 differ from those of their job's 2 other nodes, most that of n1, which "
            "is 7.0 s behind: the times of each are moved by its difference; see to their time servers",
        ),
        (
            {"n1": -7.0, "n2": 3.0},
            3,
            "the clocks of n1 and n2 differ from that of their job's other node, most that of n1, which is "
            "7.0 s behind: the times of each are moved by its difference; see to their time servers",
        ),
        (
            {"n0": -3600.0, "n1": -3600.5, "n2": 3600.0, "n3": 3600.5},
            4,
            "the clocks of n2 and n3 are 7,200.5 s ahead of those of n0 and n1, and which are right is not "
            "known: the times of all are moved to their median; see to their time servers",
        ),
        (
            {"n0": -10.0, "n1": 10.0},
            2,
            "the clock of n1 is 20.0 s ahead of that of n0, and which are right is not known: the times of "
            "all are moved to their median; see to their time servers",
        ),
        (
            {"n0": -2.5, "n1": 3.5, "n2": 8.0, "n3": -9.0},
            4,
            "the clocks of all 4 nodes of a job differ, that of n2 is 17.0 s ahead of that of n3, and which "
            "are right is not known: the times of all are moved to their median; see to their time servers",
        ),
    ],
)
def test_the_reader_is_told_which_clocks_differ_from_which(ahead, nodes, text):
    """Only nodes that are not off are others; without any, no clock is known to be right."""
    assert list(sentences(ahead, [[f"n{i}" for i in range(nodes)]])) == [text]


def test_each_job_with_clocks_that_are_off_is_told_of_once():
    """A node in two jobs is listed with the larger one, and many nodes are counted."""
    off = {f"a{i}": 5.0 for i in range(6)} | {"b0": -4.0}
    jobs = [["b0", "b1"], ["a0", "a1"], [f"a{i}" for i in range(20)], ["c0", "c1"]]
    first, second = sentences(off, jobs)
    assert first.startswith("the clocks of a0 and 5 more differ from those of their job's 14 other nodes")
    assert second.startswith("the clock of b0 is 4.0 s behind that of its job's other node:")
