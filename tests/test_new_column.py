"""A telemetry column is one row of the schema: everything else derives from it."""

import json
import subprocess
import sys
from pathlib import Path

from slowrank.telemetry.schema import CURRENT_SAMPLE_SCHEMA

ROOT = Path(__file__).resolve().parents[1]


def test_a_new_column_is_one_row_from_the_exporter_to_the_roll_up():
    """One more row makes the next schema, which codec, JSON rows, detectors, roll-ups and simulator use."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.toy_column"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )

    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {
        "schema": [CURRENT_SAMPLE_SCHEMA + 1] * 2,
        "json": [0.25],
        "name": True,
        "detector": [0.25],
        "rollup": [0.25],
        "old": ["nan"],
    }
