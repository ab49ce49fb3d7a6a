"""JobStage on whole jobs: who is slow, since when, and who is not."""

import dataclasses

import numpy as np
import pytest

from benchmarks.detection.step_jobs import records, synchronous
from slowrank.telemetry import NodeEvent, Suspicion
from slowrank.telemetry.rows.json_rows import rows, steps_record
from streams.job.config import JobStageConfig
from streams.node.events.job_events import end_of
from tests.streams.job.job_tables import (
    SuspectingStage,
    believed,
    healthy,
    job_level,
    layout,
    run,
    steps_between,
)


@pytest.mark.parametrize("seconds", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("factor", [1.05, 1.10, 1.50])
@pytest.mark.parametrize("coords", [None, layout(16, 2)])
def test_names_the_slow_rank_with_onset_and_event_time(seconds, factor, coords):
    """One slowed rank is named within ten steps, dated to its first slow step, and no other is."""
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


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, 90])
def test_job_slowdown_stays_for_as_long_as_the_rank_is_slow(start):
    """Long after the healthy steps left the history, with short relief and other work, the job is as slow."""
    work = healthy(steps=900, seconds=0.2)
    work[500:] *= 1.5
    work[start:, 11] *= 1.4
    work[400:406, 11] /= 1.4
    stage = SuspectingStage(JobStageConfig(update_seconds=2.0))
    found = [s for record in records(synchronous(work, overhead=0.02)) for s in stage.process(record)]
    ratios = [s.job_slowdown_ratio or 0.0 for s in found if s.state == "update" and s.overwhelming]
    assert len(ratios) >= 50
    assert min(ratios) > 1.3
    assert max(ratios) < 1.42


def test_knows_no_node_where_rows_name_none():
    """Ranks of rows without a node are no neighbours, whatever device they name."""
    work = healthy()
    work[90:, [3, 11]] *= 1.3
    stage = SuspectingStage()
    found: list[Suspicion] = []
    for record in records(synchronous(work)):
        for row in rows(record):
            del row["node"]
            found += stage.process(steps_record([row | {"gpu_index": row["rank"] % 8}]))
    assert {(s.subject.rank, s.subject.type, s.subject.node, s.ranks_on_node) for s in found} == {
        (3, "rank", None, 0),
        (11, "rank", None, 0),
    }


@pytest.mark.parametrize(("local", "size"), [(None, 8), ("local_rank", 4)])
def test_tells_which_ranks_likely_share_a_node_without_a_name(local, size):
    """Rows name no node: eight ranks in a row, or as many as there are local ranks; no name is made up."""
    work = healthy()
    work[90:, 11] *= 1.3
    stage = SuspectingStage()
    found: list[Suspicion] = []
    for record in records(synchronous(work)):
        for row in rows(record):
            del row["node"]
            row.pop("local_rank", None)
            more = {} if local is None else {local: row["rank"] % size}
            found += stage.process(steps_record([row | more]))
    assert {(s.subject.rank, s.subject.node, s.ranks_on_node) for s in found} == {(11, None, 0)}
    assert {s.ranks_likely_on_node for s in found} == {size}


def test_counts_the_ranks_of_a_node():
    """A suspicion holds how many of the job's ranks share the node."""
    work = healthy()
    work[90:, 11] *= 1.3
    assert {s.ranks_on_node for s in run(synchronous(work))} == {8}


def test_evidence_shows_the_rank_among_its_peers():
    """The suspicion carries value, peers, baseline and the shortest wait, and what was ruled out."""
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
    """What happens to every rank alike, or to a rank for one step, is no rank's fault and no finding."""
    assert run(synchronous(planned(name), overhead=0.1, coords=coords)) == []


def test_names_every_one_of_a_third_slow_ranks():
    """Five of sixteen ranks slow at once are all named, and no other."""
    work = healthy(seed=4)
    bad = [1, 4, 7, 10, 13]
    work[80:, bad] *= 1.15
    assert set(believed(run(synchronous(work)))) == set(bad)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 3, 4])
@pytest.mark.parametrize("factor", [1.1, 1.3])
@pytest.mark.parametrize("known", [True, False])
def test_a_whole_node_is_measured_by_the_others(nodes, factor, known):
    """All ranks of a slow node are named by nearly their true ratio, though the node is half of the job."""
    ranks = 8 * nodes
    work = healthy(260, ranks, noise=0.01)
    work[120:, 8:16] *= factor
    found = believed(run(synchronous(work, overhead=0.05, coords=layout(ranks, 1) if known else None)))
    assert sorted(found) == list(range(8, 16))
    assert all(s.slowdown_ratio == pytest.approx(factor, abs=0.03) for s in found.values())


def test_finds_a_rank_slow_from_the_first_step():
    """Without a change to see, the comparison with its peers suffices, dated to the first step."""
    work = healthy(seed=6)
    work[:, 9] *= 1.15
    table = synchronous(work, coords=layout(16, 2))
    found = believed(run(table))
    assert set(found) == {9}
    assert found[9].onset == pytest.approx(table.ts[0])
    assert "since the first step" in found[9].note


def test_two_ranks_a_stage_are_distinguished_by_their_own_past():
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


def test_no_update_is_below_a_slowdown():
    """Slow in three steps of seven, a rank stays slow, and as much as it was in its slow steps."""
    work = healthy(steps=300)
    work[90:100, 3] *= 1.2
    for s in range(103, 300, 7):
        work[s : s + 3, 3] *= 1.2
    stage = SuspectingStage(JobStageConfig(update_seconds=2.0))
    results = [s for record in records(synchronous(work)) for s in stage.process(record)]
    found = [
        s.slowdown_ratio or 0.0 for s in results if s.kind == "straggler.fail_slow" and s.state != "clear"
    ]
    assert len(found) >= 5
    assert min(found) > 1.02


def test_a_stage_of_two_that_is_slow_on_and_off_makes_neither_rank_suspect():
    """Both ranks of a stage with more work at times are as intermittent as the work is."""
    work = healthy(steps=260)
    for s in range(80, 260, 12):
        work[s : s + 3, 4:6] *= 1.4
    found = run(synchronous(work, coords=layout(16, 8)))
    assert [s for s in found if s.kind == "straggler.intermittent"] == []


def test_one_of_a_stage_of_two_that_is_slow_on_and_off_is_found():
    """Its mate goes on as before."""
    work = healthy(steps=260)
    for s in range(80, 260, 12):
        work[s : s + 3, 4] *= 1.4
    found = run(synchronous(work, coords=layout(16, 8)))
    assert {s.subject.rank for s in found if s.kind == "straggler.intermittent"} == {4}


def test_ranks_that_report_no_compute_are_not_compared():
    """Zero seconds of compute in every row make no rank suspect, and nothing is divided by them."""
    assert run(synchronous(np.zeros((60, 8)), overhead=1.0)) == []


def test_short_bursts_again_and_again_are_intermittent():
    """Three slow steps in every twelve are reported as such."""
    work = healthy(steps=260)
    for s in range(80, 260, 12):
        work[s : s + 3, 3] *= 1.4
    kinds = {(s.kind, s.subject.rank) for s in run(synchronous(work)) if s.overwhelming}
    assert ("straggler.intermittent", 3) in kinds
    assert {rank for _, rank in kinds} == {3}


def test_a_position_that_is_slow_on_and_off_is_the_work_s():
    """Every fourth of 32 ranks at times: a popular expert, also where no coordinates show its position."""
    work = healthy(steps=200, ranks=32)
    for s in range(80, 200, 25):
        work[s : s + 3, 2::4] *= 1.4
    assert [s for s in run(synchronous(work)) if s.subject.rank is not None] == []


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


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, 90])
@pytest.mark.parametrize("dimension", ["tp", "cp", "ep"])
def test_a_position_with_more_work_hides_no_slow_rank(dimension, start):
    """Ranks that have more of a layer to do are not slow; one of them that is, and one beside, are named."""
    position = np.tile(np.arange(4), 8)
    coords = {"dp": np.repeat(np.arange(8), 4).tolist(), dimension: position.tolist()}
    work = healthy(ranks=32)
    work[start:, position == 2] *= 1.08
    assert believed(run(synchronous(work, overhead=0.1, coords=coords))) == {}
    work[120:, [14, 21]] *= 1.2
    assert set(believed(run(synchronous(work, overhead=0.1, coords=coords)))) == {14, 21}


@pytest.mark.parametrize("first", [5, 9, 14, 20])
@pytest.mark.parametrize("factor", [1.06, 1.2, 1.6])
def test_a_fault_in_the_first_steps_is_dated_to_its_own_first_step(first, factor):
    """Warm-up is not judged, yet it shows that the rank was as quick as the others before."""
    work = healthy()
    work[first:, 11] *= factor
    table = dataclasses.replace(synchronous(work, overhead=0.1), numbers=np.arange(len(work)))
    suspicion = believed(run(table))[11]
    assert abs(steps_between(table, table.ts[first], suspicion.onset)) <= 1
    assert suspicion.onset_lo <= table.ts[first] <= suspicion.onset_hi


@pytest.mark.parametrize("factor", [1.06, 1.6])
def test_first_steps_that_compile_do_not_hide_since_when_a_rank_is_slow(factor):
    """All ranks take as long in them: the rank has been slow from the first step on for all that shows."""
    work = healthy()
    work[:, 11] *= factor
    work[:3] = 8.0
    table = dataclasses.replace(synchronous(work), numbers=np.arange(len(work)))
    assert believed(run(table))[11].onset == table.ts[0]


def test_all_of_a_job_waits_where_only_some_ranks_log():
    """16 ranks log of 64: the others wait with them."""
    work = healthy()
    work[90:, 11] *= 1.3
    found = run(dataclasses.replace(synchronous(work), world_size=64))
    assert {(s.ranks, s.gpus) for s in found} == {(64, 64)}


@pytest.mark.parametrize("why", ["stop", "end"])
def test_a_job_without_steps_loses_nothing_by_slow_ones(why):
    """A rank is slow when its job stops, or ends: the rank costs nothing more at present, and goes on to cost
    with the next slow steps."""
    work = healthy(steps=400)
    work[90:, 11] *= 1.3
    before, after = (list(records(part)) for part in parted(synchronous(work), 200))
    stage = SuspectingStage()
    slow = [s for record in before for s in stage.process(record)][-1].lost
    assert slow is not None
    assert slow.gpus > 3.0
    at = before[-1].ts + 500.0
    ended = NodeEvent(
        cluster="bench", node="n", ts=at, source="job", code="job.end", subject={"job_id": "job"}
    )
    end = end_of(ended)
    assert end is not None
    (still,) = [s for s in (stage.tick(at) if why == "stop" else stage.process(end)) if s.subject.rank == 11]
    lost = 16 * (work[90:200, 11] - np.delete(work[90:200], 11, axis=1).max(axis=1)).sum()
    assert still.lost is not None
    assert (still.state, still.lost.gpus) == ("update", 0.0)
    assert still.lost.gpu_seconds == pytest.approx(lost, rel=0.02)
    assert still.lost.gpu_seconds > slow.gpu_seconds
    if why == "stop":
        moved = [s for record in after for s in stage.process(record) if s.subject.rank == 11][-1].lost
        assert moved is not None
        assert moved.gpus > 3.0


def parted(table, step):
    """The table up to a step, and the rest of it 1,000 seconds later."""
    names = [f.name for f in dataclasses.fields(table) if isinstance(getattr(table, f.name), np.ndarray)]
    first, rest = (
        dataclasses.replace(table, **{n: getattr(table, n)[part] for n in names})
        for part in (slice(step), slice(step, None))
    )
    return first, dataclasses.replace(rest, ts=rest.ts + 1000.0)
