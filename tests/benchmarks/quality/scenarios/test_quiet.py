"""Quiet fleets: what is drawn, for how long each row is on, and which alarms are false."""

from dataclasses import replace

import pytest

from benchmarks.quality import command
from benchmarks.quality.run import OURS, Outcome, run
from benchmarks.quality.scenarios.quiet import (
    IDLE,
    RESIZED,
    ROLES,
    STAGES,
    node_days,
    quiet,
    quiet_1hz,
    quiet_large,
)
from benchmarks.quality.scenarios.scenario import Scenario, events_of
from benchmarks.quality.scoring.exposure import days_by_row, exposure
from benchmarks.quality.scoring.matching import in_window
from benchmarks.quality.scoring.score import noise
from simulator import ClusterSpec, Fault, JobSpec
from simulator.cluster.truth import truths
from simulator.faults.catalogue import CATALOGUE
from simulator.jobs.benign import BENIGN
from tests.benchmarks.quality.alarm_rows import alarm, event


@pytest.mark.parametrize("draw", [quiet, quiet_large, quiet_1hz])
def test_every_row_is_on_in_every_seed(draw):
    """Each confounder has a job in each cluster, a long last stage one with stages; all that fails is
    telemetry."""
    failing = set()
    for seed in range(4):
        [scenario] = draw(seed)
        assert set(scenario.benign.values()) == set(BENIGN)
        assert set(scenario.benign) == {job.job_id for job in scenario.spec.jobs}
        staged = [j for j in scenario.spec.jobs if scenario.benign[j.job_id] == STAGES and not j.attempt]
        assert all(job.pp > 1 and job.workload.last_stage == BENIGN[STAGES].last_stage for job in staged)
        failing |= {CATALOGUE[fault.kind].cause for fault in scenario.faults}
    assert failing == {"telemetry"}


def test_node_days_are_those_a_job_ran():
    """A job counts while it runs, in each of its rows; nodes without one are idle."""
    day = 86_400.0
    first = JobSpec(dp=2, tp=8, job_id="a", ends=0.5 * day)
    second = replace(first, dp=1, begins=0.75 * day, ends=9 * day, attempt=1)
    learner = JobSpec(dp=2, tp=8, job_id="b", first_node=2, rollout_dp=1)
    spec = ClusterSpec(nodes=5, jobs=(first, second, learner))
    assert node_days(spec, day, {"a": "plain", "b": "deploy"}) == {
        "plain": 1.25,
        RESIZED: 1.25,
        "deploy": 2.0,
        ROLES: 2.0,
        IDLE: 1.75,
    }


def test_nothing_is_dated_between_two_samples():
    """An exporter that falls silent does so at some time after the last sample, as far as anyone can know."""
    spec = ClusterSpec(nodes=1, send_seconds=10.0)
    gap = Fault(kind="exporter_gap", node=0, onset=100.0)
    scenario = Scenario(
        part="quiet", row="quiet", seed=1, spec=spec, seconds=200.0, faults=(gap,), rows=("gap",)
    )
    [told] = events_of(scenario, truths(spec, (gap,)))
    assert [in_window(told, spec.start + onset) for onset in (89.0, 91.0)] == [False, True]


def outcome(events=(), alarms=(), **given):
    quiet_day = Outcome(
        part="quiet",
        row="quiet",
        seed=1,
        tick_seconds=10.0,
        rank_steps=10,
        nodes=2,
        seconds=86_400.0,
        events=tuple(events),
        alarms={OURS: tuple(alarms)},
        expected={},
        job_of={"a": "plain 0", "b": "plain 0"},
        benign={"plain 0": "plain"},
        row_days={"plain": 2.0},
    )
    return replace(quiet_day, **given)


@pytest.mark.parametrize(("node", "tickets"), [("a", 0), ("b", 1)])
def test_failing_telemetry_excuses_alarms_about_it_alone(node, tickets):
    """A gap of one exporter explains that it is stale, and neither another one nor a hang of the job."""
    gap = event(fault="exporter_gap", gpu=None, verdicts=("exporter.stale",), machine=False, job_id="plain 0")
    stale = alarm(node=node, gpu=None, kind="exporter.stale", job_id="plain 0")
    hang = replace(alarm(node=None, kind="hang.job", job_id="plain 0"), severity="critical")
    told = noise([outcome([gap], [stale, hang])])
    assert (told.pages, told.tickets) == (1, tickets)


def test_exposure_by_row_and_tick():
    """Node-days stand apart by tick, and every false page and ticket has a line; what informs has none."""
    page = replace(alarm(job_id="plain 0"), severity="critical")
    word = replace(alarm(job_id="plain 0"), severity="info")
    runs = [outcome(alarms=[page, word]), outcome(part="quiet-1hz", tick_seconds=1.0), outcome(seed=2)]
    assert days_by_row(runs) == {"plain": 6.0}
    report = list(exposure(runs))
    assert "| plain | 4.0 | 2.0 | 1 | 0 |" in report
    assert [line for line in report if line.startswith("*")] == [
        "* quiet, seed 1: critical straggler.fail_slow at a GPU 3 (), plain"
    ]


def test_an_alarm_about_a_job_counts_in_its_own_row():
    """A job that is resized, too, has its false page in its own row; one about no job is the idle nodes'."""
    own, none = (replace(alarm(job_id=job, node=None), severity="critical") for job in ("plain 0", None))
    days = {"plain": 2.0, ROLES: 2.0, RESIZED: 2.0, IDLE: 1.0}
    report = list(exposure([outcome(alarms=[own, none], row_days=days)]))
    assert [line for line in report if line.startswith("| ")][1:] == [
        f"| {IDLE} | 1.0 | 1 | 0 |",
        "| plain | 2.0 | 1 | 0 |",
        f"| {ROLES} | 2.0 | – | – |",
        f"| {RESIZED} | 2.0 | – | – |",
    ]


def test_results_that_are_not_there_are_an_error(tmp_path, capsys):
    """A misspelt file is no empty one."""
    with pytest.raises(SystemExit):
        command.main(["--merge", str(tmp_path / "misspelt.ndjson")])
    assert "misspelt.ndjson" in capsys.readouterr().err


@pytest.mark.slow
def test_results_of_several_files_are_merged(tmp_path):
    """Each part and seed counts once, whichever file it is in."""
    spec = ClusterSpec(nodes=2, gpus=2, nics=1, jobs=(JobSpec(dp=2, tp=2),))
    one = run(Scenario(part="quiet", row="quiet", seed=1, spec=spec, seconds=5.0))
    files = [tmp_path / "a", tmp_path / "b"]
    for file, seeds in zip(files, ([1, 2], [2, 3]), strict=True):
        file.write_bytes(b"".join(command.line(replace(one, seed=seed)) for seed in seeds))
    assert [o.seed for o in command.merged(files, ["quiet"])] == [1, 2, 3]
    assert not command.merged(files, ["slow"])
