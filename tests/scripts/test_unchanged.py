"""The plugin that does not repeat slow tests on an unchanged tree."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one slow and one fast test."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text(".pytest_cache/\n__pycache__/\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow: takes long\n")
    (tmp_path / "test_it.py").write_text(
        "import pytest\n\n@pytest.mark.slow\ndef test_slow(): pass\n\ndef test_fast(): pass\n"
    )
    return tmp_path


def run(checkout: Path, *options: str) -> str:
    """Run the checkout's tests with the plugin and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "unchanged", *options],
        cwd=checkout,
        env={"PYTHONPATH": str(ROOT / "scripts"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "shown"),
    [((), "1 passed, 1 deselected"), (("-n", "2"), "1 passed")],
    ids=["one process", "two processes"],
)
def test_slow_test_is_not_repeated(checkout: Path, options: tuple[str, ...], shown: str) -> None:
    """The second run leaves the slow test out, runs the fast one and reports how many were skipped."""
    assert "2 passed" in run(checkout, *options)

    again = run(checkout, *options)

    assert shown in again
    assert "slow tests: 1 passed before" in again


@pytest.mark.slow
def test_any_edit_runs_everything(checkout: Path) -> None:
    """One changed byte anywhere in the tree makes the earlier result worthless."""
    run(checkout)
    (checkout / "new.txt").write_text("x")

    assert "2 passed" in run(checkout)
