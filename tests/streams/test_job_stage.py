"""JobStage on whole jobs: step rows in, suspicions out."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.step_jobs import START, StepTable, records, synchronous
from slowrank.telemetry import Suspicion, encode
from slowrank.telemetry.twin import rows, steps_record
from streams.job_stage import JobStage, JobStageConfig


def healthy(steps=200, ranks=16, *, noise=0.005, seconds=1.0, seed=0):
    """Work of a tuned job: shared slow drift, small lasting differences, per-step noise."""
    rng = np.random.default_rng(seed)
    drift = np.zeros(steps)
    for s in range(1, steps):
        drift[s] = 0.8 * drift[s - 1] + rng.normal(0, 0.006)
    lasting = rng.normal(0, 0.002, ranks)
    return seconds * np.exp(drift[:, None] + lasting + rng.normal(0, noise, (steps, ranks)))


def packed(steps=200, ranks=16, *, seed=0):
    return np.exp(np.random.default_rng(seed).normal(0, 0.10, (steps, ranks)))


def layout(ranks, stages):
    per = ranks // stages
    return {"pp": [r // per for r in range(ranks)], "dp": [r % per for r in range(ranks)]}


def run(table, *, only=None):
    stage = JobStage()
    return [s for record in records(table, only=only) for s in stage.process(record)]


def believed(suspicions):
    """Rank -> first suspicion that needs no second kind of evidence."""
    found: dict[int, Suspicion] = {}
    for s in suspicions:
        if s.overwhelming and s.subject.rank is not None and s.state != "clear":
            found.setdefault(s.subject.rank, s)
    return found


def job_level(suspicions):
    return [s for s in suspicions if s.subject.type == "job" and s.state == "raise" and s.kind != "hang.job"]


def steps_between(table, first, last):
    return int(np.searchsorted(table.ts, last - 1e-6) - np.searchsorted(table.ts, first - 1e-6))


@pytest.mark.parametrize("seconds", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("factor", [1.05, 1.10, 1.50])
@pytest.mark.parametrize("coords", [None, layout(16, 2)])
def test_names_the_slow_rank_with_onset_and_event_time(seconds, factor, coords):
    """One slowed rank is named within ten steps, dated to its first slow step, and nobody else is."""
    work = healthy(seconds=seconds)
    work[90:, 11] *= factor
    table = synchronous(work, overhead=0.1 * seconds, coords=coords)
    found = believed(run(table))
    assert set(found) == {11}
    suspicion = found[11]
    assert suspicion.subject.type == "rank"
    assert suspicion.kind == "straggler.fail_slow"
    assert abs(steps_between(table, table.ts[90], suspicion.onset)) <= 1
    assert 2 <= steps_between(table, table.ts[90], suspicion.ts) <= 10
    assert suspicion.slowdown_ratio == pytest.approx(factor, rel=0.02)
    assert 1.0 < suspicion.job_slowdown_ratio <= factor + 0.02
    assert suspicion.onset_lo <= suspicion.onset <= suspicion.onset_hi


@pytest.mark.parametrize("start", [0, 90])
def test_job_slowdown_stays_for_as_long_as_the_rank_is_slow(start):
    """Long after the healthy steps left the history, with short relief and other work, the job is as slow."""
    work = healthy(steps=900, seconds=0.2)
    work[500:] *= 1.5
    work[start:, 11] *= 1.4
    work[400:406, 11] /= 1.4
    stage = JobStage(JobStageConfig(update_seconds=2.0))
    told = [s for record in records(synchronous(work, overhead=0.02)) for s in stage.process(record)]
    ratios = [s.job_slowdown_ratio or 0.0 for s in told if s.state == "update" and s.overwhelming]
    assert len(ratios) >= 50
    assert min(ratios) > 1.3
    assert max(ratios) < 1.42


def test_knows_no_node_where_rows_name_none():
    """Ranks of rows without a node are no neighbours, whatever device they say they run on."""
    work = healthy()
    work[90:, [3, 11]] *= 1.3
    stage = JobStage()
    found: list[Suspicion] = []
    for record in records(synchronous(work)):
        for row in rows(record):
            del row["node"]
            found += stage.process(steps_record([row | {"gpu_index": row["rank"] % 8}]))
    assert {(s.subject.rank, s.subject.type, s.subject.node, s.ranks_on_node) for s in found} == {
        (3, "rank", None, 0),
        (11, "rank", None, 0),
    }


def test_counts_the_ranks_of_a_node():
    """A suspicion says how many of the job's ranks share the node."""
    work = healthy()
    work[90:, 11] *= 1.3
    assert {s.ranks_on_node for s in run(synchronous(work))} == {8}


def test_evidence_shows_the_rank_among_its_peers():
    """The suspicion carries value, peers, baseline and the shortest wait, and says what it is not."""
    work = healthy()
    work[90:, 3] *= 1.3
    table = dataclasses.replace(synchronous(work, coords=layout(16, 2)), data=np.full(work.shape, 0.01))
    suspicion = believed(run(table))[3]
    compute, wait = suspicion.evidence
    assert (compute.metric, compute.peers.group, compute.peers.n) == ("compute_seconds", "pp=0", 7)
    assert compute.peers.rank_of_subject == 8
    assert compute.value / compute.peers.median == pytest.approx(1.3, rel=0.02)
    assert compute.baseline.median == pytest.approx(1.0, rel=0.05)
    assert (wait.metric, wait.peers.rank_of_subject) == ("wait_seconds", 1)
    assert suspicion.hypotheses["straggler.fail_slow"] == suspicion.log_likelihood_ratio
    assert set(suspicion.ruled_out) == {"imbalance.stage", "imbalance.workload", "data_loading"}


def planned(name):
    work = healthy(seed=3)
    if name == "faster":
        work[90:] *= 0.7
    elif name == "slower":
        work[90:] *= 1.4
    elif name == "ramp":
        work *= np.linspace(1.0, 1.25, len(work))[:, None]
    elif name == "alternation":
        work[::2] *= 1.06
    elif name == "spikes":
        work[::41] *= 3.5
    elif name == "warm-up":
        work[:20] *= np.linspace(4.0, 1.0, 20)[:, None]
    elif name == "collection":
        rng = np.random.default_rng(5)
        work *= np.where(rng.random(work.shape) < 0.02, 1 + rng.uniform(0.05, 0.5, work.shape), 1.0)
    return work


@pytest.mark.parametrize(
    "name", ["healthy", "faster", "slower", "ramp", "alternation", "spikes", "warm-up", "collection"]
)
@pytest.mark.parametrize("coords", [None, layout(16, 2)])
def test_is_silent_on_healthy_and_planned_change(name, coords):
    """What happens to every rank alike, or to a rank for one step, is nobody's fault and no finding."""
    assert run(synchronous(planned(name), overhead=0.1, coords=coords)) == []


def test_names_every_one_of_a_third_slow_ranks():
    """Five of sixteen ranks slow at once are all named, and no other."""
    work = healthy(seed=4)
    bad = [1, 4, 7, 10, 13]
    work[80:, bad] *= 1.15
    assert set(believed(run(synchronous(work)))) == set(bad)


def test_finds_a_rank_slow_from_the_first_step():
    """Without a change to see, the comparison with its peers suffices, dated to the first step."""
    work = healthy(seed=6)
    work[:, 9] *= 1.15
    table = synchronous(work, coords=layout(16, 2))
    found = believed(run(table))
    assert set(found) == {9}
    assert found[9].onset == pytest.approx(table.ts[0])
    assert "since the first step" in found[9].note


def test_two_ranks_a_stage_are_told_apart_by_their_own_past():
    """With one peer per role the rank that changed is named, at lower weight, and the long stage is not
    a rank.
    """
    work = healthy(steps=160, ranks=8, seed=7)
    work[:, 6:] *= 1.5
    work[80:, 2] *= 1.3
    suspicions = run(synchronous(work, coords=layout(8, 4)))
    found = believed(suspicions)
    assert set(found) == {2}
    assert "too few peers" in found[2].note
    assert found[2].log_likelihood_ratio < 5.0
    assert [s.subject.coords for s in job_level(suspicions)] == [{"pp": 3}]


@pytest.mark.parametrize("with_coords", [True, False])
def test_long_stage_is_a_finding_about_the_job(with_coords):
    """A stage with more work, named by its coordinates where there are any, accuses no rank."""
    work = healthy(seed=8)
    work[:, 12:] *= 1.4
    suspicions = run(synchronous(work, overhead=1.0, coords=layout(16, 4) if with_coords else None))
    assert believed(suspicions) == {}
    (stage,) = job_level(suspicions)
    assert (stage.kind, stage.subject.rank) == ("straggler.job_wide", None)
    assert list(stage.hypotheses) == ["imbalance.stage"]
    assert stage.subject.coords == ({"pp": 3} if with_coords else None)


def test_a_stage_that_gets_more_work_for_a_while_is_dated_and_cleared():
    """The imbalance begins with the first long step, not the job, and ends when the work is even again."""
    work = healthy(steps=400, noise=0.01)
    work[150:280, 12:] *= 1.4
    table = synchronous(work, coords=layout(16, 4))
    told = [s for s in run(table) if s.state != "update"]
    assert [(s.state, s.subject.coords) for s in told] == [("raise", {"pp": 3}), ("clear", {"pp": 3})]
    assert abs(steps_between(table, table.ts[150], told[0].onset)) <= 2
    assert steps_between(table, table.ts[150], told[0].ts) <= 25
    assert 0 < steps_between(table, table.ts[280], told[1].ts) <= 45


def test_uneven_work_that_comes_and_goes_is_dated_and_cleared():
    """A job that packs sequences for a while is uneven for that while."""
    work = healthy(steps=500)
    work[150:320] *= packed(steps=170)
    table = synchronous(work)
    told = [s for s in run(table) if s.state != "update"]
    assert [(s.state, list(s.hypotheses)) for s in told] == [
        ("raise", ["imbalance.workload"]),
        ("clear", ["imbalance.workload"]),
    ]
    assert abs(steps_between(table, table.ts[150], told[0].onset)) <= 5
    assert steps_between(table, table.ts[320], told[1].ts) <= 80


@pytest.mark.parametrize("noise", [0.01, 0.02])
@pytest.mark.parametrize("coords", [None, layout(16, 4), layout(16, 8), layout(16, 16)])
def test_ordinary_noise_is_no_imbalance(noise, coords):
    """Ranks that scatter by one or two per cent, and stages of a few ranks, are even enough."""
    for seed in range(3):
        assert job_level(run(synchronous(healthy(noise=noise, seed=seed), coords=coords))) == []


@pytest.mark.parametrize(("factor", "slow"), [(1.0, []), (1.05, [11]), (1.1, [11])])
@pytest.mark.parametrize("seed", range(2))
def test_stages_of_one_replica_share_its_uneven_batches(factor, slow, seed):
    """In a packed pipeline job the other stages of the replica tell the batch from the rank."""
    places = layout(32, 4)
    batch = np.exp(np.random.default_rng(seed).normal(0, 0.1, (200, 8)))
    work = healthy(ranks=32, seed=seed) * batch[:, places["dp"]]
    work[90:, 11] *= factor
    table = synchronous(work, overhead=0.1, coords=places)
    found = believed(run(table))
    assert sorted(found) == slow
    assert all(steps_between(table, table.ts[90], s.ts) <= 12 for s in found.values())


def own_counters(factor, *, related, seconds=1.0, ranks=16, seed=0):
    """Rows of workers that wait for nobody, rank 5 slow from the middle on, in order of time; its onset."""
    rng, told = np.random.default_rng(seed), []
    onset = START + 150 * seconds
    for rank in range(ranks):
        first = 0 if related else int(rng.integers(10**6))
        at, step = START + rng.uniform(0, seconds), first
        while at < START + 300 * seconds:
            took = seconds * np.exp(rng.normal(0, 0.03)) * (factor if rank == 5 and at >= onset else 1.0)
            at, step = at + took, step + 1
            told.append({"ts": at, "step": step, "rank": rank, "step_seconds": took, "node": f"n{rank // 8}"})
    return sorted(told, key=lambda r: r["ts"]), onset


@pytest.mark.parametrize("related", [True, False])
@pytest.mark.parametrize("seconds", [0.2, 10.0])
@pytest.mark.parametrize("factor", [1.0, 1.3, 2.0])
def test_workers_that_count_by_themselves(related, seconds, factor):
    """Among workers without common steps the slow one is named, and nobody where there is none."""
    told, onset = own_counters(factor, related=related, seconds=seconds)
    stage = JobStage()
    found = [s for r in told for s in stage.process(steps_record([r]))]
    assert {s.subject.rank for s in found} == ({5} if factor > 1 else set())
    if factor > 1:
        assert abs(believed(found)[5].onset - onset) <= 6 * seconds
        assert believed(found)[5].ts - onset <= 40 * seconds


@pytest.mark.parametrize("seed", range(4))
def test_packed_batches_are_a_finding_about_the_job(seed):
    """Work that differs by chance from step to step accuses no rank."""
    suspicions = run(synchronous(packed(seed=seed)))
    assert believed(suspicions) == {}
    assert [list(s.hypotheses) for s in job_level(suspicions)] == [["imbalance.workload"]]


@pytest.mark.parametrize(("factor", "within"), [(1.2, 60), (1.5, 15)])
def test_finds_the_rank_that_is_always_slow_in_packed_work(factor, within):
    """In 10 % scatter, persistence of identity names the rank and nobody else."""
    work = packed(steps=260, seed=2)
    work[120:, 5] *= factor
    table = synchronous(work)
    found = believed(run(table))
    assert set(found) == {5}
    assert steps_between(table, table.ts[120], found[5].ts) <= within


def test_token_counts_make_small_faults_visible_in_packed_work():
    """With tokens given, 5 % is found within thirty steps although steps differ by 15 %."""
    rng = np.random.default_rng(12)
    tokens = 8192 * np.exp(rng.normal(0, 0.15, (200, 16)))
    work = healthy(seed=12) * (0.1 + 0.9 * tokens / 8192)
    work[110:, 5] *= 1.05
    table = dataclasses.replace(synchronous(work), tokens=tokens)
    found = believed(run(table))
    assert set(found) == {5}
    assert steps_between(table, table.ts[110], found[5].ts) <= 30


def test_step_times_alone_name_nobody_when_all_ranks_share_them():
    """Wall clock is the same on every rank and says nothing about who is slow."""
    work = healthy()
    work[90:, 4] *= 1.5
    table = dataclasses.replace(synchronous(work), with_compute=False, wait=None)
    assert run(table) == []


def test_compute_is_derived_from_waits_where_it_is_not_given():
    """Step time without the wait is as good as compute time."""
    work = healthy()
    work[90:, 4] *= 1.2
    assert set(believed(run(dataclasses.replace(synchronous(work), with_compute=False)))) == {4}


def asynchronous(seed, *, slow=None):
    rng = np.random.default_rng(seed)
    noise = np.zeros((250, 10))
    for s in range(1, 250):
        noise[s] = 0.5 * noise[s - 1] + rng.normal(0, 0.02, 10)
    step = np.exp(rng.normal(0, 0.10, 10) + noise)
    if slow is not None:
        step[120:140, slow] *= 1.6
    ts = START + 10.0 * np.arange(250, dtype=np.float64)
    return StepTable(compute=step, step=step, numbers=np.arange(250), ts=ts, with_compute=False)


@pytest.mark.parametrize("seed", range(3))
def test_asynchronous_workers_of_different_speed_are_left_alone(seed):
    """A worker that always was slower has not become slow."""
    assert run(asynchronous(seed)) == []


def test_an_asynchronous_worker_that_changes_is_named_and_cleared():
    """A worker slower than its own past and its peers is found within a minute and cleared afterwards."""
    table = asynchronous(3, slow=6)
    suspicions = run(table)
    found = believed(suspicions)
    assert set(found) == {6}
    assert found[6].ts - table.ts[120] <= 60.0
    assert suspicions[-1].state == "clear"


def test_recovery_clears_and_relapse_raises_again():
    """Two episodes are two raises and two clears with onsets of their own."""
    work = healthy(steps=300)
    work[80:120, 3] *= 1.2
    work[180:220, 3] *= 1.2
    table = synchronous(work)
    events = [(s.state, s.onset) for s in run(table) if s.state != "update"]
    assert [state for state, _ in events] == ["raise", "clear", "raise", "clear"]
    assert [steps_between(table, table.ts[0], onset) for _, onset in events] == pytest.approx(
        [80, 80, 180, 180], abs=1
    )


def test_short_bursts_again_and_again_are_intermittent():
    """Three slow steps in every twelve are reported as such."""
    work = healthy(steps=260)
    for s in range(80, 260, 12):
        work[s : s + 3, 3] *= 1.4
    kinds = {(s.kind, s.subject.rank) for s in run(synchronous(work)) if s.overwhelming}
    assert ("straggler.intermittent", 3) in kinds
    assert {rank for _, rank in kinds} == {3}


def test_slow_data_loading_has_its_own_kind():
    """A rank that waits for its data is reported for that, not for its compute."""
    work, rng = healthy(), np.random.default_rng(9)
    data = np.abs(rng.normal(0.01, 0.004, work.shape))
    data[100:, 6] += 0.3
    step = np.repeat((work + data).max(axis=1, keepdims=True), 16, axis=1)
    table = dataclasses.replace(synchronous(work), data=data, step=step, wait=step - work - data)
    found = believed(run(table))
    assert {(s.kind, rank) for rank, s in found.items()} == {("data.loader_slow", 6)}


def test_a_rank_that_waits_longer_is_a_victim():
    """Compute that grew together with the wait is not the rank's own slowness."""
    work = healthy()
    table = synchronous(work)
    assert table.wait is not None
    compute, wait = work.copy(), table.wait.copy()
    compute[90:, 4] *= 1.2
    wait[90:, 4] += 0.3
    assert believed(run(dataclasses.replace(table, compute=compute, wait=wait))) == {}


def test_gaps_lost_rows_and_missing_values_do_not_matter():
    """Sampled steps, 3 % lost rows and unread values neither hide the rank nor accuse another."""
    work, rng = healthy(steps=300), np.random.default_rng(10)
    work[150:, 7] *= 1.1
    table = synchronous(work)
    kept = np.sort(rng.choice(300, 220, replace=False))
    compute = np.where(rng.random(work.shape) < 0.02, np.nan, work)
    table = dataclasses.replace(
        table,
        compute=compute[kept],
        step=table.step[kept],
        wait=None,
        numbers=table.numbers[kept],
        ts=table.ts[kept],
    )
    suspicions = run(table, only=rng.random((220, 16)) > 0.03)
    assert set(believed(suspicions)) == {7}
    assert {s.kind for s in suspicions} == {"straggler.fail_slow"}


def test_repeated_records_change_nothing():
    """Every record delivered twice gives what it gives once."""
    work = healthy(steps=150)
    work[80:, 7] *= 1.2
    once, twice = JobStage(), JobStage()
    first = [s for r in records(synchronous(work)) for s in once.process(r)]
    second = [s for r in records(synchronous(work)) for _ in range(2) for s in twice.process(r)]
    assert second == first
    assert twice.late_rows > 0


def twin_rows(table):
    return [row for record in records(table) for row in rows(record)]


SLOWED = healthy(steps=110, ranks=4, seed=21)
SLOWED[60:, 2] *= 1.15
ROWS = twin_rows(synchronous(SLOWED))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_how_rows_are_batched_changes_no_byte(sizes):
    """Any chunking of the rows into records gives the same suspicions."""
    stage, at = JobStage(), 0
    out: list[bytes] = []
    for size in [*sizes, *([7] * len(ROWS))]:
        chunk = ROWS[at : at + size]
        at += size
        if chunk:
            out += [encode(s) for s in stage.process(steps_record(chunk))]
    reference = JobStage()
    assert out == [encode(s) for row in ROWS for s in reference.process(steps_record([row]))]
    assert out


def test_a_stalled_job_is_suspected_by_key_a_alone():
    """Event time passing without steps raises hang.job once, at its own deadline, not believed alone; a
    step ends it.
    """
    table = synchronous(healthy(steps=100))
    stage = JobStage()
    for record in records(table):
        stage.process(record)
    end = float(table.ts[-1])
    assert list(stage.tick(end + 10)) == []
    (hang,) = stage.tick(end + 300)
    assert (hang.kind, hang.family, hang.overwhelming) == ("hang.job", "job", False)
    assert end + 15 <= hang.ts <= end + 20
    assert hang.onset == end
    assert list(stage.tick(end + 400)) == []
    later = dataclasses.replace(table, numbers=table.numbers + 100, ts=table.ts + 500)
    assert next(s for r in records(later) for s in stage.process(r)).state == "clear"


def test_a_rank_that_stops_reporting_is_missing():
    """One rank's rows end while the others go on: the rank is named as missing, as a matter of silence."""
    table = synchronous(healthy(steps=160))
    only = np.ones((160, 16), dtype=bool)
    only[100:, 5] = False
    (missing,) = run(table, only=only)
    assert (missing.kind, missing.family, missing.subject.rank) == ("hang.rank_missing", "silence", 5)


def test_a_new_attempt_learns_anew_and_keeps_who_was_slow():
    """After a restart on the same nodes the slow rank stays under suspicion, without being raised again."""
    work = healthy(steps=160)
    work[80:, 3] *= 1.2
    table = synchronous(work)
    stage = JobStage()
    out: list[Suspicion] = []
    for record in records(table):
        out += stage.process(record)
    again = healthy(steps=100, seed=5)
    again[:, 3] *= 1.2
    second = dataclasses.replace(synchronous(again), attempt=1, ts=synchronous(again).ts + 1000.0)
    for record in records(second):
        out += stage.process(record)
    assert [s.state for s in out if s.state != "update"] == ["raise"]
    assert out[-1].subject.attempt == 1


def test_jobs_are_bounded():
    """Beyond the limit the job unheard of for longest is forgotten."""
    stage = JobStage(JobStageConfig(max_jobs=2))
    for job in ("a", "b", "c"):
        table = dataclasses.replace(synchronous(healthy(steps=5, ranks=2)), job_id=job)
        for record in records(table):
            stage.process(record)
    assert len(stage._jobs) == 2
