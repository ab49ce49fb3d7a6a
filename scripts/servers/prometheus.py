"""Prometheus from Debian's package, and its checker promtool."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from servers.debian_program import DebianProgram
from servers.process import ServiceError

# The program needs only its own files and the C library.
PACKAGES = ("prometheus", "libc6")


class Prometheus(DebianProgram):
    """One Prometheus on a free loopback port; ``start`` takes its configuration as YAML."""

    def __init__(self) -> None:
        super().__init__("prometheus", PACKAGES)

    def start(self, config: str) -> None:
        """Start the server and wait until it is ready."""
        options = {
            "config.file": f"{self.home}/prometheus.yml",
            "storage.tsdb.path": f"{self.home}/data",
            "web.listen-address": f"127.0.0.1:{self.port}",
        }
        self.launch("/usr/bin/prometheus", options, {"prometheus.yml": config})

    def promtool(self, *arguments: str, files: Mapping[str, str] | None = None, stdin: str = "") -> str:
        """Run promtool beside ``files`` and return its output.

        Raises ``ServiceError`` with the output where promtool finds a fault.
        """
        self._install()
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, text in (files or {}).items():
            (self._folder / name).write_text(text)
        inside = [f"{self.home}/{word}" if word in (files or {}) else word for word in arguments]
        command = [*self._enter(), "/usr/bin/promtool", *inside]
        # The private root has no /tmp.
        environment = {**os.environ, "TMPDIR": self.home}
        done = subprocess.run(
            command,
            env=environment,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        if done.returncode:
            raise ServiceError(f"promtool {' '.join(arguments)}: {done.stdout}")
        return done.stdout
