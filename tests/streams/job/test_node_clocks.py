"""Clocks of a job's nodes that are off, while its rows come in."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from slowrank.telemetry import Suspicion
from slowrank.telemetry.rows.json_rows import steps_record
from streams.job.node_clocks import NodeClocks
from streams.job.rows.step_rows import rows_of
from streams.job.stage import JobStage

T0 = 1_795_160_000.0


def told(ahead, *, steps=40, pace=None):
    """What is known of each node after ``steps`` of 1 s, all nodes in turn."""
    clocks, pace = NodeClocks(), pace or {}
    for step in range(steps):
        for node, seconds in ahead.items():
            clocks.note(node, step, T0 + pace.get(node, 1.0) * step + seconds)
    return {node: clocks.ahead(node) for node in ahead}


@pytest.mark.parametrize(
    ("ahead", "known"),
    [
        ({"a": 0.0, "b": 8.0, "c": 0.0}, {"a": 0.0, "b": 8.0, "c": 0.0}),
        ({"a": -30.0, "b": 0.0, "c": 0.0}, {"a": -30.0, "b": 0.0, "c": 0.0}),
        # Below two seconds nothing is lost by it; beyond five minutes it is no clock.
        ({"a": 0.0, "b": 1.5, "c": 0.0}, {"a": 0.0, "b": 0.0, "c": 0.0}),
        ({"a": 0.0, "b": 400.0, "c": 0.0}, {"a": 0.0, "b": 0.0, "c": 0.0}),
        # Of two clocks either may be wrong: they meet half way.
        ({"a": 0.0, "b": 20.0}, {"a": -10.0, "b": 10.0}),
        ({"a": 20.0}, {"a": 0.0}),
    ],
)
def test_a_clock_that_is_off_is_known_after_two_common_steps(ahead, known):
    """Relative to the median node."""
    assert told(ahead) == known


def test_workers_that_count_by_themselves_show_no_clock():
    """Their distances change between two steps."""
    assert told({"a": 0.0, "b": 3.0, "c": 0.0}, pace={"b": 1.2}) == {"a": 0.0, "b": 0.0, "c": 0.0}


def test_a_node_that_comes_later_is_compared_with_those_known():
    """And one that never sends again holds nothing up."""
    clocks = NodeClocks()
    for step in range(200):
        for node, seconds in {"a": 0.0, "b": 9.0, "c": 0.0, "d": -5.0}.items():
            if not (node == "c" and step > 20) and not (node == "d" and step < 60):
                clocks.note(node, step, T0 + step + seconds)
    assert [clocks.ahead(node) for node in "abcd"] == [0.0, 9.0, 0.0, -5.0]


def records(ahead, *, steps=200, nodes=4):
    """Rows in the order in which they arrive; rank 2 becomes 1.4x slower at step 120."""
    rng, found = np.random.default_rng(3), list[tuple[float, list[Mapping[str, Any]]]]()
    for step in range(steps):
        factor = [1.4 if rank == 2 and step >= 120 else 1.0 for rank in range(2 * nodes)]
        for node in range(nodes):
            rows: list[Mapping[str, Any]] = [
                {
                    "step": step,
                    "rank": rank,
                    "node": f"n{node}",
                    "job_id": "j",
                    "ts": T0 + step + (ahead if node == 2 else 0.0),
                    "step_seconds": 1.0,
                    "compute_seconds": float(rng.lognormal(0, 0.005)) * factor[rank],
                }
                for rank in (2 * node, 2 * node + 1)
            ]
            found.append((step + rng.random(), rows))
    return [steps_record(group) for _, group in sorted(found, key=lambda f: f[0])]


@pytest.mark.parametrize("ahead", [0.0, 8.0, -30.0, 120.0])
def test_a_clock_that_is_off_blinds_no_job(ahead):
    """The slow rank is named as soon, and no rows are lost but some of the first sixteen steps."""
    stage = JobStage()
    said = [s for r in records(ahead) for s in stage.process(r)]
    found = [s for s in said if isinstance(s, Suspicion) and s.state == "raise"]
    assert [(s.kind, s.subject.rank) for s in found] == [("straggler.fail_slow", 2)]
    assert found[0].onset == pytest.approx(T0 + 120, abs=1.5)
    assert found[0].ts <= T0 + 126
    assert stage.late_rows <= (0 if ahead == 0 else 16 * 8)


def test_how_rows_were_batched_changes_nothing():
    """What is known of a clock follows from the rows, not from the records they came in."""

    def suspicions(sent):
        stage = JobStage()
        return [s for r in sent for s in stage.process(r)], stage.late_rows

    whole = records(8.0)
    rows = [steps_record([row]) for record in whole for row in rows_in(record)]
    assert suspicions(whole) == suspicions(rows)


def rows_in(record):
    """The rows of a record as ``steps_record`` takes them."""
    read = rows_of(record)
    for k in range(len(read)):
        yield {
            "step": read.steps[k],
            "rank": read.ranks[k],
            "node": record.node,
            "job_id": "j",
            "ts": read.ts[k],
            "step_seconds": float(read.values[0, k]),
            "compute_seconds": float(read.values[1, k]),
        }
