"""The decision core behind its interface alone: two of them run side by side in one job."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from benchmarks.detection.step_jobs import records, synchronous
from streams.job import job as job_module
from streams.job.core import batch_groups_of, make_core
from tests.streams.job.job_tables import SuspectingStage, healthy, layout


class SideBySide:
    """A core that answers as its first one and feeds a second one with the same steps, to compare them."""

    def __init__(self, first, second):
        self._first, self._second = first, second
        self.agreed = []

    def __getattr__(self, name):
        return getattr(self._first, name)

    def update(self, times):
        result, other = self._first.update(times), self._second.update(times)
        self.agreed.append([s.rank for s in result.slow] == [s.rank for s in other.slow])
        return result

    def resume(self, held):
        held = list(held)
        for core in (self._first, self._second):
            core.resume(held)


def resized():
    """The records of a job of 16 ranks, one of them slow from step 60 on, that loses eight others at 120."""
    work = healthy(180, seed=2)
    work[60:, 5] *= 1.3
    table = synchronous(work, overhead=0.1, coords=layout(16, 1))
    small = synchronous(work[:, :8], overhead=0.1, coords=layout(8, 1))
    return [r for r in records(table) if r.ts <= table.ts[120]] + [
        msgspec.structs.replace(r, attempt=1) for r in records(small) if r.ts > table.ts[120]
    ]


def test_two_cores_run_side_by_side(monkeypatch):
    """Suspicions are those of the first core, whose slow ranks both take over when the roster changes."""
    alone, made = SuspectingStage(), []

    def both(*args):
        made.append(SideBySide(make_core(*args), make_core(*args)))
        return made[-1]

    monkeypatch.setattr(job_module, "make_core", both)
    beside = SuspectingStage()
    found = [s for record in resized() for s in beside.process(record)]
    monkeypatch.undo()
    assert found == [s for record in resized() for s in alone.process(record)]
    assert [s.state for s in found if s.subject.rank == 5 and s.state != "update"] == ["raise"]
    assert len(made) == 2
    assert all(core.agreed and all(core.agreed) for core in made)


@pytest.mark.parametrize(("coord", "expected"), [("dp", [5]), ("ep", [])])
def test_a_far_slower_rank_is_found_as_the_job_starts_unless_experts_differ(coord, expected):
    """A hot expert has more work from the start: with expert positions it takes a known noise."""
    work = healthy(12, 8)
    work[:, 5] *= 2.35
    coords: dict[str, Sequence[int]] = {"dp": list(range(8)), coord: [rank % 8 for rank in range(8)]}
    table = replace(synchronous(work, overhead=0.1, coords=coords), numbers=np.arange(12), world_size=8)
    stage = SuspectingStage()
    found = [s for record in records(table) for s in stage.process(record)]
    assert [s.subject.rank for s in found if s.kind == "straggler.fail_slow"] == expected
    assert all(s.overwhelming and table.ts[2] <= s.ts <= table.ts[3] for s in found)


def test_a_slow_rank_is_named_beside_those_that_have_parts_of_its_sequences():
    """Context-parallel ranks share a batch; those of eight batches differ by a quarter in each step."""
    rng, rank = np.random.default_rng(1), np.arange(32)
    batch = np.exp(0.25 * rng.normal(size=(240, 8)))[:, rank // 4]
    work = 2.0 * batch * np.exp(0.006 * rng.normal(size=(240, 32)))
    work[150:, 13] *= 1.2
    coords: dict[str, Sequence[int]] = {"dp": (rank // 4).tolist(), "cp": (rank % 4).tolist()}
    table = synchronous(work, overhead=0.1, coords=coords)
    stage = SuspectingStage()
    found = [s for record in records(table) for s in stage.process(record) if s.state == "raise"]
    slow = {s.subject.rank: s.ts for s in found if s.kind == "straggler.fail_slow"}
    assert list(slow) == [13]
    assert table.ts[150] < slow[13] < table.ts[180]


@pytest.mark.parametrize(
    ("tensor", "dp", "expected"),
    [
        ([-1] * 8, [0] * 4 + [1] * 4, [8] * 4 + [9] * 4),
        ([0] * 4 + [1] * 4, [0] * 4 + [1] * 4, [0] * 4 + [1] * 4),
        ([0] * 2 + [1] * 2 + [2] * 2 + [3] * 2, [0] * 4 + [1] * 4, [8] * 4 + [9] * 4),
        ([0] * 4 + [-1] * 4, [-1] * 8, [0] * 4 + [-1] * 4),
        ([0] * 4 + [-1] * 4, [0] * 4 + [1] * 4, [0] * 4 + [9] * 4),
        ([], [], []),
    ],
    ids=["none", "tensor-parallel groups", "small ones", "no replicas", "some", "no ranks"],
)
def test_ranks_of_one_batch_are_a_tensor_parallel_group_or_a_replica(tensor, dp, expected):
    groups = np.array(tensor, dtype=np.intp)
    coords = {"dp": np.array(dp, dtype=np.intp)}
    assert batch_groups_of(groups, coords).tolist() == expected
