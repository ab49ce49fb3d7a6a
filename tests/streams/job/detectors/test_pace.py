"""How a job's GPUs pace beside their peers: sent once an hour each, for the store and for later jobs."""

import dataclasses
import math
from collections import Counter

import msgspec
import numpy as np
import pytest

from benchmarks.detection.step_jobs import records, synchronous
from detectors.fleet.chronic import Pace
from slowrank.telemetry import Heartbeat, RankPace, decode_message, encode
from slowrank.telemetry.rows.json_rows import rows, steps_record
from streams.cluster.stage import FindingStage
from streams.job.detectors.pace import REPEAT_SECONDS
from streams.job.stage import JobStage
from streams.pipeline import local_pipeline
from streams.rollup.message_rows import pace_row
from streams.rollup.rollup import Rows
from streams.runtime.partitions.partition import FindingPartition
from tests.streams.job.job_tables import healthy, layout
from tests.streams.partitions import regrouped


def located(table):
    """The records of a job with its size and the GPU of each rank."""
    size = table.compute.shape[1]
    placed = [
        steps_record([{**row, "gpu_index": int(row["rank"]) % 8} for row in rows(r)]) for r in records(table)
    ]
    return [msgspec.structs.replace(record, world_size=size) for record in placed]


def job(steps=420, ranks=16, *, seconds=20.0, slow=None, stages=1, seed=0, **changes):
    work = healthy(steps, ranks, seconds=seconds, seed=seed)
    for rank, factor in (slow or {}).items():
        work[:, rank] *= factor
    table = synchronous(work, overhead=0.1, coords=layout(ranks, stages))
    return located(dataclasses.replace(table, **changes))


def paces_of(job_records):
    stage = JobStage()
    return [s for r in job_records for s in stage.process(r) if isinstance(s, RankPace)]


def test_each_rank_has_a_pace_once_an_hour():
    """Two hours of a job: each rank's is sent once in an hour, not all at once, with its own slowdown."""
    found = paces_of(job(500, slow={3: 1.025}))
    for rank in range(16):
        gaps = np.diff([s.ts for s in found if s.rank == rank])
        assert len(gaps)
        assert gaps == pytest.approx(REPEAT_SECONDS, abs=25)
    assert max(Counter(s.ts for s in found).values()) <= 2
    paces = [pace_row(s) for s in found]
    slow = [p.log_ratio for p in paces if p.rank == 3]
    assert np.mean(slow) == pytest.approx(math.log(1.025), abs=0.006)
    assert max(abs(p.log_ratio) for p in paces if p.rank != 3) < 0.01
    assert all(0.0005 < p.spread < 0.01 for p in paces)
    assert {(p.machine.node, p.machine.gpu_index) for p in paces if p.rank == 11} == {("node-0001", 3)}


def test_moments_are_a_ranks_own_wherever_one_begins_to_read():
    """A worker that begins in the middle sends at the same moments."""
    whole = job()
    later = paces_of(whole[len(whole) // 2 :])
    assert later
    assert {(s.rank, s.ts) for s in later} <= {(s.rank, s.ts) for s in paces_of(whole)}


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0, 60])
def test_batches_change_nothing(seconds):
    """Row by row or a minute at a time: the paces are the same, byte for byte."""
    whole = job()
    again = regrouped(whole, seconds)
    assert len(again) != len(whole)
    assert sorted(map(encode, paces_of(again))) == sorted(map(encode, paces_of(whole)))


def asynchronous():
    work = np.random.default_rng(0).lognormal(0, 0.3, (420, 8)) * 20
    table = synchronous(work)
    return located(dataclasses.replace(table, step=work, wait=None))


@pytest.mark.parametrize(
    "made",
    [
        lambda: job(ranks=2),
        lambda: job(ranks=8, stages=4),
        lambda: job(with_compute=False, wait=None),
        lambda: job(90, seconds=100.0),
        asynchronous,
        lambda: records(synchronous(healthy(420, seconds=20.0), coords=layout(16, 1))),
    ],
    ids=["few ranks", "few of a role", "wall clock", "few steps", "asynchronous", "no GPU known"],
)
def test_is_sent_only_where_it_means_something(made):
    """Small groups, shared clocks, short or asynchronous jobs and unknown places give no pace."""
    assert paces_of(made()) == []


def test_survives_the_wire():
    """What the store reads is what the job stage wrote."""
    found = paces_of(job(300))
    assert [decode_message(encode(s)) for s in found] == found


@pytest.mark.slow
def test_findings_are_the_same_without_paces():
    """A slow rank is found byte for byte the same with paces and without; they come out for the store."""
    stage = JobStage()
    results = [s for r in job(slow={3: 1.2}) for s in stage.process(r)]
    without = [s for s in results if not isinstance(s, RankPace)]

    def beat(ts):
        return Heartbeat(cluster="bench", ts=float(math.floor(ts)), partition="job-steps:0")

    def outputs(suspicions):
        lane = FindingPartition("suspicions:0", FindingStage())
        for s in suspicions:
            yield from lane.process(s, s.ts)
            if not isinstance(s, RankPace):
                yield from lane.process(beat(s.ts), s.ts)

    expected, found = list(outputs(without)), list(outputs(results))
    assert expected
    assert [f for f in found if not isinstance(f, Pace)] == expected
    assert [p for p in found if isinstance(p, Pace)] == [
        pace_row(s) for s in results if isinstance(s, RankPace)
    ]
    assert len(found) > len(expected) + 10


@pytest.mark.slow
def test_one_process_hands_paces_to_its_store():
    """The pipeline of one process gives each pace with the rows, and none with its findings."""
    kept: Rows = []
    pipeline = local_pipeline(on_rows=kept.extend)
    for record in job(300):
        pipeline.process(record)
    expected = [pace_row(s) for s in paces_of(job(300))]
    assert [row for row in kept if isinstance(row, Pace)] == expected
