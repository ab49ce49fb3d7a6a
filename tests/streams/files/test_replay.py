import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cli import app
from streams.files.record_builder import read_records
from streams.files.replay import as_ndjson, final_versions, findings_of, paced
from streams.pipeline import local_pipeline


def job_rows(*, slow=None, steps=300, ranks=16, seed=1):
    """Rows of a synchronous job; ``slow`` = (rank, from step, factor)."""
    rng, t = np.random.default_rng(seed), 1_795_160_000.0
    for step in range(steps):
        compute = 1.0 * rng.lognormal(0, 0.005, ranks)
        if slow and step >= slow[1]:
            compute[slow[0]] *= slow[2]
        whole = compute.max() + 0.1
        t += whole
        for rank in range(ranks):
            yield {
                "ts": round(t + rank * 1e-4, 5),
                "job_id": "j",
                "rank": rank,
                "node": f"n{rank // 8}",
                "gpu_index": rank % 8,
                "step": step,
                "step_seconds": round(whole, 6),
                "compute_seconds": round(compute[rank], 6),
                "wait_seconds": round(whole - compute[rank], 6),
            }


def lines(rows):
    return "".join(json.dumps(r) + "\n" for r in rows)


@pytest.fixture(scope="module")
def slow_job(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "steps.ndjson"
    path.write_text(lines(job_rows(slow=(5, 150, 1.4))))
    return path


def backtest(*args):
    return CliRunner().invoke(app, ["backtest", *map(str, args)])


@pytest.mark.parametrize(
    ("statuses", "last"),
    [
        (["suspected", "open", "resolved"], ["resolved"]),
        (["suspected", "open", "resolved", "suspected"], ["resolved"]),
        (["suspected", "open", "resolved", "suspected", "open"], ["open"]),
        (["suspected", "expired"], []),
    ],
)
def test_a_finding_that_opened_is_given_as_it_was_when_somebody_was_called(slow_job, statuses, last):
    """One that has ended and is suspected again is so no more and no less than one that never opened."""
    [finding] = final_versions(findings_of(read_records([slow_job]).records, local_pipeline()))
    versions = [replace(finding, status=status) for status in statuses]
    assert [version.status for version in final_versions(versions)] == last


def test_backtest_names_the_slow_rank_and_nobody_else(slow_job, tmp_path):
    """A rank that computes 1.4 times as long is the one finding, on its GPU, from the step it began."""
    out = tmp_path / "findings.ndjson"
    result = backtest(slow_job, "-o", out)
    assert result.exit_code == 0, result.output
    [finding] = [json.loads(line) for line in out.read_text().splitlines()]
    assert (finding["subject"]["rank"], finding["subject"]["node"]) == (5, "n0")
    assert finding["status"] == "open"
    assert finding["slowdown_ratio"] == pytest.approx(1.4, rel=0.05)
    assert finding["schema"] == "finding.v1"


def test_backtest_of_a_healthy_job_finds_nothing(tmp_path):
    """Without a slow rank there is no finding, and that is no error."""
    path = tmp_path / "healthy.ndjson"
    path.write_text(lines(job_rows()))
    result = backtest(path)
    assert (result.exit_code, result.stdout) == (0, "")


@pytest.mark.slow
def test_backtest_is_the_same_byte_for_byte_however_the_rows_are_cut(slow_job, tmp_path):
    """Two runs, and the same rows in three files, give identical output."""
    rows = slow_job.read_text().splitlines(keepends=True)
    parts = []
    for i in range(3):
        parts.append(tmp_path / f"part{i}.ndjson")
        parts[i].write_text("".join(rows[i::3]))
    once, again, cut = (
        backtest(slow_job).stdout_bytes,
        backtest(slow_job).stdout_bytes,
        backtest(*parts).stdout_bytes,
    )
    assert once
    assert once == again == cut


def test_findings_are_sorted_and_in_their_final_version(slow_job):
    """Each finding stands once, with the last it became."""
    versions = list(findings_of(read_records([slow_job]).records, local_pipeline()))
    final = final_versions(versions)
    assert len(versions) > len(final) == len({f.id for f in final})
    assert final == sorted(final, key=lambda f: (f.detected_at, f.id))
    assert final[0] == versions[-1]
    assert as_ndjson(final).count(b"\n") == len(final)


def test_problems_end_with_code_2_and_a_reason(tmp_path):
    """A missing file is explained on stderr, not traced."""
    result = backtest(tmp_path / "nowhere.csv")
    assert result.exit_code == 2
    assert "no such file" in result.stderr
    assert result.stdout == ""


def test_nothing_that_is_read_is_overwritten_by_findings(slow_job, tmp_path):
    """-o with one of the files read, also under another name, is refused before it is touched."""
    link = tmp_path / "link.ndjson"
    link.symlink_to(slow_job)
    before = slow_job.read_bytes()
    for output in (slow_job, link):
        result = backtest(slow_job, "-o", str(output))
        assert (result.exit_code, slow_job.read_bytes()) == (2, before)
        assert "is an input file" in result.stderr
    off = tables(tmp_path / "off.toml", "[detectors.peer_step]\nmode = 'off'\n")
    for option in ("--config", "--compare"):
        assert "is an input file" in backtest(slow_job, option, off, "-o", str(off)).stderr
    assert Path(off).read_text().startswith("[detectors")


def test_an_output_that_cannot_be_written_is_named(slow_job, tmp_path):
    """A folder, no folder, or a name too long for the file system: an error and no traceback."""
    for nowhere in (tmp_path, tmp_path / "none" / "f.ndjson", tmp_path / ("a" * 300)):
        result = backtest(slow_job, "-o", str(nowhere))
        assert (result.exit_code, "is a folder, or its folder does not exist" in result.stderr) == (2, True)
    if Path("/dev/full").exists():
        result = backtest(slow_job, "-o", "/dev/full")
        assert (result.exit_code, "cannot be written" in result.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
@pytest.mark.parametrize("command", ["backtest", "replay", "backtest --compare"])
def test_findings_that_cannot_be_printed_are_an_error_and_no_traceback(command, tmp_path):
    """A full disk behind stdout, and a stdout that is closed, are named."""
    job = tmp_path / "job.ndjson"
    job.write_text(lines(job_rows(slow=(2, 60, 1.3), steps=120, ranks=8)))
    other = [tables(tmp_path / "off.toml", "[detectors.peer_step]\nmode = 'off'\n")] if " " in command else []
    run = [sys.executable, "-c", "from cli import main; main()", *command.split(), *other, str(job)]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(run, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert "error: standard output cannot be written" in done.stderr
    assert ("Traceback" in done.stderr, done.returncode) == (False, 2)
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", *run]
    done = subprocess.run(shell, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, "standard output is closed" in done.stderr) == (2, True)


def test_bad_lines_are_summed_up_on_stderr(slow_job, tmp_path):
    """The findings on stdout are unharmed by a broken line, which is reported beside them."""
    path = tmp_path / "dented.ndjson"
    path.write_text("{oops\n" + slow_job.read_text())
    result = backtest(path)
    assert result.stdout_bytes == backtest(slow_job).stdout_bytes
    assert "set aside: 1 rows, undecodable" in result.stderr


def test_what_was_only_suspected_is_counted_where_nothing_was_found(tmp_path):
    """One sign of a fault that nothing else confirms is no finding, and no reason to say that all is well."""
    path = tmp_path / "hot.ndjson"
    hot = {"node": "n", "metric": "gpu.throttle_reasons"}
    used = {"node": "n", "metric": "gpu.utilization_ratio", "value": 0.99}
    rows = [
        row | {"ts": 1_795_160_000 + t, "instance": str(gpu)}
        for t in range(90)
        for gpu in range(4)
        for row in (hot | {"value": 64 if gpu == 2 and t > 30 else 0}, used)
    ]
    path.write_text(lines(rows))
    result = backtest(path)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "0 findings; 720 rows read\n1 suspicion that nothing else confirmed" in result.stderr


def test_a_rank_whose_loss_is_nan_is_not_missing(tmp_path):
    """Python writes NaN into JSON: the rest of such rows counts, and it is said how the loss was read."""
    path = tmp_path / "nan.ndjson"
    late = {"rank": 3, "loss": float("nan")}
    rows = job_rows(steps=120, ranks=8)
    path.write_text(lines(row | (late if row["rank"] == 3 and row["step"] > 60 else {}) for row in rows))
    result = backtest(path)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "0 findings; 960 rows read" in result.stderr
    assert "set aside" not in result.stderr
    assert "job j: loss is NaN in 59 rows: they count as without it" in result.stderr


@pytest.mark.slow
def test_wall_clock_steps_alone_are_said_not_to_name_a_rank(slow_job, tmp_path):
    """Silence about a trace without compute times and waits is explained; with one of them it is not."""
    path = tmp_path / "wall.ndjson"
    rows = [json.loads(line) for line in slow_job.read_text().splitlines()]
    path.write_text(lines({k: row[k] for k in ("ts", "rank", "step", "step_seconds")} for row in rows))
    assert "no row has compute_seconds, wait_seconds or comm_seconds" in backtest(path).stderr
    assert "compute_seconds" not in backtest(slow_job).stderr
    waits = ({"wait_seconds": 0.1} | {k: v for k, v in row.items() if k != "compute_seconds"} for row in rows)
    path.write_text(lines(waits))
    assert "compute_seconds" not in backtest(path).stderr


def test_doubts_about_steps_are_told_and_do_not_run_on(tmp_path):
    """A file that nothing can be found in is explained, however many jobs it has."""
    path = tmp_path / "short.ndjson"
    path.write_text(
        lines(row | {"job_id": f"j{job:02d}"} for job in range(12) for row in job_rows(steps=2, ranks=2))
    )
    told = backtest(path).stderr.splitlines()
    assert [line for line in told if line.startswith("job ")] == [
        f"job j{job:02d}: 2 steps are few: 60 show a rank that gets 10 % slower halfway, 40 one of 20 %"
        for job in range(10)
    ]
    assert told[-1] == "and 2 more such warnings"


def test_an_old_trace_is_not_sent_where_it_would_be_set_aside(slow_job, tmp_path):
    """What the workers would refuse by its age is refused before anything is sent."""
    path = tmp_path / "old.ndjson"
    path.write_text(lines(row | {"ts": row["ts"] - 1e8} for row in job_rows(steps=2)))
    result = CliRunner().invoke(app, ["replay", "--kafka", str(path)])
    assert result.exit_code == 2
    assert "Replay it without --kafka" in result.stderr


def test_replay_tells_of_the_finding_as_it_opens(slow_job):
    """Replay prints a line per opening or change of status."""
    result = CliRunner().invoke(app, ["replay", str(slow_job)])
    assert result.exit_code == 0, result.output
    assert "open" in result.stdout
    assert "rank 5" in result.stdout


@pytest.mark.parametrize("speed", ["fast", "0x", "-3", "nan"])
def test_a_speed_that_is_none_is_refused(slow_job, speed):
    """--speed wants a positive multiple."""
    result = CliRunner().invoke(app, ["replay", str(slow_job), "--speed", speed])
    assert result.exit_code == 2
    assert "--speed" in result.stderr


def test_pacing_sleeps_what_event_time_asks_divided_by_the_speed(slow_job):
    """At 60x a minute of records takes a second."""
    records, now, slept = read_records([slow_job]).records, [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    assert list(paced(records, speed=60.0, clock=lambda: now[0], sleep=sleep)) == records
    assert sum(slept) == pytest.approx((records[-1].ts - records[0].ts) / 60)


def tables(path, text):
    path.write_text(text)
    return path


@pytest.mark.slow
def test_backtest_goes_by_the_file_it_is_given(slow_job, tmp_path):
    """With the detector off nothing is found, in shadow it is found and marked."""
    off = tables(tmp_path / "off.toml", '[detectors.peer_step]\nmode = "off"')
    shadow = tables(tmp_path / "shadow.toml", '[jobs."j*".detectors.peer_step]\nmode = "shadow"')
    assert backtest(slow_job, "--config", off).stdout == ""
    [finding] = [json.loads(line) for line in backtest(slow_job, "--config", shadow).stdout.splitlines()]
    assert (finding["shadow"], finding["subject"]["rank"]) == (True, 5)


def test_backtest_goes_by_slowrank_toml_where_it_stands(slow_job, tmp_path, monkeypatch):
    """As every other process does."""
    monkeypatch.chdir(tmp_path)
    tables(tmp_path / "slowrank.toml", '[detectors.peer_step]\nmode = "off"')
    result = backtest(slow_job)
    assert (result.exit_code, result.stdout) == (0, "")


@pytest.mark.slow
def test_backtest_says_what_another_file_would_change(slow_job, tmp_path):
    """As text with a summary, or as NDJSON."""
    off = tables(tmp_path / "off.toml", '[detectors.peer_step]\nmode = "off"')
    result = backtest(slow_job, "--compare", off)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("gone")
    assert "rank 5" in result.stdout
    assert "1 finding before, 0 after: 0 opened, 1 gone, 0 changed, 0 the same" in result.stderr
    [line] = backtest(slow_job, "--compare", off, "-o", "-").stdout.splitlines()
    assert json.loads(line)["before"]["subject"]["rank"] == 5


@pytest.mark.parametrize("option", ["--config", "--compare"])
def test_tables_that_cannot_be_used_end_the_backtest(option, slow_job, tmp_path):
    """Before anything is read, with what is wrong."""
    wrong = tables(tmp_path / "wrong.toml", "[detectors.peer_step]\nmin_effect = 7")
    for path, said in ((wrong, "min_effect = 7"), (tmp_path / "none.toml", "no such file")):
        result = backtest(slow_job, option, path)
        assert (result.exit_code, result.stdout) == (2, "")
        assert said in result.stderr
