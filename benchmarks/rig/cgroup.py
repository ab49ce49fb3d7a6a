"""A CPU quota for processes, by control groups of either version."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class NoQuota(RuntimeError):
    """The kernel has no CPU controller that can be used here."""


@contextmanager
def cpu_quota(*pids: int, microseconds: int, period: int) -> Iterator[None]:
    """Let processes together run ``microseconds`` of every ``period``. Raises ``NoQuota``."""
    with _mounted() as (root, v2):
        limits = (
            {"cpu.max": f"{microseconds} {period}"}
            if v2
            else {"cpu.cfs_period_us": str(period), "cpu.cfs_quota_us": str(microseconds)}
        )
        group = root / f"slowrank-rig-{os.getpid()}-{pids[0]}"
        group.mkdir()
        try:
            for name, value in limits.items():
                (group / name).write_text(value)
            for pid in pids:
                (group / "cgroup.procs").write_text(str(pid))
            yield
        finally:
            for pid in pids:
                # A process that has died is in no group.
                with suppress(ProcessLookupError):
                    (root / "cgroup.procs").write_text(str(pid))
            group.rmdir()


@contextmanager
def _mounted() -> Iterator[tuple[Path, bool]]:
    """Mount the CPU controller; a network namespace of ``ip netns`` has a /sys of its own, without it."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for kind, options in (("cgroup", ["-o", "cpu"]), ("cgroup2", [])):
            made = subprocess.run(
                ["mount", "-t", kind, *options, "rig", folder], capture_output=True, check=False
            )
            if made.returncode != 0:
                continue
            try:
                if kind == "cgroup":
                    yield root, False
                    return
                if "cpu" in (root / "cgroup.controllers").read_text().split():
                    (root / "cgroup.subtree_control").write_text("+cpu")
                    yield root, True
                    return
            finally:
                subprocess.run(["umount", "-l", folder], check=False)
    raise NoQuota("neither version of control groups has a CPU controller that can be mounted here")
