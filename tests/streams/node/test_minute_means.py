"""What a node stage tells of each node and minute: exact, and the same however the samples come."""

import math
import pickle
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slowrank.telemetry import MinuteMeans, NodeSample, decode_message, encode
from slowrank.telemetry.columns import pack
from slowrank.telemetry.schema import GPU_V1, NIC_V1
from streams.gray_features import FEATURES, means_of
from streams.node.config import NodeConfig
from streams.node.minute_means import MinuteSums
from streams.node.stage import NodeStage
from tests.streams.cluster.weak_signs import SICK, T0, sample, samples

FLEET = [r for r in samples(nodes=4, minutes=2, sick=(0, 1)) if isinstance(r, NodeSample)]


def told(taken, *, until=T0 + 1000.0):
    readings = MinuteSums()
    readings.take(taken)
    return readings.tick(until)


def load(row):
    return row.means["host.load1"]


def test_a_minute_is_told_ten_seconds_after_its_end():
    """Once, with the means of what the node read in it."""
    readings = MinuteSums()
    readings.take([sample("n", T0 + at, busy) for at, busy in ((0.0, 1.0), (59.9, 2.0), (60.0, 5.0))])
    assert readings.tick(T0 + 69.9) == []
    [row] = readings.tick(T0 + 70.0)
    assert (row.node, row.start, row.ts, row.samples) == ("n", T0, T0 + 70.0, 2)
    assert load(row) == pytest.approx(30.0)
    # Over both GPUs of both samples.
    assert row.means["gpu.power_watts"] == 600.5
    assert readings.tick(T0 + 100.0) == []
    assert load(readings.tick(T0 + 130.0)[0]) == pytest.approx(100.0)


def test_what_was_not_read_is_not_told():
    """A feature that a node lacks has no value; of one that is read now and then, what was read counts."""
    rows = told(
        [
            sample("n", T0 + 1, gpus=0),
            sample("n", T0 + 2, gpus=0, **{"host.load1": math.nan}),
            sample("bare", T0 + 1, gpus=0, **{"host.load1": math.inf, "host.run_queue": 1e30}),
        ]
    )
    assert [row.node for row in rows] == ["bare", "n"]
    assert not {"host.load1", "host.run_queue"} & rows[0].means.keys()
    assert not [name for name in rows[1].means if name.startswith("gpu.")]
    assert load(rows[1]) == 20.0
    assert np.isnan(means_of(rows[0])[FEATURES.index("host.load1")])


def test_a_sample_without_any_column_counts_as_one():
    """A node that reads nothing tells that it was there."""
    bare = NodeSample(schema=1, cluster="c", node="n", boot_id="b", seq=1, ts=T0)
    assert [(row.samples, row.means) for row in told([bare])] == [(1, {})]


def test_a_gpu_that_is_lost_in_the_minute():
    """Each sample is the mean over the GPUs that it names."""
    lost = msgspec.structs.replace(
        sample("n", T0 + 1), gpu_ids=("1",), gpu=pack(GPU_V1, [{"gpu.power_watts": 601.0}])
    )
    [row] = told([sample("n", T0), lost, sample("n", T0 + 2)])
    assert row.means["gpu.power_watts"] == pytest.approx((600.5 + 601.0 + 600.5) / 3)


def test_a_sample_of_a_minute_that_was_told_is_too_late():
    """It is told of no second time."""
    readings = MinuteSums()
    readings.take([sample("n", T0)])
    assert len(readings.tick(T0 + 70.0)) == 1
    readings.take([sample("n", T0 + 30.0), sample("other", T0 + 31.0)])
    assert readings.tick(T0 + 1000.0) == []


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, len(FLEET)), max_size=20), seed=st.integers(0, 9))
def test_batches_and_neighbours_change_no_bit(cuts, seed):
    """However the samples are cut, and whoever stands beside a node; nodes may overtake each other."""
    whole = told(FLEET)
    delay = np.random.default_rng(seed).uniform(0, 9, 4)
    travelled = sorted(FLEET, key=lambda s: s.ts + delay[int(s.node[-1])])
    readings, edges = MinuteSums(), [0, *sorted(cuts), len(FLEET)]
    for first, last in pairwise(edges):
        readings.take(travelled[first:last])
    assert readings.tick(T0 + 1000.0) == whole
    assert told([s for s in FLEET if s.node == SICK]) == [row for row in whole if row.node == SICK]


def test_more_nodes_than_rows_at_first():
    """The table grows."""
    rows = told([sample(f"n{k:03}", T0 + 1, 1.0 + k) for k in range(300)])
    assert [row.node for row in rows] == [f"n{k:03}" for k in range(300)]
    assert [load(row) for row in rows] == pytest.approx([20.0 * (1 + k) for k in range(300)])


def test_it_travels_as_it_is():
    """The message holds the means to the last bit, and passes the checks."""
    for row in told(FLEET):
        assert decode_message(encode(row)) == row


@pytest.mark.parametrize("wanted", [True, False])
def test_a_node_stage_tells_only_where_it_is_asked_to(wanted):
    """Without a model nothing is announced; a sample that comes twice counts once."""
    stage = NodeStage(NodeConfig(readings=wanted))
    stage.process_many([s for one in FLEET for s in (one, one)])
    said = [s for s in stage.tick(T0 + 200.0) if isinstance(s, MinuteMeans)]
    assert said == (told(FLEET) if wanted else [])


BYTES = "nic.port.tx_bytes_total"


def ported(ts, *readings, boot="b", ids=None):
    """A sample with the bytes of each port."""
    return NodeSample(
        schema=1,
        cluster="c",
        node="n",
        boot_id=boot,
        seq=int(ts),
        ts=ts,
        nic_ids=ids or tuple(f"mlx5_{i}/1" for i in range(len(readings))),
        nic=pack(NIC_V1, [{BYTES: x} for x in readings]),
    )


def test_counters_are_told_by_the_second():
    """Over all ports, from the last sample of the minute before on: nodes may be read once a minute."""
    rows = told([ported(T0 + 1, 100, 7), ported(T0 + 51, 600, 7), ported(T0 + 111, 1200, 67)])
    assert [row.means for row in rows] == [{BYTES: 10.0}, {BYTES: 11.0}]


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(ported(T0 + 51, 50, 700), id="one began anew"),
        pytest.param(ported(T0 + 51, 600, 700, boot="other"), id="rebooted"),
        pytest.param(ported(T0 + 51, 600, 700, ids=("a/1", "b/1")), id="other ports"),
    ],
)
def test_counters_that_began_anew_are_left_out(second):
    """As is what a port has counted that was not read before."""
    assert told([ported(T0 + 1, 100, 7), second])[0].means == {}


def test_each_gpu_has_means_of_its_own():
    """Of what all of them read, with their names; not where these changed within the minute."""
    [row] = told([sample("n", T0), sample("n", T0 + 9)])
    assert (row.gpus, row.of_gpus) == (("0", "1"), {"gpu.power_watts": (600.0, 601.0)})
    [row] = told([sample("n", T0), sample("n", T0 + 9, gpus=3)])
    assert (row.gpus, row.of_gpus) == ((), {})


def test_nodes_outside_of_jobs_may_be_left_out():
    """Where they are compared within jobs only."""
    sums = MinuteSums(all_nodes=False)
    sums.take([sample("n", T0), msgspec.structs.replace(sample("m", T0), job_id="j")])
    assert [row.node for row in sums.tick(T0 + 70)] == ["m"]


def test_a_clock_far_ahead_fills_no_memory():
    """Its minutes are never due; those of the others are sent as usual."""
    readings, rows = MinuteSums(), []
    for minute in range(800):
        at = T0 + 60.0 * minute
        readings.take([sample("ahead", at + 300 * 86_400.0), sample("n", at)])
        rows += readings.tick(at + 60.0)
    assert [row.start for row in rows] == [T0 + 60.0 * n for n in range(799)]
    assert {row.node for row in rows} == {"n"}
    assert len(pickle.dumps(readings)) < 30e6
