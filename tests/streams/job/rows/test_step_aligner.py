from typing import Any

import numpy as np
import pytest

from slowrank.telemetry.rows.json_rows import steps_record
from streams.job.rows.step_aligner import StepAligner
from streams.job.rows.step_rows import LOSSES, SQUARES, rows_of

T0 = 1000.0


def row(step, rank, ts, **rest):
    fields = {"step": step, "rank": rank, "ts": T0 + ts, "step_seconds": 1.0, "node": f"n{rank // 2}", **rest}
    return rows_of(steps_record([fields]))


def feed(aligner, rows):
    return [step for r in rows for step in aligner.add(r)]


def disorderly(seed, *, ranks=6, steps=80):
    """Rows of ranks that are lost, repeated, late, ahead, silent for a while, and sent several at a time."""
    rng = np.random.default_rng(seed)
    fields: list[dict[str, Any]] = [
        {"step": s, "rank": r, "ts": T0 + s + 0.1 * r, "step_seconds": float(rng.choice([0.0, 1.0, 1.2]))}
        for s in range(steps)
        for r in range(ranks)
        if rng.random() > 0.02 and not (r == 2 and 30 < s < 45)
    ]
    fields = [f | {"node": f"n{f['rank'] // 4}"} for f in fields]
    for k in rng.integers(len(fields) - 9, size=8):
        fields[k], fields[k + 8] = fields[k + 8], fields[k] | {"ts": fields[k]["ts"] + 6.0 * rng.random()}
    fields += [dict(fields[k]) for k in rng.integers(len(fields), size=3)]
    cuts = np.sort(rng.integers(len(fields), size=60)).tolist()
    return [fields[a:b] for a, b in zip([0, *cuts], [*cuts, len(fields)], strict=True) if a < b]


def warm(aligner, *, ranks=2, until=8):
    return feed(aligner, [row(s, r, float(s)) for s in range(until) for r in range(ranks)])


def test_first_steps_wait_for_the_grace_then_all_expected_ranks_close_a_step():
    """With an unknown number of ranks the first steps wait 5 s; from then on the last rank closes."""
    aligner = StepAligner()
    assert warm(aligner, until=6) == []
    assert [s.number for s in feed(aligner, [row(6, 0, 6.0)])] == [0, 1, 2, 3, 4, 5]
    aligner = StepAligner()
    warm(aligner, until=20)
    assert feed(aligner, [row(20, 0, 20.0)]) == []
    assert [s.number for s in feed(aligner, [row(20, 1, 20.3)])] == [20]


def test_world_size_closes_without_waiting():
    """When the record holds how many ranks there are, the first step closes with the last of them."""
    aligner = StepAligner(world_size=2)
    closed = feed(aligner, [row(0, 0, 0.0), row(0, 1, 0.5)])
    assert [s.number for s in closed] == [0]
    assert closed[0].closed_at == T0 + 0.5
    assert closed[0].values.shape == (9, 2)


def test_steps_close_in_order_and_late_or_repeated_rows_are_counted():
    """A complete step waits for an older one; what comes after closing, or twice, changes nothing."""
    aligner = StepAligner(world_size=2)
    assert feed(aligner, [row(1, 0, 1.0), row(1, 1, 1.0)])[0].number == 1
    assert feed(aligner, [row(3, 0, 3.0), row(2, 0, 2.0), row(3, 1, 3.0)]) == []
    assert [s.number for s in feed(aligner, [row(2, 1, 3.1)])] == [2, 3]
    feed(aligner, [row(1, 0, 1.0), row(4, 0, 4.0), row(4, 0, 4.0)])
    assert aligner.late_rows == 2


def test_a_lost_row_delays_but_does_not_stop():
    """A step with a rank missing closes once event time has passed it by the grace, at its own time."""
    aligner = StepAligner(world_size=2)
    feed(aligner, [row(0, r, 0.0) for r in (0, 1)])
    assert feed(aligner, [row(1, 0, 1.0)]) == []
    closed = feed(aligner, [row(s, r, float(s)) for s in range(2, 9) for r in (0, 1)])
    assert [s.number for s in closed][:2] == [1, 2]
    assert closed[0].closed_at == T0 + 1.0
    assert closed[0].ranks.tolist() == [0]


def test_step_numbers_may_have_gaps():
    """Sampled steps are steps like others."""
    aligner = StepAligner(world_size=1)
    assert [s.number for s in feed(aligner, [row(n, 0, n * 2.0) for n in (23, 25, 259, 1010)])] == [
        23,
        25,
        259,
        1010,
    ]


def test_notices_moved_ranks_but_not_rows_that_hold_less():
    """A rank on another node is a change; a row without coordinates is not."""
    aligner = StepAligner(world_size=1)
    feed(aligner, [row(0, 0, 0.0, coords={"pp": 1}, gpu_index=3)])
    assert aligner.changed
    aligner.changed = False
    feed(aligner, [row(1, 0, 1.0)])
    assert not bool(aligner.changed)
    feed(aligner, [row(2, 0, 2.0, node="elsewhere")])
    assert aligner.changed
    assert aligner.identities[0].node == "elsewhere"


def test_a_rank_going_back_is_a_roll_back_and_a_late_row_is_not():
    """Only a rank's own earlier step at a clearly later time means that training was rolled back."""
    aligner = StepAligner(world_size=2)
    warm(aligner, until=20)
    assert not aligner.rolled_back(row(10, 0, 19.5), 0)
    assert aligner.rolled_back(row(10, 0, 60.0), 0)


def test_reads_what_is_there():
    """Values come as seconds and tokens, what was not given as NaN, coordinates by name."""
    read = row(5, 3, 1.5, compute_seconds=0.75, tokens=4096, coords={"dp": 1, "pp": 0}, local_rank=1)
    assert read.identities[0].coords == (("dp", 1), ("pp", 0))
    assert read.identities[0].local_rank == 1
    assert read.identities[0].gpu_index is None
    assert read.values[:2, 0].tolist() == [1.0, 0.75]
    assert np.isnan(read.values[2:6, 0]).all()
    assert read.values[6, 0] == 4096


def test_a_step_has_the_squares_of_the_ranks_that_report_them():
    """Where none does, the step is as ever; an infinite sum was not read, an infinite loss was."""
    aligner = StepAligner(world_size=3)
    plain = [row(0, r, 0.0, loss=1e300) for r in range(3)]
    mixed = [row(1, 2, 1.0, seq_len_sq_sum=1e13), row(1, 1, 1.0), row(1, 0, 1.0, seq_len_sq_sum=1e300)]
    first, second = feed(aligner, [*plain, *mixed])
    assert len(first.values) == SQUARES
    assert np.isinf(first.values[LOSSES.start]).all()
    assert np.isnan(second.values[SQUARES, :2]).all()
    assert second.values[SQUARES, 2] == np.float32(1e13)
    assert second.values[0].tolist() == [1.0] * 3


def test_a_rank_that_goes_on_far_behind_shows_that_numbers_are_unrelated():
    """Rows of now at numbers passed long ago mean separate counters; late delivery and a roll-back do not."""
    aligner = StepAligner()
    warm(aligner, until=100)
    late = [row(s, 2, float(s)) for s in range(50)]
    feed(aligner, late)
    again = [row(s, 0, 100.0 + 0.1 * s) for s in range(20)]
    feed(aligner, again)
    assert not aligner.unrelated
    feed(aligner, [row(s, 2, 50.0 + s) for s in range(50, 65)])
    assert aligner.unrelated


def test_by_time_each_stretch_holds_one_row_of_every_rank():
    """Whatever ranks call their steps, a stretch of two usual rows closes with the first row of each."""
    aligner = StepAligner()
    feed(aligner, [row(s + 1000 * r, r, s + 0.3 * r) for s in range(40) for r in range(2)])
    assert aligner.unrelated
    timed = aligner.by_time()
    closed = feed(timed, [row(s + 1000 * r, r, s + 0.3 * r) for s in range(40, 80) for r in range(2)])
    assert timed.window == 2.0
    assert [s.ranks.tolist() for s in closed[1:]] == [[0, 1]] * len(closed[1:])
    assert 17 <= len(closed) <= 20
    assert not timed.unrelated


def test_ranks_that_roll_out_are_compared_with_none():
    """Of a rank labelled as rolling out only the step counts, not what it computes or waits."""
    found = {"step": 1, "rank": 0, "ts": 5.0, "step_seconds": 2.0, "compute_seconds": 1.5, "loss": 3.0}
    read = rows_of(steps_record([found | {"labels": {"phase": "rollout"}}]))
    assert read.values[0, 0] == 2.0
    assert np.isnan(read.values[1:6, 0]).all()
    assert read.values[-2, 0] == 3.0


@pytest.mark.parametrize("window", [None, 2.0])
@pytest.mark.parametrize("world_size", [0, 4, 6])
@pytest.mark.parametrize("seed", range(8))
def test_rows_taken_together_close_the_steps_of_rows_one_by_one(seed, world_size, window):
    """However many are taken at once, the same row closes the same step, and what is learnt is the same."""
    alone, batched = (StepAligner(world_size, window=window) for _ in range(2))
    taken = []
    for rows in (rows_of(steps_record(fields)) for fields in disorderly(seed)):
        k = 0
        while k < len(rows):
            count = batched.together(rows, k)
            one_by_one = [alone.add(rows.part(i, i + 1)) for i in range(k, k + count)]
            assert not any(one_by_one[:-1])
            at_once = batched.add(rows.part(k, k + count))
            assert [found(s) for s in at_once] == [found(s) for s in one_by_one[-1]]
            k += count
            taken.append(count)
    assert max(taken) > 3
    for name in ("identities", "last_step", "last_ts", "late_rows", "event_time", "closed", "unrelated"):
        assert getattr(batched, name) == getattr(alone, name)


def found(step):
    return step.number, step.ranks.tolist(), step.ts.tolist(), step.values.tobytes()


@pytest.mark.parametrize("back_first", [True, False])
def test_a_rank_that_comes_back_counts_whoever_reports_first(back_first):
    """A rank unheard of for many steps is in the first step it reports, before or after the others."""
    aligner = StepAligner(world_size=2)
    warm(aligner, until=20)
    feed(aligner, [row(s, 0, float(s)) for s in range(20, 60)])
    rows = [row(60, 1, 60.0), row(60, 0, 60.0)]
    closed = feed(aligner, [*(rows if back_first else rows[::-1]), row(61, 0, 61.0), row(62, 0, 62.5)])
    assert [s.ranks.tolist() for s in closed if s.number == 60] == [[0, 1]]
