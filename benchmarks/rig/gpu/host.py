"""``slowrank up`` on this host, started for the rig, and its findings over the HTTP API."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servers.process import Process, free_ports

from benchmarks.rig.cluster import wait
from benchmarks.rig.command import last_line
from benchmarks.rig.installation import ROOT, SLOWRANK
from slowrank.client import Client, findings
from slowrank.client.objects import Status

CLUSTER, NODE = "rig", "gpu-host"
LOG = "up.log"
_READY_SECONDS = 60.0


class NotStarted(RuntimeError):
    """A process of the rig did not start, or ended; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Host:
    """A running ``slowrank up``: address and key of its API, and the address of its exporter for the hook."""

    url: str
    key: str
    exporter: str

    def findings(self, cluster: str) -> list[dict[str, Any]]:
        """Return the findings of a cluster that were notified, as ``finding.v1`` with their status."""
        return self._listed(cluster, ["open", "acknowledged", "resolved"])

    def suspected(self, cluster: str) -> list[dict[str, Any]]:
        """Return the findings of a cluster for which the evidence does not suffice yet."""
        return self._listed(cluster, ["suspected"])

    def _listed(self, cluster: str, status: list[Status]) -> list[dict[str, Any]]:
        with Client(self.url, self.key) as api:
            return [
                dict(doc) for doc in api.each(findings.listed(status=status, cluster=cluster, limit=1000))
            ]


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process of the rig: without settings of slowrank, with its packages."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLOWRANK_")}
    path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH")) if part)
    return kept | {"PYTHONPATH": path} | more


@contextmanager
def running(home: Path) -> Iterator[Host]:
    """Start ``slowrank up`` with its log in ``home`` and everything else in a temporary folder.

    Raises ``NotStarted``.
    """
    with tempfile.TemporaryDirectory(prefix="slowrank-gpu-", ignore_cleanup_errors=True) as folder:
        # As root, PostgreSQL runs as nobody, who has to enter it.
        Path(folder).chmod(0o711)
        config, log = Path(folder) / "config", home / LOG
        config.mkdir()
        log.unlink(missing_ok=True)
        exporter = f"127.0.0.1:{free_ports(1)[0]}"
        options = ["--data", f"{folder}/data", "--port", "0", "--listen", exporter]
        process = Process.spawn(
            [*SLOWRANK, "up", *options],
            log=log,
            env=environment(XDG_CONFIG_HOME=str(config), SLOWRANK_CLUSTER=CLUSTER, SLOWRANK_NODE=NODE),
        )
        try:
            url = config / "slowrank/url"
            wait(lambda: url.exists() or not process.alive(), seconds=_READY_SECONDS)
            if not url.exists():
                raise NotStarted(f"`slowrank up` did not start; the last line of {log}: {last_line(log)}")
            yield Host(url.read_text().strip(), (config / "slowrank/key").read_text().strip(), exporter)
        finally:
            process.stop(signal.SIGTERM, seconds=30)
