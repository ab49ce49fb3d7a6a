"""Alertmanager from Debian's package."""

from __future__ import annotations

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
