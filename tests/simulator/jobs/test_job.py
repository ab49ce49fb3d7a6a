"""Jobs side by side, one after the other, with pauses and roles: what the machines under them show."""

from dataclasses import replace

import numpy as np
import pytest

from simulator import Cluster, ClusterSpec, Fault, JobSpec, Planned, Workload
from simulator.cluster.layout import one_job
from slowrank.telemetry import JobSteps, NodeEvent, NodeSample
from slowrank.telemetry.columns import read
from slowrank.telemetry.schema import STEP_SCHEMAS
from tests.simulator.readings import START, cluster, records, series, steps

CALM = Workload(gc_share=0.0)


def events(found):
    return [(r.code, r.ts - START) for r in found if isinstance(r, NodeEvent)]


def test_jobs_run_side_by_side_and_idle_nodes_rest():
    """Each job has its own step clock and rows; nodes without a job draw idle power and name none."""
    jobs = (
        JobSpec(dp=4, tp=2, job_id="a", step_seconds=1.0),
        JobSpec(dp=2, pp=2, tp=2, job_id="b", first_node=2, step_seconds=3.0),
    )
    spec = ClusterSpec(nodes=5, gpus=4, nics=2, jobs=jobs)
    found = records(spec, seconds=60)
    by_node = {r.node: r.job_id for r in found if isinstance(r, NodeSample)}
    assert list(by_node.values()) == ["a", "a", "b", "b", None]
    nodes = {job: {r.node for r in found if isinstance(r, JobSteps) and r.job_id == job} for job in "ab"}
    assert nodes == {"a": {"sim-0000", "sim-0001"}, "b": {"sim-0002", "sim-0003"}}
    assert series(found, "gpu.power_watts", 4).max() < 85
    assert series(found, "gpu.utilization_ratio", 4).max() == 0
    assert set(series(found, "gpu.throttle_reasons", 4).ravel()) == {1}
    assert np.diff(series(found, "nic.port.tx_bytes_total", 4), axis=0).max() == 0


def test_an_evaluation_is_a_pause_without_rows_that_may_be_announced():
    """Every k-th step is followed by a gap in which GPUs work half, and an event if announced."""
    spec = cluster(
        eval_every=10, eval_seconds=15.0, announced=True, planned=(Planned(onset=100.0, factor=1.1),)
    )
    found = records(spec)
    ends = steps(found, "ts")[:, 0] - START
    gaps = np.diff(ends)
    told = [t for code, t in events(found) if code == "job.eval"]
    # The run may end within the last pause.
    assert told == sorted(told)
    assert 2 <= (gaps > 10).sum() <= len(told) <= (gaps > 10).sum() + 1
    longest = int(gaps.argmax())
    pause = slice(int(ends[longest]) + 2, int(ends[longest]) + 10)
    power = series(found, "gpu.power_watts", 0)
    assert 0.5 < power[pause].mean() / np.median(power) < 0.9
    quiet = cluster(eval_every=10, eval_seconds=15.0)
    assert not events(records(quiet))


def test_a_checkpoint_shows_as_spinning_without_traffic():
    """While a checkpoint is written the ranks wait in a barrier: full utilisation, little power, no bytes."""
    found = records(cluster(checkpoint_every=10, checkpoint_seconds=10.0))
    pauses = steps(found, "checkpoint_seconds")[:, 0]
    end = steps(found, "ts")[np.flatnonzero(~np.isnan(pauses))[1], 0] - START
    pause = slice(int(end) - 7, int(end) - 1)
    assert series(found, "gpu.power_watts", 0)[pause].max() < 330
    assert series(found, "gpu.utilization_ratio", 0)[pause].min() > 0.95
    assert np.diff(series(found, "nic.port.tx_bytes_total", 0)[pause, 0]).max() == 0


def test_a_resized_job_goes_on_as_the_next_attempt_on_fewer_nodes():
    """The job ends and begins anew as announced, warms up, and leaves the nodes it gave back idle."""
    told = replace(CALM, announced=True)
    first = JobSpec(dp=4, tp=4, ends=50.0, workload=told)
    second = JobSpec(dp=2, tp=4, begins=70.0, attempt=1, first_step=41_020, workload=told)
    found = records(ClusterSpec(nodes=4, gpus=4, nics=2, jobs=(first, second)), seconds=130)
    worlds = {(r.attempt, r.world_size) for r in found if isinstance(r, JobSteps)}
    assert worlds == {(0, 16), (1, 8)}
    assert [(code, round(t)) for code, t in events(found)] == [("job.end", 50), ("job.start", 70)]
    power = series(found, "gpu.power_watts", 3)
    assert power[20:45].mean() > 400 > 85 > power[55:].max()
    jobs = [r.job_id for r in found if isinstance(r, NodeSample) and r.node == "sim-0000"]
    assert (jobs[30], jobs[60], jobs[100]) == ("812345", None, "812345")
    seconds = steps(found, "step_seconds", after=70)[:, 0]
    assert seconds[0] > 2 * seconds[-1]
    assert max(r.ts for r in found if isinstance(r, JobSteps) and not r.attempt) < START + 55


def test_roles_of_reinforcement_learning_take_turns():
    """Replicas that roll out work while trainers idle and the other way round; the rows say who is who."""
    job = JobSpec(dp=4, tp=4, rollout_dp=2, rollout_seconds=40.0, step_seconds=20.0, workload=CALM)
    found = records(ClusterSpec(nodes=4, gpus=4, nics=2, jobs=(job,)), seconds=400)
    phases = {r.node: r.labels["phase"] for r in found if isinstance(r, JobSteps)}
    assert list(phases.values()) == ["rollout", "rollout", "train", "train"]
    power = [series(found, "gpu.power_watts", node)[:, 0] for node in (0, 3)]
    assert np.corrcoef(power[0], power[1])[0, 1] < -0.8
    assert all(p.min() < 90 and p.max() > 500 for p in power)
    compute, wait = (steps(found, column) for column in ("compute_seconds", "wait_seconds"))
    assert compute[:, :8].mean() > 30 > 25 > compute[:, 8:].mean()
    assert wait[:, 8:].mean() > 35
    total = compute + wait + steps(found, "comm_seconds") + steps(found, "data_seconds")
    np.testing.assert_allclose(total, steps(found, "step_seconds"), rtol=1e-3)


@pytest.mark.parametrize(("before_end", "node", "factor"), [(15.0, 3, 1.375), (40.0, 0, 1.25)])
def test_a_fault_slows_the_part_of_a_step_it_comes_on_in(before_end, node, factor):
    """A quarter into training, or halfway through the rollout before it, the rest takes longer by half."""
    job = JobSpec(dp=4, tp=4, rollout_dp=2, rollout_seconds=40.0, step_seconds=20.0, workload=CALM)
    spec = ClusterSpec(nodes=4, gpus=4, nics=2, jobs=(job,))
    well = records(spec, seconds=200)
    end = float(steps(well, "ts")[1, 0]) - START
    fault = Fault(kind="silent_slow", node=node, gpu=0, onset=end - before_end, magnitude=1.5)
    slow = records(spec, fault, seconds=200)
    ratio = steps(slow, "compute_seconds")[1] / steps(well, "compute_seconds")[1]
    assert ratio[4 * node] == pytest.approx(factor, abs=0.06)
    assert np.delete(ratio, 4 * node) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("workload", "every", "factor"),
    [
        ({"gc_every": 10}, 10, 1.126),
        ({"spike_every": 12, "spike_factor": 3.0}, 12, 3.0),
        ({"alternation": 0.1, "alternate_every": 4}, 4, 1.1),
    ],
)
def test_periodic_steps_differ_for_all_ranks(workload, every, factor):
    """Every k-th step takes longer on every rank by the same factor."""
    found = records(cluster(**workload, drift_cv=0.0), seconds=200)
    compute, number = steps(found, "compute_seconds"), steps(found, "step")[:, 0]
    long = number % every == 0
    ratio = np.median(compute[long], axis=0) / np.median(compute[~long], axis=0)
    np.testing.assert_allclose(ratio, factor, rtol=0.01)


def test_single_recompiles_and_the_heat_of_the_day():
    """One named step is a spike; by noon compute is slower by the diurnal share."""
    found = records(cluster(recompiles=(41_010,), spike_factor=5.0, drift_cv=0.0))
    seconds, number = steps(found, "step_seconds")[:, 0], steps(found, "step")[:, 0]
    assert number[seconds > 1.5 * np.median(seconds)].tolist() == [41_010]
    job = replace(cluster(diurnal=0.02, drift_cv=0.0).jobs[0], step_seconds=600.0)
    day = records(replace(cluster(job=job), send_seconds=60.0), seconds=86_400)
    compute = steps(day, "compute_seconds").mean(axis=1)
    assert compute.max() / compute.min() == pytest.approx(1.02, abs=0.004)
    assert len(compute) // 3 < compute.argmax() < 2 * len(compute) // 3


def test_expert_parallel_ranks_say_their_expert():
    """The coordinate of the expert group is in the rows of jobs that have one."""
    found = records(cluster(job=JobSpec(dp=4, tp=4, ep=2)), seconds=20)
    rows = next(r.rows for r in found if isinstance(r, JobSteps) and r.node == "sim-0001")
    assert set(read(STEP_SCHEMAS[1].rows, rows, ("ep",))["ep"]) == {1}


def test_a_plan_and_an_imbalance_are_announced_as_such():
    """What a healthy job does that looks like a fault is listed without a machine."""
    load = Workload(packing_cv=0.1, last_stage=1.5, planned=(Planned(onset=30.0, factor=1.2),))
    spec = ClusterSpec(nodes=4, gpus=4, nics=2, jobs=(JobSpec(dp=2, pp=2, tp=4, workload=load),))
    told = Cluster(spec, seed=1).planned
    assert [t.kind for t in told] == ["long_stage", "packing", "schedule"]
    assert not any(t.machine or t.gating or not t.planned for t in told)
    assert Cluster(ClusterSpec(jobs=(one_job(16, 8),)), seed=1).planned == ()


@pytest.mark.parametrize(
    ("jobs", "text"),
    [
        ((JobSpec(dp=2, tp=4), JobSpec(dp=2, tp=4, first_node=1, job_id="b")), "share nodes"),
        ((JobSpec(dp=2, tp=4, first_node=-1),), "do not fill"),
        ((JobSpec(dp=4, tp=2, rollout_dp=1),), "whole nodes"),
    ],
)
def test_impossible_neighbours_are_refused(jobs, text):
    """Two jobs on one node at one time, or roles that split a node, are refused."""
    with pytest.raises(ValueError, match=text):
        ClusterSpec(nodes=4, gpus=4, nics=2, jobs=jobs)


@pytest.mark.parametrize(
    "change",
    [
        {"ep": 3},
        {"rollout_dp": 4},
        {"begins": 10.0, "ends": 5.0},
        {"step_seconds": 0.1},
        {"step_seconds": float("nan")},
    ],
)
def test_an_impossible_job_is_refused(change):
    """A job whose parts do not fit together is refused with the reason."""
    with pytest.raises(ValueError, match=r"job 812345"):
        JobSpec(dp=4, **change)
