"""Alertmanager and its client amtool from Debian's package."""

from __future__ import annotations

import subprocess

from servers.debian_program import DebianProgram

# The program needs only its own files and the C library.
PACKAGES = ("prometheus-alertmanager", "libc6")
# Stores and shows alerts; notifies no one but a webhook, if there is one, at once.
CONFIG = """
global: {{resolve_timeout: {resolve_timeout}}}
route: {{receiver: only, group_by: ["..."], group_wait: 0s, group_interval: 1s}}
receivers: [{{name: only{webhook}}}]
"""
WEBHOOK = ', webhook_configs: [{{url: "{url}", http_config: {{authorization: {{credentials: "{token}"}}}}}}]'


class Alertmanager(DebianProgram):
    """One Alertmanager on a free loopback port, without a cluster.

    An alert without an end ends ``resolve_timeout`` after it was last posted. ``webhook`` is the URL that it
    notifies, with ``token``.
    """

    def __init__(self, resolve_timeout: str = "5m", *, webhook: str = "", token: str = "") -> None:
        super().__init__("alertmanager", PACKAGES)
        receiver = WEBHOOK.format(url=webhook, token=token) if webhook else ""
        self._config = CONFIG.format(resolve_timeout=resolve_timeout, webhook=receiver)

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
