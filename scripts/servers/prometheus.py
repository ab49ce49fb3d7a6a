"""Prometheus from Debian's package."""

from __future__ import annotations

from servers.debian_program import DebianProgram

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
