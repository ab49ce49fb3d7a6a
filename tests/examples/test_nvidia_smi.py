"""A log of nvidia-smi becomes rows that slowrank reads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from examples.nvidia_smi import METRICS, rows
from slowrank.telemetry import NodeSample
from streams.files.record_builder import read_records
from streams.pipeline import local_pipeline

SCRIPT = Path(__file__).resolve().parents[2] / "examples/nvidia_smi.py"
NAMES = ["timestamp", "index", *METRICS]


def log(*lines):
    return [", ".join(line) + "\n" for line in lines]


def converted(tmp_path, lines, *arguments):
    (tmp_path / "gpus.csv").write_text("".join(lines))
    command = [sys.executable, str(SCRIPT), str(tmp_path / "gpus.csv"), "--node", "n", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("units", [True, False])
def test_every_column_is_read_in_the_units_of_records(tmp_path, units):
    """With or without units; the offset of the node's local time from UTC is given."""
    unit = {"utilization.gpu": " %", "power.draw": " W", "clocks.sm": " MHz", "memory.used": " MiB"}
    values = dict.fromkeys(METRICS, "40") | {"clocks_event_reasons.active": "0x0000000000000040"}
    names = [f"{name} [{unit[name].strip()}]" if units and name in unit else name for name in NAMES]
    cells = [value + (unit.get(name, "") if units else "") for name, value in values.items()]
    lines = log(names, ["2026/11/20 09:41:12.250", "3", *cells])

    done = converted(tmp_path, lines, "--utc-offset", "2")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(row["ts"], row["node"], row["instance"]) for row in told} == {(1795160472.25, "n", "3")}
    by_metric = {row["metric"]: row["value"] for row in told}
    assert by_metric["gpu.utilization_ratio"] == pytest.approx(0.4)
    assert by_metric["gpu.clock.sm_hz"] == 40e6
    assert by_metric["gpu.memory.used_bytes"] == 40 * 2**20
    assert {row["value"] for row in told if row["metric"] == "gpu.throttle_reasons"} == {40.0, 64.0}

    (tmp_path / "gpus.ndjson").write_text(done.stdout)
    read = read_records([tmp_path / "gpus.ndjson"])
    assert (read.rows, dict(read.bad)) == (len(METRICS), {})
    assert all(isinstance(record, NodeSample) for record in read.records)


def test_gpus_that_are_read_one_after_the_other_are_all_there(tmp_path):
    """nvidia-smi stamps each row by itself, in the order of the bus or another."""
    at = [(s, [3 * place for place in range(8)], 1 if s % 10 else -1) for s in range(0, 300, 5)]
    lines = log(
        ["timestamp", "index", "power.draw [W]"],
        *(
            [f"2026/11/20 07:{s // 60:02d}:{s % 60:02d}.{ms:03d}", str(gpu), "640.00 W"]
            for s, times, turn in at
            for ms, gpu in zip(times, range(8)[::turn], strict=True)
        ),
    )
    told = [json.dumps(row) + "\n" for row in rows(lines, node="n", utc_offset=0)]
    (tmp_path / "gpus.ndjson").write_text("".join(told))
    pipeline = local_pipeline()
    read = read_records([tmp_path / "gpus.ndjson"])
    assert len(read.records) == len(at)
    assert [f.title for record in read.records for f in pipeline.process(record)] == []


def test_what_a_gpu_does_not_have_and_a_line_that_is_not_whole_are_left_out():
    lines = log(NAMES[:4], ["2026/11/20 07:41:12.250", "0", "[N/A]", "97"], ["2026/11/20 07:41"])
    assert [(row["metric"], row["value"]) for row in rows(lines, node="n", utc_offset=0)] == [
        ("gpu.memory_utilization_ratio", 0.97)
    ]


@pytest.mark.parametrize("line", [["index", "power.draw"], ["timestamp", "power.draw"]])
def test_a_log_without_times_or_gpus_is_refused(tmp_path, line):
    """With what is missing, and no traceback."""
    done = converted(tmp_path, log(line, ["1", "2"]))
    assert done.returncode == 1
    assert "gpus.csv" in done.stderr
    assert "Traceback" not in done.stderr
