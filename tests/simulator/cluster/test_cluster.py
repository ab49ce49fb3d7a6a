from typing import Any

import numpy as np
import pytest

from simulator import Cluster, ClusterSpec, Fault, JobSpec, Planned
from simulator.cluster.layout import one_job
from slowrank.telemetry import (
    JobSteps,
    NodeEvent,
    NodeSample,
    decode_event,
    decode_sample,
    decode_steps,
    encode,
)
from slowrank.telemetry.columns import unpack
from slowrank.telemetry.schema import SAMPLE_SCHEMAS
from tests.simulator.readings import GPUS, NODES, cluster, records, series, steps

ONSET = 60.0
DECODE: dict[Any, Any] = {NodeSample: decode_sample, JobSteps: decode_steps, NodeEvent: decode_event}


def small(*faults, duration=120.0, seed=3, job=None, **workload):
    """Run a small cluster; return its spec and its records."""
    spec = cluster(job=job, **workload)
    return spec, records(spec, *faults, seconds=duration, seed=seed)


def test_the_same_seed_gives_the_same_bytes():
    """Two runs of one seed agree byte for byte, another seed differs."""
    fault = Fault(kind="thermal_throttle", node=1, gpu=2, onset=20)
    runs = [b"".join(map(encode, small(fault, seed=seed, duration=40)[1])) for seed in (5, 5, 6)]
    assert runs[0] == runs[1] != runs[2]


def test_a_fault_that_is_injected_while_the_cluster_runs_acts_as_one_from_the_start():
    """From its onset on every record is the same, byte for byte, events and broken jobs included."""
    late = [
        Fault(kind="nic_crash", node=1, gpu=1, onset=30, duration=20),
        Fault(kind="thermal_throttle", node=2, gpu=0, onset=31),
        Fault(kind="duplicate_batch", node=3, onset=32, magnitude=3.0),
        Fault(kind="nan_loss", node=0, onset=33),
    ]
    change = Planned(onset=34.0, factor=1.3)
    spec = cluster(announced=True)
    running, found = Cluster(spec, seed=3), []
    for record in running.run(90.0):
        if record.ts - spec.start > 20.0 and not running.faults:
            for fault in late:
                running.inject(fault)
            running.plan(spec.jobs[0].job_id, change)
        found.append(record)
    expected = records(cluster(announced=True, planned=(change,)), *late, seconds=90.0)
    assert [encode(record) for record in found] == [encode(record) for record in expected]
    assert running.truth == Cluster(spec, seed=3, faults=late).truth


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault(kind="clock_lock", node=9, gpu=0, onset=60), "there is no node 9 with GPU 0"),
        (Fault(kind="clock_lock", node=1, gpu=0, onset=5), "onset=5: the cluster has run to 31 s already"),
    ],
)
def test_what_cannot_be_injected_is_refused(fault, reason):
    """A place that does not exist and an onset in the past; nothing is changed by either."""
    running = Cluster(cluster(), seed=3)
    for record in running.run(40.0):
        if record.ts - running.spec.start > 30.0:
            break
    with pytest.raises(ValueError, match=reason):
        running.inject(fault)
    assert running.faults == ()
    with pytest.raises(ValueError, match="there is no job none"):
        running.plan("none", Planned(onset=50.0, factor=1.1))


def test_every_record_passes_the_codec_in_order_of_time():
    """Whatever goes wrong, each record is valid and none is older than the one before."""
    faults = [
        Fault(kind="nic_flap", node=1, gpu=1, onset=10, shape="square", period=12, duty=0.1),
        Fault(kind="ecc_storm", node=2, gpu=0, onset=12, magnitude=500),
        Fault(kind="gpu_lost", node=3, gpu=1, onset=40),
    ]
    _, found = small(*faults, duration=60)
    assert [r.ts for r in found] == sorted(r.ts for r in found)
    for record in found:
        assert DECODE[type(record)](encode(record)) == record
    assert {type(r) for r in found} == set(DECODE)


def test_step_wall_clock_is_common_and_the_culprit_waits_least():
    """A slow GPU is invisible in step_seconds across ranks, longest in compute and shortest in waiting."""
    _, found = small(Fault(kind="silent_slow", node=2, gpu=1, onset=ONSET, magnitude=1.3))
    culprit = 2 * GPUS + 1
    seconds = steps(found, "step_seconds")
    assert (seconds.std(axis=1) / seconds.mean(axis=1)).max() < 5e-5
    assert set(steps(found, "wait_seconds", after=ONSET + 5).argmin(axis=1)) == {culprit}
    assert set(steps(found, "compute_seconds", after=ONSET + 5).argmax(axis=1)) == {culprit}
    before = np.nanmedian(steps(found, "step_seconds", before=ONSET))
    assert np.nanmedian(steps(found, "step_seconds", after=ONSET + 5)) == pytest.approx(
        1.28 * before, rel=0.03
    )


def test_power_falls_where_ranks_wait():
    """Victims of a slow GPU draw less power than before while their utilisation stays pinned."""
    _, found = small(Fault(kind="silent_slow", node=2, gpu=1, onset=ONSET, magnitude=1.6))
    power = series(found, "gpu.power_watts", 0)
    busy = series(found, "gpu.utilization_ratio", 0)
    assert power[-30:].mean() < 0.9 * power[20:50].mean()
    assert busy[-30:].mean() == pytest.approx(busy[20:50].mean(), abs=0.01)


def test_a_throttled_gpu_shows_why_it_is_slow():
    """Thermal throttling lowers the clock, raises the temperature and sets the reason bits of that GPU."""
    _, found = small(Fault(kind="thermal_throttle", node=2, gpu=1, onset=ONSET, magnitude=1.31))
    clock = series(found, "gpu.clock.sm_hz", 2)[-20:].mean(axis=0)
    heat = series(found, "gpu.temp_celsius", 2)[-20:].mean(axis=0)
    reasons = series(found, "gpu.throttle_reasons", 2)[-1].astype(int)
    assert clock[1] == pytest.approx(1.755e9 * 1.31 ** (-1 / 0.6), rel=0.02)
    assert clock[[0, 2, 3]].min() > 1.7e9
    assert heat.argmax() == 1
    assert [bool(r & 0x40) for r in reasons] == [False, True, False, False]


def test_a_lost_gpu_vanishes_and_the_job_stands_still():
    """After XID 79 the GPU has no columns, the step log ends, the others spin at low power."""
    spec, found = small(Fault(kind="gpu_lost", node=1, gpu=3, onset=ONSET))
    samples = [r for r in found if isinstance(r, NodeSample) and r.node == spec.node_name(1)]
    assert samples[-1].gpu_ids == ("0", "1", "2")
    assert [e.code for e in found if isinstance(e, NodeEvent)] == ["xid.79"]
    assert steps(found, "ts").max() < spec.start + ONSET + 0.01
    power = series(found, "gpu.power_watts", 0)
    assert power[-20:].mean() < 0.5 * power[30:50].mean()
    nic = [list(unpack(SAMPLE_SCHEMAS[r.schema].nic, r.nic)) for r in samples[-10:]]
    assert len({rows[0]["nic.port.tx_bytes_total"] for rows in nic}) == 1


def test_a_flapping_port_counts_what_gauges_miss():
    """Each loss of the link is counted and logged, also when it is up again at the next sample."""
    fault = Fault(kind="nic_flap", node=0, gpu=0, onset=20, duration=30, shape="square", period=10, duty=0.03)
    _, found = small(fault)
    events = [e.code for e in found if isinstance(e, NodeEvent)]
    last = [r for r in found if isinstance(r, NodeSample) and r.node == "sim-0000"][-1]
    rows = list(unpack(SAMPLE_SCHEMAS[last.schema].nic, last.nic))
    assert events == ["nic.link_down", "nic.link_up"] * 3
    assert [r["nic.port.link_downed_total"] for r in rows] == [3, 0]
    assert rows[0]["nic.port.up"] == 1.0


def test_a_silent_exporter_leaves_the_job_alone():
    """During an exporter's gap its node sends nothing, the job goes on, and no finding opens."""
    fault = Fault(kind="exporter_gap", node=1, onset=30, duration=30)
    spec, found = small(fault)
    times = [r.ts - spec.start for r in found if r.node == spec.node_name(1)]
    assert not [t for t in times if 30 < t < 60]
    assert max(times) > 100
    truth = Cluster(spec, seed=1, faults=[fault]).truth[0]
    assert (truth.machine, truth.gating, truth.end) == (False, False, spec.start + 60)


def test_a_skewed_clock_moves_the_times_of_its_node_only():
    """A node whose clock is wrong stamps samples and rows with it and shows the offset."""
    spec, found = small(Fault(kind="clock_skew", node=1, onset=0, magnitude=20.0), duration=30)
    ends = {r.node: r.ts - spec.start for r in found if isinstance(r, NodeSample)}
    assert ends[spec.node_name(1)] > 45 > 31 > ends[spec.node_name(0)]


def test_truth_names_the_ranks_of_the_place():
    """The truth of a GPU fault is one rank, of a node fault all ranks of the node."""
    spec = ClusterSpec(nodes=NODES, gpus=GPUS, nics=2, jobs=(JobSpec(dp=NODES, tp=GPUS),))
    faults = [
        Fault(kind="clock_lock", node=2, gpu=1, onset=5),
        Fault(kind="host_contention", node=3, onset=5),
    ]
    found = Cluster(spec, seed=1, faults=faults).truth
    assert [t.ranks for t in found] == [(9,), (12, 13, 14, 15)]


def test_a_planned_change_moves_all_ranks_together():
    """A planned level change stretches every rank's compute alike."""
    _, found = small(planned=(Planned(onset=60.0, factor=1.5),))
    before, after = (
        np.median(steps(found, "compute_seconds", after=a, before=b), axis=0) for a, b in ((0, 60), (65, 200))
    )
    ratio = after / before
    assert ratio.mean() == pytest.approx(1.5, rel=0.04)
    np.testing.assert_allclose(ratio, ratio.mean(), rtol=0.015)


def test_a_checkpoint_pauses_all_ranks_and_reports_it():
    """Every k-th step carries checkpoint_seconds on all ranks and is longer by it."""
    _, found = small(checkpoint_every=10, checkpoint_seconds=5.0)
    seconds = steps(found, "step_seconds")[:, 0]
    told = steps(found, "checkpoint_seconds")
    assert (~np.isnan(told)).all(axis=1).sum() == (seconds > 5).sum() > 2


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": 0},
        {"nics": 9},
        {"send_seconds": 0.0},
        {"send_seconds": float("nan")},
        {"lost_share": 1.0},
        {"jobs": (JobSpec(dp=3),)},
        {"jobs": (JobSpec(dp=17, tp=8),)},
    ],
)
def test_an_impossible_cluster_is_refused(change):
    """A spec that cannot be built names what is wrong with it."""
    with pytest.raises(ValueError, match=r"cluster needs|ranks do not fill"):
        ClusterSpec(**change)


def test_an_unknown_fault_names_the_known_ones():
    """A fault of an unknown kind or place is refused."""
    with pytest.raises(ValueError, match="thermal_throttle"):
        Fault(kind="gremlin", node=0, onset=0)
    with pytest.raises(ValueError, match="no node 99"):
        Cluster(
            ClusterSpec(jobs=(one_job(16, 8),)), seed=1, faults=[Fault(kind="job_hang", node=99, onset=0)]
        )
