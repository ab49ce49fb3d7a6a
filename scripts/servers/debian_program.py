"""One program from a Debian package, run in a private root: no engine, nothing installed."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from servers.debian import unpack
from servers.process import CACHE, Process, Run, ServiceError, free_ports, locked, wait_until

SUITE = "bookworm"


class DebianProgram:
    """A program with a page /-/ready on a free loopback port; close() deletes its data.

    ``files`` are written into its folder, which is ``home`` in the private root.
    """

    with_dependencies = False
    """Whether the packages need others that they do not name."""

    def __init__(self, name: str, packages: tuple[str, ...]) -> None:
        self._name, self._packages = name, packages
        self._run = Run.begin(name, stop_signal=signal.SIGTERM, shared=False)
        self._folder = self._tree / "run" / self._run.name
        self._run.paths = [self._folder]
        self.home = f"/run/{self._run.name}"
        (self.port,) = free_ports(1)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def launch(self, program: str, options: Mapping[str, str], files: Mapping[str, str]) -> None:
        """Start ``program`` with its options and wait until it is ready."""
        self._install()
        self._folder.mkdir(parents=True)
        for name, text in files.items():
            (self._folder / name).write_text(text)
        flags = [f"--{name}={value}" for name, value in options.items()]
        self._run.processes[self._name] = Process.spawn([*self._enter(), program, *flags], log=self._log)
        self._run.save()
        wait_until(self._ready, seconds=20, what=f"starting {self._name} (log: {self._log})")

    def command(self, program: str, *arguments: str) -> list[str]:
        """Return the command that runs another program of the packages."""
        self._install()
        return [*self._enter(), program, *arguments]

    def write(self, name: str, text: str) -> str:
        """Write a file for the program and return its path in the private root."""
        self._install()
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / name).write_text(text)
        return f"{self.home}/{name}"

    def close(self) -> None:
        """Stop the program and delete its data."""
        self._run.end()

    @property
    def _log(self) -> Path:
        return self._folder / f"{self._name}.log"

    @property
    def _home(self) -> Path:
        return (
            CACHE / f"{self._name}-{hashlib.sha256(repr((SUITE, self._packages)).encode()).hexdigest()[:12]}"
        )

    @property
    def _tree(self) -> Path:
        return self._home / "root"

    def _enter(self) -> list[str]:
        """The command before one that is to run in the private root."""
        if os.geteuid() == 0:
            return ["chroot", str(self._tree)]
        return ["unshare", "--map-root-user", f"--root={self._tree}", "--wd=/"]

    def _ready(self) -> bool:
        if not self._run.processes[self._name].alive():
            raise ServiceError(f"{self._name} ended while starting:\n{self._log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False

    def _install(self) -> None:
        """Unpack the packages, once; later calls return at once."""
        with locked(self._name):
            if not (self._home / "unpacked").exists():
                shutil.rmtree(self._home, ignore_errors=True)
                self._tree.mkdir(parents=True)
                work = self._home / "apt"
                unpack(
                    self._packages,
                    suite=SUITE,
                    into=self._tree,
                    work=work,
                    with_dependencies=self.with_dependencies,
                )
                (self._home / "unpacked").touch()
                shutil.rmtree(work)
