from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator import Cluster, ClusterSpec, Fault, JobSpec
from simulator.cluster.layout import one_job
from simulator.cluster.mixes import LEMON_HAZARD, MIXES, Mix
from simulator.cluster.scenarios import draw_fault, draw_faults
from simulator.faults.catalogue import CATALOGUE
from simulator.faults.hardware import Hardware
from simulator.jobs.benign import BENIGN, draw_spec
from slowrank.telemetry import (
    JobSteps,
    NodeEvent,
    NodeSample,
    decode_event,
    decode_sample,
    decode_steps,
    encode,
)

DAY = 86400.0


def cluster(nodes=100):
    return ClusterSpec(nodes=nodes, jobs=(one_job(nodes, 8),))


def onsets(seed, days=200.0, mix="minder"):
    return np.array([f.onset for f in draw_faults(cluster(), seed=seed, duration=days * DAY, mix=mix)])


def test_a_seed_draws_one_schedule():
    """The same seed draws the same faults, another seed others."""
    drawn = [draw_faults(cluster(), seed=seed, duration=10 * DAY, intensity=10) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) > 20


@pytest.mark.parametrize("mix", ["minder", "llama3", "telemetry"])
def test_faults_are_as_frequent_as_in_the_mix(mix):
    """Over many seeds the rate per 1,000 node-days is the sum of the mix's rates."""
    per_seed = [len(onsets(seed, days=100, mix=mix)) for seed in range(60)]
    expected = sum(MIXES[mix].rates.values()) * 100 * 100 / 1000
    error = np.std(per_seed) / np.sqrt(len(per_seed))
    assert np.mean(per_seed) == pytest.approx(expected, abs=3 * error + 0.05 * expected)


def test_faults_come_in_bursts():
    """A third of the gaps is short and their CV is far from a Poisson process's 1."""
    gaps = np.diff(np.concatenate([onsets(seed, days=1500) for seed in range(12)]))
    gaps = gaps[gaps > 0]
    assert 0.25 < (gaps < 3600).mean() < 0.45
    assert 2.5 < gaps.std() / gaps.mean() < 8


def test_lemons_attract_faults():
    """A small share of nodes takes far more than its share of faults."""
    mix = Mix(rates={"gpu_lost": 100.0}, lemons=0.05)
    spec = cluster(200)
    faults = draw_faults(spec, seed=4, duration=100 * DAY, mix=mix)
    lemons = {f.node for f in faults if f.kind == "lemon_node"}
    on_lemons = np.mean([f.node in lemons for f in faults if f.kind == "gpu_lost"])
    expected = len(lemons) * LEMON_HAZARD / (len(lemons) * LEMON_HAZARD + spec.nodes - len(lemons))
    assert on_lemons == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("kind", CATALOGUE)
def test_a_drawn_fault_lies_within_the_catalogue(kind):
    """Sizes and shapes stay in their ranges and the middle of many durations is below their mean."""
    rng, row, spec = np.random.default_rng(1), CATALOGUE[kind], cluster(8)
    drawn = [draw_fault(spec, kind, rng=rng, onset=10.0) for _ in range(200)]
    assert all(row.size[0] * 0.999 <= f.magnitude <= row.size[1] * 1.001 for f in drawn)
    assert {f.shape for f in drawn} == set(row.shapes)
    assert {f.node for f in drawn} == set(range(8))
    if row.minutes is None:
        assert all(f.duration == np.inf for f in drawn)
    else:
        assert np.median([f.duration for f in drawn]) < 60 * row.minutes


def test_slowness_of_large_jobs_lasts_longer():
    """The median slow spell of a job of 512 ranks is several times that of one of 64."""
    rng = np.random.default_rng(3)
    small, large = (
        np.median([draw_fault(cluster(n), "silent_slow", rng=rng, onset=0.0).duration for _ in range(300)])
        for n in (8, 64)
    )
    assert 4 < large / small < 12


def test_faults_that_gate_a_job_hit_nodes_with_one():
    """Nodes without a job get only faults no job pays for."""
    spec = ClusterSpec(nodes=8, jobs=(one_job(2, 8),))
    rng = np.random.default_rng(2)
    assert {draw_fault(spec, "silent_slow", rng=rng, onset=0.0).node for _ in range(50)} == {0, 1}
    assert len({draw_fault(spec, "exporter_gap", rng=rng, onset=0.0).node for _ in range(50)}) > 4


def test_a_drawn_cluster_is_busy_and_mixed():
    """Many seeds give jobs of several sizes and layouts side by side, and some idle nodes."""
    specs = [draw_spec(64, seed=seed, duration=3600.0) for seed in range(30)]
    jobs = [job for spec in specs for job in spec.jobs]
    busy = sum(len(spec.nodes_of_job(j)) for spec in specs for j in spec.jobs if j.begins == 0) / (30 * 64)
    assert 0.75 < busy < 0.98
    assert {j.pp > 1 for j in jobs} == {j.tp > 1 for j in jobs} == {j.ep > 1 for j in jobs} == {True, False}
    assert any(j.rollout_dp for j in jobs)
    assert any(j.attempt for j in jobs)
    assert any(j.workload.packing_cv for j in jobs)


@pytest.mark.parametrize("name", BENIGN)
def test_every_confounder_runs(name):
    """Each benign workload gives records."""
    job = one_job(2, 2)
    spec = ClusterSpec(nodes=2, gpus=2, nics=1, jobs=(replace(job, workload=BENIGN[name]),))
    assert sum(1 for _ in Cluster(spec, seed=1).run(30)) > 60


@pytest.mark.parametrize("mix", ["default", "shared", "llama3", "minder"])
def test_a_drawn_schedule_gives_valid_records_and_repeats_itself(mix):
    """A busy schedule on a mixed cluster gives the same bytes twice, and each record passes the codec."""
    spec = draw_spec(12, seed=5, duration=300.0)
    faults = draw_faults(spec, seed=5, duration=300.0, mix=mix, intensity=20_000)
    assert len(faults) > 3
    found = list(Cluster(spec, seed=5, faults=faults).run(100))
    again = Cluster(spec, seed=5, faults=faults).run(100)
    assert b"".join(map(encode, found)) == b"".join(map(encode, again))
    decode: dict[Any, Any] = {NodeSample: decode_sample, JobSteps: decode_steps, NodeEvent: decode_event}
    assert all(decode[type(record)](encode(record)) == record for record in found)


def test_faults_that_meet_leave_something_of_link_and_clock():
    """However many faults hit one place, bandwidth and clock keep a floor and the run goes on."""
    spec = ClusterSpec(nodes=2, gpus=2, nics=2, jobs=(JobSpec(dp=2, tp=2),))
    meeting = [
        Fault(kind=kind, node=0, gpu=0, onset=1.0, magnitude=4.0)
        for kind in ("congestion", "power_brake")
        for _ in range(30)
    ]
    condition = Hardware(spec, meeting, range(2)).at(5.0)
    assert condition.link.min() == pytest.approx(0.01)
    assert condition.clock.min() == pytest.approx(0.1)
    assert sum(1 for _ in Cluster(spec, seed=1, faults=meeting).run(20)) >= 40


def test_a_fault_slows_the_rest_of_the_work_under_way():
    """Work that a fault comes on halfway through takes the mean of both speeds, without one what it took."""
    spec = ClusterSpec(nodes=1, gpus=2, nics=2, jobs=(JobSpec(dp=2),))
    hardware = Hardware(spec, [Fault(kind="silent_slow", node=0, gpu=1, onset=10.0, magnitude=1.5)], range(1))
    before, under_way, after = (hardware.slowdown(begun, 4.0) for begun in (2.0, 8.0, 10.0))
    assert before.tolist() == [[1.0, 1.0]]
    assert under_way.tolist() == [[1.0, 1.25]]
    assert after.tolist() == [[1.0, 1.5]]
