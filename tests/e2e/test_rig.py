"""The short form of `make rig`: a rank that is stopped, and one whose user code is slow."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.rig.network import NotPermitted, check_permitted
from tests.priority import COMES_FIRST

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(280)
def test_faults_of_real_processes_are_found(tmp_path):
    """The rank is named; by when is a matter for `make rig`, on a machine of its own."""
    try:
        check_permitted()
    except NotPermitted as error:
        pytest.skip(str(error))
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
