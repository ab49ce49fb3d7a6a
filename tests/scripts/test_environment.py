"""scripts/environment.py on machines that lack something: it says what, and what to do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from servers.process import ROOT


def run(tmp_path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/environment.py"), str(tmp_path / "new"), "build"]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)


def test_python_without_venv_names_the_package_to_install(tmp_path):
    """Debian ships Python without ensurepip: the message holds the command that adds it."""
    (tmp_path / "ensurepip.py").write_text("raise ImportError")
    done = run(tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert f"apt-get install python3.{sys.version_info[1]}-venv" in done.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_failed_installation_leaves_no_stamp(tmp_path):
    """When no index can be reached the make target stays undone, so the next `make` tries again."""
    done = run(
        tmp_path,
        PIP_INDEX_URL="http://127.0.0.1:9/",
        PIP_FIND_LINKS="",
        PIP_RETRIES="0",
        PIP_NO_CACHE_DIR="1",
    )
    assert done.returncode == 1
    assert "install … failed" in done.stderr.replace("`", "")
    assert not (tmp_path / "new/installed").exists()
