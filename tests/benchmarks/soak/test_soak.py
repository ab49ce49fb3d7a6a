"""The soak in small; `python -m benchmarks soak` is the whole."""

import asyncio
import time

import pytest

from alerts.finding import rfc3339
from benchmarks.soak import in_process, installed
from benchmarks.soak.plan import NEWEST_SECONDS, Plan, placed
from benchmarks.soak.sender import SLICE_SECONDS, slices
from benchmarks.soak.trend import trend
from benchmarks.soak.verdict import COMPARED, PARTS, Look, courses, missed, settled, unexplained
from benchmarks.soak.waiting import Waiting
from slowrank.telemetry import JobSteps, NodeEvent
from streams.files.replay import final_versions, findings_of
from streams.pipeline import local_pipeline

START = 1_795_100_000.0
# At no time are all nodes away: that would be the site, and found at one speed more readily than at another.
PLAN = Plan(jobs=6, pairs=3, seconds=1200.0, start=START)


def test_jobs_come_and_go_on_nodes_that_leave():
    """Each job has a name and a boot of its own; all but those that break off say that they end."""
    records = list(Plan(jobs=12, pairs=2, seconds=3600.0, start=START).records())
    assert records == sorted(records, key=lambda record: record.ts)
    jobs = {record.job_id for record in records if isinstance(record, JobSteps)}
    assert 11 <= len(jobs) <= 13
    assert {record.boot_id for record in records} == {f"boot-{job}" for job in jobs}
    assert {r.node for r in records} == {f"sim-000{n}-{pair}" for n in range(2) for pair in range(2)}
    ended = {r.subject["job_id"] for r in records if isinstance(r, NodeEvent) and r.code == "job.end"}
    assert "job-0-0" not in ended
    assert {"job-1-1", "job-0-2"} <= ended <= jobs


def test_jobs_that_would_be_too_short_are_refused():
    with pytest.raises(ValueError, match=r"1000 jobs on 2 pairs of nodes in 24 h would run for -?\d+ s each"):
        Plan(jobs=1000, pairs=2, seconds=86_400.0, start=START)


@pytest.mark.slow
def test_a_soak_counts_findings_and_jobs():
    """Findings of hot GPUs open, and nodes that left are expected back."""
    [hour] = asyncio.run(in_process.run(Plan(jobs=40, pairs=4, seconds=3600.0, start=START)))
    assert hour.opened > 0
    assert 0 < hour.jobs <= hour.started <= 44
    assert hour.nodes <= 8


def test_slices_hold_all_records_when_they_are_due():
    made, sent = list(PLAN.records()), list(slices(PLAN, 20.0))
    assert [record for _, held in sent for record in held] == made
    assert [due for due, _ in sent] == [SLICE_SECONDS * (n + 1) for n in range(len(sent))]
    late = [(due - SLICE_SECONDS, (r.ts - START) / 20.0, due) for due, held in sent for r in held]
    assert all(begin <= at < due for begin, at, due in late)


def test_a_run_is_placed_where_no_record_is_refused_or_live():
    now = time.time()
    plan = placed(Plan(jobs=1000, pairs=16, seconds=86_400.0, start=START), 40.0, now)
    assert now - plan.start < 86_400.0
    assert now + plan.seconds / 40.0 - (plan.start + plan.seconds) >= NEWEST_SECONDS
    with pytest.raises(ValueError, match="older than a day and are refused"):
        placed(Plan(jobs=1000, pairs=16, seconds=90_000.0, start=START), 40.0, now)


def test_what_waits_is_as_old_as_the_first_look_at_it():
    """By partition; the longest wait between two questions counts."""
    waiting, one, other = Waiting(), ("t", 0), ("t", 1)
    for now, end, read in [(0.0, 5, 5), (1.0, 8, 5), (2.0, 9, 5), (3.0, 9, 8), (4.0, 12, 9)]:
        waiting.note(now, {one: end, other: 3}, {one: read, other: 3})
    assert waiting.longest() == 1.0
    waiting.note(5.0, {one: 12, other: 7}, {one: 12, other: 3})
    assert waiting.longest() == 0.0
    waiting.note(7.5, {one: 12, other: 7}, {one: 12, other: 3})
    assert waiting.longest() == 2.5


@pytest.mark.parametrize(
    ("values", "rises"),
    [
        ([100.0 + n % 3 for n in range(18)], False),
        ([100.0 + n % 3 + 0.5 * n for n in range(18)], True),
        ([100.0 + n % 3 - 0.5 * n for n in range(18)], False),
        ([100.0 + 0.01 * n for n in range(18)], False),
        ([100.0] * 17 + [500.0], False),
    ],
    ids=["saw teeth", "rises", "falls", "by too little", "an outlier"],
)
def test_a_series_rises_when_its_slope_does(values, rises):
    line = trend(range(18), values)
    assert line.low <= line.slope <= line.high
    assert line.rises(17.0, 2.0) is rises


def test_a_slope_needs_values():
    with pytest.raises(ValueError, match="at least four values, got 3"):
        trend([0, 1, 2], [1.0, 2.0, 3.0])


def test_only_what_must_be_flat_may_not_rise():
    """Means are taken by parts of the run, and what happens in the warm-up does not count."""
    looks = [
        Look(n * 10.0, {"detect MB": 300.0 + n / 10, "jobs held": min(n, 9.0), "findings rows": n}, {})
        for n in range(10 * PARTS)
    ]
    found = {course.name: course for course in courses(looks, 10.0 * len(looks))}
    assert [name for name, course in found.items() if course.rises] == ["detect MB"]
    assert found["jobs held"].trend.slope == 0.0
    assert found["detect MB"].trend.slope == pytest.approx(0.01 * 3600.0)
    with pytest.raises(ValueError, match="part of the run has no look"):
        courses(looks[::20], 10.0 * len(looks))


@pytest.mark.slow
def test_hot_gpus_and_absent_nodes_are_told_from_the_rest():
    """Nothing is missed and nothing else is found; a finding less or about another GPU is noticed."""
    found = [f.to_json() for f in final_versions(findings_of(PLAN.records(), local_pipeline()))]
    hot, _ = (doc for doc in found if doc["kind"] == "straggler.fail_slow")
    assert (missed(PLAN, found), unexplained(PLAN, found)) == ([], [])
    assert missed(PLAN, [doc for doc in found if doc is not hot]) == [
        "GPU 3 of sim-0001-0, hot from second 236 on"
    ]
    other = {**hot, "subject": hot["subject"] | {"gpu_index": 4}}
    (text,) = unexplained(PLAN, [*found, other])
    assert text.startswith("straggler.fail_slow")


def test_what_changed_at_the_end_is_not_compared():
    def doc(at):
        times = {"last_seen_at": rfc3339(START + at), "resolved_at": rfc3339(START + at - 5.0)}
        return dict.fromkeys(COMPARED) | times

    early, late = doc(1000.0), doc(1190.0)
    sides = {"a": early, "b": early, "c": late}, {"a": early, "b": late, "c": early}
    assert list(settled(PLAN, *sides)) == [{"a": dict.fromkeys(COMPARED)}] * 2


# At ten times the clock a node is silent after a second in which other processes hold up the sender.
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.usefixtures("kafka_bootstrap", "timescale_dsn")  # Without them it is skipped.
def test_a_soak_of_real_servers_finds_what_one_process_does(tmp_path):
    """The looks hold every series, and roll-ups of the first minutes are removed by the end."""
    plan, outcome = installed.run(PLAN, 10.0, 2, tmp_path)
    assert (outcome.unread, outcome.dead_letters, outcome.wrong) == (0, 0, [])
    assert outcome.records == len(list(PLAN.records()))
    assert (missed(plan, outcome.opened), unexplained(plan, outcome.opened)) == ([], [])
    last = outcome.looks[-1].values
    # The pair whose job broke off is away for longer than nodes are expected.
    assert last["nodes expected"] == 2.0 * (PLAN.pairs - 1)
    assert 0.0 < last["samples_10s rows"] < 16 * PLAN.pairs * PLAN.seconds / 10.0 / 4.0
    assert last["detect MB"] > 50.0
    assert last["detect behind, s"] < 5.0
