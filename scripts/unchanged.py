"""Pytest plugin: a slow test that passed on exactly this tree is not run again.

`make test` loads it outside CI. The tree is every file that git tracks or would track: any edit makes all
slow tests run again. The end of the run reports how many were skipped.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

CACHE_KEY = "slowrank/slow_passed"


def digest_of_tree(root: Path) -> str:
    """Return a hash over the names and contents of all files of the checkout, and the Python version."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=root, capture_output=True, check=True
    )
    digest = hashlib.sha256(sys.version.encode())
    for name in sorted(filter(None, listed.stdout.split(b"\0"))):
        path = root / name.decode()
        digest.update(name + b"\0" + (path.read_bytes() if path.is_file() else b"") + b"\0")
    return digest.hexdigest()


class Unchanged:
    """Remembers which slow tests passed on which tree."""

    def __init__(self, config: pytest.Config) -> None:
        self._cache = config.cache
        self._tree = digest_of_tree(config.rootpath)
        remembered = self._cache.get(CACHE_KEY, {}) if self._cache else {}
        self._passed = set(remembered.get(self._tree, ()))
        self._left_out = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect the slow tests that passed on this tree."""
        passed = [item for item in items if item.nodeid in self._passed]
        self._left_out = len(passed)
        if passed:
            config.hook.pytest_deselected(items=passed)
            items[:] = [item for item in items if item.nodeid not in self._passed]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember a slow test that passed."""
        if report.when == "call" and report.passed and "slow" in report.keywords:
            self._passed.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Store this tree's list and drop those of older trees; with several processes, in the main one."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["left_out"] = self._left_out
        # Not when a file was edited during the run: the tests then passed on some other tree.
        elif self._cache and digest_of_tree(Path.cwd()) == self._tree:
            self._cache.set(CACHE_KEY, {self._tree: sorted(self._passed)})

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Read from a worker how many tests were left out; every worker leaves out the same ones."""
        self._left_out = getattr(node, "workeroutput", {}).get("left_out", self._left_out)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Report the number of tests that were not run."""
        if self._left_out:
            terminalreporter.write_line(
                f"slow tests: {self._left_out} passed before on exactly this tree and were not run again "
                "(make test FRESH=1 runs them)"
            )


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin."""
    config.pluginmanager.register(Unchanged(config), "slowrank-unchanged")
