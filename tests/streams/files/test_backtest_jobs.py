"""`slowrank backtest` on files of step rows alone: what a job's finding says, from the file to its JSON."""

import dataclasses
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.detection.step_jobs import synchronous
from cli import app
from tests.streams.job.job_tables import healthy, layout, packed

RANKS, ONSET = 16, 150


def found(path, table, *, columns=("compute", "wait"), placed=False):
    """Write a table as NDJSON and return the findings that `slowrank backtest` prints.

    ``placed``: rows say on which node and GPU their rank runs, eight to a node.
    """
    rows = []
    for s, number in enumerate(table.numbers.tolist()):
        for r in range(table.compute.shape[1]):
            row = {
                "ts": float(table.ts[s]),
                "step": number,
                "rank": r,
                "step_seconds": float(table.step[s, r]),
            }
            row |= {"node": f"n{r // 8}", "gpu_index": r % 8} if placed else {}
            row |= {f"{name}_seconds": float(getattr(table, name)[s, r]) for name in columns}
            rows.append(row | {name: places[r] for name, places in table.coords.items()})
    file = path / "job.ndjson"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = CliRunner().invoke(app, ["backtest", str(file)])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def seconds_of(time):
    return np.datetime64(time.removesuffix("Z")).astype("datetime64[ms]").astype(float) / 1000.0


@pytest.mark.slow
@pytest.mark.parametrize("coords", [None, layout(RANKS, 4)])
@pytest.mark.parametrize("columns", [("compute",), ("wait",), ("compute", "wait")])
def test_a_slow_rank_is_the_only_finding(tmp_path, coords, columns):
    """Rank, onset and delay are in event time, whatever of the step was measured."""
    work = healthy(steps=300)
    work[ONSET:, 5] *= 1.2
    table = synchronous(work, overhead=0.05, coords=coords)
    [finding] = found(tmp_path, table, columns=columns)
    assert (finding["kind"], finding["subject"]["rank"]) == ("straggler.fail_slow", 5)
    assert abs(seconds_of(finding["onset"]) - table.ts[ONSET]) < 3.0
    assert 0 < seconds_of(finding["detected_at"]) - table.ts[ONSET] < 20.0


@pytest.mark.parametrize("coords", [None, layout(RANKS, 4)])
def test_transfers_alone_show_a_slow_rank_if_they_contain_the_waiting(tmp_path, coords):
    """They are shortest on the rank that the others wait for."""
    work = healthy(steps=300)
    work[ONSET:, 5] *= 1.2
    table = synchronous(work, overhead=0.05, coords=coords)
    assert table.wait is not None
    table = dataclasses.replace(table, comm=table.wait + 0.05)
    [finding] = found(tmp_path, table, columns=("comm",))
    assert (finding["kind"], finding["subject"]["rank"]) == ("straggler.fail_slow", 5)
    assert 0 < seconds_of(finding["detected_at"]) - table.ts[ONSET] < 20.0


@pytest.mark.parametrize("slowdown", [1.0, 1.2])
def test_transfers_without_the_waiting_accuse_no_rank(tmp_path, slowdown):
    """Those of some ranks may be shorter for good, and vary."""
    rng = np.random.default_rng(8)
    work = healthy(steps=300)
    work[ONSET:, 5] *= slowdown
    own = rng.uniform(0.1, 0.3, RANKS) * rng.lognormal(0.0, 0.1, work.shape)
    table = dataclasses.replace(synchronous(work, overhead=0.4), comm=own)
    assert [f for f in found(tmp_path, table, columns=("comm",)) if "rank" in f["subject"]] == []


@pytest.mark.parametrize("columns", [("compute", "wait"), ("wait",)])
def test_a_rank_that_stalls_now_and_then_is_told_with_how_long(tmp_path, columns):
    work = healthy(steps=500)
    work[ONSET::60, 5] += 6.0
    table = synchronous(work, overhead=0.05)
    [finding] = found(tmp_path, table, columns=columns)
    assert (finding["kind"], finding["subject"]["rank"]) == ("straggler.intermittent", 5)
    assert finding["evidence"][0]["metric"] == "step_seconds.stalled"
    assert finding["evidence"][0]["value"] == pytest.approx(6.0, abs=0.1)
    assert abs(seconds_of(finding["onset"]) - table.ts[ONSET - 1]) < 1.0


def test_a_node_that_stalls_as_a_whole_is_told_as_the_node(tmp_path):
    """Its storage or host stalls; which of its ranks takes longest changes each time."""
    work = healthy(steps=500, ranks=32)
    longer = 6.0 + 0.5 * np.random.default_rng(2).random(work[ONSET::60, 8:16].shape)
    work[ONSET::60, 8:16] += longer
    [finding] = found(tmp_path, synchronous(work, overhead=0.05), placed=True)
    assert (finding["kind"], finding["subject"]["type"]) == ("straggler.intermittent", "node")
    assert finding["gpu_hours_lost"] == pytest.approx(32 * longer.max(axis=1).sum() / 3600, rel=0.2)


@pytest.mark.parametrize("stalling", [range(5, 6), range(8, 16)], ids=["a rank", "a node"])
def test_stalls_in_loading_are_told_as_such(tmp_path, stalling):
    """The action is to look at the loader."""
    table = synchronous(healthy(steps=500, ranks=32), overhead=0.05)
    data = np.full_like(table.step, 0.02)
    data[ONSET::60, list(stalling)] += 6.0
    step = table.step + data.max(axis=1, keepdims=True)
    ts = table.ts[0] + np.cumsum(step[:, 0])
    table = dataclasses.replace(table, data=data, step=step, wait=step - table.compute - data, ts=ts)
    [finding] = found(tmp_path, table, columns=("compute", "wait", "data"), placed=True)
    assert finding["kind"] == "straggler.intermittent"
    assert finding["subject"]["type"] == ("gpu" if len(stalling) == 1 else "node")
    assert (finding["cause"]["hypothesis"], finding["action"]["code"]) == ("data.loader_slow", "CHECK_DATA")


@pytest.mark.parametrize("coords", [None, layout(RANKS, 4)])
def test_a_long_stage_is_a_finding_without_a_rank(tmp_path, coords):
    """The stage is named where coordinates tell of stages."""
    work = healthy(steps=300)
    work[:, 12:] *= 1.4
    [finding] = found(tmp_path, synchronous(work, overhead=0.05, coords=coords))
    assert (finding["kind"], finding["cause"]["hypothesis"]) == ("straggler.job_wide", "imbalance.stage")
    assert (finding["subject"]["type"], finding["subject"].get("rank")) == ("job", None)
    assert (finding["subject"].get("coords") or {}) == ({"pp": 3} if coords else {})


def test_uneven_work_is_a_finding_without_a_rank(tmp_path):
    """Batches that differ by chance are the job's, at most a warning."""
    [finding] = found(tmp_path, synchronous(healthy(steps=300) * packed(steps=300), overhead=0.05))
    assert finding["cause"]["hypothesis"] == "imbalance.workload"
    assert finding["subject"].get("rank") is None
    assert finding["severity"] in ("info", "warning")


@pytest.mark.parametrize("uneven", [True, False])
def test_transfers_that_become_slower_beside_uneven_work_have_their_own_onset_and_cost(tmp_path, uneven):
    """The packing costs since the start; with even work the transfers are all there is, and cost as much."""
    work = healthy(steps=300) * (packed(steps=300) if uneven else 1.0)
    table = synchronous(work)
    comm = np.full_like(work, 0.05)
    comm[ONSET:] *= 8.0
    step = table.step + comm
    table = dataclasses.replace(table, comm=comm, step=step, ts=table.ts[0] + np.cumsum(step[:, 0]))
    *work_of, transfers = found(tmp_path, table, columns=("compute", "wait", "comm"))
    assert [f["cause"]["hypothesis"] for f in work_of] == ["imbalance.workload"] * uneven
    assert all(seconds_of(f["onset"]) <= table.ts[1] for f in work_of)
    assert transfers["cause"]["hypothesis"] == "congestion"
    assert abs(seconds_of(transfers["onset"]) - table.ts[ONSET]) < 3.0
    truth = RANKS * 0.35 * (300 - ONSET) / 3600
    assert transfers["gpu_hours_lost"] == pytest.approx(truth, rel=0.2)


@pytest.mark.parametrize(
    ("columns", "cause"),
    [
        (("compute", "wait", "comm"), "congestion"),
        (("compute", "comm"), "congestion"),
        (("compute", "wait"), "unmeasured"),
    ],
)
def test_transfers_that_are_long_in_single_steps_are_one_finding(tmp_path, columns, cause):
    """As over a link that flaps, in one step of eight; with what these steps took longer as its cost."""
    table = synchronous(healthy(steps=400))
    long = np.flatnonzero(np.random.default_rng(4).random(400 - ONSET) < 0.12) + ONSET
    comm = np.full_like(table.compute, 0.1)
    comm[long] += 0.9
    step = table.step + comm
    waits = table.step - table.compute
    table = dataclasses.replace(
        table,
        comm=comm if "wait" in columns else comm + waits,
        step=step,
        ts=table.ts[0] + np.cumsum(step[:, 0]),
    )
    [finding] = found(tmp_path, table, columns=columns)
    assert (finding["kind"], finding["cause"]["hypothesis"]) == ("straggler.job_wide", cause)
    assert (finding["severity"], finding["status"]) == ("warning", "open")
    assert ("again and again" in finding["title"]) == (cause == "congestion")
    assert abs(seconds_of(finding["onset"]) - table.ts[long[0]]) < 1.0
    assert finding["gpu_hours_lost"] == pytest.approx(RANKS * 0.9 * len(long) / 3600, rel=0.1)
    assert finding["job_slowdown_ratio"] == pytest.approx(1.0 + 0.12 * 0.9 / 1.1, abs=0.03)


@pytest.mark.parametrize(("columns", "cause"), [(("compute", "data"), "data"), (("compute",), "unmeasured")])
def test_a_wait_of_all_ranks_is_a_finding_without_a_rank(tmp_path, columns, cause):
    """It says since when, what it costs, and where to look."""
    work = healthy(steps=300)
    table = synchronous(work, overhead=0.05)
    data = np.full_like(work, 0.02)
    data[ONSET:] += 0.4
    step = table.step + data
    table = dataclasses.replace(
        table, data=data, step=step, wait=step - work - data, ts=table.ts[0] + np.cumsum(step[:, 0])
    )
    [finding] = found(tmp_path, table, columns=columns)
    assert (finding["kind"], finding["cause"]["hypothesis"]) == ("straggler.job_wide", cause)
    assert (finding["severity"], finding["subject"].get("rank")) == ("warning", None)
    assert finding["action"]["code"] == ("CHECK_DATA" if cause == "data" else "CHECK_APP")
    assert finding["job_slowdown_ratio"] == pytest.approx(1.37, abs=0.03)
    assert abs(seconds_of(finding["onset"]) - table.ts[ONSET]) < 3.0


@pytest.mark.slow
@pytest.mark.parametrize("coords", [None, layout(RANKS, 4)])
@pytest.mark.parametrize("change", ["none", "slower", "faster", "growing", "alternating", "pauses"])
def test_healthy_jobs_and_planned_changes_give_nothing(tmp_path, change, coords):
    """What all ranks do at the same step is no fault, declared or not."""
    work = healthy(steps=300)
    match change:
        case "slower":
            work[ONSET:] *= 1.5
        case "faster":
            work[ONSET:] *= 0.6
        case "growing":
            work *= np.linspace(1.0, 1.4, len(work))[:, None]
        case "alternating":
            work[ONSET::2] *= 1.06
        case "pauses":
            work[ONSET::25] *= 4.0
        case _:
            pass
    assert found(tmp_path, synchronous(work, overhead=0.05, coords=coords)) == []


def tensor_parallel(slowdowns, *, begin=100, end=None):
    """A job of dp=4, pp=2, tp=4 whose compute includes the collectives of its tensor-parallel groups."""
    places = np.arange(32)
    coords = {"tp": places % 4, "dp": places // 4 % 4, "pp": places // 16}
    work = healthy(steps=300, ranks=32)
    for rank, ratio in slowdowns.items():
        work[begin:end, rank] *= ratio
    work = work.reshape(300, 8, 4).max(axis=2).repeat(4, axis=1)
    return synchronous(work, overhead=0.05, coords={name: at.tolist() for name, at in coords.items()})


@pytest.mark.slow
@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("end", [None, 180])
def test_a_slow_tensor_parallel_group_is_one_finding(tmp_path, end, placed):
    """All of its ranks show what one of them has: they are its suspects, and the job's loss is told once."""
    table = tensor_parallel({9: 1.2}, end=end)
    [finding] = found(tmp_path, table, placed=placed)
    # What is over after eighty steps has cost the job less than half a minute.
    urgency = "critical" if end is None else "error"
    assert (finding["kind"], finding["severity"]) == ("straggler.fail_slow", urgency)
    assert (finding["subject"]["type"], finding["subject"]["coords"]) == ("group", {"dp": 2, "pp": 0})
    assert [(s["subject"]["rank"], s["probability"]) for s in finding["suspects"]] == [
        (rank, 0.25) for rank in range(8, 12)
    ]
    assert finding["job_slowdown_ratio"] == pytest.approx(1.18, abs=0.02)
    assert finding["action"]["code"] == "RUN_DIAG"
    named = "n1 GPUs 0, 1, 2, 3 (ranks 8, 9, 10, 11)" if placed else "ranks 8, 9, 10, 11 of job"
    assert named in finding["action"]["text"]
    assert abs(seconds_of(finding["onset"]) - table.ts[100]) < 3.0
    assert 0 < seconds_of(finding["detected_at"]) - table.ts[100] < 10.0


@pytest.mark.slow
@pytest.mark.parametrize("placed", [True, False])
def test_a_group_that_no_coordinates_tell_is_one_finding(tmp_path, placed):
    """Without nodes, too: ranks in a row that alone of eight became slow together."""
    table = dataclasses.replace(tensor_parallel({9: 1.2}), coords={})
    [finding] = found(tmp_path, table, placed=placed)
    subject = finding["subject"]
    assert (finding["severity"], subject["type"]) == ("critical", "group")
    assert (subject.get("node"), subject["ranks"]) == ("n1" if placed else None, "8-11")
    assert [s["subject"]["rank"] for s in finding["suspects"]] == [8, 9, 10, 11]


@pytest.mark.slow
@pytest.mark.parametrize("placed", [True, False])
def test_asynchronous_checkpoints_of_the_first_ranks_accuse_nobody(tmp_path, placed):
    """Each writes for its node for some steps; where rows name no node, likely ones show it."""
    work = healthy(steps=400, ranks=16)
    for begin in range(60, 400, 50):
        work[begin : begin + 5, ::8] *= 1.2
    assert found(tmp_path, synchronous(work, overhead=0.05), placed=placed) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "subjects"), [((9, 14), ["node"]), ((1, 9), ["group", "group"]), ((9,), ["group"])]
)
def test_slow_groups_are_told_by_node_where_they_fill_one(tmp_path, ranks, subjects):
    """Two groups of one node are the node; on different nodes each has a cause of its own."""
    found_in = found(tmp_path, tensor_parallel(dict.fromkeys(ranks, 1.2)), placed=True)
    assert [f["subject"]["type"] for f in found_in] == subjects


def test_work_that_wanders_is_one_finding_about_the_job(tmp_path):
    """Rank after rank takes 1.4 times as long for a dozen steps: once that shows, nobody is accused."""
    compute = healthy(330, RANKS, noise=0.02)
    for k, step in enumerate(range(100, 330, 15)):
        compute[step : step + 12, 5 * k % RANKS] *= 1.4
    lines = found(tmp_path, synchronous(compute), placed=True)
    ranks = [line for line in lines if line["subject"]["type"] == "gpu"]
    assert len(ranks) <= 2
    assert {line["status"] for line in ranks} <= {"resolved"}
    (job,) = (line for line in lines if line["subject"]["type"] == "job")
    assert (job["kind"], job["cause"]["hypothesis"]) == ("straggler.job_wide", "imbalance.workload")
    assert job["severity"] in ("info", "warning")


def test_a_rank_slow_for_good_is_named_where_work_wanders(tmp_path):
    """It is slow for longer than any spell of the others."""
    compute = healthy(400, RANKS, noise=0.02)
    for k, step in enumerate(range(100, 400, 15)):
        compute[step : step + 12, 7 * k % (RANKS - 1)] *= 1.4
    compute[220:, RANKS - 1] *= 1.4
    lines = found(tmp_path, synchronous(compute), placed=True)
    standing = [line for line in lines if line["subject"]["type"] == "gpu" and line["status"] == "open"]
    assert [line["subject"]["rank"] for line in standing] == [RANKS - 1]


def test_every_tenth_step_of_a_rank_is_slowness_on_and_off(tmp_path):
    """At three times its peers' work in a tenth of the steps, it costs the job a sixth."""
    compute = healthy(300, RANKS)
    compute[ONSET::10, 3] *= 3.0
    (line,) = found(tmp_path, synchronous(compute), placed=True)
    assert (line["kind"], line["subject"]["rank"]) == ("straggler.intermittent", 3)
    assert line["slowdown_ratio"] == pytest.approx(3.0, rel=0.05)
    assert line["job_slowdown_ratio"] == pytest.approx(1.2, abs=0.05)


def test_collections_of_all_ranks_are_no_finding(tmp_path):
    """Every rank takes twice as long in every fortieth step, each at its own time."""
    compute = healthy(300, RANKS)
    begin = np.random.default_rng(2).integers(0, 40, RANKS)
    compute *= np.where((np.arange(300)[:, None] + begin) % 40 == 0, 2.0, 1.0)
    assert found(tmp_path, synchronous(compute), placed=True) == []


def test_a_rank_slow_on_and_off_is_one_finding_that_tells_what_it_is_while_slow(tmp_path):
    """Twenty steps at 1.4 times its usual time, forty well, again and again."""
    compute = healthy(500, RANKS, noise=0.02)
    for step in range(ONSET, 500, 60):
        compute[step : step + 20, 3] *= 1.4
    (line,) = found(tmp_path, synchronous(compute), placed=True)
    assert (line["kind"], line["subject"]["rank"]) == ("straggler.intermittent", 3)
    assert line["slowdown_ratio"] == pytest.approx(1.4, rel=0.05)
    assert "again and again (1.4" in line["title"] or "again and again (1.3" in line["title"]
