"""Step rows folded as columns give the rows that adding row by row gives, in the same order, bit for bit."""

import math

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from benchmarks.speed.plain_rollup import PlainRollUp
from slowrank.telemetry import JobSteps
from slowrank.telemetry.columns import pack
from slowrank.telemetry.schema import STEP_SCHEMAS
from store.telemetry.buckets import StepRollup
from streams.rollup.rollup import MOST_WAITING, RollUp
from tests.roll_ups import unpacked
from tests.streams.rollup.test_columnar import rolled

RANKS = ((0, 1, 2, 3), (4, 5, 6, 7), (8,), (9, 11, 10))


def record(job, node, step, ts, chance, *, messy):
    """One record of a node; ``messy``: ranks that come and go or come twice, several steps, odd numbers."""
    odd = messy and chance.random() < 0.3
    schema = STEP_SCHEMAS[int(chance.choice(list(STEP_SCHEMAS))) if odd else max(STEP_SCHEMAS)]
    ranks = RANKS[chance.integers(len(RANKS))] if odd else RANKS[node % len(RANKS)]
    steps = [step + k for k in range(chance.integers(1, 4))] if odd and chance.random() < 0.5 else [step]
    rows = [row(schema, s, rank, ts + 0.7 * (s - step), chance, odd=odd) for s in steps for rank in ranks]
    if odd and chance.random() < 0.3:
        chance.shuffle(rows)
    return JobSteps(
        schema=schema.id,
        row_bytes=schema.row_bytes,
        cluster="c",
        job_id=f"j{job}",
        node=f"n{node}",
        boot_id="b",
        seq=step,
        ts=max([r["ts"] for r in rows], default=ts),
        attempt=int(odd and chance.random() < 0.2),
        world_size=int(chance.choice([0, 16])),
        rows=pack(schema.rows, rows if not odd or chance.random() < 0.95 else []),
    )


def row(schema, step, rank, ts, chance, *, odd):
    held = {"step": step, "rank": rank, "ts": ts + (12.0 if odd and chance.random() < 0.2 else 0.0)}
    for column in schema.rows.columns:
        if column.name in held or chance.random() < (0.3 if odd else 0.05):
            continue
        if column.dtype.startswith("<f"):
            values = [0.0, -0.0, 0.1, 2.5, 1e-30, 3e9, chance.random()]
            held[column.name] = float(chance.choice([*values, math.inf, -math.inf] if odd else values))
        else:
            held[column.name] = int(chance.integers(0, 3) if odd else rank % 3)
    return held


def stream(seed, *, jobs, seconds, messy):
    """Records and ticks of event time: late, repeated and missing records, nodes that stop."""
    chance = np.random.default_rng(seed)
    steps: list[JobSteps | float] = []
    for second in range(seconds):
        if chance.random() < 0.3:
            steps.append(1000.0 + second)
        for job in range(jobs):
            for node in range(1 + job):
                if messy and (chance.random() < 0.1 or (node == 1 and second > seconds // 2)):
                    continue
                ts = 1000.0 + second + 0.01 * node
                if messy and chance.random() < 0.1:
                    ts -= float(chance.choice([0.0, 1.0, 12.0, 40.0, 400.0]))
                steps.append(record(job, node, second, ts, chance, messy=messy))
                if messy and chance.random() < 0.1:
                    steps.append(steps[chance.integers(len(steps))])
    return [*steps, 1000.0 + seconds + 31.0, 1000.0 + seconds + 400.0]


@pytest.mark.slow
@settings(max_examples=30, phases=(Phase.generate,))
@given(
    seed=st.integers(0, 10**6),
    jobs=st.integers(1, 4),
    messy=st.booleans(),
    most=st.sampled_from([1, 4, 16, 64, 512]),
    flushes=st.lists(st.integers(0, 200), max_size=3),
)
def test_columns_give_the_rows_of_adding_row_by_row(seed, jobs, messy, most, flushes):
    """Whatever comes and however many records wait, each step gives the same rows."""
    steps = stream(seed, jobs=jobs, seconds=45, messy=messy)
    assert rolled(RollUp(most_waiting=most), steps, flushes) == rolled(PlainRollUp(), steps, flushes)


@pytest.mark.parametrize("most", [1, 512])
def test_a_step_that_comes_after_a_later_one_is_joined(most):
    """Folded apart or together: the first and last step, and zeros of both signs, are those of the rows."""
    schema = STEP_SCHEMAS[max(STEP_SCHEMAS)]
    steps = [
        JobSteps(
            schema=schema.id,
            row_bytes=schema.row_bytes,
            cluster="c",
            job_id="j",
            node="n",
            boot_id="b",
            seq=seq,
            ts=1000.0 + seq,
            attempt=0,
            world_size=2,
            rows=pack(schema.rows, [{"step": step, "rank": r, "ts": 1000.0 + seq, **held} for r in (0, 1)]),
        )
        for seq, (step, held) in enumerate(
            [(7, {"step_seconds": -0.0}), (3, {"step_seconds": 0.0}), (5, {"compute_seconds": -0.0})]
        )
    ]
    assert rolled(RollUp(most_waiting=most), steps, []) == rolled(PlainRollUp(), steps, [])


def test_records_of_a_calm_job_are_folded_together(monkeypatch):
    """Row by row is the way of records that are not one row for each rank alone."""
    added: list[int] = []
    monkeypatch.setattr("streams.rollup.steps.StepBucket.add", lambda *_: added.append(1))
    rollup, rows = RollUp(), []
    for step in stream(1, jobs=4, seconds=40, messy=False):
        rows += rollup.tick(step) if isinstance(step, float) else rollup.add(step)
    assert rows
    assert added == []


@pytest.mark.slow
def test_what_waits_is_bounded():
    """A node whose clock stands still, so that no bucket ever closes, keeps a bounded number of records."""
    rollup, chance = RollUp(), np.random.default_rng(1)
    for n in range(MOST_WAITING + 10):
        rollup.add(record(0, 0, n, 1000.0 + n * 1e-3, chance, messy=False))
    assert len(rollup._steps) == 10


@pytest.mark.parametrize("timeless", [(math.nan, math.nan), (math.inf, math.nan), (math.nan, math.inf)])
def test_rows_without_a_time_are_in_no_bucket(timeless):
    """And those beside them are rolled up; nothing of them stays in memory."""
    schema, chance = STEP_SCHEMAS[max(STEP_SCHEMAS)], np.random.default_rng(1)
    rows = [row(schema, 1, rank, 1000.0, chance, odd=False) for rank in range(3)]
    rows[1]["ts"], rows[2]["ts"] = timeless
    first = record(0, 0, 1, 1000.0, chance, messy=False)
    rollup = RollUp()
    rollup.add(
        JobSteps(
            **{f: getattr(first, f) for f in first.__struct_fields__} | {"rows": pack(schema.rows, rows)}
        )
    )
    assert {r.rank for r in unpacked(rollup.flush()) if isinstance(r, StepRollup)} == {0}
    [source] = rollup._jobs.values()
    assert list(source.buckets._open) == [1000.0]
