"""Alertmanager from Debian's package in a private root: no engine, nothing installed."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import urllib.error
import urllib.request
from pathlib import Path

from servers.debian import unpack
from servers.process import CACHE, Process, Run, ServiceError, free_ports, locked, wait_until

# The program needs only its own files and the C library.
SUITE, PACKAGES = "bookworm", ("prometheus-alertmanager", "libc6")
# Stores and shows alerts, notifies no one.
CONFIG = """
global: {{resolve_timeout: {resolve_timeout}}}
route: {{receiver: nobody}}
receivers: [{{name: nobody}}]
"""


class Alertmanager:
    """One Alertmanager on a free loopback port, without a cluster; close() deletes its data.

    An alert without an end ends ``resolve_timeout`` after it was last posted.
    """

    def __init__(self, resolve_timeout: str = "5m") -> None:
        self._config = CONFIG.format(resolve_timeout=resolve_timeout)
        self._run = Run.begin("alertmanager", stop_signal=signal.SIGTERM, shared=False)
        self._folder = _tree() / "run" / self._run.name
        self._run.paths = [self._folder]
        (self.port,) = free_ports(1)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server and wait until it is ready."""
        install()
        self._folder.mkdir(parents=True)
        (self._folder / "alertmanager.yml").write_text(self._config)
        home = f"/run/{self._run.name}"
        options = {
            "config.file": f"{home}/alertmanager.yml",
            "storage.path": f"{home}/data",
            "web.listen-address": f"127.0.0.1:{self.port}",
            "cluster.listen-address": "",
        }
        flags = [f"--{name}={value}" for name, value in options.items()]
        argv = [*_enter(), "/usr/bin/prometheus-alertmanager", *flags]
        self._run.processes["alertmanager"] = Process.spawn(argv, log=self._log)
        self._run.save()
        wait_until(self._ready, seconds=20, what=f"starting Alertmanager (log: {self._log})")

    def close(self) -> None:
        """Stop the server and delete its data."""
        self._run.end()

    @property
    def _log(self) -> Path:
        return self._folder / "alertmanager.log"

    def _ready(self) -> bool:
        if not self._run.processes["alertmanager"].alive():
            raise ServiceError(f"Alertmanager ended while starting:\n{self._log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False


def _home() -> Path:
    return CACHE / f"alertmanager-{hashlib.sha256(repr((SUITE, PACKAGES)).encode()).hexdigest()[:12]}"


def _tree() -> Path:
    return _home() / "root"


def _enter() -> list[str]:
    """The command before one that is to run in the private root."""
    if os.geteuid() == 0:
        return ["chroot", str(_tree())]
    return ["unshare", "--map-root-user", f"--root={_tree()}", "--wd=/"]


def install() -> None:
    """Unpack the packages, once; later calls return at once."""
    with locked("alertmanager"):
        if not (_home() / "unpacked").exists():
            shutil.rmtree(_home(), ignore_errors=True)
            _tree().mkdir(parents=True)
            unpack(PACKAGES, suite=SUITE, into=_tree(), work=_home() / "apt", with_dependencies=False)
            (_home() / "unpacked").touch()
            shutil.rmtree(_home() / "apt")
