import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.priority import COMES_FIRST, FIRST

ROOT = Path(__file__).resolve().parents[2]

# Detectors that wait for a processor while other tests have it rightly report that they lag.
pytestmark = [] if FIRST else [pytest.mark.alone]


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(480)
def test_a_really_slowed_rank_rings_the_right_bell_once(kafka_bootstrap, timescale_dsn, tmp_path):
    """Real processes, real servers: silence while healthy, then one finding, of the slowed rank."""
    environ = os.environ | {"SLOWRANK_TEST_KAFKA": kafka_bootstrap, "SLOWRANK_TEST_DSN": timescale_dsn}
    command = [*COMES_FIRST, sys.executable, str(ROOT / "examples/real_input.py"), "--logs", str(tmp_path)]

    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=450)

    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout[done.stdout.index("{") :])
    assert summary["healthy_deliveries"] == 0
    assert [line.split()[0] for line in summary["deliveries"]].count("finding.opened") == 1
    assert "rank 2" in summary["deliveries"][0]
