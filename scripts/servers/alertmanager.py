"""Alertmanager and its client amtool from Debian's package."""

from __future__ import annotations

import subprocess

from servers.debian_program import DebianProgram

# The program needs only its own files and the C library.
PACKAGES = ("prometheus-alertmanager", "libc6")
# Stores and shows alerts, notifies no one.
CONFIG = """
global: {{resolve_timeout: {resolve_timeout}}}
route: {{receiver: nobody}}
receivers: [{{name: nobody}}]
"""


class Alertmanager(DebianProgram):
    """One Alertmanager on a free loopback port, without a cluster.

    An alert without an end ends ``resolve_timeout`` after it was last posted.
    """

    def __init__(self, resolve_timeout: str = "5m") -> None:
        super().__init__("alertmanager", PACKAGES)
        self._config = CONFIG.format(resolve_timeout=resolve_timeout)

    def start(self) -> None:
        """Start the server and wait until it is ready."""
        options = {
            "config.file": f"{self.home}/alertmanager.yml",
            "storage.path": f"{self.home}/data",
            "web.listen-address": f"127.0.0.1:{self.port}",
            "cluster.listen-address": "",
        }
        self.launch("/usr/bin/prometheus-alertmanager", options, {"alertmanager.yml": self._config})


class Amtool(DebianProgram):
    """Alertmanager's client; ``url`` is that of a server which speaks its API."""

    def __init__(self) -> None:
        super().__init__("alertmanager", PACKAGES)

    def run(self, url: str, *arguments: str, config: str = "") -> subprocess.CompletedProcess[str]:
        """Run amtool against ``url``, with ``config`` as the file of its HTTP client if there is one."""
        options = [f"--alertmanager.url={url}"]
        if config:
            options.append(f"--http.config.file={self.write('http.yml', config)}")
        argv = self.command("/usr/bin/amtool", *options, *arguments)
        return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
