import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SLOWRANK = str(Path(sys.executable).with_name("slowrank"))


@pytest.fixture
def slowrank(tmp_path):
    """Run ``slowrank exporter`` with a folder and a socket of its own."""

    def run(*arguments, **environ):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SLOWRANK_")}
        own = {
            "SLOWRANK_EXPORTER_LISTEN": str(tmp_path / "s.sock"),
            "SLOWRANK_EXPORTER_SPOOL_DIR": str(tmp_path),
        }
        return subprocess.run(
            [SLOWRANK, "exporter", *arguments],
            env=clean | own | environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def test_once_prints_this_node_without_kafka(slowrank):
    """``exporter once`` shows real telemetry of this machine as JSON rows, named by node and cluster."""
    done = slowrank("once", "--node", "n7", "--cluster", "lab", "--seconds", "0.2")

    rows = [json.loads(line) for line in done.stdout.splitlines()]
    metrics = {row["metric"]: row["value"] for row in rows}
    assert done.returncode == 0
    assert {(row["node"], row["cluster"], row["kind"]) for row in rows} == {("n7", "lab", "sample")}
    assert metrics["host.memory.total_bytes"] > 0
    assert 0 <= metrics["host.cpu.utilization_ratio"] <= 1


@pytest.mark.parametrize("variable", ["SLOWRANK_NODE", "NODE_NAME", "SLURMD_NODENAME"])
def test_the_node_is_named_by_its_launcher(slowrank, variable):
    """The node's name comes from the settings, the downward API or Slurm."""
    done = slowrank("once", "--seconds", "0", **{variable: "gpu-0042"})

    assert json.loads(done.stdout.splitlines()[0])["node"] == "gpu-0042"


def test_a_node_reports_where_it_stands(slowrank):
    """Rack and switch of the settings go with every sample; unset fields are left out."""
    done = slowrank("once", "--seconds", "0", SLOWRANK_RACK="r12", SLOWRANK_SWITCH="leaf-3")
    bare = slowrank("once", "--seconds", "0", SLOWRANK_RACK="", SLOWRANK_SWITCH="leaf-3")

    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"rack": "r12", "switch": "leaf-3"} in [
        row.get("labels") for row in told if row["kind"] == "sample"
    ]
    assert json.loads(bare.stdout.splitlines()[0])["labels"] == {"switch": "leaf-3"}


@pytest.mark.slow
def test_a_run_without_a_broker_keeps_its_records(slowrank, tmp_path):
    """``run --once`` with no broker at the address prints an error, ends with 1 and leaves the record
    spooled."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
    done = slowrank("run", "--once", "--kafka", nobody)

    assert done.returncode == 1
    assert "2 records were not acknowledged" in done.stderr  # the sample and the event of the boot
    assert (tmp_path / "spool.sqlite").stat().st_size > 0


@pytest.mark.slow
def test_records_in_memory_are_not_reported_as_kept(slowrank, tmp_path):
    """Without a folder to write to, the end of the process is the end of what was not sent."""
    (tmp_path / "file").touch()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
    done = slowrank("run", "--once", "--kafka", nobody, "--spool", str(tmp_path / "file"))

    assert done.returncode == 1
    assert "those in memory are lost" in done.stderr
    assert "they wait in the spool" not in done.stderr


def test_a_taken_address_is_explained(slowrank):
    """A second exporter prints which socket is taken and the next step."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        done = slowrank("once", "--listen", f"127.0.0.1:{other.getsockname()[1]}")

    assert done.returncode == 2
    assert "in use" in done.stderr
    assert "--listen" in done.stderr


def test_wrong_settings_are_explained(slowrank):
    """A setting that cannot be is refused with its name."""
    done = slowrank("once", SLOWRANK_EXPORTER_INTERVAL_SECONDS="-3")

    assert done.returncode == 2
    assert "exporter_interval_seconds" in done.stderr


def test_the_gpus_are_let_go_and_read_again_on_demand(slowrank, tmp_path):
    """``release`` writes for how long, ``--end`` takes it back, and neither follows a link."""
    switch = tmp_path / "run" / "release-gpus"
    released = slowrank("release", "--minutes", "5", SLOWRANK_EXPORTER_RELEASE_FILE=str(switch))
    assert released.returncode == 0
    assert switch.read_text() == "300\n"

    ended = slowrank("release", "--end", SLOWRANK_EXPORTER_RELEASE_FILE=str(switch))
    assert ended.returncode == 0
    assert not switch.exists()

    switch.symlink_to(tmp_path / "elsewhere")
    refused = slowrank("release", SLOWRANK_EXPORTER_RELEASE_FILE=str(switch))
    assert refused.returncode == 2
    assert "as root" in refused.stderr
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.slow
def test_a_running_exporter_notifies_systemd_of_its_ticks(tmp_path):
    """Under Type=notify each tick is a sign of life, broker or not."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(30)
        own = {
            "SLOWRANK_EXPORTER_LISTEN": str(tmp_path / "s.sock"),
            "SLOWRANK_EXPORTER_SPOOL_DIR": str(tmp_path),
            "SLOWRANK_KAFKA_BOOTSTRAP": "127.0.0.1:1",
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
        }
        run = subprocess.Popen(
            [SLOWRANK, "exporter", "run", "--interval", "0.2"],
            env=os.environ | own,
            cwd=tmp_path,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert {systemd.recv(100) for _ in range(3)} == {b"READY=1\nWATCHDOG=1"}
        finally:
            run.terminate()
            run.wait(30)


@pytest.mark.slow
def test_a_missing_broker_is_one_line_that_says_what_to_do(tmp_path):
    """The client library's lines for each attempt to connect would hide it."""
    own = {
        "SLOWRANK_EXPORTER_LISTEN": str(tmp_path / "s.sock"),
        "SLOWRANK_EXPORTER_SPOOL_DIR": str(tmp_path),
        "SLOWRANK_KAFKA_BOOTSTRAP": "127.0.0.1:1",
    }
    command = [SLOWRANK, "exporter", "run", "--interval", "0.2"]
    with subprocess.Popen(
        command, env=os.environ | own, cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stderr is not None
        lines = []
        for line in run.stderr:
            lines.append(line)
            if "cannot publish" in line:
                break
        run.terminate()
    assert "is the broker up, and were the topics created" in lines[-1]
    assert not [line for line in lines[:-1] if "Kafka" in line and "default to Kafka at" not in line]
