"""The short form of `make rig`: a rank that is stopped, one whose user code is slow; and how the rig ends."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from servers.process import Process, wait_until

from benchmarks.rig.network import NotPermitted, check_permitted, run
from tests.priority import COMES_FIRST

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(280)]


@pytest.fixture(autouse=True)
def permitted():
    try:
        check_permitted()
    except NotPermitted as error:
        pytest.skip(str(error))


def test_faults_of_real_processes_are_found(tmp_path):
    """The rank is named; by when is a matter for `make rig`, on a machine of its own."""
    results = tmp_path / "rig.json"
    options = [
        "--fault",
        "sigstop",
        "--fault",
        "slow",
        "--runs",
        "1",
        "--clusters",
        "2",
        "--device",
        "0.25",
        "--json",
        str(results),
    ]
    done = subprocess.run(
        # Before other tests and behind the ranks, as on its own machines; who may make namespaces may do so.
        [*COMES_FIRST, sys.executable, "-m", "benchmarks.rig", *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "scripts")},
        capture_output=True,
        text=True,
        timeout=270,
    )
    assert results.exists(), done.stderr[-3000:]
    found = {run["fault"]: run["kind"] for run in json.loads(results.read_text())["runs"]}
    assert found == {"sigstop": "hang.job", "slow": "straggler.fail_slow"}, done.stdout + done.stderr[-3000:]


@pytest.mark.parametrize(
    ("number", "begun"),
    [(signal.SIGTERM, "*-rank0.log"), (signal.SIGINT, "run")],
    ids=["terminated in training", "interrupted in the start"],
)
def test_a_signal_ends_all_that_the_rig_started(tmp_path, number, begun):
    home, command = tmp_path / "home", [sys.executable, "-m", "benchmarks.rig", "--fault", "sigstop"]
    rig = subprocess.Popen(
        [*command, "--home", str(home), "--json", ""],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "scripts")},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: any(home.glob(begun)), seconds=150, what="the rig's start")
        started = _started(rig.pid)
        rig.send_signal(number)
        _, errors = rig.communicate(timeout=100)
    finally:
        rig.kill()
    assert rig.returncode == 128 + number, errors
    processes = [process for inside in started.values() for process in inside]
    assert processes
    # Kafka's tool that formats a disk is a script: its JVM ends by itself, within seconds.
    wait_until(lambda: not any(process.alive() for process in processes), seconds=10, what="the rig's end")
    assert not started.keys() & set(run("ip", "netns", "list").split())
    assert str(home) not in Path("/proc/mounts").read_text()


def _started(rig):
    """Return the processes of the rig with the process id ``rig``, by network namespace."""
    hub = f"sr{rig}-hub"
    # The nodes' namespaces have the process id of the rig inside the hub in their names.
    owners = tuple(f"sr{pid}-" for pid in run("ip", "netns", "pids", hub).split())
    names = [line.split()[0] for line in run("ip", "netns", "list").splitlines()]
    return {
        name: [Process.of(int(pid)) for pid in run("ip", "netns", "pids", name).split()]
        for name in names
        if name == hub or name.startswith(owners)
    }
