"""Lost ranks from step rows alone, from rows to findings."""

import dataclasses

import numpy as np
import pytest

from benchmarks.detection.step_jobs import records, synchronous
from slowrank.telemetry import UNKNOWN_NODE
from slowrank.telemetry.rows.json_rows import rows, steps_record
from streams.pipeline import local_pipeline
from tests.streams.job.job_tables import healthy

PER_NODE = 4


def table_of(
    steps,
    *,
    gone=(),
    since=100,
    until=None,
    later=(),
    attempt=0,
    start=0.0,
    first=0,
    nodes=range(8),
    ranks=16,
    sized=True,
    per_node=PER_NODE,
):
    """Return records of a job; the ranks ``gone`` send no rows from step ``since`` on, and those ``later``
    none from step 180 on. Rows state the number of ranks if ``sized``, and the numbers of their ``nodes`` if
    there are ranks ``per_node``."""
    table = synchronous(healthy(steps=steps, ranks=ranks, seconds=2.0, seed=attempt))
    table = dataclasses.replace(table, attempt=attempt, ts=table.ts + start, numbers=table.numbers + first)
    only = np.ones((steps, ranks), dtype=bool)
    only[since:until, list(gone)] = False
    only[180:, list(later)] = False
    placed = []
    for record in records(table, only=only):
        for row in rows(record):
            row["node"] = f"n{nodes[row['rank'] // per_node]}" if per_node else UNKNOWN_NODE
            row |= {"world_size": ranks} if sized else {}
            placed.append(row)
    placed.sort(key=lambda row: (row["ts"], row["rank"]))
    return [steps_record([row]) for row in placed]


def final(job):
    """Return the final findings of the job."""
    pipeline, last = local_pipeline(), {}
    for record in job:
        for finding in pipeline.process(record):
            last[finding.id] = finding
    last |= {f.id: f for f in pipeline.finish()}
    assert not pipeline.set_aside
    return [f for f in last.values() if f.status != "suspected"]


def findings(job):
    """Return the final findings of the job by node and rank or ranks: kind, severity, status."""
    return {
        (f.subject.node, f.subject.ranks or f.subject.rank): (f.kind, f.severity, f.status)
        for f in final(job)
    }


def test_a_lost_rank_is_a_finding():
    """Its node's other ranks report, so that it is the rank and not its telemetry."""
    assert findings(table_of(160, gone=[5])) == {("n1", 5): ("hang.rank_missing", "error", "open")}


def test_a_rank_that_is_back_ends_it():
    """The finding is resolved five minutes after its next row."""
    found = findings(table_of(400, gone=[5], until=160))
    assert found == {("n1", 5): ("hang.rank_missing", "error", "resolved")}


def test_a_node_without_rows_is_one_warning():
    """Not one for each of its ranks, and no more than a warning: its telemetry may be lost."""
    found = findings(table_of(220, gone=[0, 1, 2, 3, 4], ranks=32))
    assert found.pop(("n1", 4)) == ("hang.rank_missing", "error", "open")
    assert found == {("n0", None): ("hang.rank_missing", "warning", "open")}


@pytest.mark.parametrize("nodes", [4, 3, 2])
def test_a_node_of_few_that_is_lost_is_one_warning(nodes):
    """However many of the ranks it has, while no more than half."""
    found = findings(table_of(220, gone=range(4, 8), ranks=4 * nodes))
    assert found == {("n1", None): ("hang.rank_missing", "warning", "open")}


@pytest.mark.parametrize(
    ("ranks", "gone", "machines"),
    [
        (32, range(8, 16), ["8-15"]),
        (20, range(16, 20), ["16-19"]),
        (12, range(3), ["0-3"]),
        (4, [2, 3], [2, 3]),
    ],
)
def test_a_machine_that_no_row_names_is_one_warning(ranks, gone, machines):
    """Where most of its ranks are lost, and the job is likely on more than one."""
    found = findings(table_of(220, gone=gone, ranks=ranks, sized=False, per_node=0))
    assert found == {(None, ranks): ("hang.rank_missing", "warning", "open") for ranks in machines}


def test_nodes_lost_one_after_another_are_all_found():
    """The second of four, a minute and more after the first."""
    expected = ("hang.rank_missing", "warning", "open")
    assert findings(table_of(300, gone=range(4), later=range(4, 8))) == {
        ("n0", None): expected,
        ("n1", None): expected,
    }


def test_half_of_the_nodes_without_rows_at_once_are_no_finding():
    """It is the telemetry: the ranks of two of four nodes do not end together while the others go on."""
    assert findings(table_of(220, gone=range(8))) == {}


def test_most_ranks_of_a_node_are_one_finding():
    """An error about the node, and its title says how many: the others show that its path works."""
    found = final(table_of(220, gone=range(8, 11), ranks=32))
    assert [(f.subject.node, f.subject.type, f.severity, f.title) for f in found] == [
        ("n2", "node", "error", "n2 reports no steps of 3 of its 4 ranks while others go on")
    ]


@pytest.mark.parametrize("gone", [1, 4])
def test_rows_that_are_lost_for_less_than_a_minute_are_no_finding(gone):
    """So long as its node is as silent; a node's exporter may be restarted."""
    assert findings(table_of(200, gone=range(PER_NODE), until=125, ranks=32)) == {}


def test_a_rank_that_does_not_come_back_with_its_job_is_lost():
    """The next attempt states the same world size and steps without it."""
    first = table_of(100)
    again = table_of(100, gone=[5], since=0, attempt=1, start=200.0)
    assert findings(first + again) == {("n1", 5): ("hang.rank_missing", "error", "open")}
    smaller = table_of(100, attempt=1, start=200.0, ranks=12)
    assert findings(first + smaller) == {}


@pytest.mark.parametrize(
    ("missed", "expected"), [(14, {("n1", 5): ("hang.rank_missing", "error", "open")}), (0, {})]
)
def test_a_rank_that_was_missing_when_its_job_restarted_is_still_expected(missed, expected):
    """Its job states no world size: one that was there until then may be left out."""
    first = table_of(100, gone=[5], since=100 - missed, sized=False)
    again = table_of(100, gone=[5], since=0, attempt=1, start=200.0, sized=False)
    assert findings(first + again) == expected


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("left", [15, 12])
def test_the_last_ranks_of_a_job_that_restarts_smaller_are_not_expected(left, sized):
    """They were missing, and the job goes on without them."""
    first = table_of(100, gone=range(left, 16), since=86, sized=sized)
    assert findings(first + table_of(100, attempt=1, start=200.0, ranks=left, sized=sized)) == {}


def test_a_job_that_goes_on_smaller_from_its_last_step_lacks_nobody():
    """Its ranks are numbered anew: who was on the last node is one of the others now."""
    before = table_of(100, sized=False)
    smaller = {"start": 260.0, "first": 100, "nodes": [0, 2, 3], "ranks": 12, "sized": False}
    assert findings(before + table_of(100, **smaller)) == {}
    # The last step of the larger one lacks rows, too.
    found = findings(before[:-6] + table_of(200, gone=range(4, 8), **smaller))
    assert found["n2", None] == ("hang.rank_missing", "warning", "open")
    assert {kind for kind, *_ in found.values()} == {"hang.rank_missing", "hang.job"}
