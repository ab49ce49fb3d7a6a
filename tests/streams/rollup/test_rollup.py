import math
import random
from typing import Any

import numpy as np
import pytest

from slowrank.telemetry import JobSteps, NodeSample
from slowrank.telemetry.columns import pack
from slowrank.telemetry.schema import GPU_V1, HOST_V1, NIC_V1, STEP_V1
from store.telemetry.buckets import ROLLED, NodeLatest, RankPlace, SampleRollup, StepRollup
from streams.rollup.rollup import RollUp
from tests.roll_ups import unpacked


def sample(t, *, power=400.0, bits=4, energy=0, sent=0, node="n1", boot_id="b", seq=None):
    return NodeSample(
        schema=1,
        cluster="c",
        node=node,
        boot_id=boot_id,
        seq=int(t * 10) if seq is None else seq,
        ts=float(t),
        gpu_ids=("0", "1"),
        nic_ids=("mlx5_0/1",),
        gpu=pack(
            GPU_V1,
            [
                {
                    "gpu.power_watts": power,
                    "gpu.throttle_reasons": bits,
                    "gpu.energy_millijoules_total": energy,
                },
                {"gpu.temp_celsius": 50 + t % 10},
            ],
        ),
        nic=pack(NIC_V1, [{"nic.port.up": 1, "nic.port.tx_bytes_total": sent}]),
        host=pack(HOST_V1, [{"host.load1": 2.0}]),
    )


def steps(t, rows, *, seq, node="n1"):
    return JobSteps(
        schema=1,
        cluster="c",
        job_id="j",
        node=node,
        boot_id="b",
        seq=seq,
        ts=float(t),
        rows=pack(STEP_V1, rows),
    )


def value(row, column):
    names = [r.column for r in ROLLED[row.block]]
    return row.values[names.index(column)]


def final(rows):
    """What the store would hold: of every key the first row with the largest count."""
    held: dict[Any, Any] = {}
    for row in unpacked(rows):
        key: Any
        if isinstance(row, SampleRollup):
            key, n = (row.block, row.node, row.instance, row.bucket), row.n
        elif isinstance(row, StepRollup):
            key, n = (row.job_id, row.rank, row.bucket), row.n_steps
        else:
            continue
        if key not in held or n > held[key][0]:
            held[key] = (n, row)
    return {k: row for k, (_, row) in held.items()}


def same(rows):
    """The rows with NaN made comparable."""
    return {k: repr(row) for k, row in rows.items()}


def test_a_bucket_has_the_aggregates_its_columns_ask_for():
    """Mean, maximum, union of bits and sum of increases are those of the ten samples of the bucket."""
    rollup, rows = RollUp(), []
    for t in range(990, 1023):
        rows += rollup.add(sample(t, power=400 + t % 10, bits=1 << (t % 3), energy=1000 * t, sent=7 * t))
    by_key = final(rows)
    gpu = by_key["gpu", "n1", "0", 1000.0]
    assert gpu.n == 10
    assert value(gpu, "power_watts_mean") == pytest.approx(404.5)
    assert value(gpu, "power_watts_max") == 409
    assert value(gpu, "throttle_reasons_or") == 0b111
    assert value(gpu, "energy_millijoules_delta") == 10_000
    assert math.isnan(value(gpu, "temp_celsius_mean"))
    assert value(by_key["gpu", "n1", "1", 1000.0], "temp_celsius_max") == 59
    assert value(by_key["nic", "n1", "mlx5_0/1", 1000.0], "port_tx_bytes_delta") == 70
    assert value(by_key["host", "n1", "", 1000.0], "load1_mean") == 2.0


def test_a_bucket_closes_when_its_node_has_passed_it():
    """Nothing is handed on before the bucket is over, everything two seconds after."""
    rollup = RollUp()
    assert [r for t in range(1000, 1012) for r in rollup.add(sample(t))] == []
    closed = unpacked(rollup.add(sample(1012)))
    assert {r.bucket for r in closed if isinstance(r, SampleRollup)} == {1000.0}
    assert [r.seq for r in closed if isinstance(r, NodeLatest)] == [10090]


def test_a_counter_that_was_reset_counts_from_zero():
    """What a counter shows after a reset has happened since the reset."""
    rollup, rows = RollUp(), []
    for t, energy in zip(range(1000, 1015), [500, 600, 5, 10, *range(20, 31), 40], strict=False):
        rows += rollup.add(sample(t, energy=energy))
    assert value(final(rows)["gpu", "n1", "0", 1000.0], "energy_millijoules_delta") == 100 + 5 + 5 + 15


def test_records_read_twice_or_shuffled_within_the_grace_change_no_row():
    """After a restart the log is read again; the rows stay what they were."""
    records = [sample(1000 + t, power=400 + t, sent=t * t) for t in range(60)]
    clean, again = RollUp(), RollUp()
    expected = final([r for s in records for r in clean.add(s)] + clean.flush())
    rows = []
    for n, record in enumerate(records):
        rows += again.add(record)
        rows += again.add(records[max(0, n - 3)])
    assert same(final(rows + again.flush())) == same(expected)


def test_reading_again_from_a_later_point_never_replaces_a_fuller_row():
    """A worker that begins inside a bucket counts fewer samples for it: the store keeps the old row."""
    records = [sample(1000 + t) for t in range(40)]
    first, second = RollUp(), RollUp()
    whole = final([r for s in records for r in first.add(s)] + first.flush())
    restarted = [r for s in records[5:] for r in second.add(s)] + second.flush()
    both = final([*whole.values(), *restarted])
    assert {k: r.n for k, r in both.items()} == {k: r.n for k, r in whole.items()}


def test_a_spool_that_drains_late_rolls_up_like_live_data():
    """Old records of one node, read while others are an hour ahead, close their own buckets."""
    rollup, rows = RollUp(), []
    for t in range(5000, 5020):
        rows += rollup.add(sample(t, node="n2"))
    rows += rollup.tick(5019.0)
    for t in range(1000, 1025):
        rows += rollup.add(sample(t, node="n1"))
        rows += rollup.tick(5020.0)
    rows += rollup.flush()
    assert {k[3]: r.n for k, r in final(rows).items() if k[:3] == ("gpu", "n1", "0")} == {
        1000.0: 10,
        1010.0: 10,
        1020.0: 5,
    }


def test_a_quiet_node_is_closed_by_event_time():
    """Half a minute after a node fell silent its last bucket is written."""
    rollup = RollUp()
    for t in range(1000, 1005):
        assert rollup.tick(float(t)) == []
        assert rollup.add(sample(t)) == []
    assert rollup.tick(1033.0) == []
    closed = unpacked(rollup.tick(1035.0))
    assert {r.n for r in closed if isinstance(r, SampleRollup)} == {5}
    assert rollup.tick(1042.0) == []


def test_a_gpu_that_vanishes_keeps_the_samples_it_had():
    """Instances may come and go within a bucket."""
    rollup, rows = RollUp(), []
    for t in range(1000, 1013):
        full = sample(t)
        rows += rollup.add(
            full
            if t < 1004
            else NodeSample(
                schema=1,
                cluster="c",
                node="n1",
                boot_id="b",
                seq=full.seq,
                ts=full.ts,
                gpu_ids=("1",),
                gpu=pack(GPU_V1, [{"gpu.temp_celsius": 50.0}]),
            )
        )
    by_key = final(rows)
    assert by_key["gpu", "n1", "0", 1000.0].n == 4
    assert by_key["gpu", "n1", "1", 1000.0].n == 10


def test_steps_are_summed_by_rank_and_bucket_whatever_the_batches():
    """The same rows in messages of any size give the same roll-ups."""
    rng = np.random.default_rng(2)
    rows = [
        {
            "step": s,
            "rank": r,
            "ts": 1000 + 0.7 * s + 0.01 * r,
            "step_seconds": 0.7,
            "compute_seconds": rng.random(),
        }
        for s in range(60)
        for r in range(4)
    ]

    def rolled(size):
        rollup, found = RollUp(), []
        for n in range(0, len(rows), size):
            found += rollup.add(steps(rows[min(n + size, len(rows)) - 1]["ts"], rows[n : n + size], seq=n))
        return final(found + rollup.flush())

    one, many = rolled(1), rolled(37)
    assert one.keys() == many.keys()
    for key, row in one.items():
        assert row.n_steps == many[key].n_steps
        assert row.compute_seconds_sum == pytest.approx(many[key].compute_seconds_sum)
        assert math.isnan(row.wait_seconds_sum)
    assert sum(r.n_steps for r in one.values()) == len(rows)


def test_checkpoints_are_summed():
    """Of the rank that reports them; where nobody does, the sum is unknown and not zero."""
    reported = [{}, {"checkpoint_seconds": 2.5}]
    rows = [
        {"step": s, "rank": r, "ts": 1000 + s, "step_seconds": 1.0} | reported[r]
        for s in range(4)
        for r in range(2)
    ]
    rollup = RollUp()
    found = final([*rollup.add(steps(1004, rows, seq=1)), *rollup.flush()])
    silent, summed = (found["j", rank, 1000.0].checkpoint_seconds_sum for rank in range(2))
    assert (math.isnan(silent), summed) == (True, 10.0)


def test_random_restarts_lose_no_sample():
    """Killed anywhere and restarted from a minute before, the rows in the store are those of the calm run."""
    chance = random.Random(4)
    records = [sample(1000 + t, sent=3 * t, power=300 + t % 17) for t in range(300)]
    calm = RollUp()
    expected = final([r for s in records for r in calm.add(s)] + calm.flush())
    rows, at = [], 0
    while at < len(records):
        rollup, stop = RollUp(), at + chance.randint(5, 80)
        for record in records[max(0, at - 60) : stop]:
            rows += rollup.add(record)
        at = stop
    assert same(final(rows + rollup.flush())) == same(expected)


def placed(t, seq, *, node="n1", gpu=3, **coords):
    row = {"rank": 7, "step": t, "ts": float(t), "step_seconds": 1.0, "gpu_index": gpu} | coords
    return steps(t, [row], seq=seq, node=node)


def places(rows):
    return [row for row in rows if isinstance(row, RankPlace)]


def test_a_rank_s_place_comes_with_its_first_roll_up():
    """Node, GPU and coordinates as its rows have them; what a row lacks is None."""
    rollup = RollUp()
    (place,) = places([*rollup.add(placed(100, 0, pp=1, dp=2)), *rollup.flush()])
    assert (place.rank, place.node, place.gpu_index) == (7, "n1", 3)
    assert place.coords == (2, 1, None, None, None)
    assert (place.step, place.at) == (100, 100.0)


def test_a_place_is_repeated_only_when_it_is_due():
    """Every five minutes, and where the rank has another GPU with the bucket that this record closes."""
    rollup, rows = RollUp(), []
    for k in range(62):
        rows += rollup.add(placed(100 + 10 * k, k, gpu=3 if k < 50 else 4))
    rows += rollup.flush()
    assert [(place.at, place.gpu_index) for place in places(rows)] == [(100, 3), (400, 3), (580, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1, 10])
def test_the_ids_of_records_stay_bounded(rate):
    """Those of ten minutes, and as many again, whatever the pace; those that are kept are still known."""
    rollup = RollUp()
    records = [sample(1000 + n / rate, seq=n) for n in range(1500 * rate)]
    for record in records:
        rollup.add(record)
    [source] = rollup._nodes.values()
    assert len(source.seen) <= 600 * rate
    assert [source.fresh(record, 0.0) for record in records[-300 * rate :]] == [False] * 300 * rate
