"""How the GPUs of a node ran under load, minute by minute."""

import pytest

from slowrank.telemetry import NodeSample
from slowrank.telemetry.columns import pack
from slowrank.telemetry.schema import GPU_V1
from streams.node.loaded_minutes import LoadedMinutes

T0 = 1_795_160_040.0
SW_POWER_CAP, HW_THERMAL, POWER_BRAKE = 4, 64, 128
USUAL = {
    "gpu.utilization_ratio": 0.98,
    "gpu.clock.sm_hz": 1.98e9,
    "gpu.clock.sm_max_hz": 1.98e9,
    "gpu.power_limit_watts": 700.0,
    "gpu.throttle_reasons": SW_POWER_CAP,
}


def sample(at, *, node="n", job="j", gpus=(), labels=None):
    """A sample of four GPUs, of which ``gpus`` are not as usual."""
    columns = [USUAL | (gpus[i] if i < len(gpus) else {}) for i in range(4)]
    return NodeSample(
        schema=1,
        cluster="c",
        node=node,
        boot_id="b",
        seq=int(at),
        ts=T0 + at,
        job_id=job,
        labels=labels or {},
        gpu_ids=("0", "1", "2", "3"),
        gpu=pack(GPU_V1, columns),
    )


def sent(samples, until=1000.0):
    minutes = LoadedMinutes()
    minutes.take(samples)
    return minutes.tick(T0 + until)


def test_a_minute_is_sent_ten_seconds_after_its_end():
    """Once, with what its samples show, of which one in ten seconds is read."""
    minutes = LoadedMinutes()
    minutes.take([sample(at, gpus=[{"gpu.clock.sm_hz": 1e9 + at}] * 4) for at in range(3, 63)])
    assert minutes.tick(T0 + 69.0) == []
    [one] = minutes.tick(T0 + 70.0)
    assert (one.node, one.job_id, one.start, one.since, one.ts) == ("n", "j", T0, T0 + 3, T0 + 70)
    assert one.clock_hz == pytest.approx(1e9 + (3 + 10 + 20 + 30 + 40 + 50) / 6, abs=100)
    assert (one.model, one.limit_watts, one.held_by) == ("1980 MHz", 700.0, "power_cap")
    assert [m.start for m in minutes.tick(T0 + 130.0)] == [T0 + 60]
    assert minutes.tick(T0 + 500.0) == []


IDLE = {"gpu.utilization_ratio": 0.0, "gpu.clock.sm_hz": 3.45e8}


@pytest.mark.parametrize(
    ("gpus", "job", "clocks"),
    [
        ([], "j", [1.98e9]),
        ([{"gpu.clock.sm_hz": 1.2e9}], "j", [1.98e9]),
        ([{"gpu.clock.sm_hz": 1.2e9}] * 3, "j", [1.2e9]),
        ([IDLE] * 2, "j", [1.98e9]),
        ([IDLE] * 3, "j", []),
        ([{"gpu.utilization_ratio": None}] * 4, "j", []),
        ([{"gpu.clock.sm_hz": None}] * 4, "j", []),
        ([{"gpu.clock.sm_hz": 1e-320}] * 4, "j", []),
        ([], None, [1.98e9]),
    ],
)
def test_the_median_gpu_under_load_stands_for_the_node(gpus, job, clocks):
    """Nothing where most GPUs are idle or nothing is read."""
    assert [m.clock_hz for m in sent([sample(at, job=job, gpus=gpus) for at in (0, 20, 40)])] == clocks


def test_a_node_that_pauses_for_most_of_a_minute_has_no_level():
    """One sample under load among three does not count, two do."""
    assert not sent([sample(0), sample(20, gpus=[IDLE] * 4), sample(40, gpus=[IDLE] * 4)])
    [minute] = sent([sample(0), sample(20, gpus=[IDLE] * 4), sample(40)])
    assert minute.clock_hz == 1.98e9


@pytest.mark.parametrize(
    ("reasons", "held_by"),
    [
        ([0, 0, 0, 0], "nothing"),
        ([0, 0, 0, SW_POWER_CAP], "nothing"),
        ([0, 0, SW_POWER_CAP, SW_POWER_CAP], "power_cap"),
        ([HW_THERMAL | SW_POWER_CAP] * 4, "thermal"),
        ([32, HW_THERMAL, 0, 0], "thermal"),
        ([POWER_BRAKE] * 4, "power_brake"),
        ([8] * 4, "slowdown"),
        ([None] * 4, "unknown"),
    ],
)
def test_what_holds_half_of_the_gpus_holds_the_node(reasons, held_by):
    """The gravest reason of the minute; none is not the same as unknown."""
    odd = sample(0, gpus=[{"gpu.throttle_reasons": bits} for bits in reasons])
    calm = [sample(at, gpus=[{"gpu.throttle_reasons": reasons[0] and 0}] * 4) for at in (20, 40)]
    [minute] = sent([odd, *calm])
    assert minute.held_by == held_by


def test_models_are_told_apart_by_label_or_largest_clock():
    """Empty where neither is known."""
    assert sent([sample(0, labels={"gpu_model": "NVIDIA H100"})])[0].model == "NVIDIA H100"
    assert sent([sample(0, gpus=[{"gpu.clock.sm_max_hz": 1.41e9}] * 4)])[0].model == "1410 MHz"
    assert sent([sample(0, gpus=[{"gpu.clock.sm_max_hz": None}] * 4)])[0].model == ""


def test_batches_change_nothing():
    """Samples of many nodes at once, or one by one."""
    samples = [sample(at, node=f"n{i}") for at in range(0, 120, 7) for i in range(3)]
    one_by_one = LoadedMinutes()
    for one in samples:
        one_by_one.take([one])
    assert one_by_one.tick(T0 + 1000.0) == sent(samples)
