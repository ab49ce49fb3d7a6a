"""``slowrank notifier run`` as a process: what it reports when it cannot start."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def run_notifier(tmp_path):
    """Run the command with some settings until it ends."""

    def run(**settings):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SLOWRANK_")}
        command = [str(Path(sys.executable).with_name("slowrank")), "notifier", "run"]
        return subprocess.run(
            command, env=clean | settings, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )

    return run


@pytest.mark.parametrize("host", ["127.0.0.1", "nowhere.invalid"])
def test_a_metrics_address_that_cannot_be_used(run_notifier, host):
    """One line names the address and the setting; there is no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run_notifier(
            SLOWRANK_DATABASE_URL="postgresql://127.0.0.1:1/none",
            SLOWRANK_METRICS_HOST=host,
            SLOWRANK_NOTIFIER_METRICS_PORT=port,
        )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: no /metrics on {host}:{port}: ")
    assert "SLOWRANK_NOTIFIER_METRICS_PORT" in done.stderr
    assert "Traceback" not in done.stderr
