"""The generator of randomised jobs: reproducible, synchronous, and its rows readable by the product."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.randomised.coupling import Work, couple
from benchmarks.randomised.faults import COMPUTE_KINDS, KIND_SHARES, SHAPE_SHARES, Fault, strength
from benchmarks.randomised.file import all_rows, write_job
from benchmarks.randomised.job import draw_job
from benchmarks.randomised.layout import Layout, places
from benchmarks.randomised.noise import autoregressive
from benchmarks.randomised.ranges import REPORT, TUNING
from benchmarks.randomised.timeline import simulate
from benchmarks.randomised.truth import _roles, _series, truth_of
from slowrank.telemetry.rows.json_rows import Assembler

LAYOUT = Layout(dp=4, pp=2, tp=2, ep=1, gpus_per_node=8, tensor_data_pipe=True)


def small(seed, kind):
    """Return a plan of at most 16 ranks and 150 steps or less."""
    plan = draw_job(seed, most_ranks=16, kind=kind)
    scale = 150 / plan.steps
    fault = replace(plan.fault, onset=int(plan.fault.onset * scale), end=int(plan.fault.end * scale))
    breaks = tuple(b for b in plan.breaks if b.at < 150)
    return replace(plan, steps=150, fault=fault, breaks=breaks)


def work(**changes):
    """Return the work of five equal steps of LAYOUT."""
    equal = Work(np.ones((5, 16)), np.full((5, 16), 0.1), np.full((5, 2, 2), 0.2), np.full(5, 0.05))
    return equal._replace(**changes)


def test_the_two_sets_of_seeds_are_disjoint():
    """No report draw is a tuning draw."""
    assert not set(TUNING) & set(REPORT)


def test_a_seed_gives_the_same_file(tmp_path):
    """The same seed gives the same bytes and truth, another seed others."""
    rows = [all_rows(plan, simulate(plan)) for plan in (small(3, "none"), small(3, "none"), small(4, "none"))]
    assert rows[0] == rows[1]
    assert rows[0] != rows[2]


@pytest.mark.parametrize("kind", KIND_SHARES)
def test_every_step_is_conserved(kind):
    """Each rank's data, compute, wait, comm and the rest make up the step, which all ranks end together."""
    plan = small(11, kind)
    for attempt in simulate(plan).attempts:
        s = attempt.steps
        rest = plan.compute_seconds * plan.rest_share
        np.testing.assert_allclose(
            (s.compute + s.wait + s.comm + s.data).T + rest, [s.total] * attempt.layout.ranks
        )
        assert (np.diff(attempt.ends) > 0).all()


def test_a_slow_rank_waits_least_and_its_peers_for_it():
    """A slow rank lengthens the step of all, its tensor mate's compute, and no other compute."""
    compute = np.ones((5, 16))
    compute[:, 6] = 1.5
    where = places(LAYOUT)
    before = couple(work(), where, micro_batches=8, tensor_share=1.0)
    after = couple(work(compute=compute), where, micro_batches=8, tensor_share=1.0)
    slowed = np.flatnonzero(after.compute[0] > before.compute[0] + 1e-9)
    assert slowed.tolist() == [6, 7]
    assert (after.total > before.total + 0.4).all()
    assert set(np.argsort(after.wait[0])[:2]) == {6, 7}


def test_a_pipeline_takes_its_published_time():
    """Equal stages f of m micro-batches take (p - 1 + m) · f, and the last waits for the first."""
    steps = couple(work(), places(LAYOUT), micro_batches=8, tensor_share=0.0)
    np.testing.assert_allclose(steps.total, 0.1 + (2 - 1 + 8) / 8 + 0.2 + 0.05)


def test_a_slow_ring_slows_its_own_transfers():
    """One slow ring lengthens the comm time of its ranks and the wait of all others."""
    transfer = np.full((5, 2, 2), 0.2)
    transfer[:, 0, 1] = 0.8
    where = places(LAYOUT)
    steps = couple(work(transfer=transfer), where, micro_batches=8, tensor_share=0.0)
    ring = (where.p == 0) & (where.t == 1)
    assert (steps.comm[:, ring] == 0.8).all()
    assert steps.wait[:, ~ring].min() > steps.wait[:, ring].max()


@pytest.mark.parametrize("shape", SHAPE_SHARES)
def test_a_fault_is_in_force_between_its_onset_and_end(shape):
    """Every shape begins at the onset, stays within 0 and 1, and is gone outside."""
    fault = Fault("slow_rank", shape, 0.3, 40, 120, (3,), 3, period=30)
    active = strength(fault, 150, np.random.default_rng(1))
    assert active[40] > 0
    assert active.max() <= 1
    assert active[:40].sum() == active[120:].sum() == 0


def test_noise_has_the_drawn_memory():
    """The lag-1 correlation of AR(1) noise is that of its correlation time."""
    series = autoregressive(4000, 8, 5.0, 0.01, np.random.default_rng(2))
    lag = np.mean(series[1:] * series[:-1]) / np.mean(series**2)
    assert lag == pytest.approx(np.exp(-1 / 5), abs=0.02)
    assert series.std() == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize("kind", KIND_SHARES)
def test_every_row_is_a_valid_record(kind):
    """The product reads every row of every kind of job."""
    plan = small(21, kind)
    assembler = Assembler()
    records = [record for row in all_rows(plan, simulate(plan)) for record in assembler.add(row)]
    assert len(records) > 1000


def test_a_hang_ends_all_rows_and_a_lost_rank_its_own():
    """No step follows a hang, and only the culprit lacks the steps after it is lost."""
    hang, lost = small(5, "hang"), small(5, "lost_rank")
    steps = [
        row for row in all_rows(hang, simulate(hang)) if row.get("job_id") == hang.job_id and "step" in row
    ]
    assert max(row["step"] for row in steps) <= hang.fault.onset
    rows = [
        row for row in all_rows(lost, simulate(lost)) if row.get("job_id") == lost.job_id and "step" in row
    ]
    count = np.bincount([row["rank"] for row in rows])
    assert count.argmin() == lost.fault.culprit


def test_each_kind_and_what_can_be_named_is_drawn():
    """Forty seeds hold most kinds, faults that can be named and such that cannot."""
    truths = [
        truth_of(plan, simulate(plan)) for plan in (draw_job(seed, most_ranks=32) for seed in range(40))
    ]
    assert len({truth.kind for truth in truths}) >= 6
    faults = [truth for truth in truths if truth.kind != "none"]
    assert {truth.nameable for truth in faults} == {True, False}
    assert all(truth.accepted for truth in faults if truth.nameable and truth.kind != "hang")


def test_a_plain_fault_can_be_named_and_a_lone_rank_cannot():
    """A rank twice as slow among seven peers is nameable; a rank of two replicas has no peers."""
    plan = small(6, "slow_rank")
    quiet = replace(plan.noise, cv=0.002)
    fault = Fault("slow_rank", "lasting", 1.0, 50, 150, (3,), 3)
    layout = Layout(8, 1, 1, 1, 8, True)
    delivery = replace(plan.delivery, columns="full", older_every=0)
    load = replace(plan.workload, batches="fixed", levels=())
    plan = replace(
        plan,
        layout=layout,
        machines=None,
        noise=quiet,
        fault=fault,
        delivery=delivery,
        workload=load,
        breaks=(),
    )
    assert truth_of(plan, simulate(plan)).nameable
    lonely = replace(plan, layout=Layout(2, 2, 2, 1, 8, True))
    assert truth_of(lonely, simulate(lonely)).why_not == "too few peers"


@pytest.mark.parametrize(("gpus_per_node", "nodes"), [(4, {None, "job-6-n000"}), (2, {None})])
def test_a_replica_on_one_machine_may_be_named_with_it(gpus_per_node, nodes):
    """Four replicas of two stages, of which each is half of a machine, or on two."""
    plan = small(6, "slow_replica")
    layout = Layout(4, 2, 2, 1, gpus_per_node, tensor_data_pipe=False)
    plan = replace(plan, layout=layout, fault=replace(plan.fault, members=(0, 1, 2, 3), culprit=0), breaks=())
    accepted = truth_of(plan, simulate(plan)).accepted
    assert {u["node"] for u in accepted if u["type"] == "group" and u["coords"] == {"dp": 0}} == nodes


@pytest.mark.slow
def test_what_is_nameable_stands_out_most():
    """Each nameable slow unit has the largest mean excess of its role over the steps in force."""
    found = 0
    for seed in range(2000, 2080):
        plan = draw_job(seed, most_ranks=64)
        run = simulate(plan)
        truth = truth_of(plan, run)
        if not truth.nameable or plan.fault.kind not in COMPUTE_KINDS:
            continue
        excess, shift, _ = _series(plan, run, "compute_seconds")
        roles = _roles(plan, run.attempts[0])
        role = np.flatnonzero(roles == roles[plan.fault.culprit])
        excess[:, np.isin(role, truth.slowed)] += shift[:, None]
        window = np.flatnonzero(run.strength > 0.3)[:100]
        past = np.nanmean(excess[: plan.fault.onset], axis=0) if plan.fault.onset else 0.0
        mean = np.nanmean(excess[window], axis=0) - past
        assert role[np.nanargmax(mean)] in truth.slowed
        found += 1
    assert found >= 10


def test_a_file_is_written_with_its_truth(tmp_path):
    """The file holds as many rank-steps as the truth counts, or fewer where rows were lost."""
    truth = write_job(1, tmp_path / "job.ndjson.gz", most_ranks=8)
    assert (tmp_path / "job.ndjson.gz").stat().st_size > 10_000
    assert truth.rank_steps == sum(1 for _ in truth.step_ends) * truth.ranks
